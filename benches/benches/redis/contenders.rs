//! The limiters that are measured, and the plain commands and scripts that stand beside them.

use std::sync::Arc;

use forbear::store::Redis;
use forbear::{Ask, Limit, Limiter, Permit, Policy, Rate};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Cmd, IntoConnectionInfo, ProtocolVersion, Value};

pub(crate) use forbear_benches::contender::KEY;

/// The script that decides nothing.
pub(crate) const ONE_LINE: &str = "return 1";
/// The least that a counter with an expiry does, whatever it finds.
const COUNTER: &str = "local count = redis.call('INCRBY', KEYS[1], ARGV[1]) redis.call('PEXPIRE', KEYS[1], ARGV[2]) return count";

/// A limiter, and what one call asks of it.
#[derive(Clone)]
pub(crate) struct Ours {
    pub(crate) what: &'static str,
    /// Stands in the names of its keys.
    pub(crate) policy: &'static str,
    pub(crate) limiter: Limiter,
    tokens: u64,
}

impl Ours {
    pub(crate) fn new(what: &'static str, name: &'static str, limits: &[Limit], store: &Redis) -> Self {
        let policy = limits.iter().cloned().fold(Policy::new(name), Policy::limit);
        let limiter = Limiter::new(policy, store.clone()).expect("the policy is valid");
        let tokens = if limits.iter().any(|limit| limit.to_string().contains("tokens")) { 100 } else { 0 };
        Self { what, policy: name, limiter, tokens }
    }

    pub(crate) async fn decide(&self, key: &str) -> Permit {
        let mut ask = Ask::new(key);
        if self.tokens > 0 {
            ask = ask.cost("tokens", self.tokens);
        }
        self.limiter.acquire(ask).await.unwrap_or_else(|refused| panic!("{}: {refused}", self.what))
    }
}

/// Who decides.
#[derive(Clone)]
pub(crate) enum Who {
    Ours(Ours),
    /// The same, and its key was paused a moment ago.
    Paused(Ours),
    Counter(MultiplexedConnection, Arc<str>),
}

impl Who {
    pub(crate) async fn counter(url: &str) -> Self {
        let mut connection = connection(url).await;
        let sha = load(&mut connection, COUNTER).await;
        Self::Counter(connection, sha.into())
    }

    pub(crate) async fn decide(&mut self, key: &str) {
        match self {
            Self::Ours(ours) | Self::Paused(ours) => drop(ours.decide(key).await),
            Self::Counter(connection, sha) => _ = send(connection, &count(sha, key)).await,
        }
    }
}

/// So fast that no caller of a bench ever waits for it.
pub(crate) fn fast() -> Rate {
    Rate::per_second(1_000_000)
}

/// A bucket whose last pause is remembered for 16 seconds.
pub(crate) fn bucket() -> Limit {
    Limit::token_bucket(fast(), 16_000_000)
}

/// Every algorithm, and three limits of one service.
pub(crate) fn all(store: &Redis) -> Vec<Ours> {
    let tokens = Limit::token_bucket(Rate::per_second(16_000_000), 16_000_000).unit("tokens");
    [
        ("token bucket", "bucket", vec![bucket()]),
        ("plain rate", "plain", vec![Limit::rate(fast())]),
        ("leaky bucket", "leaky", vec![Limit::leaky_bucket(fast(), 10_000)]),
        ("fixed window", "window", vec![Limit::fixed_window(fast())]),
        ("sliding window of 10", "segments", vec![Limit::sliding_window(fast(), 10)]),
        ("sliding counter", "counter", vec![Limit::sliding_counter(fast())]),
        ("sliding log", "log", vec![Limit::sliding_log(Rate::per_second(100_000))]),
        ("seats", "seats", vec![Limit::concurrency(1_000)]),
        ("requests, tokens and seats", "three", vec![bucket(), tokens, Limit::concurrency(1_000)]),
    ]
    .into_iter()
    .map(|(what, name, limits)| Ours::new(what, name, &limits, store))
    .collect()
}

/// A connection of the kind that the store has.
pub(crate) async fn connection(url: &str) -> MultiplexedConnection {
    let info = url.into_connection_info().expect("the address is valid");
    let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let info = info.set_redis_settings(redis).set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let client = redis::Client::open(info).expect("the address is valid");
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1_024);
    client.get_multiplexed_async_connection_with_config(&config).await.expect("the server answers")
}

/// Loads a script; its hash.
pub(crate) async fn load(connection: &mut MultiplexedConnection, script: &str) -> String {
    redis::cmd("SCRIPT").arg("LOAD").arg(script).query_async(connection).await.expect("it is a script")
}

pub(crate) fn ping() -> Cmd {
    redis::cmd("PING")
}

pub(crate) fn one_line(sha: &str) -> Cmd {
    let mut cmd = redis::cmd("EVALSHA");
    cmd.arg(sha).arg(0);
    cmd
}

fn count(sha: &str, key: &str) -> Cmd {
    let mut cmd = redis::cmd("EVALSHA");
    cmd.arg(sha).arg(1).arg(key).arg(1).arg(60_000);
    cmd
}

pub(crate) async fn send(connection: &mut MultiplexedConnection, cmd: &Cmd) -> Value {
    connection.send_packed_command(cmd).await.expect("the server answers")
}
