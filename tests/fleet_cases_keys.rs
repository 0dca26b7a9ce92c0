//! What went wrong with the keys that others kept in Redis, and does not here: their ends, their numbers, and the
//! nodes of a cluster.
#![cfg(feature = "redis")]

#[path = "kit/cluster.rs"]
mod cluster;
#[path = "kit/fleet.rs"]
mod fleet;
#[path = "kit/redis_process.rs"]
mod redis_process;

use std::collections::HashSet;
use std::fs::File;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use cluster::Cluster;
use fleet::machine_us;
use forbear::store::{OnOutage, Redis};
use forbear::{Ask, Limit, Limiter, Permit, Policy, Rate, RefusedKind, Signals};
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, StatusCode};
use redis_process::{Proxy, RedisProcess};
use tokio::time::{Instant, sleep, timeout};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn store(url: &str, on_outage: OnOutage) -> Redis {
    Redis::new(url).expect("a good URL").on_outage(on_outage)
}

fn limiter(store: &Redis, limit: Limit) -> Limiter {
    Limiter::new(Policy::new("case").limit(limit.named("limit")), store.clone()).expect("a good policy")
}

/// Every key that there is, with its time left in milliseconds.
fn ttls(server: &RedisProcess) -> Vec<(String, i64)> {
    const ALL: &str = "local all = {}
        for _, key in ipairs(redis.call('KEYS', '*')) do
            all[#all + 1] = key
            all[#all + 1] = redis.call('PTTL', key)
        end
        return all";
    let all = server.cli(&["EVAL", ALL, "0"]);
    let lines = all.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>();
    let pairs = lines.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].parse().expect("a number")));
    pairs.collect()
}

#[tokio::test]
async fn b095_every_key_ends_wherever_a_connection_is_cut() {
    let server = RedisProcess::start();
    let proxy = Proxy::to(server.port).await;
    let kinds =
        ["bucket 5 300 5", "rate 5 300", "fixed 5 300", "segments 5 300 3", "counter 5 300", "log 5 300"];
    let all = || {
        let policy = Policy::new("all").limit("3 at once");
        kinds.into_iter().fold(policy, |policy, words| policy.limit(fleet::limit(words).named(words)))
    };
    for cut in 0..4 {
        let store = store(&proxy.url(), OnOutage::Open).prefix(&format!("cut{cut}"));
        let limiter = Limiter::new(all(), store).expect("a good policy");
        for n in 0..6 {
            if n == cut {
                proxy.cut_answer();
            }
            _ = timeout(ms(400), limiter.acquire("k")).await;
            let endless = ttls(&server).into_iter().filter(|(_, left)| *left < 0).collect::<Vec<_>>();
            assert!(endless.is_empty(), "{cut}: {endless:?}");
        }
        proxy.close_all();
    }
    sleep(ms(400)).await;
    let store = store(&proxy.url(), OnOutage::Closed);
    for words in kinds {
        let policy = Policy::new(words).limit(fleet::limit(words));
        let limiter = Limiter::new(policy, store.clone()).expect("a good policy");
        let permit = limiter.acquire(Ask::new("k").max_wait(secs(1))).await;
        assert!(permit.is_ok(), "{words}: {permit:?}");
    }
}

#[tokio::test]
async fn b113_large_numbers_are_kept_to_the_microsecond() {
    let server = RedisProcess::start();
    let store = store(&server.url(), OnOutage::Closed);
    let limiter =
        limiter(&store, Limit::token_bucket(Rate::per_second(1_000_000), 2_000_000_000).unit("bytes"));
    let mut last = 0;
    for i in 0..1_000 {
        let ask = Ask::new("k").cost("bytes", 1_000_000 + i);
        last = limiter.acquire(ask).await.expect("it fits").slot_us();
    }
    let keys = server.cli(&["KEYS", "forbear:{case.*"]);
    let key = keys.lines().find(|key| !key.ends_with(":p")).expect("the limit's key").to_owned();
    let byte = |i: usize| {
        server.cli(&[
            "EVAL",
            "return string.byte(redis.call('GET', KEYS[1]), ARGV[1])",
            "1",
            &key,
            &i.to_string(),
        ])
    };
    let letter = byte(1).parse::<u8>().expect("a byte");
    assert!(b"gG".contains(&letter), "a bucket's own form, and no text");
    let at = (7..14).fold(0, |at, i| at << 8 | byte(i).parse::<u64>().expect("a byte"));
    assert_eq!(at, last, "the instant of the last booking");
}

#[tokio::test]
async fn b137_no_key_loses_its_end_at_the_very_end_of_a_window() {
    const LIMIT: &str = "fixed 5 200";
    let server = RedisProcess::start();
    let stores = (0..6).map(|_| store(&server.url(), OnOutage::Closed)).collect::<Vec<_>>();
    let mut slots = Vec::new();
    let start = Instant::now();
    let limiters = stores.iter().map(|store| limiter(store, fleet::limit(LIMIT))).collect::<Vec<_>>();
    for n in 1..=20 {
        tokio::time::sleep_until(start + n * ms(200)).await;
        let calls = limiters
            .iter()
            .cloned()
            .map(|limiter| tokio::spawn(async move { limiter.try_acquire("k").await }));
        for call in calls.collect::<Vec<_>>() {
            slots.extend(call.await.expect("no panic").map(|permit: Permit| permit.slot_us()));
        }
        let endless = ttls(&server).into_iter().filter(|(_, left)| *left == -1).collect::<Vec<_>>();
        assert!(endless.is_empty(), "{endless:?}");
    }
    assert!(slots.len() >= 40, "{}", slots.len());
    fleet::check(LIMIT, &slots).unwrap();
}

#[test]
fn b157_a_pause_outlives_the_process_that_was_told_of_it() {
    let server = RedisProcess::start();
    let once = |work: fn(Limiter) -> std::pin::Pin<Box<dyn Future<Output = ()>>>| {
        let store = store(&server.url(), OnOutage::Closed);
        let limiter = limiter(&store, Limit::fixed_window(Rate::new(1_000, secs(1))));
        tokio::runtime::Runtime::new().expect("a runtime").block_on(work(limiter));
    };
    once(|limiter| {
        Box::pin(async move {
            let permit = limiter.acquire("k").await.expect("it goes");
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("3"))]);
            let told = Signals::read(StatusCode::TOO_MANY_REQUESTS, &headers, SystemTime::UNIX_EPOCH);
            limiter.observe("k", &told);
            drop(permit);
            sleep(ms(50)).await;
        })
    });
    let told = machine_us();
    std::thread::sleep(ms(500));
    once(|limiter| {
        Box::pin(async move {
            let refused = limiter.try_acquire("k").await.expect_err("the key is paused");
            assert_eq!(refused.kind(), RefusedKind::Paused);
            drop(limiter.acquire("k").await.expect("the pause ends"));
        })
    });
    let waited = machine_us() - told;
    assert!(waited > 2_900_000, "{waited} us");
    let pauses = || ttls(&server).into_iter().filter(|(key, _)| key.ends_with(":p")).collect::<Vec<_>>();
    assert!(pauses().iter().all(|(_, left)| *left > 0), "{:?}", pauses());
    std::thread::sleep(ms(1_200));
    assert_eq!(pauses(), [], "it is gone by itself");
}

#[tokio::test]
async fn b086_every_node_gets_its_scripts_and_no_key_is_touched_that_was_not_declared() {
    let cluster = Cluster::start();
    let seen = cluster.0.iter().map(|node| {
        let path = node.directory().join("seen");
        let mut monitor = Command::new("redis-cli");
        monitor.args(["-p", &node.port.to_string(), "MONITOR"]).stdin(Stdio::piped());
        let file = File::create(&path).expect("a file");
        (path, monitor.stdout(file).spawn().expect("redis-cli is installed"))
    });
    let seen = seen.collect::<Vec<_>>();
    let store = store(&cluster.url(), OnOutage::Closed);
    let kinds = ["bucket 5 1000 5", "fixed 5 1000", "segments 5 1000 3", "counter 5 1000", "log 5 1000"];
    let mut policy = Policy::new("case").limit("8 at once");
    for words in kinds {
        policy = policy.limit(fleet::limit(words).named(words));
    }
    let limiter = Limiter::new(policy, store).expect("a good policy");
    for i in 0..100 {
        let key = format!("key {i}");
        let permit = limiter.acquire(&key).await;
        drop(permit.unwrap_or_else(|refused| panic!("{key}: {refused}")));
        if i == 50 {
            cluster.0[0].cli(&["SCRIPT", "FLUSH"]);
        }
    }
    limiter.pause("key 1", ms(10));
    limiter.resume("key 2");
    sleep(ms(200)).await;
    let mut touched_in_all = 0;
    for (path, mut monitor) in seen {
        _ = monitor.kill();
        _ = monitor.wait();
        let text = std::fs::read_to_string(path).expect("it was written");
        let lines = text.lines().map(|line| {
            let (head, command) = line.split_once("] ").unwrap_or((line, ""));
            (
                head.ends_with("lua"),
                command.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>(),
            )
        });
        let lines = lines.collect::<Vec<_>>();
        let mut declared = HashSet::new();
        for (_, words) in lines.iter().filter(|(by_script, words)| !by_script && words.len() > 3) {
            if words[0].to_ascii_lowercase().starts_with("eval") {
                let count = words[2].parse::<usize>().unwrap_or(0);
                declared.extend(words[3..3 + count].iter().cloned());
            }
        }
        for (_, words) in lines.iter().filter(|(by_script, _)| *by_script) {
            let keys = match words[0].to_ascii_uppercase().as_str() {
                "TIME" | "PUBLISH" => &[],
                "MGET" | "DEL" => &words[1..],
                _ => &words[1..2],
            };
            for key in keys {
                assert!(declared.contains(key), "{words:?}");
            }
            touched_in_all += keys.len();
        }
    }
    assert!(touched_in_all > 500, "{touched_in_all}");
}
