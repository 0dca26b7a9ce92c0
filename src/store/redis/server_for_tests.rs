//! A private `redis-server` for one test: a unix socket in a directory of its own, nothing kept on disk, ended by
//! its process id when it is dropped.
//!
//! Tests beside the crate include this file by its path. Must never touch a server that it did not
//! start.
#![allow(dead_code)]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

static NEXT: AtomicU32 = AtomicU32::new(0);

pub(crate) struct RedisServer {
    child: Child,
    dir: PathBuf,
    pub(crate) port: Option<u16>,
}

impl RedisServer {
    /// Starts one, with more arguments; `None` where `redis-server` is not installed.
    pub(crate) fn start(arguments: &[&str]) -> Option<Self> {
        Self::launch(None, arguments)
    }

    /// Starts one that also listens on a free port of the loopback.
    pub(crate) fn on_a_port(arguments: &[&str]) -> Option<Self> {
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let free = free.expect("the loopback has a free port").port();
        Self::launch(Some(free), arguments)
    }

    fn launch(port: Option<u16>, arguments: &[&str]) -> Option<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("forbear-redis-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the temporary directory can be written");
        let child = Command::new("redis-server")
            .args(["--port", &port.unwrap_or(0).to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .arg("--unixsocket")
            .arg(dir.join("redis.sock"))
            .arg("--dir")
            .arg(&dir)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = child else {
            _ = std::fs::remove_dir_all(&dir);
            return None;
        };
        let mut server = Self { child, dir, port };
        for _ in 0..500 {
            if std::os::unix::net::UnixStream::connect(server.socket()).is_ok() {
                return Some(server);
            }
            if let Ok(Some(status)) = server.child.try_wait() {
                panic!("redis-server ended at once: {status}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("redis-server does not listen");
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("redis.sock")
    }

    /// Where it listens, as a URL.
    pub(crate) fn url(&self) -> String {
        match self.port {
            Some(port) => format!("redis://127.0.0.1:{port}"),
            None => format!("redis+unix://{}", self.socket().display()),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        _ = std::fs::remove_dir_all(&self.dir);
    }
}
