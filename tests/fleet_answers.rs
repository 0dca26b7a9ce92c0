//! What the answers of a service mean to a fleet: of all answers each worker hears a few, and a 429 to one says
//! little about the key. On real Redis servers.
#![cfg(feature = "redis")]

#[path = "kit/redis_process.rs"]
mod redis_process;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forbear::store::{Local, Redis};
use forbear::{Ask, Limit, Limiter, Policy, Rate, RefusedKind, Signals};
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

#[tokio::test]
async fn after_a_soft_429_what_was_booked_of_a_log_lapses() {
    let server = RedisProcess::start();
    let limit = Limit::sliding_log(Rate::per_second(400)).jitter_margin(ms(20));
    let workers = two_workers(&server, limit).await;
    sleep(ms(1_100)).await;
    let throttled = || workers[0].observe("k", &answer(StatusCode::TOO_MANY_REQUESTS));
    let start = Instant::now();
    for _ in 0..100 {
        drop(workers[0].acquire("k").await.expect("it goes"));
    }
    // The service has no more than these: the other three hundred may be there a second later.
    throttled();
    sleep(ms(50)).await;
    let went = Arc::new(Mutex::new(Vec::new()));
    let callers = (0..300).map(|i| {
        let (limiter, went) = (workers[i % 2].clone(), went.clone());
        tokio::spawn(async move {
            drop(limiter.acquire("k").await.expect("it goes"));
            went.lock().push(Instant::now());
        })
    });
    let callers = callers.collect::<Vec<_>>();
    let count = || went.lock().len();
    while count() < 110 {
        assert!(start.elapsed() < ms(3_000), "{} went", count());
        sleep(ms(1)).await;
    }
    workers[0].observe("k", &well());
    throttled();
    let told = Instant::now();
    sleep(ms(600)).await;
    assert!(went.lock().iter().all(|at| *at >= start + ms(1_000)), "until the hundred are over");
    // Of those that were booked ahead some thirty would go after this.
    let late = went.lock().iter().filter(|at| **at > told + ms(60)).count();
    assert!(late <= 15, "{late} of {} went by slots from before", count());
    for caller in callers {
        caller.await.expect("no caller panics");
    }
}

#[tokio::test]
async fn soft_429s_that_are_known_together_are_told_together() {
    let server = RedisProcess::start();
    let [worker, _other] = two_workers(&server, Limit::sliding_log(Rate::per_second(400))).await;
    sleep(HEARD).await;
    let before = server.calls("publish");
    (0..50).for_each(|_| worker.observe("k", &answer(StatusCode::TOO_MANY_REQUESTS)));
    let start = Instant::now();
    while server.calls("publish") == before {
        assert!(start.elapsed() < Duration::from_secs(10), "it is told");
        sleep(ms(5)).await;
    }
    sleep(HEARD).await;
    let told = server.calls("publish") - before;
    assert!(told <= 3, "told {told} times");
}

/// Trips that decide: only they read several keys at once.
fn trips(server: &RedisProcess) -> u64 {
    server.calls("mget")
}

#[tokio::test]
async fn after_a_soft_429_a_long_bucket_holds_a_fleet_as_it_holds_one_process() {
    let policy = || Policy::new("long").limit("20/s").limit("10000/day");
    let throttled = answer(StatusCode::TOO_MANY_REQUESTS);
    let local = Limiter::new(policy(), Local::new()).unwrap();
    local.observe("k", &throttled);
    let held = local.try_acquire("k").await.unwrap_err().retry_after().unwrap();
    assert!((ms(8_000)..ms(9_500)).contains(&held), "{held:?}");
    let as_held = |told: Instant, wait: Duration| {
        let (least, most) = (held.saturating_sub(told.elapsed() + ms(5)), held + ms(5));
        assert!((least..=most).contains(&wait), "{wait:?} of {held:?}, {:?} later", told.elapsed());
    };

    let server = RedisProcess::start();
    let limiter = Limiter::new(policy(), Redis::new(server.url()).unwrap()).unwrap();
    let went = Arc::new(Mutex::new(Vec::new()));
    // So that what is booked always reaches ahead.
    let patient = [(); 2].map(|()| {
        let (limiter, went) = (limiter.clone(), went.clone());
        tokio::spawn(async move {
            loop {
                drop(limiter.acquire("k").await.expect("it goes"));
                went.lock().push(Instant::now());
            }
        })
    });
    sleep(ms(500)).await;
    let hasty = [(); 3].map(|()| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.acquire(Ask::new("k").max_wait(ms(400))).await.map(drop) })
    });
    sleep(ms(20)).await;
    limiter.observe("k", &throttled);
    let told = Instant::now();
    let refused = limiter.try_acquire("k").await.unwrap_err();
    assert_eq!(refused.kind(), RefusedKind::RateLimited);
    as_held(told, refused.retry_after().unwrap());
    for caller in hasty {
        let refused = caller.await.unwrap().unwrap_err();
        assert_eq!(refused.kind(), RefusedKind::RateLimited);
        as_held(told, refused.retry_after().unwrap());
    }
    sleep_until(told + ms(300)).await;
    let before = trips(&server);
    sleep_until(told + ms(1_500)).await;
    assert_eq!(trips(&server) - before, 0, "nobody asks for what would lapse");
    assert!(limiter.try_acquire("k").await.is_err(), "not for one that comes later either");
    assert_eq!(trips(&server) - before, 0);
    patient.iter().for_each(|caller| caller.abort());
    // A slot that had come at that very moment may have been under way.
    assert!(went.lock().iter().filter(|at| **at > told).count() <= 1);
}

#[tokio::test]
async fn a_slot_that_was_left_behind_lapses_with_a_soft_429() {
    let server = RedisProcess::start();
    let [one, other] = two_workers(&server, Limit::token_bucket(Rate::per_second(1), 1)).await;
    // One's next slot comes a second after this call, the other's a second later.
    sleep(ms(1_050)).await;
    drop(one.acquire("k").await.unwrap());
    let booked = |limiter: &Limiter| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.acquire("k").await.map(drop) })
    };
    let leaves = booked(&one);
    sleep(ms(100)).await;
    let stays = booked(&other);
    sleep(ms(100)).await;
    leaves.abort();
    sleep(ms(100)).await;
    one.observe("k", &answer(StatusCode::TOO_MANY_REQUESTS));
    let told = Instant::now();
    drop(one.acquire("k").await.unwrap());
    assert!(told.elapsed() >= ms(1_000), "a drained bucket gives its first unit then: {:?}", told.elapsed());
    stays.abort();
}

#[tokio::test]
async fn a_pause_refuses_at_once_whose_slot_lapses_and_whose_time_is_too_short() {
    let server = RedisProcess::start();
    let policy = Policy::new("paused").limit(Limit::token_bucket(Rate::per_second(1), 1));
    let limiter = Limiter::new(policy, Redis::new(server.url()).unwrap()).unwrap();
    drop(limiter.acquire("k").await.unwrap());
    let hasty = limiter.clone();
    let hasty = tokio::spawn(async move { hasty.acquire(Ask::new("k").max_wait(ms(2_000))).await.map(drop) });
    // By then its slot is booked.
    sleep(ms(700)).await;
    let before = trips(&server);
    limiter.pause("k", Duration::from_secs(30));
    assert_eq!(hasty.await.unwrap().unwrap_err().kind(), RefusedKind::Paused);
    assert_eq!(trips(&server) - before, 0, "what is known here is enough");
}
