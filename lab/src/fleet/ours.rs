//! This library as its README shows it: a client that is wrapped, and told what the service allows.

use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use forbear::store::Local;
use forbear::{Builder, Limit, Limiter, Policy, Rate, Retry};
use reqwest::Client;

use super::client::{Address, Answer, Belief, Caller, Part, TRIES};
use super::load::CLIENTS;
use super::quota::Kind;
use crate::redis_server::RedisServer;
use crate::store::Home;

/// A wrapped client.
struct Wrapped(forbear::Client);

#[async_trait]
impl Caller for Wrapped {
    async fn call(&self, to: &Address) -> Answer {
        let result = self.0.get(&*to.url).headers(to.headers()).send().await;
        match &result {
            Ok(response) if response.status().is_success() => Answer::Well,
            _ => {
                let wait = forbear::retry_after(&result).unwrap_or(Duration::from_millis(100));
                tokio::time::sleep(wait).await;
                Answer::GivenUp
            }
        }
    }
}

/// The mirror image of what the server is believed to allow.
pub(super) fn limit(belief: Belief) -> Limit {
    let rate = Rate::per_second(belief.per_second);
    match belief.kind {
        Kind::TokenBucket => Limit::token_bucket(rate, belief.burst),
        Kind::FixedWindow => Limit::fixed_window(rate),
        Kind::SlidingLog => Limit::sliding_log(rate),
    }
}

fn policy(limit: Limit) -> Policy {
    Policy::new("fleet").limit(limit).max_wait(Duration::from_secs(600))
}

fn retry() -> Retry {
    Retry::default().throttled_attempts(TRIES)
}

fn boxed(builder: Builder) -> Result<Box<dyn Caller>> {
    Ok(Box::new(Wrapped(builder.retry(retry()).build()?)))
}

/// Knows nothing of the others.
pub(super) fn alone(transport: Client, belief: Belief, part: Part) -> Result<Box<dyn Caller>> {
    let limit = match part {
        Part::Full => limit(belief),
        Part::Eighth => limit(belief).share(1.0 / CLIENTS as f64),
    };
    boxed(Builder::new(transport).policy(policy(limit)).store(Local::new()))
}

/// Clients of one process, on one limiter.
pub(super) fn one_process(
    transports: impl Iterator<Item = Client>,
    belief: Belief,
) -> Result<Vec<Box<dyn Caller>>> {
    let limiter = Limiter::new(policy(limit(belief)), Local::new())?;
    transports.map(|transport| boxed(Builder::new(transport).policy(&limiter))).collect()
}

/// Clients that share one budget, each with a store and a connection to Redis of its own, as in processes of
/// their own.
pub(super) async fn on_redis(
    transports: impl Iterator<Item = Client>,
    limit: Limit,
    redis: Option<&RedisServer>,
) -> Result<Vec<Box<dyn Caller>>> {
    let home = Home::Redis(redis.context("this run needs a Redis server")?, "fleet");
    let mut callers = Vec::new();
    for transport in transports {
        let store = home.store(&limit).await?;
        callers.push(boxed(Builder::new(transport).policy(policy(limit.clone())).store(store))?);
    }
    Ok(callers)
}
