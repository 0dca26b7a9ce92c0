//! What the limiter's tests share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::time::{Duration, SystemTime};

use forbear::store::Local;
use forbear::{Ask, Limit, Limiter, Permit, Policy, Rate, Refused, Signals};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub(crate) fn limiter(policy: Policy) -> Limiter {
    Limiter::new(policy, Local::new()).expect("a valid policy")
}

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A bucket of `burst`, one unit every `every`.
pub(crate) fn bucket(every: Duration, burst: u64) -> Limit {
    Limit::token_bucket(Rate::new(1, every), burst)
}

/// Starts a call, and says when it went.
pub(crate) fn call(limiter: &Limiter, start: Instant, key: &str) -> JoinHandle<Result<Duration, Refused>> {
    ask(limiter, start, key, None, &[])
}

pub(crate) fn ask(
    limiter: &Limiter,
    start: Instant,
    key: &str,
    max_wait: Option<Duration>,
    costs: &[(&'static str, u64)],
) -> JoinHandle<Result<Duration, Refused>> {
    let (limiter, key, costs) = (limiter.clone(), key.to_owned(), costs.to_vec());
    tokio::spawn(async move {
        let mut ask = Ask::new(&key);
        for (unit, cost) in costs {
            ask = ask.cost(unit, cost);
        }
        if let Some(max_wait) = max_wait {
            ask = ask.max_wait(max_wait);
        }
        let _permit = limiter.acquire(ask).await?;
        Ok(start.elapsed())
    })
}

/// Starts a call that keeps its permit.
pub(crate) fn hold(limiter: &Limiter, key: &str) -> JoinHandle<Result<Permit, Refused>> {
    let (limiter, key) = (limiter.clone(), key.to_owned());
    tokio::spawn(async move { limiter.acquire(&key).await })
}

/// Lets every task that is ready run, without time passing.
pub(crate) async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

pub(crate) fn signals(status: u16, headers: &[(&str, &str)]) -> Signals {
    let headers = headers.iter().map(|(name, value)| {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a header name");
        (name, HeaderValue::from_str(value).expect("a header value"))
    });
    let status = StatusCode::from_u16(status).expect("a status");
    Signals::read(status, &headers.collect::<HeaderMap>(), SystemTime::UNIX_EPOCH)
}

/// The most of `times` in any span shorter than `span`.
pub(crate) fn most_in(times: &[Duration], span: Duration) -> usize {
    let mut sorted = times.to_vec();
    sorted.sort();
    let counts = (0..sorted.len()).map(|i| sorted[i..].iter().take_while(|t| **t < sorted[i] + span).count());
    counts.max().unwrap_or(0)
}
