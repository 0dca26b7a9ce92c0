//! All limiters side by side under one load, on the layer and in virtual time: three scenarios.
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
    run_on(&[Local::new()], limit, takes, times).await
}

/// The same with a replica for each store; requests go to them in turn.
async fn run_on(
    stores: &[Local],
    limit: Limit,
    takes: Duration,
    times: impl IntoIterator<Item = u64>,
) -> Seen {
    let replica = |store| {
        let policy = Policy::new("caller").limit(limit.clone());
        LimitLayer::new(policy, Key::peer(), store).build().expect("a layer")
    };
    let layers = stores.iter().map(replica).collect::<Vec<_>>();
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
    let services = layers.iter().map(|layer| layer.layer(backend.clone())).collect::<Vec<_>>();
    let calls = times.into_iter().enumerate().map(|(i, at)| {
        let service = services[i % services.len()].clone();
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
    run(limit, Duration::ZERO, overload()).await
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

/// The numbers of one process, limiter by limiter: at most this many of 90 are admitted.
fn limits() -> [(Limit, usize); 6] {
    [
        (Limit::fixed_window(TEN), 30),
        (Limit::sliding_log(TEN), 30),
        (Limit::sliding_window(TEN, 10), 30),
        (Limit::sliding_counter(TEN), 30),
        (Limit::token_bucket(TEN, 10), 40),
        (Limit::leaky_bucket(TEN, 10), 41),
    ]
}

fn overload() -> impl Iterator<Item = u64> {
    (0..90).map(|i| i * 1_000 / 30)
}

/// Two replicas that share nothing let twice the numbers through; that is what a shared store is for.
#[tokio::test(start_paused = true)]
async fn two_replicas_with_stores_of_their_own_double_each_number() {
    for (limit, most) in limits() {
        let seen = run_on(&[Local::new(), Local::new()], limit.clone(), Duration::ZERO, overload()).await;
        assert!(seen.at.len() > most * 9 / 5, "{limit:?}: {} of 90 admitted", seen.at.len());
    }
    let stores = [Local::new(), Local::new()];
    let seen = run_on(&stores, Limit::concurrency(4), Duration::from_millis(250), [0; 20]).await;
    assert_eq!((seen.at.len(), seen.refused), (8, 12));
}

#[tokio::test(start_paused = true)]
async fn two_layers_on_one_store_keep_each_number() {
    let store = Local::new();
    let both = [store.clone(), store];
    let seen = run_on(&both, Limit::concurrency(4), Duration::from_millis(250), [0; 20]).await;
    assert_eq!((seen.at.len(), seen.refused), (4, 16));
    for (limit, most) in limits() {
        let store = Local::new();
        let seen = run_on(&[store.clone(), store], limit.clone(), Duration::ZERO, overload()).await;
        if limit == Limit::leaky_bucket(TEN, 10) {
            // The rate is the store's; the places in the queue are each layer's own.
            assert!(seen.most() <= 11, "{} in a second", seen.most());
            continue;
        }
        assert!((most - 2..=most).contains(&seen.at.len()), "{limit:?}: {} of 90 admitted", seen.at.len());
    }
}
