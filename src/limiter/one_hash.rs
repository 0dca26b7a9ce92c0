//! Keys whose hashes are the same: they share nothing but a place in the table of lines.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Ask, Limiter};
use crate::policy::Policy;
use crate::store::{AnyStore, Home, Table};

#[tokio::test(start_paused = true)]
async fn keys_that_share_a_hash_share_nothing_else() {
    let policy = Policy::new("one hash").limit("1/s burst 1").limit("2 at once").max_waiting(5);
    let limiter = Limiter::new(policy, AnyStore(Home::Here(Arc::new(Table::of_one_hash())))).unwrap();
    let start = Instant::now();
    let calls = (0..12).map(|i| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            drop(limiter.acquire(["a", "b"][i % 2]).await.unwrap());
            start.elapsed()
        })
    });
    let calls = calls.collect::<Vec<_>>();
    sleep(Duration::from_millis(500)).await;
    assert_eq!((limiter.waiting("a"), limiter.waiting("b")), (5, 5));
    assert!(limiter.acquire("b").await.is_err(), "its own line is full");
    // Whoever gives up, whatever is paused: the other key does not notice.
    calls[3].abort();
    limiter.pause("b", Duration::from_secs(60));
    let _other = limiter.try_acquire("c").await.unwrap();
    for (i, call) in calls.into_iter().enumerate() {
        match (i % 2, call.await) {
            (0, time) => assert_eq!(time.unwrap().as_secs(), i as u64 / 2),
            (_, Err(_)) => assert_eq!(i, 3),
            (_, Ok(time)) => assert!(i == 1 || time >= Duration::from_secs(60)),
        }
    }
    assert_eq!((limiter.waiting("a"), limiter.waiting("b")), (0, 0));
    _ = limiter.try_acquire(Ask::new("a")).await;
    assert!(limiter.core.shared.queue.has_no_line(), "no line is left behind");
}
