//! Servers that stop, restart, or take no writes.

use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, sleep};
use tracing::Level;

use super::super::hub::{Away, Hub};
use super::log::Log;
use super::redis_process::RedisProcess;
use super::{
    Recorder, call, count, eventually, hub, nobody_waits, only_the_first_waits, prompt, script, until_up,
};

#[tokio::test]
async fn a_server_that_is_frozen_for_three_seconds() {
    let redis = RedisProcess::start();
    let hub = prompt(&redis.url());
    let recorder = Recorder::on(&hub);
    hub.run(&count("a")).await.unwrap();
    redis.signal("STOP");
    only_the_first_waits(&hub).await;
    redis.signal("CONT");
    until_up(&hub, "a").await;
    eventually("told", || (recorder.count("away"), recorder.count("back")) == (1, 1)).await;
    assert!(hub.is_settling());
}

#[tokio::test]
async fn a_server_that_is_killed_and_started_again() {
    let mut redis = RedisProcess::start();
    let hub = hub(&redis.url());
    let log = Log::default();
    let _keeps = log.keep();
    let recorder = Recorder::on(&hub);
    for round in 1..=2 {
        until_up(&hub, "a").await;
        redis.kill();
        sleep(Duration::from_millis(50)).await;
        assert_eq!(hub.run(&count("a")).await, Err(Away));
        nobody_waits(&hub).await;
        redis.restart();
        let returned = Instant::now();
        while hub.is_away() {
            sleep(Duration::from_millis(10)).await;
        }
        assert!(returned.elapsed() < Duration::from_secs(5), "{:?}", returned.elapsed());
        assert_eq!(hub.run(&count("a")).await, Ok(Value::Int(1)), "scripts and keys are gone");
        eventually("told", || (recorder.count("away"), recorder.count("back")) == (round, round)).await;
        assert_eq!(
            (log.count(Level::WARN, "Redis is away"), log.count(Level::INFO, "Redis is back")),
            (round, round)
        );
    }
}

/// Away for `reason` until `mend` was done.
async fn is_away_until(hub: &Hub, reason: &str, mend: impl FnOnce()) {
    assert_eq!(hub.run(&count("a")).await, Err(Away));
    assert!(hub.health().to_string().contains(reason), "{}", hub.health());
    sleep(Duration::from_millis(700)).await;
    assert!(hub.is_away(), "the probes meet the same: {}", hub.health());
    mend();
    until_up(hub, "a").await;
}

#[tokio::test]
async fn a_server_that_turns_into_a_read_only_replica() {
    let redis = RedisProcess::start();
    let hub = hub(&redis.url());
    hub.run(&count("a")).await.unwrap();
    redis.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    is_away_until(&hub, "READONLY", || _ = redis.cli(&["REPLICAOF", "NO", "ONE"])).await;
}

#[tokio::test]
async fn a_replica_that_lost_its_master() {
    let redis = RedisProcess::with(&["--replica-serve-stale-data", "no"]);
    let hub = hub(&redis.url());
    hub.run(&count("a")).await.unwrap();
    redis.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    is_away_until(&hub, "MASTERDOWN", || _ = redis.cli(&["REPLICAOF", "NO", "ONE"])).await;
}

#[tokio::test]
async fn a_server_that_is_out_of_memory() {
    let redis = RedisProcess::with(&["--maxmemory-policy", "noeviction"]);
    let hub = hub(&redis.url());
    hub.run(&count("a")).await.unwrap();
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    is_away_until(&hub, "OOM", || _ = redis.cli(&["CONFIG", "SET", "maxmemory", "0"])).await;
}

#[tokio::test]
async fn a_user_who_may_run_no_scripts() {
    let redis = RedisProcess::start();
    redis.cli(&["ACL", "SETUSER", "limiter", "on", ">secret", "~*", "&*", "+@all", "-@scripting"]);
    let hub = hub(&format!("redis://limiter:secret@127.0.0.1:{}", redis.port));
    is_away_until(&hub, "NOPERM", || _ = redis.cli(&["ACL", "SETUSER", "limiter", "+@all"])).await;
}

#[tokio::test]
async fn a_password_that_is_wrong_is_not_repeated() {
    let redis = RedisProcess::with(&["--requirepass", "right"]);
    for (user, reason) in [("", "NOAUTH"), (":wrong@", "WRONGPASS"), ("limiter:wrong@", "WRONGPASS")] {
        for options in ["", "?protocol=2"] {
            let hub = hub(&format!("redis://{user}127.0.0.1:{}{options}", redis.port));
            let log = Log::default();
            let keeps = log.keep();
            assert_eq!(hub.run(&count("a")).await, Err(Away));
            drop(keeps);
            let said = format!("{} {:?} {hub:?}", hub.health(), log.lines());
            assert!(said.contains(reason) || said.contains("refused the user"), "{said}");
            assert!(!said.contains("wrong"), "{said}");
        }
    }
}

#[tokio::test]
async fn a_server_without_scripts_says_so() {
    let redis = RedisProcess::with(&["--rename-command", "EVAL", "", "--rename-command", "EVALSHA", ""]);
    let hub = hub(&redis.url());
    assert_eq!(hub.run(&count("a")).await, Err(Away));
    assert!(hub.health().to_string().contains("knows no scripts"), "{}", hub.health());
}

#[tokio::test]
async fn a_key_that_holds_something_else_is_no_outage() {
    let redis = RedisProcess::start();
    redis.cli(&["RPUSH", "list", "1"]);
    let hub = hub(&redis.url());
    let log = Log::default();
    let _keeps = log.keep();
    for _ in 0..3 {
        assert_eq!(hub.run(&count("list")).await, Err(Away));
        hub.run(&count("a")).await.unwrap();
    }
    assert!(!hub.is_away());
    assert_eq!(log.count(Level::WARN, "a call to Redis failed"), 1);
}

#[tokio::test]
async fn a_node_of_a_cluster_given_as_one_server_says_what_to_write() {
    let redis = RedisProcess::with(&[
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &super::redis_process::free_port().to_string(),
    ]);
    redis.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually("it is a cluster", || redis.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")).await;
    let hub = hub(&redis.url());
    let both = Box::leak(Box::new(script("return redis.call('MGET', unpack(KEYS))")));
    let mut call = call(both, "a");
    call.keys.push(b"b".into());
    assert_eq!(hub.run(&call).await, Err(Away));
    assert!(hub.health().to_string().contains("redis-cluster://"), "{}", hub.health());
}
