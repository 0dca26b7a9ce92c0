//! A master, its replica, and a sentinel that makes the one of the other.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::redis_process::{RedisProcess, free_port};
use super::{Recorder, count, eventually, hub, nobody_waits, until_up};

struct Sentinel {
    port: u16,
    child: Child,
    file: std::path::PathBuf,
}

impl Sentinel {
    fn of(master: u16) -> Self {
        let port = free_port();
        let file = std::env::temp_dir().join(format!("forbear-sentinel-{}-{port}.conf", std::process::id()));
        let lines = [
            format!("port {port}"),
            "bind 127.0.0.1".into(),
            format!("sentinel monitor mymaster 127.0.0.1 {master} 1"),
            "sentinel down-after-milliseconds mymaster 500".into(),
            "sentinel failover-timeout mymaster 2000".into(),
        ];
        std::fs::write(&file, lines.join("\n")).unwrap();
        let mut command = Command::new("redis-server");
        command.arg(&file).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { port, child: command.spawn().expect("redis-server is installed"), file }
    }

    fn cli(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli").args(["-p", &self.port.to_string()]).args(arguments).output();
        String::from_utf8_lossy(&output.expect("redis-cli is installed").stdout).into_owned()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        _ = std::fs::remove_file(&self.file);
    }
}

#[tokio::test]
async fn a_replica_that_is_promoted_is_found() {
    let mut master = RedisProcess::start();
    let replica = RedisProcess::with(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
    let sentinel = Sentinel::of(master.port);
    eventually("the sentinel knows the replica", || {
        sentinel.cli(&["SENTINEL", "REPLICAS", "mymaster"]).contains(&replica.port.to_string())
            && replica
                .try_cli(&["INFO", "replication"])
                .is_some_and(|info| info.contains("master_link_status:up"))
    })
    .await;
    let hub = hub(&format!("redis-sentinel://127.0.0.1:{},127.0.0.1:1/mymaster", sentinel.port));
    let recorder = Recorder::on(&hub);
    hub.run(&count("a")).await.unwrap_or_else(|_| panic!("{}", hub.health()));
    assert_eq!(master.cli(&["GET", "a"]), "1");
    sleep(Duration::from_millis(200)).await;
    master.kill();
    let start = Instant::now();
    while hub.run(&count("a")).await.is_ok() {
        assert!(start.elapsed() < Duration::from_secs(5), "nobody noticed");
    }
    nobody_waits(&hub).await;
    let is_promoted = || replica.try_cli(&["ROLE"]).is_some_and(|role| role.starts_with("master"));
    eventually("the replica is promoted", is_promoted).await;
    until_up(&hub, "a").await;
    assert_eq!(replica.cli(&["GET", "a"]), "2", "what was replicated before counts on");
    assert!(hub.is_settling());
    eventually("told", || (recorder.count("away"), recorder.count("back")) == (1, 1)).await;
    assert!(hub.is_one_server());
}
