//! Several limiters of one Redis for one call: one trip, all or nothing.
#![cfg(feature = "redis")]

#[path = "kit/redis_process.rs"]
mod redis_process;

use std::time::Duration;

use forbear::store::Redis;
use forbear::{Ask, Limiter, Policy, RefusedKind};
use redis_process::RedisProcess;

/// Scripts that ran, each of which is a trip.
fn trips(server: &RedisProcess) -> u64 {
    server.calls("evalsha") + server.calls("eval")
}

fn now<'a>(limiter: &'a Limiter, key: &'a str) -> (&'a Limiter, Ask<'a>) {
    (limiter, Ask::new(key).max_wait(Duration::ZERO))
}

#[tokio::test]
async fn all_of_them_take_one_trip_and_all_or_none_are_charged() {
    let server = RedisProcess::start();
    let store = Redis::new(server.url()).unwrap();
    let address = Limiter::new(Policy::new("address").limit("10/min burst 10"), &store).unwrap();
    let plan = Limiter::new(Policy::new("plan").limit("3/min burst 3").limit("8 at once"), &store).unwrap();
    // The heartbeat of a store that has just connected is not counted.
    drop(address.acquire("::1").await.unwrap());
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = trips(&server);
    let mut permits = Vec::new();
    for _ in 0..3 {
        permits.extend(Limiter::acquire_all(&[now(&address, "::1"), now(&plan, "gold")]).await.unwrap());
    }
    assert_eq!(trips(&server) - before, 3, "one trip for both");
    let refused = Limiter::acquire_all(&[now(&address, "::1"), now(&plan, "gold")]).await.unwrap_err();
    assert_eq!((refused.policy(), refused.limit()), ("plan", Some("requests/min")));
    assert_eq!(refused.kind(), RefusedKind::RateLimited);
    assert_eq!(address.peek("::1").await.remaining(), 6, "what the other one refused was not charged");
    let seats = plan.peek("gold").await;
    assert_eq!(seats.limit("at-once").unwrap().remaining(), 5);
    drop(permits);
}

#[tokio::test]
async fn where_something_has_to_wait_they_are_asked_in_order() {
    let server = RedisProcess::start();
    let store = Redis::new(server.url()).unwrap();
    let first = Limiter::new(Policy::new("first").limit("1000/s burst 100"), &store).unwrap();
    let last = Limiter::new(Policy::new("last").limit("20/s burst 1"), &store).unwrap();
    for _ in 0..3 {
        let asks = [(&first, Ask::new("k")), (&last, Ask::new("k"))];
        assert_eq!(Limiter::acquire_all(&asks).await.unwrap().len(), 2);
    }
    // What the last one refuses goes back.
    let taken = last.acquire("k").await.unwrap();
    let asks = [(&first, Ask::new("k")), (&last, Ask::new("k").max_wait(Duration::from_millis(1)))];
    assert!(Limiter::acquire_all(&asks).await.is_err());
    drop(taken);
}
