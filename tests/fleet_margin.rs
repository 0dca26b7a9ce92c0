//! The margin of a window that a fleet shares: as long as answers show to be needed. On a real Redis server.
#![cfg(all(feature = "redis", feature = "client"))]

#[path = "kit/redis_process.rs"]
mod redis_process;
mod support;

use std::time::Duration;

use forbear::store::Redis;
use forbear::{Client, Limit, Policy, Rate};
use redis_process::RedisProcess;
use support::{Reply, Service, URL, new, reply};
use tokio::time::Instant;

const MARGIN: Duration = Duration::from_millis(250);

fn worker(service: &Service, redis: &RedisProcess, name: &str, limit: &Limit) -> Client {
    let policy = Policy::new(name).limit(limit.clone().jitter_margin(MARGIN));
    service.client(new().store(Redis::new(redis.url()).expect("a good URL")).policy(policy))
}

async fn send(client: &Client, calls: usize) {
    let calls = (0..calls).map(|_| tokio::spawn(client.get(URL).send()));
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.expect("a task").expect("a response").status(), 200);
    }
}

/// How long a worker takes for three windows of calls. One alone, for news goes with the next trip, and who has no more
/// calls makes none.
async fn three_windows(redis: &RedisProcess, name: &str, limit: Limit, answer: fn() -> Reply) -> Duration {
    let service = Service::new(move |_, _| answer());
    let client = worker(&service, redis, name, &limit);
    let start = Instant::now();
    send(&client, 12).await;
    start.elapsed()
}

/// When a call goes that stands behind a window's worth of calls of another worker, and asks before that has told what
/// became of them.
async fn behind_another(redis: &RedisProcess, name: &str, answer: fn() -> Reply) -> Duration {
    let service = Service::new(move |_, _| answer());
    let limit = Limit::sliding_log(Rate::per_second(4));
    let (one, other) = (worker(&service, redis, name, &limit), worker(&service, redis, name, &limit));
    let start = Instant::now();
    send(&other, 4).await;
    // As far as is known by now, it goes in less than a second, and later than anyone books.
    tokio::time::sleep(MARGIN + Duration::from_millis(40)).await;
    let behind = async {
        send(&one, 1).await;
        start.elapsed()
    };
    let later = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        send(&other, 1).await;
    };
    tokio::join!(behind, later).0
}

/// Side by side, so that a busy machine holds up both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_leaves_no_more_margin_than_answers_show_to_be_needed() {
    let redis = RedisProcess::start();
    let rate = Rate::per_second(4);
    for (i, limit) in [Limit::fixed_window(rate), Limit::sliding_log(rate)].into_iter().enumerate() {
        let names = [format!("told {i}"), format!("untold {i}")];
        let told = three_windows(&redis, &names[0], limit.clone(), || reply(200));
        // A cache answered: nothing is known of the service.
        let untold = three_windows(&redis, &names[1], limit, || reply(200).header("age", "1"));
        let (told, untold) = tokio::join!(told, untold);
        assert!(told >= Duration::from_secs(2), "{told:?}");
        assert!(untold >= Duration::from_secs(2) + 2 * MARGIN, "{untold:?}");
        assert!(told < untold, "{i}: {told:?} beside {untold:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_booked_for_a_window_knows_how_all_calls_of_the_last_were_answered() {
    let redis = RedisProcess::start();
    let told = behind_another(&redis, "told", || reply(200));
    let untold = behind_another(&redis, "untold", || reply(200).header("age", "1"));
    let (told, untold) = tokio::join!(told, untold);
    assert!(told >= Duration::from_secs(1), "{told:?}");
    assert!(told + MARGIN / 2 < untold, "{told:?} beside {untold:?}");
}

/// Who hears of a soft 429 books anew, and should know how everyone's calls were answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_soft_429_who_waits_tells_at_once_how_its_calls_were_answered() {
    let redis = RedisProcess::start();
    let service = Service::new(|n, _| match n {
        0 => reply(429).after("1").in_time(Duration::from_millis(800)),
        _ => reply(200),
    });
    let limit = Limit::sliding_log(Rate::new(4, Duration::from_secs(4)));
    let (one, other) = (worker(&service, &redis, "soft", &limit), worker(&service, &redis, "soft", &limit));
    let refused = tokio::spawn(one.get(URL).send());
    while service.count() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // One more than there is room for.
    let waiting = tokio::spawn(async move { send(&other, 4).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(service.count(), 4);
    let before = redis.calls("mget");
    // The change, the answers of the other worker, and its next question: none is told to ask again so early.
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    let trips = redis.calls("mget") - before;
    assert_eq!(trips, 3);
    refused.abort();
    waiting.abort();
}
