//! Connections that were made elsewhere.

use redis::Value;
use tokio::time::sleep;

use super::super::hub::Away;
use super::redis_process::{Proxy, RedisProcess};
use super::{Recorder, count, eventually, nobody_waits, patient, until_up};
use crate::store::Redis;

#[tokio::test]
async fn a_multiplexed_connection_lasts_as_long_as_it_lasts() {
    let redis = RedisProcess::start();
    let proxy = Proxy::to(redis.port).await;
    let client = redis::Client::open(proxy.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let hub = patient(Redis::from_connection(connection));
    let recorder = Recorder::on(&hub);
    assert_eq!(hub.run(&count("a")).await, Ok(Value::Int(1)));
    eventually("it beats", || recorder.count("beat") > 0 && hub.workers().is_some()).await;
    proxy.close_all();
    sleep(std::time::Duration::from_millis(50)).await;
    assert_eq!(hub.run(&count("a")).await, Err(Away));
    nobody_waits(&hub).await;
    assert!(hub.health().flaw().is_some_and(|flaw| flaw.contains("cannot be replaced")), "{}", hub.health());
}

#[tokio::test]
async fn a_connection_manager_comes_back() {
    let redis = RedisProcess::start();
    let proxy = Proxy::to(redis.port).await;
    let client = redis::Client::open(proxy.url()).unwrap();
    let manager = client.get_connection_manager().await.unwrap();
    let hub = patient(Redis::from_connection(manager));
    assert_eq!(hub.run(&count("a")).await, Ok(Value::Int(1)));
    for _ in 0..3 {
        proxy.close_all();
        sleep(std::time::Duration::from_millis(50)).await;
        // It does not tell that it is gone: one call is lost, for it may have been run.
        _ = hub.run(&count("a")).await;
        assert!(hub.run(&count("a")).await.is_ok(), "{}", hub.health());
    }
    let mut redis = redis;
    redis.kill();
    // The first one finds the connection broken, the next waits for the manager's own return as long as it may.
    assert_eq!(hub.run(&count("a")).await, Err(Away));
    assert_eq!(hub.run(&count("a")).await, Err(Away));
    nobody_waits(&hub).await;
    redis.restart();
    until_up(&hub, "a").await;
}
