//! What goes wrong on a bad day: workers and Redis killed, stopped, flushed, full and read-only, and networks that
//! lie. It ends with right counts and with no call that hangs.
#![cfg(feature = "redis")]

#[path = "kit/fleet.rs"]
mod fleet;
#[path = "kit/redis_process.rs"]
mod redis_process;

use std::fs::File;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use fleet::{Job, Report, Worker, count_in, machine_us, slots_of};
use forbear::store::{OnOutage, Redis};
use forbear::{Ask, Limiter, Policy};
use redis_process::{Mode, Proxy, RedisProcess};
use tokio::time::Instant;

#[test]
fn worker() {
    fleet::work();
}

/// How long a machine that does other things, too, may take to find Redis back.
const BACK: Duration = Duration::from_secs(5);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn us(time: Duration) -> u64 {
    time.as_micros() as u64
}

/// A job of four workers that goes on and on.
fn job(server: &RedisProcess, words: &'static str, lasts: Duration) -> Job {
    let on_outage = OnOutage::local_share(4);
    Job { tasks: 8, calls: 1_000_000, lasts, on_outage, ..Job::new(&server.url(), &[words]) }
}

fn checked(words: &str, reports: &[Report]) -> Vec<u64> {
    let slots = slots_of(reports);
    fleet::check(words, &slots).unwrap_or_else(|fault| panic!("{words}: {fault}"));
    slots
}

#[test]
fn a_killed_worker_takes_one_batch_of_slots_with_it() {
    const LIMIT: &str = "bucket 200 1000 10";
    let server = RedisProcess::start();
    let job = job(&server, LIMIT, secs(5));
    let victim = Worker::start(&job);
    let others = fleet::start(&job, 3);
    sleep(secs(2));
    let killed = machine_us();
    victim.signal("KILL");
    let reports = fleet::reports(others);
    let slots = checked(LIMIT, &reports);
    let after = count_in(&slots, killed..killed + 2_000_000);
    assert!((400 - 64..=410).contains(&after), "{after} in the two seconds after it");
}

/// Redis goes away for a while under four workers, and comes back.
fn outage(words: &'static str, go: impl FnOnce(&mut RedisProcess), come: impl FnOnce(&mut RedisProcess)) {
    let mut server = RedisProcess::start();
    let workers = fleet::start(&job(&server, words, secs(11)), 4);
    sleep(secs(2));
    let from = machine_us();
    go(&mut server);
    sleep(secs(3));
    let to = machine_us();
    come(&mut server);
    let reports = fleet::reports(workers);
    let slots = checked(words, &reports);
    let went = fleet::went(&reports);
    assert!(reports.iter().all(|report| report.refused == 0), "everyone waits for its share");
    let away = count_in(&went, from + 1_000_000..to);
    assert!(away > 200, "{away} of 800 went in two seconds by their shares");
    let back = count_in(&slots, to + us(BACK)..to + us(BACK) + 500_000);
    assert!(back > 100, "{back} of 200 half a second after its return");
    let first = slots.iter().find(|slot| **slot > to).expect("Redis decides again");
    println!("{words}: Redis decides again {} ms after its return", (first - to) / 1_000);
    let slowest = reports.iter().map(|report| report.slowest(from..to)).max().expect("there are workers");
    assert!(slowest < secs(2), "{slowest:?}");
}

#[test]
fn redis_is_stopped_for_three_seconds() {
    outage("bucket 400 1000 10", |server| server.signal("STOP"), |server| server.signal("CONT"));
}

#[test]
fn redis_is_killed_and_started_again_without_its_keys_and_scripts() {
    outage("rate 400 1000", RedisProcess::kill, RedisProcess::restart);
}

#[test]
fn scripts_are_flushed_under_load() {
    const LIMIT: &str = "log 400 1000";
    let server = RedisProcess::start();
    let workers = fleet::start(&job(&server, LIMIT, secs(4)), 4);
    sleep(secs(1));
    let (from, mut flushed) = (machine_us(), 0);
    while machine_us() < from + 2_000_000 {
        server.cli(&["SCRIPT", "FLUSH"]);
        flushed += 1;
        sleep(ms(20));
    }
    let reports = fleet::reports(workers);
    let slots = checked(LIMIT, &reports);
    assert!(flushed > 10);
    assert_eq!(reports.iter().map(|report| report.refused).sum::<u64>(), 0);
    let there = count_in(&slots, from..from + 2_000_000);
    assert!(there > 720, "{there} of 800 in two seconds");
}

#[test]
fn no_argument_of_any_call_is_of_a_workers_clock_and_clocks_an_hour_apart_change_nothing() {
    const LIMIT: &str = "bucket 400 1000 10";
    let server = RedisProcess::start();
    let job = job(&server, LIMIT, secs(3));
    let seen = server.directory().join("seen");
    let mut monitor = Command::new("redis-cli");
    monitor.args(["-p", &server.port.to_string(), "MONITOR"]).stdin(Stdio::piped());
    let mut monitor = monitor.stdout(File::create(&seen).expect("a file")).spawn().expect("it is installed");
    // Where that is allowed: the only clock that a worker reads begins elsewhere.
    let elsewhere = ["unshare", "--time", "--monotonic", "3600"];
    let may = Command::new(elsewhere[0]).args(&elsewhere[1..]).arg("true").stderr(Stdio::null()).status();
    let under = if may.is_ok_and(|status| status.success()) { elsewhere.to_vec() } else { Vec::new() };
    let mut workers = fleet::start(&job, 2);
    workers.extend(fleet::start(&Job { under, ..job }, 2));
    let reports = fleet::reports(workers);
    _ = monitor.kill();
    _ = monitor.wait();
    let seen = std::fs::read_to_string(seen).expect("it was written");

    let slots = checked(LIMIT, &reports);
    assert!(slots.len() > 800, "{}", slots.len());
    assert!(reports.iter().all(|report| report.slots.len() > 100), "and none is left behind");
    // The workers' clock begins here, and is some hours old at most; times of Redis lie far above.
    let own = (1_u64 << 50)..(1 << 50) + us(secs(86_400));
    let calls = seen.lines().filter(|line| line.contains("EVAL")).collect::<Vec<_>>();
    assert!(calls.len() > 20, "{}", calls.len());
    for call in calls {
        let numbers = call.split('"').filter_map(|word| word.parse::<u64>().ok());
        let leaked = numbers.filter(|number| own.contains(number)).collect::<Vec<_>>();
        assert!(leaked.is_empty(), "{leaked:?} in {call}");
    }
}

fn limiter(store: &Redis, limit: &str) -> Limiter {
    Limiter::new(Policy::new("chaos").limit(fleet::limit(limit)), store.clone()).expect("a good policy")
}

/// The slots of those who ask at once, and how long the slowest of them waited.
async fn all_ask(limiter: &Limiter, callers: usize) -> (Vec<u64>, Duration) {
    let asking = (0..callers).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let start = Instant::now();
            let permit = limiter.acquire(Ask::new("k")).await.expect("it may wait");
            (permit.slot_us(), start.elapsed())
        })
    });
    let (mut slots, mut slowest) = (Vec::new(), Duration::ZERO);
    for caller in asking.collect::<Vec<_>>() {
        let (slot, waited) = caller.await.expect("no panic");
        slots.push(slot);
        slowest = slowest.max(waited);
    }
    (slots, slowest)
}

/// Until Redis is found back.
async fn is_back(store: &Redis) -> Duration {
    let start = Instant::now();
    while store.health().is_away() {
        assert!(start.elapsed() < BACK, "{}", store.health());
        tokio::time::sleep(ms(10)).await;
    }
    start.elapsed()
}

/// A proxy that does something bad for a while: everyone is delayed once and at most by the time budget.
async fn a_bad_network(mode: Mode) {
    const LIMIT: &str = "bucket 1000 1000 50";
    let server = RedisProcess::start();
    let proxy = Proxy::to(server.port).await;
    let store = Redis::new(proxy.url()).expect("a good URL").on_outage(OnOutage::Open);
    let limiter = limiter(&store, LIMIT);
    let mut slots = all_ask(&limiter, 100).await.0;
    proxy.set(mode);
    let (_, slowest) = all_ask(&limiter, 100).await;
    assert!(slowest < ms(250 + 250), "{slowest:?}: the budget, once");
    assert!(store.health().is_away(), "{}", store.health());
    let start = Instant::now();
    for _ in 0..10 {
        all_ask(&limiter, 100).await;
    }
    assert!(start.elapsed() < ms(500), "{:?}: a thousand calls that do not wait", start.elapsed());
    tokio::time::sleep(secs(1)).await;
    assert!(store.health().is_away(), "{}", store.health());
    proxy.set(Mode::Pass);
    is_back(&store).await;
    slots.extend(all_ask(&limiter, 300).await.0);
    let real = slots.iter().filter(|slot| **slot > 1_500_000_000_000_000).count();
    assert_eq!(real, slots.len(), "Redis decides again");
    fleet::check(LIMIT, &slots).unwrap();
}

#[tokio::test]
async fn a_network_that_accepts_and_never_answers() {
    a_bad_network(Mode::Mute).await;
}

#[tokio::test]
async fn a_network_that_answers_after_two_seconds() {
    a_bad_network(Mode::Slow).await;
}

#[tokio::test]
async fn a_network_that_resets() {
    a_bad_network(Mode::Reset).await;
}

#[tokio::test]
async fn redis_answers_and_takes_no_writes() {
    const LIMIT: &str = "bucket 1000 1000 50";
    let server = RedisProcess::start();
    let store = Redis::new(server.url()).expect("a good URL").on_outage(OnOutage::Open);
    let limiter = limiter(&store, LIMIT);
    let nowhere = redis_process::free_port().to_string();
    let mut slots = all_ask(&limiter, 100).await.0;
    let faults: [(&str, &[&str], &[&str]); 4] = [
        ("READONLY", &["REPLICAOF", "127.0.0.1", &nowhere], &["REPLICAOF", "NO", "ONE"]),
        (
            "NOREPLICAS",
            &["CONFIG", "SET", "min-replicas-to-write", "1"],
            &["CONFIG", "SET", "min-replicas-to-write", "0"],
        ),
        (
            "OOM",
            &["CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1"],
            &["CONFIG", "SET", "maxmemory", "0"],
        ),
        (
            "NOPERM",
            &["ACL", "SETUSER", "default", "-eval", "-evalsha"],
            &["ACL", "SETUSER", "default", "+eval", "+evalsha"],
        ),
    ];
    for (code, go, come) in faults {
        assert_eq!(server.cli(go), "OK");
        let (_, slowest) = all_ask(&limiter, 100).await;
        assert!(slowest < ms(500), "{code}: {slowest:?}");
        let health = store.health();
        assert!(health.reason().is_some_and(|reason| reason.starts_with(code)), "{code}: {health}");
        tokio::time::sleep(ms(500)).await;
        assert!(store.health().is_away(), "{code}");
        assert_eq!(server.cli(come), "OK");
        is_back(&store).await;
        slots.extend(all_ask(&limiter, 100).await.0);
    }
    fleet::check(LIMIT, &slots).unwrap();
}
