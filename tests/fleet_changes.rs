//! A fleet's limiter while things change around it: it is dropped, closed, given another policy, or its key is paused.
#![cfg(feature = "redis")]

#[path = "kit/redis_process.rs"]
mod redis_process;

use std::time::{Duration, SystemTime};

use forbear::store::{OnOutage, Redis};
use forbear::{Ask, Limit, Limiter, Policy, Rate, RefusedKind, Signals};
use http::{HeaderMap, StatusCode};
use redis_process::{RedisProcess, free_port};
use tokio::time::{Instant, sleep, timeout};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn limiter(url: &str, policy: Policy) -> Limiter {
    Limiter::new(policy, Redis::new(url).unwrap().budget(Duration::from_secs(2))).unwrap()
}

#[tokio::test]
async fn a_limiter_that_is_dropped_leaves_the_fleet() {
    let server = RedisProcess::start();
    let gone = limiter(&server.url(), Policy::new("p").limit("100/s burst 10").limit("4 at once"));
    drop(gone.acquire("k").await.unwrap());
    let live = || server.cli(&["ZCARD", "forbear:{workers}:leases"]);
    timeout(Duration::from_secs(5), async {
        while live() != "1" {
            sleep(ms(20)).await;
        }
        drop(gone);
        while live() != "0" {
            sleep(ms(20)).await;
        }
    })
    .await
    .expect("it leaves with its next heartbeat");
}

#[tokio::test]
async fn a_limit_of_seats_by_another_name_goes_on() {
    let server = RedisProcess::start();
    let limiter = limiter(&server.url(), Policy::new("p").limit("2 at once"));
    let held = limiter.acquire("k").await.unwrap();
    limiter.set_policy(Policy::new("p").limit(Limit::concurrency(2).named("places"))).unwrap();
    // Longer than a lease: what the limit of before held is nobody's affair any more.
    sleep(ms(10_500)).await;
    let start = Instant::now();
    for _ in 0..5 {
        drop(limiter.acquire(Ask::new("k").max_wait(Duration::from_secs(2))).await.unwrap());
    }
    assert!(start.elapsed() < Duration::from_secs(2));
    drop(held);
}

#[tokio::test]
async fn several_limiters_at_once_keep_to_a_leaky_buckets_pace() {
    let server = RedisProcess::start();
    let leaky = Limit::leaky_bucket(Rate::new(20, Duration::from_secs(1)), 50);
    let store = Redis::new(server.url()).unwrap().budget(Duration::from_secs(2));
    let first = Limiter::new(Policy::new("first").limit(leaky), &store).unwrap();
    let last = Limiter::new(Policy::new("last").limit("1000/s burst 100"), &store).unwrap();
    let start = Instant::now();
    for _ in 0..9 {
        let asks = [(&first, Ask::new("k")), (&last, Ask::new("k"))];
        drop(Limiter::acquire_all(&asks).await.unwrap());
    }
    assert!(start.elapsed() > ms(390), "nine calls at 20 a second in {:?}", start.elapsed());
}

#[tokio::test]
async fn who_may_not_wait_is_refused_at_once_behind_one_who_waits_for_a_seat() {
    let server = RedisProcess::start();
    let limiter = limiter(&server.url(), Policy::new("p").limit("1 at once"));
    let held = limiter.acquire("k").await.unwrap();
    let waiting = limiter.clone();
    let waits = tokio::spawn(async move { waiting.acquire("k").await.map(drop) });
    sleep(ms(200)).await;
    let start = Instant::now();
    assert_eq!(limiter.try_acquire("k").await.unwrap_err().kind(), RefusedKind::NoSeat);
    assert!(start.elapsed() < ms(500), "{:?}", start.elapsed());
    drop(held);
    waits.await.unwrap().unwrap();
}

#[tokio::test]
async fn who_waits_while_redis_is_away_hears_that_the_limiter_is_closed() {
    let store = Redis::new(format!("redis://127.0.0.1:{}", free_port())).unwrap();
    let store = store.on_outage(OnOutage::local_share(1));
    let limiter = Limiter::new(Policy::new("p").limit("1/min burst 1"), store).unwrap();
    let waiting = limiter.clone();
    let waits = tokio::spawn(async move { waiting.acquire("k").await.map(drop) });
    sleep(ms(800)).await;
    limiter.close();
    let refused = timeout(Duration::from_secs(5), waits).await.expect("it is told").unwrap().unwrap_err();
    assert_eq!(refused.kind(), RefusedKind::Closed);
}

#[tokio::test]
async fn a_pause_of_which_redis_could_not_be_told_is_kept_here_and_told_later() {
    let port = free_port();
    let url = format!("redis://127.0.0.1:{port}");
    let store = Redis::new(&url).unwrap().on_outage(OnOutage::local_share(1));
    let limiter = Limiter::new(Policy::new("p").limit("1000/s burst 100"), store).unwrap();
    assert!(limiter.acquire("k").await.is_ok(), "by its own part");
    limiter.pause("k", Duration::from_secs(30));
    sleep(ms(300)).await;
    let _server = RedisProcess::on(port, &[]);
    until_told(&limiter, &url).await;
}

/// Until a process that comes later finds the pause of `k`.
async fn until_told(limiter: &Limiter, url: &str) {
    let refused = async {
        loop {
            let answer = limiter.acquire(Ask::new("k").max_wait(ms(300))).await;
            assert!(answer.is_err(), "it is paused here");
            let other = Limiter::new(Policy::new("p").limit("1000/s burst 100"), Redis::new(url).unwrap());
            if other.unwrap().peek("k").await.paused().is_some() {
                return;
            }
            // Whoever asks for long enough tells.
            let patient = limiter.clone();
            let waits = tokio::spawn(async move { patient.acquire("k").await.map(drop) });
            sleep(ms(300)).await;
            waits.abort();
        }
    };
    timeout(Duration::from_secs(20), refused).await.expect("the others hear of it");
}

#[test]
fn a_pause_outside_of_any_runtime_is_told_later() {
    let port = free_port();
    let url = format!("redis://127.0.0.1:{port}");
    let _server = RedisProcess::on(port, &[]);
    let limiter = limiter(&url, Policy::new("p").limit("1000/s burst 100"));
    limiter.pause("k", Duration::from_secs(30));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(until_told(&limiter, &url));
}

#[tokio::test]
async fn a_pause_is_told_later_even_if_the_drain_before_it_fails() {
    let mut server = RedisProcess::start();
    let policy = || Policy::new("p").limit("1000/s burst 100");
    let other = limiter(&server.url(), policy());
    other.pause("k", Duration::from_secs(1));
    assert!(other.peek("k").await.paused().is_some());
    let pause = server.cli(&["KEYS", "*:p"]);
    drop(other);
    server.kill();

    let store = Redis::new(server.url()).unwrap().on_outage(OnOutage::local_share(1));
    let limiter = Limiter::new(policy(), store).unwrap();
    assert!(limiter.acquire("k").await.is_ok(), "by its own part");
    limiter.pause("k", Duration::from_secs(60));
    sleep(ms(300)).await;
    server.restart();
    // No pause can be read here, so that every change fails.
    server.cli(&["LPUSH", &pause, "no pause"]);
    // Whoever asks for long enough tells.
    let ask = async || {
        let patient = limiter.clone();
        let waits = tokio::spawn(async move { patient.acquire("k").await.map(drop) });
        sleep(ms(300)).await;
        waits.abort();
    };
    let told = async {
        while !server.cli(&["INFO", "errorstats"]).contains("WRONGTYPE") {
            ask().await;
        }
        server.cli(&["DEL", &pause]);
        let other = self::limiter(&server.url(), policy());
        while other.peek("k").await.paused().is_none() {
            ask().await;
        }
    };
    timeout(Duration::from_secs(20), told).await.expect("the others hear of it");
}

#[tokio::test]
async fn a_soft_429_while_redis_is_away_empties_the_local_part() {
    let store = Redis::new(format!("redis://127.0.0.1:{}", free_port())).unwrap();
    let store = store.on_outage(OnOutage::local_share(1));
    let limiter = Limiter::new(Policy::new("p").limit("1/s burst 5"), store).unwrap();
    drop(limiter.acquire("k").await.unwrap());
    sleep(ms(3_500)).await;
    drop(limiter.try_acquire("k").await.expect("of three that were saved up"));
    let refused = Signals::read(StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new(), SystemTime::UNIX_EPOCH);
    limiter.observe("k", &refused);
    assert_eq!(limiter.peek("k").await.paused(), None, "a lone one");
    assert_eq!(limiter.try_acquire("k").await.unwrap_err().kind(), RefusedKind::RateLimited);
}
