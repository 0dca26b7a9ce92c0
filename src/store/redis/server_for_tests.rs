//! A private `redis-server` for one test: a unix socket in a directory of its own, nothing kept on disk, ended by
//! its process id when it is dropped.
//!
//! Must never touch a server that it did not start.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

static NEXT: AtomicU32 = AtomicU32::new(0);

pub(crate) struct RedisServer {
    child: Child,
    dir: PathBuf,
}

impl RedisServer {
    /// Starts one; `None` where `redis-server` is not installed.
    pub(crate) fn start() -> Option<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("forbear-redis-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the temporary directory can be written");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            .arg("--unixsocket")
            .arg(dir.join("redis.sock"))
            .arg("--dir")
            .arg(&dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = child else {
            _ = std::fs::remove_dir_all(&dir);
            return None;
        };
        let mut server = Self { child, dir };
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
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        _ = std::fs::remove_dir_all(&self.dir);
    }
}
