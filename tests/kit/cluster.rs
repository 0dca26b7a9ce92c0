//! A cluster of private Redis servers.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use super::redis_process::RedisProcess;

/// Three nodes on loopback, whose keys lie on all of them.
pub struct Cluster(pub Vec<RedisProcess>);

impl Cluster {
    pub fn start() -> Self {
        let arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2500"];
        let mut nodes = Vec::new();
        while nodes.len() < 3 {
            let port = fastrand::u16(20_000..30_000);
            // A node's second port lies 10,000 above its first.
            let free = |port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
            if free(port) && free(port + 10_000) {
                nodes.push(RedisProcess::on(port, &arguments));
            }
        }
        let cluster = Self(nodes);
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create", "--cluster-yes"]).args(cluster.hosts());
        let done = create.stdin(Stdio::null()).output().expect("redis-cli is installed");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
        cluster.until_whole();
        cluster
    }

    pub fn until_whole(&self) {
        let is_whole = |node: &RedisProcess| node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
        for _ in 0..500 {
            if self.0.iter().all(is_whole) {
                return;
            }
            sleep(Duration::from_millis(20));
        }
        panic!("the cluster is not whole");
    }

    pub fn url(&self) -> String {
        format!("redis-cluster://{}", self.hosts().join(","))
    }

    /// Moves a third of all cluster slots from the first node to the second, and returns when that is done.
    pub fn reshard(&self) {
        let (from, to) = (self.0[0].cli(&["CLUSTER", "MYID"]), self.0[1].cli(&["CLUSTER", "MYID"]));
        let mut reshard = Command::new("redis-cli");
        reshard.args(["--cluster", "reshard", &self.hosts()[0], "--cluster-yes", "--cluster-slots", "5461"]);
        reshard.args(["--cluster-from", &from, "--cluster-to", &to]);
        let done = reshard.stdin(Stdio::null()).output().expect("redis-cli is installed");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    }

    pub fn hosts(&self) -> Vec<String> {
        self.0.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect()
    }
}
