//! The load test of the field notes on the layer, in virtual time: three scenarios, all limiters.
//!
//! 10 requests a second for each caller (token bucket: capacity 10; leaky bucket: queue 10; 4 at once).
//! What counts is the most that the backend saw in any span of a second, beside how many were admitted.

mod support;

use std::convert::Infallible;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use forbear::{Limit, Policy, Rate, store::Local};
use forbear_server::{Key, LimitLayer};
use http::{Request, Response};
use http_body_util::Full;
use support::from;
use tokio::time::{Instant, sleep, sleep_until};
use tower::{Layer, ServiceExt};

const TEN: Rate = Rate::per_second(10);

struct Seen {
    /// When the backend saw each request, in milliseconds.
    at: Vec<u64>,
    /// How long each admitted request took, in milliseconds, sorted.
    took: Vec<u64>,
    refused: usize,
    /// The longest that a refusal took.
    slowest_refusal: u64,
}

impl Seen {
    /// The most requests in any span of a second.
    fn most(&self) -> usize {
        let in_span = |from: u64| self.at.iter().filter(|at| (from..from + 1_000).contains(at)).count();
        self.at.iter().map(|at| in_span(*at)).max().unwrap_or(0)
    }

    fn p95(&self) -> u64 {
        self.took[(self.took.len() * 95).div_ceil(100) - 1]
    }
}

/// Sends requests of one caller at these milliseconds to a backend that takes a while.
async fn run(limit: Limit, takes: Duration, times: impl IntoIterator<Item = u64>) -> Seen {
    let policy = Policy::new("caller").limit(limit);
    let layer = LimitLayer::new(policy, Key::peer(), Local::new()).build().expect("a layer");
    let start = Instant::now();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let backend = {
        let seen = seen.clone();
        tower::service_fn(move |_: Request<()>| {
            seen.lock().expect("nobody panicked").push(start.elapsed().as_millis() as u64);
            async move {
                sleep(takes).await;
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("well")))
            }
        })
    };
    let service = layer.layer(backend);
    let calls = times.into_iter().map(|at| {
        let service = service.clone();
        tokio::spawn(async move {
            sleep_until(start + Duration::from_millis(at)).await;
            let sent = Instant::now();
            let response = service.oneshot(from("192.0.2.1")).await.unwrap();
            (response.status().as_u16(), sent.elapsed().as_millis() as u64)
        })
    });
    let (mut took, mut refusals) = (Vec::new(), Vec::new());
    for call in calls.collect::<Vec<_>>() {
        match call.await.expect("no panic") {
            (200, millis) => took.push(millis),
            (429 | 503, millis) => refusals.push(millis),
            (status, _) => panic!("{status}"),
        }
    }
    took.sort_unstable();
    let at = seen.lock().expect("nobody panicked").clone();
    assert_eq!(at.len(), took.len());
    Seen { at, took, refused: refusals.len(), slowest_refusal: refusals.into_iter().max().unwrap_or(0) }
}

/// A burst across the boundary: 1 at 0 ms, 9 at 900 ms, 10 at 1100 ms.
async fn scenario_1(limit: Limit) -> Seen {
    let times = [0].into_iter().chain([900; 9]).chain([1_100; 10]);
    run(limit, Duration::ZERO, times).await
}

/// Sustained overload: 30 a second, evenly spaced, for 3 s.
async fn scenario_2(limit: Limit) -> Seen {
    run(limit, Duration::ZERO, (0..90).map(|i| i * 1_000 / 30)).await
}

async fn check(limit: Limit, most: RangeInclusive<usize>, admitted: RangeInclusive<usize>) {
    let burst = scenario_1(limit.clone()).await;
    assert!(most.contains(&burst.most()), "{limit:?}: {} in a second", burst.most());
    let overload = scenario_2(limit.clone()).await;
    assert!(admitted.contains(&overload.at.len()), "{limit:?}: {} of 90 admitted", overload.at.len());
    assert_eq!(overload.at.len() + overload.refused, 90);
    assert_eq!(burst.slowest_refusal.max(overload.slowest_refusal), 0, "refusals are at once");
}

#[tokio::test(start_paused = true)]
async fn fixed_window() {
    check(Limit::fixed_window(TEN), 19..=19, 30..=30).await;
}

#[tokio::test(start_paused = true)]
async fn sliding_log() {
    check(Limit::sliding_log(TEN), 10..=10, 30..=30).await;
    assert!(scenario_2(Limit::sliding_log(TEN)).await.most() <= 10);
}

#[tokio::test(start_paused = true)]
async fn sliding_window_of_segments() {
    check(Limit::sliding_window(TEN, 10), 10..=10, 30..=30).await;
    // Never more than 10 in any window of whole segments, which begin with the first request.
    let seen = scenario_2(Limit::sliding_window(TEN, 10)).await;
    for first in 0..30 {
        let window = first * 100..first * 100 + 1_000;
        let count = seen.at.iter().filter(|at| window.contains(*at)).count();
        assert!(count <= 10, "{count} from {} ms on", first * 100);
    }
}

#[tokio::test(start_paused = true)]
async fn sliding_counter() {
    check(Limit::sliding_counter(TEN), 10..=10, 28..=30).await;
}

#[tokio::test(start_paused = true)]
async fn token_bucket() {
    check(Limit::token_bucket(TEN, 10), 12..=13, 39..=40).await;
}

#[tokio::test(start_paused = true)]
async fn leaky_bucket() {
    check(Limit::leaky_bucket(TEN, 10), 10..=11, 40..=41).await;
    let p95 = scenario_2(Limit::leaky_bucket(TEN, 10)).await.p95();
    assert!((950..=1_050).contains(&p95), "p95 of {p95} ms");
}

#[tokio::test(start_paused = true)]
async fn plain_rate() {
    for seen in [scenario_1(Limit::rate(TEN)).await, scenario_2(Limit::rate(TEN)).await] {
        assert!(seen.most() <= 10, "{} in a second", seen.most());
    }
}

/// A slow backend: 20 at once, each takes 250 ms.
#[tokio::test(start_paused = true)]
async fn concurrency() {
    let seen = run(Limit::concurrency(4), Duration::from_millis(250), [0; 20]).await;
    assert_eq!((seen.at.len(), seen.refused), (4, 16));
    assert!(seen.slowest_refusal <= 2, "a refusal took {} ms", seen.slowest_refusal);
}

/// Two replicas that share nothing let twice the numbers through; that is what a shared store is for.
#[tokio::test(start_paused = true)]
async fn two_replicas_with_local_stores_double_each_number() {
    let half = |i: u64| (0..90).filter(move |n| n % 2 == i).map(|n| n * 1_000 / 30);
    for limit in [Limit::fixed_window(TEN), Limit::sliding_log(TEN)] {
        let one = run(limit.clone(), Duration::ZERO, half(0)).await;
        let other = run(limit, Duration::ZERO, half(1)).await;
        assert_eq!(one.at.len() + other.at.len(), 60);
    }
}
