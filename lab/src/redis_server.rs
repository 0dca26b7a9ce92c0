//! A Redis server of our own: on a free port of the loopback, with nothing on disk, gone with its owner.
//!
//! Nobody's running server is ever touched: one that a run flushes or counts commands on has to be the run's.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(5);

/// A running server; dropping it ends it.
#[derive(Debug)]
pub(crate) struct RedisServer {
    process: Child,
    port: u16,
}

/// Why there are no runs over Redis, in words for the terminal; `None` if there can be.
pub(crate) fn missing() -> Option<&'static str> {
    let found = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
    match found {
        Ok(status) if status.success() => None,
        _ => Some(
            "redis-server was not found: the runs over Redis are left out, all others go on.\n\
             To have them: `apt-get install redis-server`, `brew install redis` or `dnf install redis`,\n\
             so that `redis-server` is on PATH; it is started on a free loopback port and stopped again.",
        ),
    }
}

impl RedisServer {
    /// Starts one, and waits until it answers.
    pub(crate) async fn start() -> Result<Self> {
        // Between here and there somebody else may take the port, so it is tried again with another one.
        for _ in 0..3 {
            let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
            let process = Command::new("redis-server")
                .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"])
                .arg(port.to_string())
                .current_dir(std::env::temp_dir())
                .stdout(Stdio::null())
                .spawn()
                .context("redis-server did not start")?;
            let mut server = Self { process, port };
            if server.answers().await? {
                return Ok(server);
            }
        }
        bail!("redis-server ended at once, three times: run `redis-server --port 0` to see why")
    }

    /// Where it is.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Calls that it was sent, by what it counts itself: each script run is a trip of the store.
    pub(crate) async fn trips(&self) -> Result<u64> {
        let text = self.ask("INFO commandstats\r\n").await?;
        let counts = text.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let calls = rest.split(',').next()?.parse::<u64>().ok()?;
            ["eval", "evalsha", "fcall"].contains(&name).then_some(calls)
        });
        Ok(counts.sum())
    }

    /// Whether it answers in time; `false` if it has ended.
    async fn answers(&mut self) -> Result<bool> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while tokio::time::Instant::now() < deadline {
            if self.process.try_wait()?.is_some() {
                return Ok(false);
            }
            if self.ask("PING\r\n").await.is_ok_and(|answer| answer.starts_with("+PONG")) {
                return Ok(true);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("redis-server does not answer")
    }

    /// One inline command on a connection of its own, and the whole answer.
    async fn ask(&self, command: &str) -> Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.write_all(command.as_bytes()).await?;
        stream.write_all(b"QUIT\r\n").await?;
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await??;
        Ok(answer)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing left to do about either.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_of_our_own_counts_scripts_and_goes_with_its_owner() {
        let Ok(server) = RedisServer::start().await else {
            eprintln!("no redis-server here: nothing to test");
            return;
        };
        assert!(server.url().starts_with("redis://127.0.0.1:"));
        assert_eq!(server.trips().await.expect("it answers"), 0);
        server.ask("EVAL \"return 1\" 0\r\n").await.expect("it answers");
        assert_eq!(server.trips().await.expect("it answers"), 1);
        let port = server.port;
        drop(server);
        assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
    }
}
