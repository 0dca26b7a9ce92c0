//! Refuses as fast as it can for a while, and shows what that costs: memory, malformed answers, and the
//! latency of a route that is not limited beside its usual pace.
//!
//! ```text
//! cargo run --release -p forbear-server --example flood          # 10 s at 100,000 a second
//! cargo run --release -p forbear-server --example flood -- 3 0   # 3 s, as fast as it goes
//! cargo run --release -p forbear-server --example flood -- 10 0 5000000   # by 5 million callers
//! ```
//!
//! Requests go to the service itself, without sockets, so that the layer is what is measured. The process
//! ends with an error if an answer was malformed or memory grew by more than 8 MiB.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use forbear::{Policy, store::Local};
use forbear_server::{Key, LimitLayer};
use http::Request;
use tower::ServiceExt;

/// Requests that are offered together; then the flooder rests until its next turn.
const BATCH: u64 = 100;
const FLOODERS: u64 = 2;
/// Before memory is looked at for the first time: until as many keys are kept as may be.
const WARM_UP: Duration = Duration::from_secs(2);

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn to(path: &str, caller: u64) -> Request<Body> {
    let request = Request::builder().uri(path).header("x-caller", caller.to_string());
    request.body(Body::empty()).expect("a request")
}

/// Asks the route that is not limited every millisecond. From when each request was due to its answer, the
/// time until a thread was free included; in microseconds, sorted.
async fn pace(app: &Router, time: Duration) -> Vec<u64> {
    let start = tokio::time::Instant::now();
    let mut took = Vec::with_capacity(time.as_millis() as usize);
    for millis in 1..=time.as_millis() as u64 {
        let due = start + Duration::from_millis(millis);
        tokio::time::sleep_until(due).await;
        let response = app.clone().oneshot(to("/other", 0)).await.expect("an answer");
        assert_eq!(response.status(), 200);
        took.push(due.elapsed().as_micros() as u64);
    }
    took.sort_unstable();
    took
}

fn show(what: &str, took: &[u64]) {
    let at = |percent: usize| took[(took.len() * percent).div_ceil(100).max(1) - 1];
    println!("{what}: p50 {} us, p99 {} us, most {} us, of {}", at(50), at(99), at(100), took.len());
}

/// Whether a refusal says all that it has to.
fn well_formed(response: &http::Response<Body>) -> bool {
    let field = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let wait = field("retry-after").and_then(|wait| wait.parse::<u64>().ok());
    wait.is_some_and(|wait| wait >= 1)
        && field("ratelimit").is_some_and(|text| text.starts_with("\"requests/h\";r=0;t="))
        && field("ratelimit-policy") == Some("\"requests/h\";q=10;w=3600")
        && field("x-ratelimit-policy") == Some("requests/h")
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().map_or(Ok(10), |text| text.parse::<u64>())?.max(1);
    let rate = arguments.next().map_or(Ok(100_000), |text| text.parse::<u64>())?;
    let callers = arguments.next().map_or(Ok(16), |text| text.parse::<u64>())?.max(1);
    let time = Duration::from_secs(seconds);

    let policy = Policy::new("caller").limit("10/h burst 10");
    let layer = LimitLayer::new(policy, Key::header("x-caller"), Local::new()).build()?;
    let app = Router::new().route("/limited", get(|| async { "well" })).layer(layer);
    let app = app.route("/other", get(|| async { "well" }));

    show("another route, usually", &pace(&app, Duration::from_secs(1)).await);
    let counts = Arc::new([const { AtomicU64::new(0) }; 3]);
    let stop = Arc::new(AtomicBool::new(false));
    let start = tokio::time::Instant::now();
    let flooders = (0..FLOODERS).map(|flooder| {
        let (app, counts, stop) = (app.clone(), counts.clone(), stop.clone());
        tokio::spawn(async move {
            let [refused, passed, malformed] = &*counts;
            let mut offered = 0;
            while !stop.load(Ordering::Relaxed) {
                for i in 0..BATCH {
                    let response = app
                        .clone()
                        .oneshot(to("/limited", (offered + i) * FLOODERS % callers + flooder))
                        .await;
                    let response = response.expect("an answer");
                    match response.status().as_u16() {
                        429 => refused.fetch_add(1, Ordering::Relaxed),
                        _ => passed.fetch_add(1, Ordering::Relaxed),
                    };
                    if response.status() == 429 && !well_formed(&response) {
                        malformed.fetch_add(1, Ordering::Relaxed);
                    }
                }
                offered += BATCH;
                if rate > 0 {
                    let due = Duration::from_secs_f64(offered as f64 * FLOODERS as f64 / rate as f64);
                    tokio::time::sleep_until(start + due).await;
                }
                tokio::task::yield_now().await;
            }
        })
    });
    let flooders = flooders.collect::<Vec<_>>();
    tokio::time::sleep(WARM_UP).await;
    let before = resident_kib();
    let took = pace(&app, time).await;
    let after = resident_kib();
    stop.store(true, Ordering::Relaxed);
    for flooder in flooders {
        flooder.await?;
    }
    let elapsed = start.elapsed().as_secs_f64();
    let [refused, passed, malformed] = [0, 1, 2].map(|i: usize| counts[i].load(Ordering::Relaxed));

    show("another route, in the flood", &took);
    println!("refused: {refused}, {:.0} a second; passed: {passed}", refused as f64 / elapsed);
    println!("malformed answers: {malformed}");
    println!("resident: {before} KiB before, {after} KiB after");
    if malformed > 0 || after > before + 8 * 1_024 {
        return Err("a refusal was malformed, or memory grew".into());
    }
    Ok(())
}
