//! Ours and the peers' limiters, with numbers so large that every call goes.

use std::num::NonZeroU32;

use forbear::store::Local;
use forbear::{Limit, Limiter, Policy, Rate};
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use throttle_net::{MultiLimiter, PerKey, Throttle};

/// Units a second of every bucket: none is ever empty.
const RATE: u32 = 100_000_000;
/// Its burst.
const BURST: u32 = 50_000_000;

/// A key of 20 bytes.
pub const KEY: &str = "api.example.com:8443";

/// Another key of 20 bytes for each number below a billion.
pub fn key(i: usize) -> String {
    format!("api-{i:09}.net:80")
}

fn bucket() -> Limit {
    Limit::token_bucket(Rate::per_second(RATE.into()), BURST.into())
}

fn limiter(policy: Policy, store: &Local) -> Limiter {
    Limiter::new(policy, store).expect("the policy is valid")
}

/// One token bucket.
pub fn one_limit(store: &Local) -> Limiter {
    limiter(Policy::new("one").limit(bucket()), store)
}

/// One token bucket that earns a unit in a minute and a half: a key that was charged is kept for the run.
pub fn one_slow_limit(store: &Local) -> Limiter {
    limiter(Policy::new("slow").limit(Limit::token_bucket(Rate::per_day(1_000), 10_000_000)), store)
}

/// Requests, tokens and seats.
pub fn three_limits(store: &Local) -> Limiter {
    let tokens = Limit::token_bucket(Rate::per_second(u32::MAX.into()), u32::MAX.into());
    let tokens = tokens.unit("tokens").named("tokens");
    limiter(Policy::new("three").limit(bucket()).limit(tokens).limit("1000 at once"), store)
}

/// One token bucket, and seats.
pub fn one_limit_and_seats(store: &Local) -> Limiter {
    limiter(Policy::new("seats").limit(bucket()).limit("1000 at once"), store)
}

fn quota() -> Quota {
    let positive = |n| NonZeroU32::new(n).expect("it is positive");
    Quota::per_second(positive(RATE)).allow_burst(positive(BURST))
}

/// governor without keys.
pub fn governor_direct() -> DefaultDirectRateLimiter {
    RateLimiter::direct(quota())
}

/// governor with keys, as its docs make it.
pub fn governor_keyed() -> DefaultKeyedRateLimiter<String> {
    RateLimiter::keyed(quota())
}

/// throttle-net with keys.
pub fn throttle_net_keyed() -> PerKey<String> {
    PerKey::per_second(BURST)
}

/// throttle-net with three dimensions.
pub fn throttle_net_three() -> MultiLimiter {
    let dimension = || Throttle::per_second(u32::MAX);
    MultiLimiter::builder()
        .dimension("requests", dimension())
        .dimension("tokens", dimension())
        .dimension("seats", dimension())
        .build()
}
