//! Servers, for real: each replica an HTTP server of its own on the loopback, behind the limit layer.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use forbear::{Limit, Policy};
use forbear_server::{Key, LimitLayer};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};

use crate::store::Home;

/// How many replicas there are, and whether they share their state. Requests go to them in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Deployment {
    /// One replica, state in its process.
    One,
    /// Two, each with state of its own.
    Two,
    /// Two on one Redis.
    TwoOnRedis,
}

impl Deployment {
    pub(crate) const ALL: [Self; 3] = [Self::One, Self::Two, Self::TwoOnRedis];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::One => "one replica",
            Self::Two => "two, apart",
            Self::TwoOnRedis => "two on Redis",
        }
    }

    fn replicas(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two | Self::TwoOnRedis => 2,
        }
    }
}

/// A request that was let through.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    /// When it came to the limit layer.
    pub(crate) came: Instant,
    /// When the backend had it.
    pub(crate) reached: Instant,
    /// When the backend was done.
    pub(crate) done: Instant,
}

/// When a request came to the limit layer; rides in its extensions.
#[derive(Debug, Clone, Copy)]
struct Came(Instant);

/// Running replicas; dropping them ends them.
pub(crate) struct Servers {
    pub(crate) addresses: Vec<SocketAddr>,
    seen: Arc<Mutex<Vec<Seen>>>,
    _tasks: JoinSet<()>,
}

impl Servers {
    /// Starts the replicas, each with a store of its own in `home`.
    pub(crate) async fn start(
        deployment: Deployment,
        home: Home<'_>,
        limit: &Limit,
        takes: Duration,
    ) -> Result<Self> {
        let mut servers = Self { addresses: Vec::new(), seen: Arc::default(), _tasks: JoinSet::new() };
        for _ in 0..deployment.replicas() {
            let store = home.store(limit).await?;
            let layer = LimitLayer::new(Policy::new("caller").limit(limit), Key::everyone(), store);
            servers.replica(layer.build()?, takes).await?;
        }
        Ok(servers)
    }

    async fn replica(&mut self, layer: LimitLayer, takes: Duration) -> Result<()> {
        let seen = self.seen.clone();
        let backend = service_fn(move |request: Request<Incoming>| {
            let (seen, reached) = (seen.clone(), Instant::now());
            async move {
                if !takes.is_zero() {
                    tokio::time::sleep(takes).await;
                }
                let came = request.extensions().get::<Came>().expect("every request is stamped").0;
                seen.lock().push(Seen { came, reached, done: Instant::now() });
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("well")))
            }
        });
        let stamped = layer.layer(backend).map_request(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(Came(Instant::now()));
            request
        });
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        self.addresses.push(listener.local_addr()?);
        self._tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                _ = stream.set_nodelay(true);
                let service = TowerToHyperService::new(stamped.clone());
                let http = hyper::server::conn::http1::Builder::new();
                connections.spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(())
    }

    /// What was let through so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }
}
