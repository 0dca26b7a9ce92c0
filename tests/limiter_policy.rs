//! Policies that change, only observe or chain; keys and their memory; closing. On a paused clock.

mod kit;

use std::time::Duration;

use forbear::store::Local;
use forbear::{Ask, ConfigError, Limit, Limiter, Permit, Policy, Rate, Refused, RefusedKind};
use kit::{ask, bucket, call, hold, limiter, ms, secs, settle};
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn b145_new_numbers_hold_at_once_and_what_was_used_stays_used() {
    let limits: [fn(u64) -> Limit; 4] = [
        |n| Limit::fixed_window(Rate::per_second(n)),
        |n| Limit::sliding_log(Rate::per_second(n)),
        |n| Limit::sliding_window(Rate::per_second(n), 10),
        |n| Limit::token_bucket(Rate::per_second(n), n),
    ];
    for (i, limit) in limits.into_iter().enumerate() {
        let policy = |n| Policy::new(format!("b145 {i}")).limit(limit(n)).max_wait(Duration::ZERO);
        let limiter = limiter(policy(10));
        for _ in 0..3 {
            _ = limiter.acquire("k").await.unwrap();
        }
        limiter.set_policy(policy(5)).unwrap();
        let mut more = 0;
        for _ in 0..7 {
            more += usize::from(limiter.acquire("k").await.is_ok());
        }
        assert_eq!(more, 2, "{i}");
    }
}

#[tokio::test(start_paused = true)]
async fn b146_nobody_fails_because_of_the_swap() {
    let policy = |rate: u64| Policy::new("b146").limit(Limit::token_bucket(Rate::per_second(rate), 1));
    let limiter = limiter(policy(1));
    let start = Instant::now();
    let calls = (0..50).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    let others = (0..10).map(|_| call(&limiter, start, "other")).collect::<Vec<_>>();
    for rate in [2, 5, 10] {
        sleep(secs(1)).await;
        limiter.set_policy(policy(rate)).unwrap();
    }
    let mut times = Vec::new();
    for call in calls {
        times.push(call.await.unwrap().unwrap());
    }
    assert!(times.is_sorted(), "they keep their order");
    assert!(times[49] < secs(9), "under the new limits: {:?}", times[49]);
    for other in others {
        assert!(other.await.unwrap().unwrap() < secs(5));
    }
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_keep_their_place_when_limits_come_and_go() {
    let limiter = limiter(Policy::new("come").limit("1 at once"));
    let permit = limiter.acquire("k").await.unwrap();
    let start = Instant::now();
    let calls = (0..5).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    settle().await;
    limiter.set_policy(Policy::new("come").limit("1 at once").limit(bucket(secs(2), 1))).unwrap();
    settle().await;
    assert_eq!(limiter.waiting("k"), 5);
    drop(permit);
    for (i, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), secs(2 * i as u64));
    }
    limiter.set_policy(Policy::new("come")).unwrap();
    _ = limiter.try_acquire("k").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_wants_what_the_new_policy_cannot_hold_is_told() {
    let limiter = limiter(Policy::new("smaller").limit("100 tokens/s burst 100"));
    let start = Instant::now();
    _ = limiter.acquire(Ask::new("k").cost("tokens", 100)).await.unwrap();
    let dear = ask(&limiter, start, "k", None, &[("tokens", 90)]);
    let cheap = ask(&limiter, start, "k", None, &[("tokens", 10)]);
    sleep(ms(10)).await;
    limiter.set_policy(Policy::new("smaller").limit("50 tokens/s burst 50")).unwrap();
    assert_eq!(dear.await.unwrap().unwrap_err().kind(), RefusedKind::NeverFits);
    cheap.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_faulty_policy_changes_nothing() {
    let limiter = limiter(Policy::new("kept").limit("10/s"));
    let fault = limiter.set_policy(Policy::new("other").limit("10/s")).unwrap_err();
    assert!(matches!(fault, ConfigError::Field { field: "name", .. }), "{fault}");
    assert!(limiter.set_policy(Policy::new("kept").limit("nonsense")).is_err());
    assert_eq!(*limiter.policy(), Policy::new("kept").limit("10/s"));
}

#[tokio::test(start_paused = true)]
async fn observing_lets_all_through_and_says_what_it_would_have_refused() {
    let limiter = limiter(Policy::new("observed").limit("5/s burst 5").limit("2 at once").observe_only());
    let start = Instant::now();
    let mut permits = Vec::new();
    let mut granted = 0;
    for _ in 0..10 {
        let permit = limiter.acquire("k").await.unwrap();
        granted += usize::from(permit.decision().granted());
        permits.push(permit);
    }
    assert_eq!((granted, start.elapsed()), (2, Duration::ZERO));
    assert_eq!(permits[9].decision().refused_by(), Some("at-once"));
    permits.clear();
    for _ in 0..10 {
        let permit = limiter.try_acquire("k").await.unwrap();
        granted += usize::from(permit.decision().granted());
    }
    assert_eq!(granted, 5);
    let refused = limiter.acquire("k").await.unwrap().decision();
    assert_eq!((refused.refused_by(), refused.retry_after()), (Some("requests/s"), Some(ms(200))));
    limiter.pause("k", secs(5));
    let paused = limiter.acquire("k").await.unwrap().decision();
    assert!(!paused.granted() && paused.paused());
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn who_waits_goes_when_the_policy_is_only_observed_any_more() {
    let limiter = limiter(Policy::new("freed").limit(bucket(secs(60), 1)).max_wait(secs(3_600)));
    let start = Instant::now();
    let calls = (0..20).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    sleep(secs(1)).await;
    limiter.set_policy(Policy::new("freed").limit(bucket(secs(60), 1)).observe_only()).unwrap();
    for call in calls {
        assert!(call.await.unwrap().unwrap() <= secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn closing_refuses_all_who_wait_and_all_who_come() {
    let limiter = limiter(Policy::new("closed").limit("1/s burst 1").limit("5 at once"));
    let permit = limiter.acquire("k").await.unwrap();
    let waiters = (0..3).map(|_| hold(&limiter, "k")).collect::<Vec<_>>();
    sleep(ms(10)).await;
    limiter.close();
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap().unwrap_err().kind(), RefusedKind::Closed);
    }
    let refused = limiter.acquire("k").await.unwrap_err();
    assert_eq!((refused.kind(), refused.retry_after()), (RefusedKind::Closed, None));
    assert_eq!(limiter.try_acquire("k").await.unwrap_err().kind(), RefusedKind::Closed);
    assert_eq!(limiter.waiting("k"), 0);
    drop(permit);
    assert_eq!(limiter.peek("k").await.limit("at-once").unwrap().remaining(), 5);
}

#[tokio::test(start_paused = true)]
async fn peeking_changes_nothing() {
    let store = Local::new();
    let limiter =
        Limiter::new(Policy::new("peek").limit("10/s burst 10").limit("3 at once"), &store).unwrap();
    let peek = limiter.peek("k").await;
    assert_eq!((peek.remaining(), peek.waiting(), peek.paused()), (10, 0, None));
    assert_eq!(store.len(), 0);
    let _permit = limiter.acquire("k").await.unwrap();
    for _ in 0..3 {
        let peek = limiter.peek("k").await;
        assert_eq!(peek.limit("requests/s").unwrap().remaining(), 9);
        assert_eq!(peek.limit("requests/s").unwrap().reset_after(), ms(100));
        assert_eq!(peek.limit("at-once").unwrap().remaining(), 2);
        assert_eq!(peek.limits().map(|limit| limit.quota()).collect::<Vec<_>>(), [10, 3]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_chain_is_decided_in_one_step() {
    let store = Local::new();
    let each = Limiter::new(Policy::new("each").limit("5/s burst 5"), &store).unwrap();
    let all = Limiter::new(Policy::new("all").limit("1 at once"), &store).unwrap();
    let chain = || [(&each, Ask::new("k")), (&all, Ask::new("all"))];
    let permits = Limiter::acquire_all(&chain()).await.unwrap();
    assert_eq!(permits.len(), 2);
    assert_eq!(
        permits.iter().map(|permit| permit.decision().policy().to_owned()).collect::<Vec<_>>(),
        ["each", "all"]
    );
    let hurried = || {
        [(&each, Ask::new("k").max_wait(Duration::ZERO)), (&all, Ask::new("all").max_wait(Duration::ZERO))]
    };
    let refused = Limiter::acquire_all(&hurried()).await.unwrap_err();
    assert_eq!((refused.kind(), refused.policy()), (RefusedKind::NoSeat, "all"));
    assert_eq!(each.peek("k").await.remaining(), 4, "refused: charged nowhere");
    drop(permits);
    assert!(Limiter::acquire_all(&hurried()).await.is_ok());
}

async fn both(each: &Limiter, all: &Limiter, max_wait: Duration) -> Result<Vec<Permit>, Refused> {
    Limiter::acquire_all(&[(each, Ask::new("k")), (all, Ask::new("k").max_wait(max_wait))]).await
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_waits_gives_back_what_it_took() {
    for one_store in [0, 1] {
        let stores = [Local::new(), Local::new()];
        let each = Policy::new(format!("each {one_store}")).limit("5/min burst 5").limit("4 at once");
        let each = Limiter::new(each, &stores[0]).unwrap();
        let all = Policy::new(format!("all {one_store}")).limit("1 at once");
        let all = Limiter::new(all, &stores[one_store]).unwrap();
        let left = async || {
            let peek = each.peek("k").await;
            Vec::from_iter(peek.limits().map(|limit| limit.remaining()))
        };
        let permits = both(&each, &all, secs(1)).await.unwrap();
        assert_eq!(left().await, [4, 3]);
        // Refused after a wait.
        let refused = both(&each, &all, ms(100)).await.unwrap_err();
        assert_eq!(refused.kind(), RefusedKind::NoSeat);
        assert_eq!(left().await, [4, 3]);
        // Given up while it waits.
        let given_up = tokio::time::timeout(ms(100), both(&each, &all, secs(1))).await;
        assert!(given_up.is_err());
        assert_eq!(left().await, [4, 3]);
        drop(permits);
        drop(both(&each, &all, secs(1)).await.unwrap());
        assert_eq!((left().await[1], all.waiting("k")), (4, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_chain_may_name_one_budget_twice() {
    let limiter = limiter(Policy::new("twice").limit("4/min burst 4").max_wait(Duration::ZERO));
    let chain = [(&limiter, Ask::new("k")), (&limiter, Ask::new("k"))];
    assert!(Limiter::acquire_all(&chain).await.is_ok());
    assert_eq!(limiter.peek("k").await.remaining(), 2);
    _ = limiter.acquire("k").await.unwrap();
    assert!(Limiter::acquire_all(&chain).await.is_err());
    assert_eq!(limiter.peek("k").await.remaining(), 1);
    assert!(Limiter::acquire_all(&[]).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn b079_keys_are_told_apart_whatever_they_hold() {
    let store = Local::new();
    let policy = |name: &str| Policy::new(name).limit("1/day burst 1").max_wait(Duration::ZERO);
    let long = "x".repeat(4_096);
    let keys = ["a/b:c", "a:b/c", "1/23", "12/3", "", "\n", "{k}", "*", "k", "k ", "K", &long, &long[1..]];
    for name in ["b079", "b079:", "b07"] {
        let limiter = Limiter::new(policy(name), &store).unwrap();
        for key in keys {
            assert!(limiter.acquire(key).await.is_ok(), "{name} {key:?}");
        }
        for key in keys {
            assert!(limiter.acquire(key).await.is_err(), "{name} {key:?}");
        }
    }
    assert_eq!(store.len(), 3 * keys.len());
}

fn ten(key: &str) -> Ask<'_> {
    Ask::new(key).cost("requests", 10)
}

/// More keys than may be kept, some of them regulars that are limited.
async fn flood(keys: usize, max_keys: usize) {
    let store = Local::new().max_keys(max_keys);
    let policy = Policy::new(format!("b080 {keys}")).limit("10/day burst 10").max_wait(Duration::ZERO);
    let limiter = Limiter::new(policy, &store).unwrap();
    let regulars = (0..max_keys / 100).map(|i| format!("regular {i}")).collect::<Vec<_>>();
    for regular in &regulars {
        _ = limiter.acquire(ten(regular)).await.unwrap();
    }
    let mut fresh = 0;
    for i in 0..keys {
        fresh += usize::from(limiter.acquire(ten(&i.to_string())).await.is_ok());
        if i % 100 == 0 {
            let regular = &regulars[i / 100 % regulars.len()];
            assert!(limiter.acquire(regular).await.is_err(), "a fresh budget for {regular}");
        }
    }
    assert!(store.len() <= max_keys + 1, "{}", store.len());
    // All that were kept had their budget, and the others one together.
    assert_eq!(fresh, max_keys - regulars.len() + 1);
    // When they are forgotten there is room again.
    sleep(secs(2 * 86_400)).await;
    let mut fresh = 0;
    for i in 0..max_keys {
        fresh += usize::from(limiter.acquire(ten(&i.to_string())).await.is_ok());
    }
    assert!(fresh >= max_keys * 95 / 100, "{fresh} of {max_keys}");
    sleep(secs(2 * 86_400)).await;
    assert_eq!(store.len(), 0);
    assert!(limiter.acquire(ten("new")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn b080_a_flood_of_keys_resets_no_limited_key() {
    flood(50_000, 1_000).await;
}

#[tokio::test(start_paused = true)]
#[cfg_attr(debug_assertions, ignore = "five million keys: with --release")]
async fn b080_in_its_full_size() {
    flood(5_000_000, 100_000).await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_under_the_overflow_budget_is_told_of_its_seats() {
    let store = Local::new().max_keys(1);
    let limiter = Limiter::new(Policy::new("overflow").limit("1 at once"), &store).unwrap();
    let own = limiter.acquire("own").await.unwrap();
    let shared = limiter.acquire("one").await.unwrap();
    let start = Instant::now();
    let two = call(&limiter, start, "two");
    let three = call(&limiter, start, "three");
    sleep(secs(1)).await;
    assert_eq!((limiter.waiting("two"), limiter.waiting("three")), (1, 1));
    drop(shared);
    assert_eq!(two.await.unwrap().unwrap(), secs(1));
    assert_eq!(three.await.unwrap().unwrap(), secs(1));
    // There is room for keys of their own again while someone waits under the shared one.
    let shared = limiter.acquire("four").await.unwrap();
    let five = call(&limiter, start, "five");
    settle().await;
    drop(own);
    assert_eq!(store.len(), 0, "the shared one is not a key");
    drop(shared);
    five.await.unwrap().unwrap();
    assert_eq!((limiter.waiting("five"), store.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn keys_are_forgotten_by_themselves() {
    let store = Local::new();
    let policy = Policy::new("forgotten").limit("10/s burst 10").limit("5 at once");
    let limiter = Limiter::new(policy, &store).unwrap();
    for i in 0..10_000 {
        drop(limiter.acquire(&i.to_string()).await.unwrap());
    }
    assert_eq!(store.len(), 10_000);
    let _held = limiter.acquire("held").await.unwrap();
    limiter.pause("paused", secs(60));
    sleep(secs(10)).await;
    assert_eq!(store.len(), 2, "a seat is out, and a pause lasts");
    sleep(secs(60)).await;
    assert_eq!(store.len(), 1);
    // Without anyone asking: new keys push out those that are as good as new.
    for round in 0..10 {
        for i in 0..10_000 {
            drop(limiter.acquire(&format!("{round} {i}")).await.unwrap());
        }
        sleep(secs(10)).await;
    }
    assert!(!store.is_empty());
}

#[tokio::test(start_paused = true)]
async fn limiters_of_one_name_and_store_share_their_budgets() {
    let store = Local::new();
    let policy = Policy::new("shared").limit("4/min burst 4");
    let one = Limiter::new(&policy, &store).unwrap();
    let two = Limiter::new(&policy, &store).unwrap();
    for limiter in [&one, &two, &one, &two] {
        _ = limiter.try_acquire("k").await.unwrap();
    }
    assert!(one.try_acquire("k").await.is_err() && two.try_acquire("k").await.is_err());
}
