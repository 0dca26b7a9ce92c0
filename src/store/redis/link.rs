//! A connection as the store uses it, and how a command goes over it.
//!
//! A command is sent once. Only what is known not to have run is sent again: an unknown script, keys that are moving.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::time::{sleep, timeout};

use super::hub::HEARTBEAT;
use super::server::Server;
use super::wire::Call;

/// How often, and how far apart, a call is sent again whose keys are on their way to another node.
const MOVING: (u32, Duration) = (9, Duration::from_millis(20));

/// A connection. Clones share it.
#[derive(Clone)]
pub(super) enum Connection {
    One(MultiplexedConnection),
    Managed(ConnectionManager),
    Cluster(ClusterConnection),
}

/// Set once a connection is known to be closed.
pub(super) type Closed = Arc<AtomicBool>;

impl Connection {
    /// One command, sent once. A cluster's redirection is followed: a command that was redirected was not run.
    pub(super) async fn ask(&self, cmd: &Cmd) -> RedisResult<Value> {
        let value = match self {
            Self::One(connection) => connection.clone().send_packed_command(cmd).await?,
            Self::Managed(manager) => manager.clone().send_packed_command(cmd).await?,
            Self::Cluster(connection) => match connection.clone().req_packed_command(cmd).await {
                Err(error) if error.redirect_node().is_some() => redirected(connection, cmd, error).await?,
                answer => answer?,
            },
        };
        match value {
            Value::ServerError(error) => Err(error.into()),
            value => Ok(value),
        }
    }
}

async fn redirected(connection: &ClusterConnection, cmd: &Cmd, error: RedisError) -> RedisResult<Value> {
    let (host, port) = match error.redirect_node().and_then(|(node, _)| node.rsplit_once(':')) {
        Some((host, port)) => (host.to_owned(), port.parse().map_err(|_| error.clone())?),
        None => return Err(error),
    };
    let node = SingleNodeRoutingInfo::ByAddress { host, port };
    let mut connection = connection.clone();
    if error.kind() != ErrorKind::Server(ServerErrorKind::Ask) {
        return connection.route_command(cmd.clone(), RoutingInfo::SingleNode(node)).await;
    }
    let mut asking = redis::pipe();
    asking.cmd("ASKING").add_command(cmd.clone());
    let mut values = connection.route_pipeline(asking, 0, 2, node).await?;
    values.pop().ok_or(error)
}

/// A connection, and which one in this store's life it is.
pub(super) struct Link {
    pub(super) connection: Connection,
    closed: Closed,
    /// Others may have to report first what they hold.
    pub(super) settles: bool,
    pub(super) number: u64,
}

impl Link {
    /// Connects anew, or for the `first` time.
    pub(super) async fn make(server: &Server, is_first: bool) -> RedisResult<Self> {
        let (connection, closed) = server.connect().await?;
        // A server that lost its state, or that has it from another one, does not know yet what others hold.
        let settles = !is_first || was_promoted(&connection).await;
        Ok(Self { connection, closed, settles, number: 0 })
    }

    /// Whether it is known to be closed: then nothing was sent.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// One call. A script that the server does not know, or does not know any more, is sent along.
    pub(super) async fn run(&self, call: &Call) -> Result<Value, RedisError> {
        let mut answer = self.run_there(call).await;
        for _ in 0..MOVING.0 {
            match &answer {
                // Not run: some of the keys were here, some there.
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain) => {
                    sleep(MOVING.1).await;
                    answer = self.run_there(call).await;
                }
                _ => break,
            }
        }
        answer
    }

    async fn run_there(&self, call: &Call) -> Result<Value, RedisError> {
        match self.connection.ask(&command("EVALSHA", &call.script.sha, call)).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.connection.ask(&command("EVAL", &call.script.text, call)).await
            }
            answer => answer,
        }
    }
}

fn command(name: &str, script: &str, call: &Call) -> Cmd {
    let size = call.keys.iter().chain(&call.args).map(Vec::len).sum::<usize>();
    let mut cmd = Cmd::with_capacity(3 + call.keys.len() + call.args.len(), size + script.len() + 16);
    cmd.arg(name).arg(script).arg(call.keys.len());
    for part in call.keys.iter().chain(&call.args) {
        cmd.arg(&part[..]);
    }
    cmd
}

async fn was_promoted(connection: &Connection) -> bool {
    let asked = timeout(HEARTBEAT / 30, connection.ask(&redis::cmd("INFO"))).await;
    asked.is_ok_and(|info| info.is_ok_and(|info| tells_of_promotion(&info)))
}

/// Whether a server was promoted so lately that what workers hold may be missing in it. One that has only just
/// started cannot be told from the first of its life; who knew it before knows by its birth that all was lost.
fn tells_of_promotion(info: &Value) -> bool {
    /// What a fleet writes in some seconds, and not in some minutes.
    const LATELY: i64 = 1 << 20;
    let mut texts = Vec::new();
    strings(info, &mut texts);
    texts.iter().any(|text| {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|value| value.trim().parse::<i64>().ok())
        };
        match (field("second_repl_offset"), field("master_repl_offset")) {
            (Some(then), Some(now)) => then > 0 && now - then < LATELY,
            _ => false,
        }
    })
}

/// A cluster answers with a map of nodes.
fn strings(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::BulkString(bytes) => into.push(String::from_utf8_lossy(bytes).into_owned()),
        Value::VerbatimString { text, .. } => into.push(text.clone()),
        Value::Array(values) => values.iter().for_each(|value| strings(value, into)),
        Value::Map(pairs) => pairs.iter().for_each(|(_, value)| strings(value, into)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(uptime: u32, second: i64, now: i64) -> Value {
        let text = format!(
            "# Server\r\nuptime_in_seconds:{uptime}\r\nuptime_in_days:0\r\n# Replication\r\n\
             master_repl_offset:{now}\r\nsecond_repl_offset:{second}\r\n"
        );
        Value::BulkString(text.into_bytes())
    }

    #[test]
    fn a_server_is_young_after_its_promotion() {
        assert!(!tells_of_promotion(&info(3, -1, 5_000_000)), "one that has just started");
        assert!(tells_of_promotion(&info(1_000_000, 4_999_000, 5_000_000)));
        assert!(!tells_of_promotion(&info(1_000_000, 1_000_000, 5_000_000)));
        let nodes = [info(100, -1, 0), info(3, 9, 10)].map(|node| (Value::Okay, node));
        assert!(tells_of_promotion(&Value::Map(nodes.into())), "one node of a cluster");
        assert!(!tells_of_promotion(&Value::Nil));
    }
}
