//! A network that takes its time and behind it a server that limits its callers, for a paused clock.
//!
//! It stands in a client's chain where a transport would be. The delays lie between the client's send and
//! the server's decision, for what counts is what the server sees. The clock counts whole milliseconds, so
//! a delay is rounded up or down by chance.

use std::convert::Infallible;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use fastrand::Rng;
use forbear::{Client, Policy, store::Local};
use forbear_server::{Key, LimitBody, LimitLayer};
use http::{Extensions, StatusCode};
use http_body_util::{BodyExt, Full};
use parking_lot::Mutex;
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, Middleware, Next, Result};
use tokio::time::Instant;
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};

/// How long a request is on its way, in milliseconds.
#[derive(Debug, Clone)]
pub struct Way {
    name: &'static str,
    /// What each takes, and the mean of the exponential part.
    least: Range<f64>,
    spread: f64,
    /// What a new connection takes besides.
    connect: Range<f64>,
    /// How many come 200 ms late.
    stragglers: f64,
}

impl Way {
    /// Within a data centre.
    pub fn lan() -> Self {
        Self { name: "lan", least: 0.3..0.5, spread: 0.4, connect: 3.0..6.0, stragglers: 0.0 }
    }

    /// Across the internet.
    pub fn inet() -> Self {
        Self { name: "inet", least: 10.0..10.0, spread: 3.0, connect: 30.0..80.0, stragglers: 0.0 }
    }

    /// One in 200 requests comes 200 ms late: a lost packet.
    pub fn with_stragglers(self) -> Self {
        Self { stragglers: 0.005, ..self }
    }

    fn there(&self, rng: &mut Rng, new: bool) -> Duration {
        let connect = if new { uniform(rng, &self.connect) } else { 0.0 };
        let late = if rng.f64() < self.stragglers { 200.0 } else { 0.0 };
        self.usual(rng, connect + late)
    }

    fn back(&self, rng: &mut Rng) -> Duration {
        self.usual(rng, 0.0)
    }

    fn usual(&self, rng: &mut Rng, more: f64) -> Duration {
        let ms = uniform(rng, &self.least) + exponential(rng, self.spread) + more;
        // The clock counts whole milliseconds.
        let up = u64::from(rng.f64() < ms.fract());
        Duration::from_millis(ms.trunc() as u64 + up)
    }
}

fn uniform(rng: &mut Rng, range: &Range<f64>) -> f64 {
    range.start + rng.f64() * (range.end - range.start)
}

fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -mean * (1.0 - rng.f64()).ln()
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, if self.stragglers > 0.0 { " with stragglers" } else { "" })
    }
}

type Limited = BoxCloneSyncService<http::Request<()>, http::Response<LimitBody<Full<Bytes>>>, Infallible>;

/// The way to a server, and the server.
#[derive(Clone)]
pub struct Network(Arc<Inner>);

struct Inner {
    way: Way,
    server: Limited,
    started: Instant,
    state: Mutex<State>,
}

struct State {
    rng: Rng,
    idle: usize,
    decisions: Vec<Decided>,
}

/// What the server decided, and when.
#[derive(Debug, Clone, Copy)]
pub struct Decided {
    pub at: Duration,
    pub admitted: bool,
}

impl Network {
    /// Seeded: the same delays in each run.
    pub fn new(way: Way, seed: u64, limits: Policy) -> Self {
        let layer = LimitLayer::new(limits, Key::everyone(), Local::new()).build().expect("a layer");
        let well = service_fn(async |_: http::Request<()>| {
            Ok::<_, Infallible>(http::Response::new(Full::<Bytes>::from("well")))
        });
        Self(Arc::new(Inner {
            way,
            server: BoxCloneSyncService::new(layer.layer(well)),
            started: Instant::now(),
            state: Mutex::new(State { rng: Rng::with_seed(seed), idle: 0, decisions: Vec::new() }),
        }))
    }

    /// The client with this network instead of a transport.
    pub fn behind(&self, client: Client) -> Client {
        ClientBuilder::from_client(client).with(self.clone()).build()
    }

    /// Another caller's request, which takes no time and is not counted.
    pub async fn intrude(&self) {
        self.decide().await;
    }

    /// In the order in which the server made them.
    pub fn decisions(&self) -> Vec<Decided> {
        self.0.state.lock().decisions.clone()
    }

    pub fn refused(&self) -> usize {
        self.0.state.lock().decisions.iter().filter(|decided| !decided.admitted).count()
    }

    async fn decide(&self) -> http::Response<LimitBody<Full<Bytes>>> {
        let answer = self.0.server.clone().oneshot(http::Request::new(())).await;
        answer.unwrap_or_else(|never| match never {})
    }

    /// A connection now and then has been closed in the meantime.
    fn connect(state: &mut State) -> bool {
        let new = state.idle == 0 || state.rng.f64() < 0.01;
        state.idle = state.idle.saturating_sub(1);
        new
    }
}

#[async_trait]
impl Middleware for Network {
    async fn handle(&self, _: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        let there = {
            let state = &mut *self.0.state.lock();
            let new = Self::connect(state);
            self.0.way.there(&mut state.rng, new)
        };
        tokio::time::sleep(there).await;
        let at = self.0.started.elapsed();
        let (head, body) = self.decide().await.into_parts();
        let back = {
            let state = &mut *self.0.state.lock();
            let admitted = head.status != StatusCode::TOO_MANY_REQUESTS;
            state.decisions.push(Decided { at, admitted });
            self.0.way.back(&mut state.rng)
        };
        tokio::time::sleep(back).await;
        self.0.state.lock().idle += 1;
        let body = body.collect().await.unwrap_or_else(|never| match never {}).to_bytes();
        Ok(http::Response::from_parts(head, body).into())
    }
}
