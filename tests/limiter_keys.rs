//! Keys: told apart whatever they hold, forgotten by themselves, and bounded. On a paused clock.

mod kit;

use std::time::Duration;

use forbear::store::Local;
use forbear::{Ask, Limiter, Policy};
use kit::{call, secs, settle};
use tokio::time::{Instant, sleep};

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
async fn b080_in_its_full_size() {
    // A tenth of it without optimisation, which would take minutes.
    let part = if cfg!(debug_assertions) { 10 } else { 1 };
    flood(5_000_000 / part, 100_000 / part).await;
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
    let store = Local::new().max_keys(30_000);
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
    // Without anyone asking: new keys push out those that are as good as new. In a full table they would have
    // to wait for the budget that they then share.
    let start = Instant::now();
    for round in 0..10 {
        for i in 0..10_000 {
            drop(limiter.acquire(&format!("{round} {i}")).await.unwrap());
        }
        sleep(secs(10)).await;
    }
    assert!(start.elapsed() < secs(101), "{:?}", start.elapsed());
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
