//! What each limiter really lets through, over real HTTP: three scenarios, every limiter, one process.
//!
//! Each caller may send 10 requests a second (token bucket: capacity 10; leaky bucket: queue 10), or 4 at
//! once. The figure that matters is the most that the backend saw in any span of a second, at the instants of
//! the decisions.
//!
//! ```text
//! cargo run --release -p forbear-server --example side_by_side
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::{Router, routing::get};
use forbear::{Limit, Policy, Rate, store::Local};
use forbear_server::{Key, LimitLayer};
use http::Request;
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, sleep_until};

const TEN: Rate = Rate::per_second(10);

/// A name, a limit, and what the scenarios ought to show.
struct Row {
    name: &'static str,
    limit: Limit,
    burst: &'static str,
    overload: &'static str,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let row = |name, limit, burst, overload| Row { name, limit, burst, overload };
    let rows = [
        row("fixed window", Limit::fixed_window(TEN), "19", "30"),
        row("sliding log", Limit::sliding_log(TEN), "10", "30"),
        row("segmented window of 10", Limit::sliding_window(TEN, 10), "10", "30"),
        row("weighted counter", Limit::sliding_counter(TEN), "10", "28 to 30"),
        row("token bucket of 10", Limit::token_bucket(TEN, 10), "12 or 13", "39 or 40"),
        row("leaky bucket, queue 10", Limit::leaky_bucket(TEN, 10), "10 or 11", "40 or 41"),
    ];
    // A burst across the boundary of a window; and 30 a second, evenly spaced, for 3 s.
    let burst = || [0].into_iter().chain([900; 9]).chain([1_100; 10]);
    let overload = || (0..90).map(|i| i * 1_000 / 30);
    let runs = rows.map(|row| {
        tokio::spawn(async move {
            let first = run(row.limit.clone(), Duration::ZERO, burst()).await?;
            let second = run(row.limit.clone(), Duration::ZERO, overload()).await?;
            Ok::<_, Box<dyn Error + Send + Sync>>((row, first, second))
        })
    });
    println!(
        "{:24} {:>18} {:>16} {:>20} {:>14} {:>8}",
        "", "1: most in any 1 s", "ought to be", "2: admitted of 90", "ought to be", "p95"
    );
    for finished in runs {
        let (row, first, second) = finished.await?.map_err(|error| error.to_string())?;
        let (most, admitted, p95) = (first.most(), second.took.len(), second.p95().as_millis());
        println!(
            "{:24} {most:>18} {:>16} {admitted:>20} {:>14} {p95:>5} ms",
            row.name, row.burst, row.overload
        );
    }
    // A slow backend: 20 at once, each takes 250 ms.
    let slow = run(Limit::concurrency(4), Duration::from_millis(250), [0; 20])
        .await
        .map_err(|error| error.to_string())?;
    println!(
        "\n3: 20 at once on 4 seats: {} at once (ought to be 4), {} refused (16), each within {:.1} ms",
        slow.at.len(),
        slow.refused.len(),
        slow.refused.iter().max().map_or(0.0, |longest| longest.as_secs_f64() * 1_000.0),
    );
    Ok(())
}

/// What a backend and its callers saw.
struct Seen {
    /// When the backend saw each request.
    at: Vec<Duration>,
    /// How long each admitted request took, sorted.
    took: Vec<Duration>,
    /// How long each refusal took.
    refused: Vec<Duration>,
}

impl Seen {
    fn most(&self) -> usize {
        let second = Duration::from_secs(1);
        let from = |from: Duration| self.at.iter().filter(|at| (from..from + second).contains(at)).count();
        self.at.iter().map(|at| from(*at)).max().unwrap_or(0)
    }

    fn p95(&self) -> Duration {
        self.took[(self.took.len() * 95).div_ceil(100) - 1]
    }
}

/// Serves one limit, and sends requests of one caller at these milliseconds.
async fn run(
    limit: Limit,
    takes: Duration,
    times: impl IntoIterator<Item = u64>,
) -> Result<Seen, Box<dyn Error + Send + Sync>> {
    let layer = LimitLayer::new(Policy::new("caller").limit(limit), Key::peer(), Local::new()).build()?;
    let (start, seen) = (Instant::now() + Duration::from_millis(200), Arc::new(Mutex::new(Vec::new())));
    let backend = {
        let seen = seen.clone();
        get(async move || {
            seen.lock().expect("nobody panicked").push(Instant::now().saturating_duration_since(start));
            sleep(takes).await;
            "well"
        })
    };
    let app =
        Router::new().route("/", backend).layer(layer).into_make_service_with_connect_info::<SocketAddr>();
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let calls = times.into_iter().map(|at| {
        tokio::spawn(async move {
            // A connection of its own, made beforehand, so that only the request is on the way.
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            sleep_until(start + Duration::from_millis(at)).await;
            let sent = Instant::now();
            let request = Request::get("/").header("host", "localhost").body(Empty::<bytes::Bytes>::new())?;
            let status = sender.send_request(request).await?.status();
            Ok::<_, Box<dyn Error + Send + Sync>>((status.as_u16(), sent.elapsed()))
        })
    });
    let (mut took, mut refused) = (Vec::new(), Vec::new());
    for call in calls.collect::<Vec<_>>() {
        match call.await?? {
            (200, time) => took.push(time),
            (429 | 503, time) => refused.push(time),
            (status, _) => return Err(format!("an answer of {status}").into()),
        }
    }
    server.abort();
    took.sort_unstable();
    let at = seen.lock().expect("nobody panicked").clone();
    Ok(Seen { at, took, refused })
}
