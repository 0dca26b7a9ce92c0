//! Whole clients over a transport that answers at once: what the layers around a call cost.

use std::hint::black_box;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use forbear::signals::Signals;
use forbear::{Limiter, Retry, Throttle};
use governor::DefaultDirectRateLimiter;
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Error, Middleware, Next, Result};
use reqwest_ratelimit::RateLimiter;
use reqwest_retry::RetryTransientMiddleware;
use reqwest_retry::policies::ExponentialBackoff;

use tokio::time::Instant;

use crate::contender;

/// Where the calls go; nobody listens there.
pub const URL: &str = "http://api.example.com/v1/items";

/// The last middleware: the service.
struct Stub;

#[async_trait]
impl Middleware for Stub {
    async fn handle(&self, _: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        Ok(http::Response::new("").into())
    }
}

fn builder() -> ClientBuilder {
    ClientBuilder::new(reqwest::Client::new())
}

/// No layers.
pub fn bare() -> ClientWithMiddleware {
    builder().with(Stub).build()
}

/// governor as reqwest-ratelimit's docs put it there.
struct Governed(Arc<DefaultDirectRateLimiter>);

impl RateLimiter for Governed {
    async fn acquire_permit(&self) {
        self.0.until_ready().await;
    }
}

/// reqwest-retry over reqwest-ratelimit over governor.
pub fn peers() -> ClientWithMiddleware {
    let policy = ExponentialBackoff::builder().build_with_max_retries(3);
    builder()
        .with(RetryTransientMiddleware::new_with_policy(policy))
        .with(reqwest_ratelimit::all(Governed(Arc::new(contender::governor_direct()))))
        .with(Stub)
        .build()
}

/// Our retry over our throttle, both as they come.
pub fn ours(limiter: Limiter) -> ClientWithMiddleware {
    builder().with(Retry::default()).with(Throttle::new(limiter)).with(Stub).build()
}

/// The least that a retry does: a copy of the request to send again. What became of a call that did well at once its
/// response tells.
struct LeastRetry;

#[async_trait]
impl Middleware for LeastRetry {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let copy = request.try_clone();
        let response = next.run(request, extensions).await;
        black_box(&copy);
        response
    }
}

/// The least that a throttle does that follows the service: a decision under the service's key, and what the
/// response says about limits in its extensions, with the time of its receipt.
struct LeastThrottle(Limiter);

#[async_trait]
impl Middleware for LeastThrottle {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let _permit = match request.url().host_str() {
            Some(host) => self.0.acquire(host).await.map_err(Error::middleware)?,
            None => self.0.acquire("").await.map_err(Error::middleware)?,
        };
        let mut response = next.run(request, extensions).await?;
        let received = Instant::now();
        let signals = Signals::read(response.status(), response.headers(), SystemTime::UNIX_EPOCH);
        self.0.observe("", &signals);
        response.extensions_mut().insert((signals, received));
        Ok(response)
    }
}

/// The least that both of ours could cost: what is promised of every call, and nothing else.
pub fn least(limiter: Limiter) -> ClientWithMiddleware {
    builder().with(LeastRetry).with(LeastThrottle(limiter)).with(Stub).build()
}

/// One call, its body read.
pub async fn call(client: &ClientWithMiddleware) -> usize {
    let response = client.get(URL).send().await.expect("the stub answers");
    response.bytes().await.expect("an empty body").len()
}
