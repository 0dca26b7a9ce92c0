//! Whole clients over a transport that answers at once: what the layers around a call cost.

use std::sync::Arc;

use async_trait::async_trait;
use forbear::{Limiter, Retry, Throttle};
use governor::DefaultDirectRateLimiter;
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next, Result};
use reqwest_ratelimit::RateLimiter;
use reqwest_retry::RetryTransientMiddleware;
use reqwest_retry::policies::ExponentialBackoff;

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

/// One call, its body read.
pub async fn call(client: &ClientWithMiddleware) -> usize {
    let response = client.get(URL).send().await.expect("the stub answers");
    response.bytes().await.expect("an empty body").len()
}
