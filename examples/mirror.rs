//! Client against server, over real HTTP: every limiter side by side, on both sides the same limit, and the
//! plain rate on the client for those who know only the number.
//!
//! A thousand calls are offered to each server at twice its pace. A client that mirrors the limit is not
//! answered 429, at most once in a thousand calls, and uses 95 % and more of it. Half of the runs go on at a
//! time; each is done three times, and the median counts.
//!
//! ```text
//! cargo run --release --example mirror
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forbear::{Client, Limit, Policy, Rate, Refused, store::Local};
use forbear_server::{Key, LimitLayer};
use http::{Request, Response, StatusCode};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};

const CALLS: u32 = 1_000;
const RUNS: u64 = 3;
/// N, and the window.
const N: u64 = 100;
const WINDOW: Duration = Duration::from_secs(1);
const RATE: Rate = Rate::new(N, WINDOW);
/// From one call to the next: twice the limit's pace.
const PACE: Duration = Duration::from_millis(5);
/// Runs that go on together begin so much after one another, so that their bursts do not meet.
const APART: Duration = Duration::from_millis(150);

/// What is compared: the server's limit and the client's.
#[derive(Clone)]
struct Pair {
    name: &'static str,
    server: Limit,
    client: Option<Limit>,
}

fn pairs() -> [Vec<Pair>; 2] {
    let limiters = [
        ("token bucket, 20 at once", Limit::token_bucket(RATE, 20)),
        ("leaky bucket, queue of 20", Limit::leaky_bucket(RATE, 20)),
        ("fixed window", Limit::fixed_window(RATE)),
        ("sliding log", Limit::sliding_log(RATE)),
        ("sliding window, 10 segments", Limit::sliding_window(RATE, 10)),
        ("sliding counter", Limit::sliding_counter(RATE)),
    ];
    let same = limiters.clone().map(|(name, server)| Pair { name, server, client: None });
    let plain = limiters.map(|(name, server)| Pair { name, server, client: Some(Limit::rate(RATE)) });
    [same.into(), plain.into()]
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("{CALLS} calls to each server at twice its {RATE}; median of {RUNS} runs\n");
    let style = ProgressStyle::with_template("{bar:40} {pos:>5}/{len} calls")?;
    let halves = pairs();
    let all = halves.iter().map(Vec::len).sum::<usize>() as u64 * RUNS * u64::from(CALLS);
    let progress = ProgressBar::new(all).with_style(style);
    let mut rows = Vec::new();
    for half in halves {
        let mut runs = vec![Vec::new(); half.len()];
        for _ in 0..RUNS {
            let tasks = half.iter().zip(0..).map(|(pair, i)| {
                let (pair, progress) = (pair.clone(), progress.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(APART * i).await;
                    run(&pair, progress).await.expect("a loopback server can be started")
                })
            });
            for (task, runs) in tasks.collect::<Vec<_>>().into_iter().zip(&mut runs) {
                runs.push(task.await?);
            }
        }
        rows.extend(half.into_iter().zip(runs));
    }
    progress.finish();
    println!("\n{:28} {:14} {:>6} {:>6} {:>6}", "server", "client", "calls", "429s", "used");
    for (pair, runs) in rows {
        let client = if pair.client.is_some() { "plain rate" } else { "the same" };
        let (refused, used) =
            (median(runs.iter().map(|run| run.refused)), median(runs.iter().map(|run| run.used)));
        let used = f64::from(used) / 10.0;
        println!("{:28} {client:14} {:>6} {refused:>6} {used:>5.1}%", pair.name, runs[0].calls);
    }
    println!("\nused: of N in each window after the first; of ten segments a client can use ten elevenths.");
    println!("A leaky bucket's client refuses by itself what its queue cannot hold; those are no calls.");
    Ok(())
}

/// What one run came to.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// That were let go by the client.
    calls: u32,
    refused: u32,
    /// Thousandths of N.
    used: u32,
}

fn median(numbers: impl Iterator<Item = u32>) -> u32 {
    let mut numbers = numbers.collect::<Vec<_>>();
    numbers.sort_unstable();
    numbers[numbers.len() / 2]
}

async fn run(pair: &Pair, progress: ProgressBar) -> Result<Run, Box<dyn Error + Send + Sync>> {
    let server = Server::start(Policy::new("server").limit(&pair.server)).await?;
    let limit = pair.client.as_ref().unwrap_or(&pair.server);
    let client = forbear::wrap(reqwest::Client::new(), Policy::new("api").limit(limit))?;
    let start = Instant::now();
    let calls = (0..CALLS).map(|i| {
        let (client, url, progress) = (client.clone(), server.url.clone(), progress.clone());
        tokio::spawn(async move {
            tokio::time::sleep_until(start + PACE * i).await;
            let sent = call(&client, &url).await;
            progress.inc(1);
            sent
        })
    });
    let mut sent = 0;
    for call in calls.collect::<Vec<_>>() {
        sent += u32::from(call.await?);
    }
    let seen = server.seen.lock().expect("nobody panics with it");
    Ok(Run { calls: sent, refused: seen.refused, used: used(&seen.admitted) })
}

/// Whether our own limits let the call go; it has to do well then.
async fn call(client: &Client, url: &str) -> bool {
    match client.get(url).send().await {
        Ok(response) => {
            assert_eq!(response.status(), StatusCode::OK, "429s are tried again");
            true
        }
        Err(error) => {
            assert!(Refused::of(&error).is_some(), "{error:?}");
            false
        }
    }
}

/// Thousandths of N that were admitted in whole windows after the first, while there was demand.
fn used(admitted: &[Instant]) -> u32 {
    let first = *admitted.iter().min().expect("some were admitted");
    let last = *admitted.iter().max().expect("some were admitted");
    let windows = ((last - first).as_secs_f64() / WINDOW.as_secs_f64()) as u32;
    let counted = first + WINDOW..first + WINDOW * windows;
    let used = admitted.iter().filter(|at| counted.contains(at)).count() as u32;
    used * 1_000 / (N as u32 * (windows - 1))
}

#[derive(Default)]
struct Seen {
    /// When each was answered.
    admitted: Vec<Instant>,
    refused: u32,
}

/// A real HTTP server on loopback, limited by `forbear-server`.
struct Server {
    url: Arc<str>,
    seen: Arc<Mutex<Seen>>,
}

impl Server {
    async fn start(policy: Policy) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let limits = LimitLayer::new(policy, Key::everyone(), Local::new()).build()?;
        let hello = service_fn(async |_: Request<hyper::body::Incoming>| {
            Ok::<_, Infallible>(Response::new(http_body_util::Full::<bytes::Bytes>::from("hello")))
        });
        let seen = Arc::new(Mutex::new(Seen::default()));
        let noted = seen.clone();
        let watched = limits.layer(hello).map_response(move |response| {
            let mut seen = noted.lock().expect("nobody panics with it");
            match response.status() {
                StatusCode::TOO_MANY_REQUESTS => seen.refused += 1,
                _ => seen.admitted.push(Instant::now()),
            }
            drop(seen);
            response
        });
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let url = format!("http://{}/", listener.local_addr()?).into();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(watched.clone());
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(Self { url, seen })
    }
}
