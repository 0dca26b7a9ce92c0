//! What forbear is for, in one run: the same job done twice against a server that really limits its callers.
//!
//! The server allows 50 requests a second with a burst of 10, and answers what is above with 429. A plain
//! client retries with exponential backoff, as most do. The wrapped one knows the limit.
//!
//! ```text
//! cargo run --release --example quickstart
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forbear::{Policy, store::Local};
use forbear_server::{Key, LimitLayer};
use http::{Request, Response, StatusCode};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};

const CALLS: u64 = 300;
const TASKS: u64 = 32;
/// What the server allows, and what the wrapped client is told.
const LIMIT: &str = "50/s burst 10";
/// The burst goes at once, the rest at 50 a second.
const IDEAL: Duration = Duration::from_millis((CALLS - 10) * 1_000 / 50);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let ideal = IDEAL.as_secs_f64();
    println!("{CALLS} calls from {TASKS} tasks; the server allows {LIMIT}, so {ideal:.1} s at best\n");

    let server = Server::start().await?;
    let (client, url) = (reqwest::Client::new(), server.url.clone());
    let call = move || {
        let (client, url) = (client.clone(), url.clone());
        async move { retry_with_backoff(&client, &url).await }
    };
    let plain = run("plain client", &server, call).await;

    // A server of its own, so that both begin with a full bucket.
    let server = Server::start().await?;
    // This is all: wrap the client once, and call as before.
    let client = forbear::wrap(reqwest::Client::new(), Policy::new("demo").limit(LIMIT))?;
    let url = server.url.clone();
    let call = move || {
        let (client, url) = (client.clone(), url.clone());
        async move { client.get(&*url).send().await.is_ok_and(|response| response.status() == StatusCode::OK) }
    };
    let wrapped = run("wrapped client", &server, call).await;

    print_table(&[("plain, exponential backoff", &plain), ("wrapped by forbear", &wrapped)]);
    match plain.failed + wrapped.failed {
        0 => Ok(()),
        failed => Err(format!("{failed} calls failed").into()),
    }
}

/// What most callers do about a 429: wait a little, then twice as long, and so on, with jitter.
async fn retry_with_backoff(client: &reqwest::Client, url: &str) -> bool {
    let mut backoff = Duration::from_millis(100);
    loop {
        match client.get(url).send().await {
            Ok(response) if response.status() == StatusCode::TOO_MANY_REQUESTS => {
                tokio::time::sleep(backoff.mul_f64(fastrand::f64())).await;
                backoff = (backoff * 2).min(Duration::from_secs(5));
            }
            Ok(response) => return response.status() == StatusCode::OK,
            Err(_) => return false,
        }
    }
}

/// What one job came to.
struct Outcome {
    time: Duration,
    failed: u64,
    worst: Duration,
    answers: u64,
    refused: u64,
}

/// Makes all calls from as many tasks as there are, and measures.
async fn run<F>(name: &'static str, server: &Server, call: impl Fn() -> F + Clone + Send + 'static) -> Outcome
where
    F: Future<Output = bool> + Send,
{
    let style = ProgressStyle::with_template("{prefix:15} {bar:40} {pos:>3}/{len}").expect("it is valid");
    let progress = ProgressBar::new(CALLS).with_style(style).with_prefix(name);
    let next = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let tasks = (0..TASKS).map(|_| {
        let (next, progress, call) = (next.clone(), progress.clone(), call.clone());
        tokio::spawn(async move {
            let (mut worst, mut failed) = (Duration::ZERO, 0);
            while next.fetch_add(1, Ordering::Relaxed) < CALLS {
                let began = Instant::now();
                failed += u64::from(!call().await);
                worst = worst.max(began.elapsed());
                progress.inc(1);
            }
            (worst, failed)
        })
    });
    let (mut worst, mut failed) = (Duration::ZERO, 0);
    for task in tasks.collect::<Vec<_>>() {
        let (worst_of_task, failed_of_task) = task.await.expect("it does not panic");
        worst = worst.max(worst_of_task);
        failed += failed_of_task;
    }
    let time = start.elapsed();
    progress.finish();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Outcome { time, failed, worst, answers: count(&server.answers), refused: count(&server.refused) }
}

fn print_table(rows: &[(&str, &Outcome)]) {
    println!("\n{:27} {:>8} {:>9} {:>6} {:>5} {:>10}", "", "time", "of ideal", "calls", "429s", "worst wait");
    for (name, Outcome { time, worst, answers, refused, .. }) in rows {
        let (time, worst) = (time.as_secs_f64(), worst.as_secs_f64());
        let of_ideal = time / IDEAL.as_secs_f64();
        println!("{name:27} {time:>6.2} s {of_ideal:>9.3} {answers:>6} {refused:>5} {worst:>8.2} s");
    }
}

/// A real HTTP server on loopback, limited by `forbear-server`, that counts its answers.
struct Server {
    url: Arc<str>,
    answers: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
}

impl Server {
    async fn start() -> Result<Self, Box<dyn Error>> {
        let policy = Policy::new("everyone").limit(LIMIT);
        let limits = LimitLayer::new(policy, Key::everyone(), Local::new()).build()?;
        let hello = service_fn(async |_: Request<hyper::body::Incoming>| {
            Ok::<_, Infallible>(Response::new(http_body_util::Full::<bytes::Bytes>::from("hello")))
        });
        let (answers, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (all, no) = (answers.clone(), refused.clone());
        let counted = limits.layer(hello).map_response(move |response| {
            all.fetch_add(1, Ordering::Relaxed);
            no.fetch_add(u64::from(response.status() == StatusCode::TOO_MANY_REQUESTS), Ordering::Relaxed);
            response
        });
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let url = format!("http://{}/", listener.local_addr()?).into();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(counted.clone());
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(Self { url, answers, refused })
    }
}
