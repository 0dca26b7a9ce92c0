//! Three nodes on loopback.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use redis::Value;
use tokio::time::sleep;

use super::super::hub::{Hub, Workers};
use super::super::wire::News;
use super::redis_process::RedisProcess;
use super::{Recorder, count, eventually, hub, nobody_waits, patient, until_up};
use crate::store::Redis;

const ARGUMENTS: [&str; 4] = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1500"];

struct Cluster(Vec<RedisProcess>);

/// A node's second port lies 10,000 above its first.
fn free_ports() -> u16 {
    loop {
        let port = fastrand::u16(20_000..30_000);
        if [port, port + 10_000].iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()) {
            return port;
        }
    }
}

impl Cluster {
    async fn start() -> Self {
        let nodes = (0..3).map(|_| RedisProcess::on(free_ports(), &ARGUMENTS)).collect::<Vec<_>>();
        let cluster = Self(nodes);
        let hosts = cluster.0.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect::<Vec<_>>();
        cluster.manage(&[&["create"], &hosts.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat());
        cluster.until_whole().await;
        cluster
    }

    fn manage(&self, arguments: &[&str]) {
        let mut command = Command::new("redis-cli");
        command.arg("--cluster").args(arguments).args(["--cluster-yes"]);
        let done = command.stdin(Stdio::null()).output().expect("redis-cli is installed");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    }

    async fn until_whole(&self) {
        let is_whole = |node: &RedisProcess| {
            let info = node.cli(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
        };
        eventually("the cluster is whole", || self.0.iter().all(is_whole)).await;
    }

    fn url(&self) -> String {
        let hosts = self.0.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect::<Vec<_>>();
        format!("redis-cluster://{}", hosts.join(","))
    }

    fn id(&self, node: usize) -> String {
        self.0[node].cli(&["CLUSTER", "MYID"])
    }

    /// How many keys a node holds.
    fn size(&self, node: usize) -> i64 {
        self.0[node].cli(&["DBSIZE"]).parse().unwrap()
    }
}

async fn count_each(hub: &Hub, keys: usize) {
    for key in 0..keys {
        hub.run(&count(&format!("f:{{{key}}}"))).await.unwrap_or_else(|_| panic!("{}", hub.health()));
    }
}

#[tokio::test]
async fn every_key_finds_its_node_whatever_is_flushed_or_moved() {
    let cluster = Cluster::start().await;
    let hub = hub(&cluster.url());
    let recorder = Recorder::on(&hub);
    assert!(!hub.is_one_server() && hub.worker().presence.is_none());
    count_each(&hub, 100).await;
    assert!((0..3).all(|node| cluster.size(node) > 10));
    let listens = |node: &RedisProcess| !node.cli(&["PUBSUB", "CHANNELS"]).is_empty();
    eventually("it listens", || cluster.0.iter().any(listens)).await;
    eventually("it beats", || hub.workers() == Some(Workers { count: 1, rank: 0 })).await;
    for node in &cluster.0 {
        node.cli(&["SCRIPT", "FLUSH"]);
        node.cli(&["PUBLISH", "forbear:news:", "p 1 2 f:{x}:p"]);
    }
    let news = News::Pause { key: "f:{x}:p".into(), for_us: 1, generation: 2 };
    eventually("it hears what is said at any node", || recorder.count(&format!("{news:?}")) == 3).await;
    count_each(&hub, 100).await;

    // A third of all slots goes to another node under load.
    let (stop, granted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(0)));
    let load = tokio::spawn({
        let (hub, stop, granted) = (hub.clone(), stop.clone(), granted.clone());
        async move {
            while !stop.load(Ordering::Relaxed) {
                for key in 0..100 {
                    hub.run(&count(&format!("f:{{{key}}}")))
                        .await
                        .unwrap_or_else(|_| panic!("{}", hub.health()));
                    granted.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
    let (from, to, host) = (cluster.id(0), cluster.id(1), format!("127.0.0.1:{}", cluster.0[0].port));
    let moving = tokio::task::spawn_blocking(move || {
        let arguments =
            ["reshard", &host, "--cluster-from", &from, "--cluster-to", &to, "--cluster-slots", "5461"];
        let done = Command::new("redis-cli").arg("--cluster").args(arguments).arg("--cluster-yes").output();
        assert!(done.expect("redis-cli is installed").status.success());
    });
    moving.await.unwrap();
    sleep(Duration::from_millis(200)).await;
    stop.store(true, Ordering::Relaxed);
    load.await.unwrap();
    assert!(granted.load(Ordering::Relaxed) > 100, "it was load");
    let mut sum = 0;
    for key in 0..100 {
        let Ok(Value::Int(value)) = hub.run(&count(&format!("f:{{{key}}}"))).await else {
            panic!("{}", hub.health())
        };
        sum += value;
    }
    assert_eq!(sum, granted.load(Ordering::Relaxed) + 300, "each call ran once");
    assert_eq!(recorder.count("away"), 0);
    assert_eq!(cluster.size(0), 0);
}

#[tokio::test]
async fn a_node_that_is_killed_and_comes_back() {
    let mut cluster = Cluster::start().await;
    let hub = hub(&cluster.url());
    count_each(&hub, 100).await;
    cluster.0[0].kill();
    let mut failed = 0;
    for key in 0..100 {
        failed += usize::from(hub.run(&count(&format!("f:{{{key}}}"))).await.is_err());
    }
    assert!(failed > 0 && hub.is_away(), "{}", hub.health());
    nobody_waits(&hub).await;
    sleep(Duration::from_secs(2)).await;
    assert!(hub.is_away(), "{}", hub.health());
    cluster.0[0].restart();
    cluster.until_whole().await;
    until_up(&hub, "a").await;
    count_each(&hub, 100).await;
}

#[tokio::test]
async fn a_replica_of_a_node_that_was_killed_is_found() {
    let mut cluster = Cluster::start().await;
    let replica = RedisProcess::on(free_ports(), &ARGUMENTS);
    replica.cli(&["CLUSTER", "MEET", "127.0.0.1", &cluster.0[0].port.to_string()]);
    let id = cluster.id(0);
    eventually("the replica knows the others", || {
        replica.cli(&["CLUSTER", "NODES"]).contains(&id)
            && replica.cli(&["CLUSTER", "REPLICATE", &id]) == "OK"
    })
    .await;
    eventually("it follows", || replica.cli(&["INFO", "replication"]).contains("master_link_status:up"))
        .await;
    let hub = hub(&cluster.url());
    count_each(&hub, 100).await;
    sleep(Duration::from_millis(1_500)).await;
    cluster.0[0].kill();
    eventually("it is promoted", || replica.cli(&["ROLE"]).starts_with("master")).await;
    // Each node's slots are learnt by the first call that meets them.
    for key in 0..100 {
        until_up(&hub, &format!("f:{{{key}}}")).await;
    }
    assert!(replica.cli(&["DBSIZE"]).parse::<i64>().unwrap() > 10);
}

#[tokio::test]
async fn an_existing_connection_to_a_cluster() {
    let cluster = Cluster::start().await;
    let nodes = cluster.0.iter().map(RedisProcess::url).collect::<Vec<_>>();
    let client = redis::cluster::ClusterClient::new(nodes).unwrap();
    let hub = patient(Redis::from_connection(client.get_async_connection().await.unwrap()));
    assert!(!hub.is_one_server());
    count_each(&hub, 20).await;
}
