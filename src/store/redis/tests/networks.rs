//! What goes wrong on the way to a server.

use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, sleep};

use super::super::hub::Away;
use super::redis_process::{Mode, Proxy, RedisProcess};
use super::{Recorder, count, hub, nobody_waits, only_the_first_waits, prompt, until_up};

#[tokio::test]
async fn a_server_that_never_answers_delays_each_caller_once() {
    let redis = RedisProcess::start();
    let proxy = Proxy::to(redis.port).await;
    let hub = prompt(&proxy.url());
    assert_eq!(hub.run(&count("a")).await, Ok(Value::Int(1)));
    proxy.set(Mode::Mute);
    let start = Instant::now();
    let callers = (0..20).map(|_| {
        let hub = hub.clone();
        tokio::spawn(async move { hub.run(&count("a")).await })
    });
    for caller in callers.collect::<Vec<_>>() {
        assert_eq!(caller.await.unwrap(), Err(Away));
    }
    assert!(start.elapsed() >= Duration::from_millis(250));
    nobody_waits(&hub).await;
    proxy.set(Mode::Pass);
    until_up(&hub, "a").await;
}

#[tokio::test]
async fn an_idle_connection_that_was_closed_is_no_outage() {
    let redis = RedisProcess::start();
    let proxy = Proxy::to(redis.port).await;
    let hub = hub(&proxy.url());
    let recorder = Recorder::on(&hub);
    for n in 1..=5 {
        assert_eq!(hub.run(&count("a")).await, Ok(Value::Int(n)), "{}", hub.health());
        proxy.close_all();
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(recorder.count("away"), 0);
    assert!(hub.is_settling(), "others may have to report first");
}

#[tokio::test]
async fn answers_after_two_seconds_are_none() {
    let redis = RedisProcess::start();
    let proxy = Proxy::to(redis.port).await;
    let hub = prompt(&proxy.url());
    hub.run(&count("a")).await.unwrap();
    proxy.set(Mode::Slow);
    only_the_first_waits(&hub).await;
    proxy.set(Mode::Pass);
    until_up(&hub, "a").await;
}

#[tokio::test]
async fn connections_that_are_reset() {
    let redis = RedisProcess::start();
    let proxy = Proxy::to(redis.port).await;
    let hub = hub(&proxy.url());
    hub.run(&count("a")).await.unwrap();
    proxy.set(Mode::Reset);
    assert_eq!(hub.run(&count("a")).await, Err(Away));
    nobody_waits(&hub).await;
    proxy.set(Mode::Pass);
    until_up(&hub, "a").await;
}

#[tokio::test]
async fn no_call_is_sent_twice() {
    let redis = RedisProcess::start();
    let proxy = Proxy::to(redis.port).await;
    let hub = hub(&proxy.url());
    hub.run(&count("a")).await.unwrap();
    for n in [2, 4] {
        proxy.cut_answer();
        assert_eq!(hub.run(&count("a")).await, Err(Away));
        assert_eq!(redis.cli(&["GET", "a"]), n.to_string());
        assert_eq!(hub.run(&count("a")).await, Ok(Value::Int(n + 1)));
    }
    assert!(!hub.is_away(), "{}", hub.health());
    proxy.close_all();
    sleep(Duration::from_millis(100)).await;
    assert_eq!(hub.run(&count("a")).await, Ok(Value::Int(6)), "a connection known to be closed took nothing");
}

#[tokio::test]
async fn calls_of_a_connection_that_was_replaced_say_nothing_about_the_new_one() {
    let redis = RedisProcess::start();
    let proxy = Proxy::to(redis.port).await;
    let hub = prompt(&proxy.url());
    let recorder = Recorder::on(&hub);
    hub.run(&count("a")).await.unwrap();
    proxy.set(Mode::Mute);
    let first = tokio::spawn({
        let hub = hub.clone();
        async move { hub.run(&count("a")).await }
    });
    sleep(Duration::from_millis(200)).await;
    let others = (0..10).map(|_| {
        let hub = hub.clone();
        tokio::spawn(async move { hub.run(&count("a")).await })
    });
    let others = others.collect::<Vec<_>>();
    assert_eq!(first.await.unwrap(), Err(Away));
    proxy.set(Mode::Pass);
    until_up(&hub, "a").await;
    for other in others {
        assert_eq!(other.await.unwrap(), Err(Away));
    }
    assert!(!hub.is_away(), "{}", hub.health());
    assert_eq!(recorder.count("away"), 1);
}

#[tokio::test]
async fn a_cancelled_caller_holds_up_nobody() {
    let redis = RedisProcess::start();
    let proxy = Proxy::to(redis.port).await;
    let hub = hub(&proxy.url());
    for _ in 0..50 {
        let hub = hub.clone();
        let call = tokio::spawn(async move { hub.run(&count("a")).await });
        tokio::task::yield_now().await;
        call.abort();
    }
    hub.run(&count("b")).await.unwrap();
    assert!(!hub.is_away());
}

#[tokio::test]
async fn a_host_that_never_answers_from_the_start() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hub = prompt(&format!("redis://{}", silent.local_addr().unwrap()));
    let start = Instant::now();
    assert_eq!(hub.run(&count("a")).await, Err(Away));
    assert!(start.elapsed() >= Duration::from_millis(250) && start.elapsed() < Duration::from_secs(1));
    assert!(hub.health().to_string().contains("no answer within 250ms"), "{}", hub.health());
    nobody_waits(&hub).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_callers_while_connections_keep_breaking() {
    let redis = RedisProcess::start();
    let proxy = Proxy::to(redis.port).await;
    let hub = hub(&proxy.url());
    let _listener = Recorder::on(&hub);
    let until = Instant::now() + Duration::from_secs(3);
    let callers = (0..8).map(|_| {
        let hub = hub.clone();
        tokio::spawn(async move {
            let mut granted = 0;
            while Instant::now() < until {
                match hub.run(&count("a")).await {
                    Ok(_) => granted += 1,
                    Err(Away) => sleep(Duration::from_millis(5)).await,
                }
            }
            granted
        })
    });
    let callers = callers.collect::<Vec<_>>();
    while Instant::now() < until {
        sleep(Duration::from_millis(100)).await;
        proxy.close_all();
    }
    let mut granted = 0;
    for caller in callers {
        granted += caller.await.unwrap();
    }
    assert!(granted > 100, "{granted}: {}", hub.health());
    until_up(&hub, "a").await;
    let counted = redis.cli(&["GET", "a"]).parse::<i64>().unwrap();
    assert!(counted > granted, "what was granted was counted: {counted} of {granted}");
}
