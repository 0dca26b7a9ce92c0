//! What others say, and what happens when it is not heard for a while.

use std::time::Duration;

use tokio::time::sleep;

use super::super::wire::News;
use super::redis_process::RedisProcess;
use super::{Recorder, count, eventually, hub};

const EVERYONE: &str = "forbear:news:";

fn pause(generation: u64) -> (String, String) {
    let news = News::Pause { key: "forbear:{x}:p".into(), for_us: 5_000_000, generation };
    (format!("p 5000000 {generation} forbear:{{x}}:p"), format!("{news:?}"))
}

#[tokio::test]
async fn everyone_hears_of_pauses_and_a_limiter_of_its_seats() {
    let redis = RedisProcess::start();
    let hub = hub(&redis.url());
    let (recorder, worker) = (Recorder::on(&hub), hub.join());
    hub.run(&count("a")).await.unwrap();
    eventually("it listens", || redis.cli(&["PUBSUB", "CHANNELS"]).lines().count() == 2).await;
    let (said, heard) = pause(1);
    assert_eq!(redis.cli(&["PUBLISH", EVERYONE, &said]), "1");
    eventually("the pause is heard", || recorder.count(&heard) == 1).await;
    let own = format!("{EVERYONE}{}", worker.session);
    assert_eq!(redis.cli(&["PUBLISH", &own, "s 7 3 forbear:{x}:s"]), "1");
    let seats = News::Seats { key: "forbear:{x}:s".into(), epoch: 7, granted: 3 };
    eventually("the seats are heard of", || recorder.count(&format!("{seats:?}")) == 1).await;
    redis.cli(&["PUBLISH", EVERYONE, "something else"]);
    redis.cli(&["PUBLISH", "forbear:news:somebody", &said]);
    let (said, heard) = pause(2);
    redis.cli(&["PUBLISH", EVERYONE, &said]);
    eventually("it goes on", || recorder.count(&heard) == 1).await;
    assert_eq!(recorder.count(&pause(1).1), 1);
}

#[tokio::test]
async fn losing_it_is_no_outage_and_mends_itself() {
    let mut redis = RedisProcess::start();
    let hub = hub(&redis.url());
    let recorder = Recorder::on(&hub);
    hub.run(&count("a")).await.unwrap();
    let listeners = |redis: &RedisProcess| redis.cli(&["PUBSUB", "NUMSUB", EVERYONE]);
    let is_heard = |redis: &RedisProcess| listeners(redis).ends_with('1');
    eventually("it listens", || is_heard(&redis)).await;
    redis.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    assert!(!is_heard(&redis));
    eventually("it listens again", || is_heard(&redis)).await;
    assert_eq!((hub.is_away(), recorder.count("away")), (false, 0));

    redis.kill();
    sleep(Duration::from_millis(500)).await;
    redis.restart();
    eventually("it listens to the new server", || is_heard(&redis)).await;
    let (said, heard) = pause(3);
    redis.cli(&["PUBLISH", EVERYONE, &said]);
    eventually("and hears", || recorder.count(&heard) == 1).await;
}

#[tokio::test]
async fn nobody_listens_when_nobody_is_there() {
    let redis = RedisProcess::start();
    let hub = hub(&redis.url());
    let recorder = Recorder::on(&hub);
    hub.run(&count("a")).await.unwrap();
    eventually("it listens", || redis.cli(&["PUBSUB", "CHANNELS"]) == EVERYONE).await;
    drop(recorder);
    eventually("it stopped", || redis.cli(&["PUBSUB", "CHANNELS"]).is_empty()).await;
    let again = Recorder::on(&hub);
    eventually("it listens again", || redis.cli(&["PUBSUB", "CHANNELS"]) == EVERYONE).await;
    eventually("and beats", || again.count("beat") > 0).await;
    drop(hub);
    eventually("it stopped at once", || redis.cli(&["PUBSUB", "CHANNELS"]).is_empty()).await;
}
