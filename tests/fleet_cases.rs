//! What went wrong with the limits of others that were kept in Redis, and does not here; of their keys in
//! `fleet_cases_keys`.
#![cfg(feature = "redis")]

#[path = "kit/fleet.rs"]
mod fleet;
#[path = "kit/redis_process.rs"]
mod redis_process;

use std::time::{Duration, SystemTime};

use fleet::{Job, count_in, machine_us, slots_of, went};
use forbear::store::{Local, OnOutage, Redis};
use forbear::{Ask, Limit, Limiter, Policy, Rate, Refused, RefusedKind, Signals};
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, StatusCode};
use redis_process::{Mode, Proxy, RedisProcess, free_port};
use tokio::time::{Instant, sleep, timeout};

#[test]
fn worker() {
    fleet::work();
}

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

async fn left(limiter: &Limiter) -> u64 {
    let peek = limiter.peek("k").await;
    peek.limit("limit").unwrap_or_else(|| panic!("{peek:?}")).remaining()
}

async fn is_back(store: &Redis) -> Duration {
    let start = Instant::now();
    while store.health().is_away() {
        assert!(start.elapsed() < secs(5), "{}", store.health());
        sleep(ms(5)).await;
    }
    start.elapsed()
}

fn too_many(retry_after: &str) -> Signals {
    let mut headers = HeaderMap::new();
    headers.insert(RETRY_AFTER, HeaderValue::from_str(retry_after).expect("a header value"));
    Signals::read(StatusCode::TOO_MANY_REQUESTS, &headers, SystemTime::UNIX_EPOCH)
}

/// A hundred calls, and the longest that one of them took.
async fn hundred(limiter: &Limiter) -> Duration {
    let mut slowest = Duration::ZERO;
    for _ in 0..100 {
        let start = Instant::now();
        drop(limiter.acquire("k").await.expect("it is open"));
        slowest = slowest.max(start.elapsed());
    }
    slowest
}

#[tokio::test]
async fn b011_nothing_is_queued_while_redis_is_away_and_nothing_runs_later() {
    let mut server = RedisProcess::start();
    let window = || Limit::fixed_window(Rate::new(1_000, secs(60)));
    server.kill();
    let store = store(&server.url(), OnOutage::Open).budget(ms(100));
    let limiter = limiter(&store, window());
    let slowest = hundred(&limiter).await;
    assert!(slowest < ms(100 + 50), "{slowest:?}");
    server.restart();
    is_back(&store).await;
    hundred(&limiter).await;
    assert_eq!(left(&limiter).await, 900, "those that were made since");

    server.kill();
    let start = Instant::now();
    let slowest = hundred(&limiter).await;
    assert!(slowest < ms(100 + 50), "{slowest:?}");
    assert!(start.elapsed() < ms(500), "{:?}", start.elapsed());
    server.restart();
    is_back(&store).await;
    hundred(&limiter).await;
    // What it remembers is how its last call found the window.
    let left = left(&limiter).await;
    assert!((800..=801).contains(&left), "{left}: and those of before, which this process remembers");
}

#[test]
fn b022_nobody_goes_before_a_pause_ends_and_no_herd_after_it() {
    const LIMIT: &str = "bucket 50 1000 5";
    let server = RedisProcess::start();
    let job = Job { tasks: 20, calls: 20, lasts: secs(20), ..Job::new(&server.url(), &[LIMIT]) };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let store = store(&server.url(), OnOutage::Closed);
    let told = Limiter::new(Policy::new("fleet").limit(fleet::limit(LIMIT)), store).expect("a good policy");
    runtime.block_on(async {
        drop(told.acquire("k").await.expect("the first goes"));
        told.observe("k", &too_many("3"));
        sleep(ms(100)).await;
    });
    let until = machine_us() + 2_900_000;
    let reports = fleet::run(&job, 5);
    let went = went(&reports);
    assert_eq!(went.len(), 100);
    // It began up to a tenth of a second before this test looked.
    assert!(went[0] + 110_000 > until, "{} us before the end", until - went[0]);
    let slots = slots_of(&reports);
    fleet::check(LIMIT, &slots).unwrap();
    let first = count_in(&slots, slots[0]..slots[0] + 100_000);
    assert!(first <= 5 + 1, "{first} in the first tenth of a second");
    let (first, last) = (slots[0], slots[99]);
    assert!(last - first >= 1_900_000, "a drained bucket lets 99 more through in {} us", last - first);
}

#[tokio::test]
async fn b067_a_connection_that_dies_or_falls_silent_is_replaced() {
    let server = RedisProcess::start();
    for mode in [Mode::Reset, Mode::Mute] {
        let proxy = Proxy::to(server.port).await;
        let store = store(&proxy.url(), OnOutage::Open);
        let limiter = limiter(&store, Limit::token_bucket(Rate::per_second(1_000), 1_000));
        let (mut slowest, start) = (Duration::ZERO, Instant::now());
        let mut turn = tokio::time::interval(ms(10));
        let mut restored = None;
        while start.elapsed() < secs(4) {
            turn.tick().await;
            match start.elapsed() {
                now if now > secs(3) && restored.is_none() => {
                    proxy.set(Mode::Pass);
                    restored = Some(is_back(&store).await);
                }
                now if now > secs(1) && restored.is_none() => proxy.set(mode),
                _ => {}
            }
            let asked = Instant::now();
            drop(limiter.acquire("k").await.expect("it is open"));
            slowest = slowest.max(asked.elapsed());
        }
        assert!(slowest < ms(250 + 250), "{slowest:?}");
        assert!(restored.expect("it was restored") < ms(2_500), "{restored:?}");
    }
}

#[tokio::test]
async fn b089_an_acquire_whose_answer_is_lost_is_not_sent_again() {
    let server = RedisProcess::start();
    let proxy = Proxy::to(server.port).await;
    for on_outage in [OnOutage::Open, OnOutage::Closed] {
        let store =
            store(&proxy.url(), on_outage).prefix(if on_outage == OnOutage::Open { "a" } else { "b" });
        let limiter = limiter(&store, Limit::fixed_window(Rate::new(1_000, secs(60))));
        drop(limiter.acquire("k").await.expect("the first goes"));
        server.cli(&["SCRIPT", "FLUSH"]);
        drop(limiter.acquire("k").await.expect("a script that is not known is sent along"));
        assert_eq!(left(&limiter).await, 998);
        for n in 1..=10 {
            // What rides on other connections, and heartbeats, come by, too.
            proxy.cut_answer();
            let answer = limiter.acquire("k").await;
            match on_outage {
                OnOutage::Open => assert!(answer.is_ok()),
                _ => assert!(answer.is_ok() || answer.unwrap_err().kind() == RefusedKind::StoreAway),
            }
            sleep(ms(20)).await;
            is_back(&store).await;
            let left = left(&limiter).await;
            assert!((998 - n..=998).contains(&left), "{left} after {n}");
        }
    }
}

/// The wait that a server tells, in whole seconds.
fn told(refused: &Refused) -> u64 {
    let response = forbear_server::refuse(refused);
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let header = response.headers()[RETRY_AFTER].to_str().expect("it is text");
    header.parse().expect("it is whole")
}

#[tokio::test]
async fn b122_a_wait_is_told_in_whole_seconds_rounded_up_and_is_enough() {
    let server = RedisProcess::start();
    let store = store(&server.url(), OnOutage::Closed);
    for (window, slept, expected) in [(ms(1_000), ms(300), 1), (ms(2_000), ms(500), 2)] {
        let name = format!("window of {window:?}");
        let policy = Policy::new(name).limit(Limit::fixed_window(Rate::new(10, window)));
        let limiter = Limiter::new(policy, store.clone()).expect("a good policy");
        for _ in 0..10 {
            drop(limiter.try_acquire("k").await.expect("ten fit"));
        }
        sleep(slept).await;
        let wait = told(&limiter.try_acquire("k").await.expect_err("it is used up"));
        assert_eq!(wait, expected);
        sleep(secs(wait)).await;
        drop(limiter.try_acquire("k").await.expect("who waited as told is let in"));
    }
}

#[tokio::test]
async fn b131_a_call_that_never_fits_takes_nothing() {
    let server = RedisProcess::start();
    let policy = || Policy::new("case").limit(Limit::token_bucket(Rate::per_minute(300), 300));
    let shared = Limiter::new(policy(), store(&server.url(), OnOutage::Closed)).expect("a good policy");
    let local = Limiter::new(policy(), Local::new()).expect("a good policy");
    for limiter in [shared, local] {
        let never =
            limiter.try_acquire(Ask::new("k").cost("requests", 301)).await.expect_err("it is above 300");
        assert_eq!((never.kind(), never.retry_after()), (RefusedKind::NeverFits, None));
        let permit = limiter.try_acquire("k").await.expect("nothing was taken");
        assert_eq!(permit.decision().remaining(), 299);
    }
}

#[tokio::test]
async fn b134_a_demoted_server_is_left_for_the_one_that_was_promoted() {
    let old = RedisProcess::start();
    let new = RedisProcess::with(&["--replicaof", "127.0.0.1", &old.port.to_string()]);
    let name = Proxy::to(old.port).await;
    let store = store(&name.url(), OnOutage::Open);
    let limiter = limiter(&store, Limit::fixed_window(Rate::new(1_000, secs(60))));
    hundred(&limiter).await;
    while !new.cli(&["INFO", "replication"]).contains("master_link_status:up") {
        sleep(ms(20)).await;
    }
    sleep(ms(100)).await;
    new.cli(&["REPLICAOF", "NO", "ONE"]);
    old.cli(&["REPLICAOF", "127.0.0.1", &new.port.to_string()]);
    name.lead_to(new.port);
    let slowest = hundred(&limiter).await;
    assert!(slowest < ms(500), "{slowest:?}");
    let took = is_back(&store).await;
    let evals = new.calls("evalsha") + new.calls("eval");
    hundred(&limiter).await;
    assert!(new.calls("evalsha") + new.calls("eval") >= evals + 100, "it asks the new one, after {took:?}");
    assert_eq!(left(&limiter).await, 800, "which knows of those before");
}

#[tokio::test]
async fn b143_what_a_worker_does_while_redis_is_away_is_said_and_kept() {
    let nowhere = format!("redis://127.0.0.1:{}", free_port());
    let limit = || Limit::token_bucket(Rate::per_second(100), 10);
    // Four workers of one fleet.
    let shares = (0..4).map(|_| store(&nowhere, OnOutage::local_share(4))).collect::<Vec<_>>();
    let start = Instant::now();
    let workers = shares.iter().map(|store| {
        let limiter = limiter(store, limit());
        tokio::spawn(async move {
            let mut went = 0_u32;
            while timeout(secs(2).saturating_sub(start.elapsed()), limiter.acquire("k")).await.is_ok() {
                went += 1;
            }
            went
        })
    });
    let mut all = 0;
    for worker in workers.collect::<Vec<_>>() {
        all += worker.await.expect("no panic");
    }
    assert!((140..=204).contains(&all), "{all} in two seconds");
    assert!(shares.iter().all(|store| store.health().is_away()));
    assert!(format!("{:?}", shares[0]).contains("LocalShare"));

    let closed = store(&nowhere, OnOutage::Closed);
    let refused = limiter(&closed, limit()).acquire("k").await.expect_err("it is closed");
    assert_eq!(refused.kind(), RefusedKind::StoreAway);
    let response = forbear_server::refuse(&refused);
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(closed.health().to_string().starts_with("away for "), "{}", closed.health());

    let open = store(&nowhere, OnOutage::Open);
    hundred(&limiter(&open, limit())).await;
    assert!(open.health().is_away());
}

#[tokio::test]
async fn b161_a_cost_is_whole_and_none_is_free() {
    let server = RedisProcess::start();
    let limiter =
        limiter(&store(&server.url(), OnOutage::Closed), Limit::token_bucket(Rate::per_second(10), 10));
    let never = limiter.acquire(Ask::new("k").cost("requests", u64::MAX)).await.expect_err("it is too much");
    assert_eq!(never.kind(), RefusedKind::NeverFits);
    assert_eq!(server.calls("evalsha") + server.calls("eval"), 0, "Redis was not asked");
    for _ in 0..20 {
        drop(limiter.acquire(Ask::new("k").cost("requests", 0)).await.expect("it is free"));
    }
    assert_eq!(left(&limiter).await, 10);
    assert_eq!(server.cli(&["KEYS", "forbear:{case.*"]), "", "and leaves nothing");
}
