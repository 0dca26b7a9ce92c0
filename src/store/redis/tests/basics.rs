//! One server, asked as it should be: scripts, runtimes, settings.

use redis::Value;

use super::super::hub::Away;
use super::redis_process::RedisProcess;
use super::{Recorder, count, eventually, hub, nobody_waits, prompt, until_up};

#[tokio::test]
async fn a_script_that_the_server_does_not_know_is_sent_along_once() {
    let redis = RedisProcess::start();
    let hub = hub(&redis.url());
    for n in 1..=5 {
        assert_eq!(hub.run(&count("a")).await, Ok(Value::Int(n)));
    }
    assert_eq!((redis.calls("evalsha"), redis.calls("eval"), redis.calls("script|load")), (5, 1, 0));
    redis.cli(&["SCRIPT", "FLUSH"]);
    assert_eq!(hub.run(&count("a")).await, Ok(Value::Int(6)));
    assert_eq!(hub.run(&count("a")).await, Ok(Value::Int(7)));
    assert_eq!((redis.calls("eval"), redis.calls("script|load")), (2, 0));
    assert!(!hub.health().is_away());
}

#[tokio::test]
async fn away_from_the_start_and_then_there() {
    let mut redis = RedisProcess::start();
    redis.kill();
    let hub = hub(&redis.url());
    assert_eq!(hub.health().to_string(), "not asked yet");
    let recorder = Recorder::on(&hub);
    assert_eq!(hub.run(&count("a")).await, Err(Away));
    assert!(hub.is_away());
    assert!(hub.health().reason().is_some_and(|reason| reason.contains("refused")), "{}", hub.health());
    nobody_waits(&hub).await;
    redis.restart();
    until_up(&hub, "a").await;
    assert!(!hub.health().is_away(), "{}", hub.health());
    eventually("told of both turns", || recorder.count("away") == 1 && recorder.count("back") == 1).await;
}

#[tokio::test]
async fn a_task_is_spawned_from_outside_of_any_runtime() {
    let redis = RedisProcess::start();
    let hub = hub(&redis.url());
    hub.run(&count("a")).await.unwrap();
    let (spawning, asking) = (hub.clone(), hub.clone());
    std::thread::spawn(move || spawning.spawn(async move { _ = asking.run(&count("a")).await }))
        .join()
        .unwrap();
    eventually("it ran", || redis.cli(&["GET", "a"]) == "2").await;
}

#[test]
fn another_runtime_goes_on_where_the_first_one_ended() {
    let redis = RedisProcess::start();
    let hub = hub(&redis.url());
    let recorder = Recorder::on(&hub);
    for n in 1..=3 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let beats = recorder.count("beat");
            assert_eq!(hub.run(&count("a")).await, Ok(Value::Int(n)));
            eventually("the heart beats in this runtime", || recorder.count("beat") > beats).await;
        });
    }
    assert!(!hub.is_away());
    let ended = hub.clone();
    hub.spawn(async move { _ = ended.run(&count("a")).await });
    assert_eq!(redis.cli(&["GET", "a"]), "3", "a task for a runtime that ended is dropped");
}

#[test]
fn a_runtime_that_nobody_runs_is_left() {
    let redis = RedisProcess::start();
    let hub = prompt(&redis.url());
    let recorder = Recorder::on(&hub);
    let build = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let idle = build();
    idle.block_on(async { hub.run(&count("a")).await }).unwrap();
    build().block_on(async {
        assert_eq!(hub.run(&count("a")).await, Err(Away), "its connection has nobody to move it");
        let beats = recorder.count("beat");
        until_up(&hub, "a").await;
        eventually("the heart beats here", || recorder.count("beat") > beats).await;
    });
    drop(idle);
}

#[tokio::test]
async fn a_unix_socket() {
    let socket = std::env::temp_dir().join(format!("forbear-{}.sock", std::process::id()));
    let redis = RedisProcess::with(&["--unixsocket", socket.to_str().unwrap()]);
    for scheme in ["unix", "redis+unix"] {
        let hub = hub(&format!("{scheme}://{}?db=1", socket.display()));
        hub.run(&count("a")).await.unwrap();
    }
    assert_eq!(redis.cli(&["-n", "1", "GET", "a"]), "2");
}

#[tokio::test]
async fn user_password_and_database() {
    let redis = RedisProcess::start();
    redis.cli(&["ACL", "SETUSER", "limiter", "on", ">p@ss:word", "~*", "&*", "+@all"]);
    let address = format!("redis://limiter:p%40ss%3Aword@127.0.0.1:{}/2", redis.port);
    for options in ["", "?protocol=2", "?protocol=3"] {
        hub(&format!("{address}{options}")).run(&count("a")).await.unwrap();
    }
    assert_eq!(redis.cli(&["-n", "2", "GET", "a"]), "3");
}

#[tokio::test]
async fn it_is_settling_at_first_only_with_a_server_that_was_just_promoted() {
    let redis = RedisProcess::start();
    let fresh = hub(&redis.url());
    fresh.ready().await.unwrap();
    assert!(!fresh.is_settling(), "nobody held anything before it");
    let replica = RedisProcess::with(&["--replicaof", "127.0.0.1", &redis.port.to_string()]);
    let follows = || replica.cli(&["INFO", "replication"]).contains("master_link_status:up");
    eventually("it follows", follows).await;
    redis.cli(&["SET", "a", "1"]);
    eventually("it has what was written", || replica.cli(&["GET", "a"]) == "1").await;
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    let promoted = hub(&replica.url());
    assert!(!promoted.is_settling(), "not asked yet");
    promoted.ready().await.unwrap();
    assert!(promoted.is_settling(), "what was not replicated may be missing");
    tokio::time::sleep(std::time::Duration::from_millis(3_100)).await;
    assert!(!promoted.is_settling());
}
