//! Where a Redis is, and how it is connected to.
//!
//! `redis` has time-outs, retries and reconnects of its own, of different kinds for each sort of connection. They
//! are all off here: the one who asks has one deadline around everything, and decides what is tried again.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::{ConnectionManager, MultiplexedConnection};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion, PushInfo,
    PushKind, RedisConnectionInfo, RedisError, RedisResult, TlsMode,
};

use super::link::{Closed, Connection};

/// How long a node of a cluster may take to be connected to.
const NODE_TIMEOUT: Duration = Duration::from_millis(300);
/// Where `redis` insists on a time-out: longer than any time budget.
const NO_TIMEOUT: Duration = Duration::from_secs(120);
/// When a connection on which nothing arrives is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long what was sent may stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(5);
/// Commands that may wait for the connection's task.
const PIPELINE: usize = 1_024;

/// Where a Redis is, and what is needed to connect to it.
#[derive(Clone)]
pub(super) enum Server {
    One(One),
    Cluster { client: Box<ClusterClient>, nodes: Vec<ConnectionInfo> },
    Sentinels(Box<Sentinels>),
    Existing(Existing),
}

#[derive(Clone)]
pub(super) struct One {
    info: ConnectionInfo,
    /// As stated, or else RESP3: it says at once when a connection was closed.
    protocol: ProtocolVersion,
    /// The server was found not to know RESP3.
    only_resp2: Arc<AtomicBool>,
}

#[derive(Clone)]
pub(super) struct Sentinels {
    pub(super) hosts: Vec<ConnectionAddr>,
    pub(super) master: String,
    pub(super) with_tls: bool,
    pub(super) redis: RedisConnectionInfo,
    pub(super) protocol_stated: bool,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// Counts the attempts: `redis` waits for the first sentinel's time-out before it looks at the others'
    /// answers, so that each attempt begins with another one.
    pub(super) turn: Arc<AtomicUsize>,
}

/// A connection made elsewhere, for [`Redis::from_connection`](super::Redis::from_connection).
#[derive(Clone)]
pub struct Existing(Connection);

impl From<MultiplexedConnection> for Existing {
    fn from(connection: MultiplexedConnection) -> Self {
        Self(Connection::One(connection))
    }
}

impl From<ConnectionManager> for Existing {
    fn from(manager: ConnectionManager) -> Self {
        Self(Connection::Managed(manager))
    }
}

impl From<ClusterConnection> for Existing {
    fn from(connection: ClusterConnection) -> Self {
        Self(Connection::Cluster(connection))
    }
}

impl fmt::Debug for Existing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Connection::One(_) => "a multiplexed connection",
            Connection::Managed(_) => "a connection manager",
            Connection::Cluster(_) => "a cluster connection",
        })
    }
}

impl fmt::Debug for Server {
    /// Without users and passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(one) => write!(f, "{}", one.info.addr()),
            Self::Cluster { nodes, .. } => {
                f.debug_list().entries(nodes.iter().map(|node| node.addr().to_string())).finish()
            }
            Self::Sentinels(sentinels) => {
                write!(f, "{} of ", sentinels.master)?;
                f.debug_list().entries(sentinels.hosts.iter().map(ToString::to_string)).finish()
            }
            Self::Existing(existing) => existing.fmt(f),
        }
    }
}

impl Server {
    pub(super) fn one(info: ConnectionInfo, protocol_stated: bool) -> Self {
        Self::One(One::new(info, protocol_stated))
    }

    pub(super) fn cluster(nodes: Vec<ConnectionInfo>) -> RedisResult<Self> {
        let client = ClusterClientBuilder::new(nodes.clone())
            .retries(0)
            .connection_timeout(NODE_TIMEOUT)
            .response_timeout(NO_TIMEOUT)
            .overall_response_timeout(None)
            .tcp_settings(tcp_settings())
            .build()?;
        Ok(Self::Cluster { client: Box::new(client), nodes })
    }

    /// Whether one server holds all keys.
    pub(super) fn is_one(&self) -> bool {
        !matches!(self, Self::Cluster { .. } | Self::Existing(Existing(Connection::Cluster(_))))
    }

    /// Whether a connection takes several steps, each to another host.
    pub(super) fn takes_steps(&self) -> bool {
        matches!(self, Self::Cluster { .. } | Self::Sentinels(_))
    }

    /// Why a connection that broke cannot be made anew here.
    pub(super) fn cannot_replace(&self) -> Option<&'static str> {
        match self {
            Self::Existing(Existing(Connection::One(_))) => Some(
                "the connection was made elsewhere and cannot be replaced here: give the store an address, or a \
                 connection manager",
            ),
            Self::Existing(_) => Some("the connection was made elsewhere and comes back by its own rules"),
            _ => None,
        }
    }

    pub(super) async fn connect(&self) -> RedisResult<(Connection, Closed)> {
        let closed = Closed::default();
        let link = match self {
            Self::One(one) => one.connect(&closed).await?,
            Self::Cluster { client, nodes } => {
                nodes.iter().for_each(|node| provide_crypto(node.addr()));
                Connection::Cluster(client.get_async_connection().await?)
            }
            Self::Sentinels(sentinels) => sentinels.master().await?.connect(&closed).await?,
            Self::Existing(existing) => existing.0.clone(),
        };
        Ok((link, closed))
    }

    /// A connection on which to hear what others say; `number` counts the attempts, so that each asks another node
    /// of a cluster. `None` where nothing is known but a connection made elsewhere.
    pub(super) async fn listen(
        &self,
        number: usize,
        heard: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Option<RedisResult<MultiplexedConnection>> {
        let one = match self {
            Self::One(one) => one.clone(),
            Self::Cluster { nodes, .. } => One::new(nodes[number % nodes.len()].clone(), false),
            Self::Sentinels(sentinels) => match sentinels.master().await {
                Ok(one) => one,
                Err(error) => return Some(Err(error)),
            },
            Self::Existing(_) => return None,
        };
        Some(one.open(ProtocolVersion::RESP3, Some(heard)).await)
    }
}

impl One {
    fn new(info: ConnectionInfo, protocol_stated: bool) -> Self {
        let protocol =
            if protocol_stated { info.redis_settings().protocol() } else { ProtocolVersion::RESP3 };
        Self { info, protocol, only_resp2: Arc::default() }
    }

    async fn connect(&self, closed: &Closed) -> RedisResult<Connection> {
        if self.protocol.supports_resp3() && !self.only_resp2.load(Ordering::Relaxed) {
            let closed = closed.clone();
            let heard = move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    closed.store(true, Ordering::Release);
                }
            };
            match self.open(ProtocolVersion::RESP3, Some(heard)).await {
                Err(error) if is_resp3_unknown(&error) => self.only_resp2.store(true, Ordering::Relaxed),
                connection => return connection.map(Connection::One),
            }
        }
        self.open(ProtocolVersion::RESP2, None::<fn(PushInfo)>).await.map(Connection::One)
    }

    async fn open(
        &self,
        protocol: ProtocolVersion,
        heard: Option<impl Fn(PushInfo) + Send + Sync + 'static>,
    ) -> RedisResult<MultiplexedConnection> {
        let redis = self.info.redis_settings().clone().set_protocol(protocol);
        let info = self.info.clone().set_redis_settings(redis).set_tcp_settings(tcp_settings());
        provide_crypto(info.addr());
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE);
        if let Some(heard) = heard {
            config = config.set_push_sender(move |push| {
                heard(push);
                Ok::<_, redis::aio::SendError>(())
            });
        }
        Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await
    }
}

impl Sentinels {
    /// Asks for the master as it is now, on new connections: those that `redis` keeps may be of another runtime.
    async fn master(&self) -> RedisResult<One> {
        self.hosts.iter().for_each(provide_crypto);
        let mut hosts = self.hosts.clone();
        let count = hosts.len();
        hosts.rotate_left(self.turn.fetch_add(1, Ordering::Relaxed) % count);
        let mut builder = SentinelClientBuilder::new(hosts, &self.master, SentinelServerType::Master)?
            .set_client_to_redis_db(self.redis.db())
            .set_client_to_redis_protocol(self.redis.protocol())
            .set_client_to_redis_tcp_settings(tcp_settings())
            .set_client_to_sentinel_tcp_settings(tcp_settings());
        if self.with_tls {
            builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        }
        if let Some(user) = self.redis.username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = self.redis.password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if let Some(user) = &self.user {
            builder = builder.set_client_to_sentinel_username(user);
        }
        if let Some(password) = &self.password {
            builder = builder.set_client_to_sentinel_password(password);
        }
        let client = builder.build()?.async_get_client().await?;
        Ok(One::new(client.get_connection_info().clone(), self.protocol_stated))
    }
}

fn is_resp3_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::RESP3NotSupported
        || matches!(error.code(), Some("NOPROTO" | "NOPERM"))
        || error.detail().is_some_and(|detail| detail.to_ascii_lowercase().contains("unknown command"))
}

fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(UNACKNOWLEDGED);
    settings
}

/// `redis` takes the process's crypto provider and has none itself. A program that has chosen one keeps it.
fn provide_crypto(addr: &ConnectionAddr) {
    if matches!(addr, ConnectionAddr::TcpTls { .. })
        && rustls::crypto::CryptoProvider::get_default().is_none()
    {
        // The error is that another thread was first.
        _ = rustls::crypto::ring::default_provider().install_default();
    }
}
