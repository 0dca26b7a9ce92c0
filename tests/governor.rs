//! A limiter of the governor crate as a store, on governor's own fake clock and tokio's paused one.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use forbear::store::Governor;
use forbear::{ConfigError, Limit, LimitError, Limiter, Policy, Rate, RefusedKind};
use governor::clock::FakeRelativeClock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};
use tokio::time::{Instant, advance, sleep};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn quota(per_second: u32, burst: u32) -> Quota {
    let positive = |n| NonZeroU32::new(n).expect("it is positive");
    Quota::per_second(positive(per_second)).allow_burst(positive(burst))
}

/// A store over a keyed limiter, and the clock to keep in step with tokio's.
fn keyed(quota: Quota) -> (Governor, FakeRelativeClock) {
    let clock = FakeRelativeClock::default();
    let state = HashMapStateStore::<String>::default();
    let theirs = RateLimiter::<_, _, _, NoOpMiddleware<_>>::new(quota, state, clock.clone());
    (Governor::new(Arc::new(theirs)), clock)
}

async fn pass(clock: &FakeRelativeClock, time: Duration) {
    clock.advance(time);
    advance(time).await;
}

/// Lets governor's clock follow tokio's, a millisecond at a time.
fn follow(clock: FakeRelativeClock) {
    tokio::spawn(async move {
        let mut last = Instant::now();
        loop {
            sleep(ms(1)).await;
            clock.advance(last.elapsed());
            last = Instant::now();
        }
    });
}

#[tokio::test(start_paused = true)]
async fn grants_what_governor_grants_and_says_how_long() {
    let (store, clock) = keyed(quota(10, 2));
    let limiter = Limiter::new(Policy::new("governor"), store).unwrap();
    for _ in 0..2 {
        let permit = limiter.try_acquire("a").await.unwrap();
        assert!(permit.decision().granted());
    }
    let refused = limiter.try_acquire("a").await.unwrap_err();
    assert_eq!(refused.kind(), RefusedKind::RateLimited);
    assert_eq!(refused.retry_after(), Some(ms(100)));
    assert_eq!(refused.limit(), None, "it is not one of the policy's");
    assert!(limiter.try_acquire("b").await.is_ok(), "another key");
    pass(&clock, ms(100)).await;
    assert!(limiter.try_acquire("a").await.is_ok());
    assert!(limiter.try_acquire("a").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn waits_until_governor_grants_first_come_first_served() {
    let (store, clock) = keyed(quota(10, 1));
    let limiter = Limiter::new(Policy::new("waits"), store).unwrap();
    follow(clock);
    let start = Instant::now();
    let calls = (0..5).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let _permit = limiter.acquire("k").await.unwrap();
            start.elapsed()
        })
    });
    let mut last = Duration::ZERO;
    for (i, call) in calls.collect::<Vec<_>>().into_iter().enumerate() {
        let at = call.await.unwrap();
        let (due, late) = (ms(100 * i as u64), ms(100 * i as u64 + 20));
        assert!(last <= at && (due..late).contains(&at), "call {i} went at {at:?}");
        last = at;
    }
}

#[tokio::test(start_paused = true)]
async fn seats_stand_beside_it_and_are_free_again_when_governor_refuses() {
    let (store, clock) = keyed(quota(1, 2));
    let limiter = Limiter::new(Policy::new("seats").limit("1 at once"), store).unwrap();
    let first = limiter.try_acquire("k").await.unwrap();
    assert_eq!(limiter.try_acquire("k").await.unwrap_err().kind(), RefusedKind::NoSeat);
    drop(first);
    let second = limiter.try_acquire("k").await.unwrap();
    drop(second);
    assert_eq!(limiter.try_acquire("k").await.unwrap_err().kind(), RefusedKind::RateLimited);
    pass(&clock, ms(1_000)).await;
    assert!(limiter.try_acquire("k").await.is_ok(), "neither refusal kept the seat or took a cell");
}

#[tokio::test(start_paused = true)]
async fn one_without_keys_is_shared_by_all_keys() {
    let theirs = Arc::new(RateLimiter::direct_with_clock(quota(10, 1), FakeRelativeClock::default()));
    let limiter = Limiter::new(Policy::new("direct"), Governor::direct(theirs.clone())).unwrap();
    assert!(limiter.try_acquire("a").await.is_ok());
    assert!(limiter.try_acquire("b").await.is_err());
    assert!(theirs.check().is_err(), "and with whoever else uses it");
}

#[tokio::test(start_paused = true)]
async fn pauses_hold() {
    let (store, clock) = keyed(quota(100, 100));
    let limiter = Limiter::new(Policy::new("pauses"), store).unwrap();
    limiter.pause("k", ms(500));
    let refused = limiter.try_acquire("k").await.unwrap_err();
    assert_eq!((refused.kind(), refused.retry_after()), (RefusedKind::Paused, Some(ms(500))));
    assert!(limiter.try_acquire("other").await.is_ok());
    pass(&clock, ms(500)).await;
    assert!(limiter.try_acquire("k").await.is_ok());
}

#[test]
fn no_other_rate_stands_beside_it() {
    let (store, _) = keyed(quota(10, 1));
    let refused = Limiter::new(Policy::new("both").limit("5/s"), &store).unwrap_err();
    assert!(matches!(refused, ConfigError::Field { field: "store", .. }), "{refused}");
    let limiter = Limiter::new(Policy::new("both").limit("3 at once"), &store).unwrap();
    assert!(limiter.set_policy(Policy::new("both").limit("5/s")).is_err());
    assert!(limiter.set_policy(Policy::new("both").limit("4 at once")).is_ok());
}

#[test]
fn a_quota_is_a_token_bucket() {
    let limit = Limit::from(quota(10, 3));
    assert_eq!(limit, Limit::token_bucket(Rate::new(1, ms(100)), 3));
    let third = Policy::new("third").limit(quota(3, 1));
    let fault = Limiter::new(third, forbear::store::Local::new()).unwrap_err();
    assert!(matches!(fault, ConfigError::Limit { fault: LimitError::Number { .. }, .. }), "{fault}");
}
