//! What people use today, each as its documentation shows it.

use std::num::NonZeroU32;
use std::time::Duration;

use async_trait::async_trait;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use http::StatusCode;
use reqwest::Client;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use reqwest_retry::RetryTransientMiddleware;
use reqwest_retry::policies::ExponentialBackoff;
use throttle_net::{Backoff, Retry, RetryAction, Throttle, parse_retry_after};

use super::client::{Address, Answer, Belief, Caller, Part, TRIES};

/// A client with middlewares.
struct Layered(ClientWithMiddleware);

#[async_trait]
impl Caller for Layered {
    async fn call(&self, to: &Address) -> Answer {
        match self.0.get(&*to.url).headers(to.headers()).send().await {
            Ok(response) if response.status().is_success() => Answer::Well,
            _ => Answer::GivenUp,
        }
    }
}

/// Exponential backoff from a second on, with full jitter: its defaults.
fn backoff() -> RetryTransientMiddleware<ExponentialBackoff> {
    RetryTransientMiddleware::new_with_policy(ExponentialBackoff::builder().build_with_max_retries(TRIES))
}

/// reqwest-retry, and nothing that holds calls back.
pub(super) fn retry(transport: Client) -> Box<dyn Caller> {
    Box::new(Layered(ClientBuilder::new(transport).with(backoff()).build()))
}

/// governor as reqwest-ratelimit's docs put it there.
struct Governed(DefaultDirectRateLimiter);

impl reqwest_ratelimit::RateLimiter for Governed {
    async fn acquire_permit(&self) {
        self.0.until_ready().await;
    }
}

/// reqwest-retry over reqwest-ratelimit over governor.
pub(super) fn governor(transport: Client, belief: Belief, part: Part) -> Box<dyn Caller> {
    let number = |number| NonZeroU32::new(part.of(number)).expect("a part is never zero");
    let quota = Quota::per_second(number(belief.per_second)).allow_burst(number(belief.burst));
    let limit = reqwest_ratelimit::all(Governed(RateLimiter::direct(quota)));
    Box::new(Layered(ClientBuilder::new(transport).with(backoff()).with(limit).build()))
}

/// No library at all: do what the header says.
struct RetryAfter(Client);

#[async_trait]
impl Caller for RetryAfter {
    async fn call(&self, to: &Address) -> Answer {
        for _ in 0..TRIES {
            let response = match self.0.get(&*to.url).headers(to.headers()).send().await {
                Ok(response) => response,
                Err(_) => return Answer::GivenUp,
            };
            if response.status() != StatusCode::TOO_MANY_REQUESTS {
                return Answer::Well;
            }
            tokio::time::sleep(asked(&response)).await;
        }
        Answer::GivenUp
    }
}

/// How long the response asks to wait.
fn asked(response: &reqwest::Response) -> Duration {
    let seconds = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1))
}

/// Sleeps as long as Retry-After says.
pub(super) fn retry_after(transport: Client) -> Box<dyn Caller> {
    Box::new(RetryAfter(transport))
}

/// throttle-net's bucket, and its retry, which does what the server says. Its pauses of the whole bucket are
/// left out: with them a fleet at its full limit takes many times longer.
struct Throttled {
    client: Client,
    throttle: Throttle,
    retry: Retry,
}

/// Why an attempt has to be made again; with the server's wait, if it stated one.
struct Again(Option<Duration>);

impl Throttled {
    async fn attempt(&self, to: &Address) -> Result<(), Again> {
        self.throttle.acquire().await.map_err(|_| Again(None))?;
        let sent = self.client.get(&*to.url).headers(to.headers()).send().await;
        let response = sent.map_err(|_| Again(None))?;
        if response.status() != StatusCode::TOO_MANY_REQUESTS {
            return Ok(());
        }
        let header = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
        Err(Again(header.and_then(parse_retry_after)))
    }
}

#[async_trait]
impl Caller for Throttled {
    async fn call(&self, to: &Address) -> Answer {
        let classify = |again: &Again| again.0.map_or(RetryAction::Retry, RetryAction::RetryAfter);
        match self.retry.run(|| self.attempt(to), classify).await {
            Ok(()) => Answer::Well,
            Err(Again(_)) => Answer::GivenUp,
        }
    }
}

/// throttle-net around a bare client.
pub(super) fn throttle_net(transport: Client, belief: Belief, part: Part) -> Box<dyn Caller> {
    let throttle = Throttle::builder().per_second(part.of(belief.per_second)).burst(part.of(belief.burst));
    let retry = Retry::new(Backoff::default()).max_attempts(TRIES);
    Box::new(Throttled { client: transport, throttle: throttle.build(), retry })
}
