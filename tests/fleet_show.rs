//! What a fleet is asked to show, with bounds that a busy machine keeps too: the exact figures are printed by
//! `cargo bench -p forbear-benches --features fleet --bench fleet`.
#![cfg(feature = "redis")]

#[path = "kit/fleet.rs"]
mod fleet;
#[path = "kit/fleet_http.rs"]
mod fleet_http;
#[path = "kit/fleet_load.rs"]
mod fleet_load;
#[path = "kit/redis_process.rs"]
mod redis_process;

use std::time::{Duration, SystemTime};

use fleet_http::{HttpWorker, RATE, Service};
use fleet_load::{Load, Worker, slots_of};
use forbear::store::Redis;
use forbear::{Ask, Limiter, Policy, Signals};
use http::{HeaderMap, HeaderValue, StatusCode};
use redis_process::RedisProcess;
use tokio::time::{Instant, sleep};

#[test]
fn worker() {
    _ = fleet_load::work() || fleet_http::work();
}

/// Trips that decide: only they read several keys at once.
fn trips(server: &RedisProcess) -> f64 {
    server.calls("mget") as f64
}

#[test]
fn trips_fall_as_load_rises() {
    for (words, workers, tasks, most) in [
        ("bucket 200 1000 20", 8, 1, 1.2),
        ("bucket 200 1000 20", 8, 16, 0.4),
        ("bucket 1000 1000 50", 1, 256, 0.1),
    ] {
        let server = RedisProcess::start();
        let load = Load { tasks, lasts: Duration::from_secs(3), ..Load::new(&server.url(), words) };
        let slots = slots_of(&fleet_load::run(&load, workers));
        fleet::check(words, &slots).unwrap_or_else(|fault| panic!("{words}: {fault}"));
        let a_call = trips(&server) / slots.len() as f64;
        assert!(a_call <= most, "{a_call} trips a call, {workers} x {tasks}, {words}");
    }
}

#[test]
fn nobody_polls_for_a_slot_far_away() {
    let server = RedisProcess::start();
    let load =
        Load { tasks: 1, lasts: Duration::from_secs(9), ..Load::new(&server.url(), "bucket 1 3000 1") };
    let all = (0..8).map(|_| Worker::start(&load)).collect::<Vec<_>>();
    let reports = all.into_iter().map(Worker::report).collect::<Vec<_>>();
    let slots = slots_of(&reports);
    assert!((3..=4).contains(&slots.len()), "{} slots in nine seconds", slots.len());
    // One to learn where the schedule stands, and at most one more for each slot.
    assert!(trips(&server) <= 8.0 * 5.0, "{} trips", trips(&server));
}

#[test]
fn slots_of_those_who_give_up_serve_others() {
    const WORDS: &str = "bucket 200 1000 20";
    let server = RedisProcess::start();
    let load = Load {
        give_up: Some((5, Duration::from_millis(50))),
        arrive: Some(75),
        lasts: Duration::from_secs(6),
        ..Load::new(&server.url(), WORDS)
    };
    let slots = slots_of(&fleet_load::run(&load, 4));
    fleet::check(WORDS, &slots).unwrap_or_else(|fault| panic!("{fault}"));
    let from = slots[0] + 1_000_000;
    let used = slots.iter().filter(|slot| (from..from + 4_000_000).contains(slot)).count();
    assert!(used >= 640, "{used} of 800");
}

#[test]
fn one_who_comes_late_is_not_kept_waiting_by_those_who_take_all() {
    let server = RedisProcess::start();
    let load = Load { lasts: Duration::from_secs(6), ..Load::new(&server.url(), "bucket 200 1000 20") };
    let _crowd = (0..7).map(|_| Worker::start(&load)).collect::<Vec<_>>();
    std::thread::sleep(Duration::from_secs(2));
    let one = Load { tasks: 1, hold: Duration::from_millis(100), lasts: Duration::from_secs(3), ..load };
    let mut waits = Worker::start(&one).report().waits;
    waits.sort_unstable();
    let usual = waits[waits.len() / 2];
    assert!(usual <= 600_000, "{usual} us");
}

/// Most that a machine which is held up at times may refuse of a thousand calls.
const STRAY: usize = 20;

#[test]
fn a_fleet_over_http_is_as_fast_as_the_limit_allows() {
    let (redis, service) = (RedisProcess::start(), Service::start());
    let mut workers = (0..8).map(|_| HttpWorker::start(&redis.url(), &service.url)).collect::<Vec<_>>();
    for (name, of, kill) in [("even", 8, false), ("on two", 2, false), ("one killed", 8, true)] {
        let run = fleet_http::run(&mut workers, &service, 800, of, kill);
        assert_eq!(run.failed, 0, "{name}: {run:?}");
        assert!(run.refused <= STRAY, "{name}: {run:?}");
        assert!(run.of_ideal() <= 1.5, "{name}: {run:?}");
        if !kill {
            assert!(run.jain() >= 0.9, "{name}: {run:?}");
        }
    }
}

#[test]
fn one_429_stops_everyone() {
    const PAUSE: Duration = Duration::from_secs(3);
    let (redis, service) = (RedisProcess::start(), Service::start());
    let mut workers = (0..4).map(|_| HttpWorker::start(&redis.url(), &service.url)).collect::<Vec<_>>();
    workers.iter_mut().for_each(|worker| worker.give(300));
    while service.came().len() < 100 {
        std::thread::sleep(Duration::from_millis(1));
    }
    service.refuse_next(PAUSE.as_secs());
    std::thread::sleep(PAUSE + Duration::from_secs(2));
    let told = service.told_at()[0];
    let since = service.came().into_iter().filter(|at| *at > told).map(|at| at - told).collect::<Vec<_>>();
    let during = since.iter().filter(|at| **at > Duration::from_millis(250) && **at < PAUSE);
    assert_eq!(during.count(), 0, "nothing is sent in a pause");
    let first = since.iter().filter(|at| **at >= PAUSE && **at < PAUSE + Duration::from_secs(1));
    let first = first.count() as f64;
    assert!((0.4 * RATE..=1.2 * RATE).contains(&first), "{first} in the first second after it");
    assert!(service.refused() <= STRAY, "no second wave: {}", service.refused());
}

fn answer(status: StatusCode, retry_after: Option<&'static str>) -> Signals {
    let wait = retry_after.map(|seconds| (http::header::RETRY_AFTER, HeaderValue::from_static(seconds)));
    Signals::read(status, &wait.into_iter().collect::<HeaderMap>(), SystemTime::UNIX_EPOCH)
}

#[tokio::test]
async fn a_lone_soft_429_holds_nobody_else_and_a_row_of_them_everybody() {
    let server = RedisProcess::start();
    let limiter = || {
        let store = Redis::new(server.url()).expect("a good URL");
        Limiter::new(Policy::new("soft").limit("200/s burst 20"), store).expect("a good policy")
    };
    let (one, other) = (limiter(), limiter());
    for limiter in [&one, &other] {
        _ = limiter.acquire("k").await.expect("it goes");
    }
    let refused = answer(StatusCode::TOO_MANY_REQUESTS, Some("1"));
    let took = async |calls: usize| {
        let start = Instant::now();
        for _ in 0..calls {
            _ = other.acquire(Ask::new("k").max_wait(Duration::from_secs(10))).await.expect("it goes");
        }
        start.elapsed()
    };

    one.observe("k", &refused);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(other.peek("k").await.paused(), None);
    let soft = took(10).await;
    assert!(soft < Duration::from_millis(700), "the others go on: {soft:?}");

    // A success between two of them makes the second a lone one.
    one.observe("k", &answer(StatusCode::OK, None));
    one.observe("k", &refused);
    sleep(Duration::from_millis(50)).await;
    assert_eq!(other.peek("k").await.paused(), None);

    // Of two workers; news takes its time, so a row must have gone on.
    for _ in 0..2 {
        sleep(Duration::from_millis(150)).await;
        one.observe("k", &refused);
    }
    sleep(Duration::from_millis(50)).await;
    let hard = took(1).await;
    assert!(hard > Duration::from_millis(700), "a row of them holds the key: {hard:?}");
}
