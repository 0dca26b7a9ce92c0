//! Several workers with one server: who is alive, and what was lost.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use super::super::hub::Workers;
use super::redis_process::RedisProcess;
use super::{Recorder, count, eventually, hub};

#[tokio::test]
async fn workers_count_each_other_and_leave() {
    let redis = RedisProcess::start();
    let url = redis.url();
    let (first, second) = (hub(&url), hub(&url));
    let heard = (Recorder::on(&first), Recorder::on(&second));
    assert_eq!(first.workers(), None);
    first.run(&count("a")).await.unwrap();
    eventually("the first beats", || first.workers() == Some(Workers { count: 1, rank: 0 })).await;
    second.run(&count("a")).await.unwrap();
    eventually("the second beats", || second.workers() == Some(Workers { count: 2, rank: 1 })).await;
    eventually("the first hears of it", || first.workers() == Some(Workers { count: 2, rank: 0 })).await;
    assert_eq!(first.health().workers(), Some(2));
    let born = |hub: &super::super::hub::Hub| hub.worker().born.load(Ordering::Relaxed);
    assert!(born(&first) > 0 && born(&first) == born(&second));

    drop(first);
    eventually("the first left", || redis.cli(&["ZCARD", "forbear:{workers}:leases"]) == "1").await;
    eventually("the second moved up", || second.workers() == Some(Workers { count: 1, rank: 0 })).await;
    drop(heard.1);
    eventually("without a listener nobody is there", || {
        redis.cli(&["ZCARD", "forbear:{workers}:leases"]) == "0"
    })
    .await;
    assert!(redis.cli(&["PTTL", "forbear:{workers}"]).parse::<i64>().unwrap() > 0);
}

#[tokio::test]
async fn without_a_listener_nothing_beats() {
    let redis = RedisProcess::start();
    let hub = hub(&redis.url());
    hub.run(&count("a")).await.unwrap();
    sleep(Duration::from_millis(300)).await;
    assert_eq!((hub.workers(), redis.cli(&["DBSIZE"])), (None, "1".into()));
}

#[tokio::test]
async fn a_list_that_was_made_again_means_that_all_was_lost() {
    let redis = RedisProcess::start();
    let hub = hub(&redis.url());
    let recorder = Recorder::on(&hub);
    hub.run(&count("a")).await.unwrap();
    eventually("it beats", || recorder.count("beat") == 1).await;
    let born = hub.worker().born.load(Ordering::Relaxed);
    sleep(Duration::from_millis(3_200)).await;
    redis.cli(&["FLUSHALL"]);
    eventually("it was made again", || hub.worker().born.load(Ordering::Relaxed) > born).await;
    assert!(hub.is_settling());
    assert!(!hub.is_away());
}

#[tokio::test]
async fn prefixes_keep_fleets_apart() {
    let redis = RedisProcess::start();
    let stores = ["one", "two"].map(|prefix| super::Redis::new(redis.url()).unwrap().prefix(prefix));
    let hubs = stores.each_ref().map(|store| store.hub().clone());
    let _heard = hubs.each_ref().map(|hub| Recorder::on(hub));
    for hub in &hubs {
        hub.run(&count("a")).await.unwrap();
        eventually("it beats", || hub.workers() == Some(Workers { count: 1, rank: 0 })).await;
    }
    assert_ne!(hubs[0].worker().session, hubs[1].worker().session);
}

#[tokio::test]
async fn a_user_who_may_not_listen_is_told_so_and_works_on() {
    let redis = RedisProcess::start();
    redis.cli(&["ACL", "SETUSER", "deaf", "on", ">secret", "~*", "resetchannels", "+@all"]);
    redis.cli(&["ACL", "SETUSER", "own", "on", ">secret", "~*", "resetchannels", "&forbear:*", "+@all"]);
    let hubs = ["deaf", "own"].map(|user| hub(&format!("redis://{user}:secret@127.0.0.1:{}", redis.port)));
    let _heard = hubs.each_ref().map(|hub| (hub.join(), Recorder::on(hub)));
    for hub in &hubs {
        hub.run(&count("a")).await.unwrap();
    }
    eventually("it is said", || hubs[0].health().flaw().is_some_and(|flaw| flaw.contains("NOPERM"))).await;
    let listening = || redis.cli(&["PUBSUB", "CHANNELS"]);
    eventually("the other one listens", || listening().lines().count() == 2).await;
    assert_eq!(hubs[1].health().flaw(), None);
    let later = hubs[1].join();
    let channel = format!("{}{}", later.channel, later.session);
    eventually("one that joins later is listened for", || listening().contains(&channel)).await;
    assert!(!hubs[0].is_away());
}
