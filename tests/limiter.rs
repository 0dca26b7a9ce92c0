//! The limiter on a paused clock: one process, the local store, no HTTP.

use std::time::Duration;

use forbear::store::Local;
use forbear::{Ask, Limit, Limiter, Policy, Rate, RefusedKind};
use tokio::time::{Instant, advance, sleep};

fn limiter(policy: Policy) -> Limiter {
    Limiter::new(policy, Local::new()).expect("a valid policy")
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[tokio::test(start_paused = true)]
async fn b017_cancelled_waiters_leave_no_debt() {
    let limiter = limiter(Policy::new("b017").limit(Limit::token_bucket(Rate::per_second(1), 1)));
    let start = Instant::now();
    let _a = limiter.acquire("k").await.unwrap();
    let waiters = (0..5).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.acquire("k").await })
    });
    let waiters = waiters.collect::<Vec<_>>();
    sleep(ms(100)).await;
    assert_eq!(limiter.waiting("k"), 5);
    waiters.iter().for_each(|waiter| waiter.abort());
    sleep(ms(100)).await;
    assert_eq!(limiter.waiting("k"), 0);
    let _g = limiter.acquire("k").await.unwrap();
    assert_eq!(start.elapsed(), ms(1_000));
}

#[tokio::test(start_paused = true)]
async fn b124_a_wait_that_cannot_fit_fails_at_once() {
    let limiter =
        limiter(Policy::new("b124").limit(Limit::token_bucket(Rate::new(1, Duration::from_secs(10)), 1)));
    let _first = limiter.acquire("k").await.unwrap();
    let start = Instant::now();
    let refused = limiter.acquire(Ask::new("k").max_wait(Duration::from_secs(2))).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(refused.kind(), RefusedKind::RateLimited);
    assert!(refused.is_timeout());
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(10)));
    advance(ms(1)).await;
}

#[tokio::test(start_paused = true)]
async fn b062_the_slot_is_claimed_before_the_sleep() {
    let limiter = limiter(Policy::new("b062").limit("5/s"));
    let start = Instant::now();
    let calls = (0..60).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let _permit = limiter.acquire("k").await.unwrap();
            start.elapsed()
        })
    });
    let mut times = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        times.push(call.await.unwrap());
    }
    let mut sorted = times.clone();
    sorted.sort();
    assert_eq!(times, sorted, "first come, first served");
    for pair in times.windows(6) {
        assert!(pair[5] - pair[0] >= ms(1_000), "{pair:?}");
    }
    assert_eq!(times[59], ms(59 * 200));
}

#[tokio::test(start_paused = true)]
async fn a_chain_is_held_back_for_its_time_once() {
    let every =
        |name: &str, period| limiter(Policy::new(name).limit(Limit::token_bucket(Rate::new(1, period), 1)));
    let (first, second) = (every("chain of 4 s", ms(4_000)), every("chain of 10 s", ms(10_000)));
    let asks = || [(&first, Ask::new("k").max_wait(ms(6_000))), (&second, Ask::new("k").max_wait(ms(6_000)))];
    let _both = Limiter::acquire_all(&asks()).await.unwrap();
    let start = Instant::now();
    // The first takes 4 s of the 6, and the second would take 6 more.
    let refused = Limiter::acquire_all(&asks()).await.unwrap_err();
    assert_eq!((refused.policy(), start.elapsed()), ("chain of 10 s", ms(4_000)));
    assert_eq!(first.peek("k").await.remaining(), 1, "what the first was charged has gone back");
}
