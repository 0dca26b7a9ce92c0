//! The margin of a window that a fleet shares: as long as answers show to be needed. On a real Redis server.
#![cfg(all(feature = "redis", feature = "client"))]

#[path = "kit/redis_process.rs"]
mod redis_process;
mod support;

use std::time::Duration;

use forbear::store::Redis;
use forbear::{Limit, Policy, Rate};
use redis_process::RedisProcess;
use support::{Reply, Service, URL, new, reply};
use tokio::time::Instant;

const MARGIN: Duration = Duration::from_millis(250);

/// How long a worker takes for three windows of calls. One alone, for news goes with the next trip, and who has no more
/// calls makes none.
async fn three_windows(redis: &RedisProcess, name: &str, limit: Limit, answer: fn() -> Reply) -> Duration {
    let service = Service::new(move |_, _| answer());
    let policy = Policy::new(name).limit(limit.jitter_margin(MARGIN));
    let store = Redis::new(redis.url()).expect("a good URL");
    let client = service.client(new().store(store).policy(policy));
    let start = Instant::now();
    let calls = (0..12).map(|_| tokio::spawn(client.get(URL).send()));
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.expect("a task").expect("a response").status(), 200);
    }
    start.elapsed()
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
