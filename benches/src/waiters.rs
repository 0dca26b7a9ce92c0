//! Callers that wait while others are decided.

use std::time::Duration;

use forbear::{Limit, Limiter, Policy, Rate, store::Local};
use tokio::task::JoinSet;

use crate::contender::KEY;

const HOUR: Duration = Duration::from_secs(3_600);

/// A limiter with so many callers in line for one key; every other key is free. The callers are in the
/// set: dropping it sends them home.
pub async fn with_waiting(callers: usize) -> (Limiter, JoinSet<()>) {
    let day = Limit::token_bucket(Rate::per_day(1_000_000_000), 1_000_000_000);
    let policy = Policy::new(format!("waiting-{callers}")).limit(day).max_wait(2 * HOUR);
    let limiter = Limiter::new(policy, Local::new()).expect("the policy is valid");
    limiter.pause(KEY, HOUR);
    let mut set = JoinSet::new();
    for _ in 0..callers {
        let limiter = limiter.clone();
        set.spawn(async move { _ = limiter.acquire(KEY).await });
    }
    while limiter.waiting(KEY) < callers {
        tokio::task::yield_now().await;
    }
    (limiter, set)
}
