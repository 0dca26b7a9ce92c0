//! The hub against real servers, and what goes wrong between it and them.

mod basics;
mod cluster;
mod existing;
mod faults;
mod fleet;
#[path = "../../../tests/support/log.rs"]
#[allow(unreachable_pub, reason = "other tests include it, too")]
mod log;
mod networks;
mod news;
#[path = "../../../tests/kit/redis_process.rs"]
mod redis_process;
mod sentinel;
mod tls;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::Redis;
use super::hub::{Away, Hub, Listener};
use super::script::Script;
use super::wire::{Call, News};

/// Long enough for a machine that does other things, too.
const SOON: Duration = Duration::from_secs(20);

static COUNT: LazyLock<Script> = LazyLock::new(|| script("return redis.call('INCRBY', KEYS[1], ARGV[1])"));

fn script(text: &str) -> Script {
    Script { sha: redis::Script::new(text).get_hash().to_owned(), text: text.to_owned() }
}

fn count(key: &str) -> Call {
    call(&COUNT, key)
}

fn call(script: &'static Script, key: &str) -> Call {
    Call { script, keys: vec![key.into()], args: vec![b"1".into()] }
}

/// With a time budget that a machine with other work to do does not use up.
fn hub(url: &str) -> Arc<Hub> {
    patient(Redis::new(url).expect("a good address"))
}

fn patient(store: Redis) -> Arc<Hub> {
    store.budget(Duration::from_secs(3)).hub().clone()
}

/// With the usual time budget.
fn prompt(url: &str) -> Arc<Hub> {
    Redis::new(url).expect("a good address").hub().clone()
}

/// Tries until it is granted, and says after how long.
async fn until_up(hub: &Hub, key: &str) -> Duration {
    let start = Instant::now();
    while start.elapsed() < SOON {
        if hub.run(&count(key)).await.is_ok() {
            return start.elapsed();
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("Redis is still away: {}", hub.health());
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < SOON, "{what}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    fn count(&self, line: &str) -> usize {
        self.0.lock().iter().filter(|said| *said == line).count()
    }

    fn on(hub: &Hub) -> Arc<Self> {
        let recorder = Arc::new(Self::default());
        let listener: std::sync::Weak<Self> = Arc::downgrade(&recorder);
        hub.listen(listener);
        recorder
    }
}

impl Listener for Recorder {
    fn news(&self, news: &News) {
        self.0.lock().push(format!("{news:?}"));
    }

    fn beat(&self) {
        self.0.lock().push("beat".into());
    }

    fn turned(&self, up: bool) {
        self.0.lock().push(if up { "back" } else { "away" }.into());
    }
}

/// A thousand calls that all find Redis away, and none of which waits.
async fn nobody_waits(hub: &Hub) {
    let start = Instant::now();
    for _ in 0..1_000 {
        assert_eq!(hub.run(&count("a")).await, Err(Away));
    }
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

/// From now on nothing is answered, for three seconds: only the first call waits, and no longer than its budget.
async fn only_the_first_waits(hub: &Hub) {
    let start = Instant::now();
    assert_eq!(hub.run(&count("a")).await, Err(Away));
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    nobody_waits(hub).await;
    sleep(Duration::from_secs(3)).await;
    assert!(hub.is_away(), "{}", hub.health());
}
