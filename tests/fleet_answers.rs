//! What the answers of a service mean to a fleet: of all answers each worker hears a few, and a 429 to one says
//! little about the key. On real Redis servers.
#![cfg(feature = "redis")]

#[path = "kit/redis_process.rs"]
mod redis_process;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forbear::store::Redis;
use forbear::{Ask, Limit, Limiter, Policy, Rate, Signals};
use http::{HeaderMap, HeaderValue, StatusCode};
use parking_lot::Mutex;
use redis_process::RedisProcess;
use tokio::time::{Instant, sleep, sleep_until};

/// Long enough for news to be heard.
const HEARD: Duration = Duration::from_millis(150);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn answer(status: StatusCode) -> Signals {
    let wait = (http::header::RETRY_AFTER, HeaderValue::from_static("1"));
    Signals::read(status, &HeaderMap::from_iter([wait]), SystemTime::UNIX_EPOCH)
}

fn well() -> Signals {
    Signals::read(StatusCode::OK, &HeaderMap::new(), SystemTime::UNIX_EPOCH)
}

/// Two workers that know of each other.
async fn two_workers(server: &RedisProcess, limit: Limit) -> [Limiter; 2] {
    let limiters = [(); 2].map(|()| {
        let store = Redis::new(server.url()).expect("a good URL");
        let limiter = Limiter::new(Policy::new("answers").limit(limit.clone()), store.clone());
        (limiter.expect("a good policy"), store)
    });
    for (limiter, _) in &limiters {
        drop(limiter.acquire("k").await.expect("it goes"));
    }
    let start = Instant::now();
    while limiters.iter().any(|(_, store)| store.health().workers() != Some(2)) {
        assert!(start.elapsed() < Duration::from_secs(10), "both are seen");
        sleep(ms(5)).await;
    }
    limiters.map(|(limiter, _)| limiter)
}

#[tokio::test]
async fn alternating_answers_hold_nobody_although_one_worker_hears_429s_only() {
    let server = RedisProcess::start();
    let [refused, served] = two_workers(&server, Limit::token_bucket(Rate::per_second(200), 20)).await;
    for _ in 0..10 {
        refused.observe("k", &answer(StatusCode::TOO_MANY_REQUESTS));
        sleep(HEARD).await;
        assert_eq!(refused.peek("k").await.paused(), None);
        served.observe("k", &well());
        sleep(HEARD).await;
    }
}

#[tokio::test]
async fn when_everything_is_refused_everyone_is_held_whoever_heard_it() {
    let server = RedisProcess::start();
    let workers = two_workers(&server, Limit::token_bucket(Rate::per_second(200), 20)).await;
    let (mut refused, start) = (0, Instant::now());
    while workers[0].peek("k").await.paused().is_none() {
        workers[refused % 2].observe("k", &answer(StatusCode::TOO_MANY_REQUESTS));
        refused += 1;
        sleep(ms(30)).await;
    }
    assert!(start.elapsed() >= ms(100), "a row must have lasted");
    assert!((3..=12).contains(&refused), "{refused} refused in {:?}", start.elapsed());
    for worker in workers {
        drop(worker.acquire(Ask::new("k").max_wait(Duration::from_secs(10))).await.expect("it ends"));
        assert!(start.elapsed() >= ms(1_100), "nobody went before");
    }
}

#[tokio::test]
async fn after_a_soft_429_nobody_goes_until_a_drained_bucket_has_a_unit() {
    let server = RedisProcess::start();
    // Half of it is kept free: drained, it has nothing for eleven units' time, 550 ms.
    let limit = Limit::token_bucket(Rate::per_second(20), 20).jitter_margin(ms(500));
    let workers = two_workers(&server, limit).await;
    let went = Arc::new(Mutex::new(Vec::new()));
    let start = Instant::now();
    let callers = (0..8).map(|i| {
        let (limiter, went) = (workers[i % 2].clone(), went.clone());
        tokio::spawn(async move {
            while start.elapsed() < ms(4_500) {
                drop(limiter.acquire("k").await.expect("it goes"));
                went.lock().push(start.elapsed());
            }
        })
    });
    let callers = callers.collect::<Vec<_>>();
    sleep_until(start + ms(2_000)).await;
    workers[0].observe("k", &answer(StatusCode::TOO_MANY_REQUESTS));
    let told = start.elapsed();
    for caller in callers {
        caller.await.expect("no caller panics");
    }
    let between = |from, to| {
        let went = went.lock();
        went.iter().filter(|at| (told + ms(from)..told + ms(to)).contains(*at)).count()
    };
    assert!(between(100, 500) <= 1, "{} went by slots from before", between(100, 500));
    assert!(between(500, 2_000) >= 15, "{} went on", between(500, 2_000));
}
