//! What the client's tests share: a fake service as the last middleware, for a paused clock and no sockets,
//! and a log that is kept instead of printed.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

pub mod log;
pub mod network;
pub mod server;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forbear::client::Backoff;
use forbear::{Builder, Client, Policy, Retry};
use http::{Extensions, Method};
use http_body_util::channel::Channel;
use parking_lot::Mutex;
use reqwest::{Request, Response, ResponseBuilderExt};
use reqwest_middleware::{ClientBuilder, Middleware, Next, Result};
use tokio::time::Instant;

pub const URL: &str = "https://api.example.test/v1";

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Backoffs of 100 ms, doubling to a second, and no jitter anywhere.
pub fn exact() -> Retry {
    let backoff = Backoff::new(ms(100), secs(1)).without_jitter();
    Retry::default().backoff(backoff).throttle_backoff(backoff).server_jitter(0.0, Duration::ZERO)
}

/// A body that gives nothing for so long, then `text`.
pub fn slow(text: &'static str, delay: Duration) -> reqwest::Body {
    let (mut sender, body) = Channel::<bytes::Bytes, std::io::Error>::new(4);
    tokio::spawn(async move {
        tokio::time::sleep(delay).await;
        _ = sender.send_data(text.into()).await;
    });
    reqwest::Body::wrap(body)
}

/// A body that breaks.
pub fn broken() -> reqwest::Body {
    let (sender, body) = Channel::<bytes::Bytes, std::io::Error>::new(4);
    sender.abort(std::io::Error::other("cut"));
    reqwest::Body::wrap(body)
}

/// A request as the service saw it.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Since the service was made.
    pub at: Duration,
    pub method: Method,
    pub host: String,
    pub path: String,
    pub body: Vec<u8>,
}

/// An answer in the making.
pub struct Reply {
    builder: http::response::Builder,
    body: reqwest::Body,
    delay: Duration,
}

pub fn reply(status: u16) -> Reply {
    Reply { builder: http::Response::builder().status(status), body: "".into(), delay: Duration::ZERO }
}

impl Reply {
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.builder = self.builder.header(name, value);
        self
    }

    pub fn after(self, wait: &str) -> Self {
        self.header("retry-after", wait)
    }

    pub fn body(mut self, body: impl Into<reqwest::Body>) -> Self {
        self.body = body.into();
        self
    }

    pub fn url(mut self, url: &str) -> Self {
        self.builder = self.builder.url(url.parse().expect("a URL"));
        self
    }

    /// The head comes so much later.
    pub fn in_time(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
}

type Script = dyn Fn(usize, &Request) -> Reply + Send + Sync;

/// A service that answers by a script: arrival number, from 0, and request.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

struct Inner {
    started: Instant,
    script: Box<Script>,
    arrivals: Mutex<Vec<Arrival>>,
    busy: Mutex<(usize, usize)>,
}

impl Service {
    pub fn new(script: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner {
            started: Instant::now(),
            script: Box::new(script),
            arrivals: Mutex::default(),
            busy: Mutex::default(),
        }))
    }

    /// A client around this service instead of a network.
    pub fn client(&self, builder: Builder) -> Client {
        self.behind(builder.build().expect("a client"))
    }

    /// The same for retries alone: its policy has no limits, and only follows pauses.
    pub fn retried(&self, retry: Retry) -> Client {
        self.client(new().policy(Policy::new("test")).retry(retry))
    }

    pub fn behind(&self, client: Client) -> Client {
        ClientBuilder::from_client(client).with(self.clone()).build()
    }

    pub fn arrivals(&self) -> Vec<Arrival> {
        self.0.arrivals.lock().clone()
    }

    /// When each request arrived.
    pub fn times(&self) -> Vec<Duration> {
        self.arrivals().iter().map(|arrival| arrival.at).collect()
    }

    /// From each arrival to the next.
    pub fn gaps(&self) -> Vec<Duration> {
        self.times().windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    pub fn count(&self) -> usize {
        self.0.arrivals.lock().len()
    }

    /// The most requests that were under way at once, up to their heads.
    pub fn peak(&self) -> usize {
        self.0.busy.lock().1
    }
}

pub fn new() -> Builder {
    Builder::new(reqwest::Client::new())
}

struct Busy(Arc<Inner>);

impl Busy {
    fn with(inner: &Arc<Inner>) -> Self {
        let busy = &mut *inner.busy.lock();
        busy.0 += 1;
        busy.1 = busy.1.max(busy.0);
        Self(inner.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.lock().0 -= 1;
    }
}

#[async_trait]
impl Middleware for Service {
    async fn handle(&self, request: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        let _busy = Busy::with(&self.0);
        let number = {
            let mut arrivals = self.0.arrivals.lock();
            arrivals.push(Arrival {
                at: self.0.started.elapsed(),
                method: request.method().clone(),
                host: request.url().host_str().unwrap_or_default().to_owned(),
                path: request.url().path().to_owned(),
                body: request.body().and_then(|body| body.as_bytes()).unwrap_or_default().to_vec(),
            });
            arrivals.len() - 1
        };
        let Reply { builder, body, delay } = (self.0.script)(number, &request);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        Ok(builder.body(body).expect("a response").into())
    }
}
