//! Several limiters of one Redis for one call: one trip, all or nothing.
#![cfg(feature = "redis")]

#[path = "kit/redis_process.rs"]
mod redis_process;

use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use forbear::store::{OnOutage, Redis};
use forbear::{Ask, Limiter, Policy, RefusedKind};
use redis_process::RedisProcess;
use tokio::time::{Instant, sleep, timeout};

/// Long enough for a machine that is busy with other things, and shorter than a lease.
const SOON: Duration = Duration::from_secs(5);

/// Scripts that ran, each of which is a trip.
fn trips(server: &RedisProcess) -> u64 {
    server.calls("evalsha") + server.calls("eval")
}

fn now<'a>(limiter: &'a Limiter, key: &'a str) -> (&'a Limiter, Ask<'a>) {
    (limiter, Ask::new(key).max_wait(Duration::ZERO))
}

/// Kills the server, and calls until that was noticed.
async fn take_away(server: &mut RedisProcess, store: &Redis, limiter: &Limiter) {
    server.kill();
    while !store.health().is_away() {
        _ = limiter.try_acquire("connects").await;
    }
}

#[tokio::test]
async fn all_of_them_take_one_trip_and_all_or_none_are_charged() {
    let server = RedisProcess::start();
    let store = Redis::new(server.url()).unwrap();
    let address = Limiter::new(Policy::new("address").limit("10/min burst 10"), &store).unwrap();
    let plan = Limiter::new(Policy::new("plan").limit("3/min burst 3").limit("8 at once"), &store).unwrap();
    // The heartbeat of a store that has just connected is not counted.
    drop(address.acquire("::1").await.unwrap());
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = trips(&server);
    let mut permits = Vec::new();
    for _ in 0..3 {
        permits.extend(Limiter::acquire_all(&[now(&address, "::1"), now(&plan, "gold")]).await.unwrap());
    }
    assert_eq!(trips(&server) - before, 3, "one trip for both");
    let refused = Limiter::acquire_all(&[now(&address, "::1"), now(&plan, "gold")]).await.unwrap_err();
    assert_eq!((refused.policy(), refused.limit()), ("plan", Some("requests/min")));
    assert_eq!(refused.kind(), RefusedKind::RateLimited);
    assert_eq!(address.peek("::1").await.remaining(), 6, "what the other one refused was not charged");
    let seats = plan.peek("gold").await;
    assert_eq!(seats.limit("at-once").unwrap().remaining(), 5);
    drop(permits);
}

#[tokio::test]
async fn where_something_has_to_wait_they_are_asked_in_order() {
    let server = RedisProcess::start();
    let store = Redis::new(server.url()).unwrap();
    let first = Limiter::new(Policy::new("first").limit("1000/s burst 100"), &store).unwrap();
    let last = Limiter::new(Policy::new("last").limit("20/s burst 1"), &store).unwrap();
    for _ in 0..3 {
        let asks = [(&first, Ask::new("k")), (&last, Ask::new("k"))];
        assert_eq!(Limiter::acquire_all(&asks).await.unwrap().len(), 2);
    }
    // What the last one refuses goes back.
    let taken = last.acquire("k").await.unwrap();
    let asks = [(&first, Ask::new("k")), (&last, Ask::new("k").max_wait(Duration::from_millis(1)))];
    assert!(Limiter::acquire_all(&asks).await.is_err());
    drop(taken);
}

/// One that a process shares, connected, whose trips may take as long as a server stands still.
async fn patient(server: &RedisProcess) -> (Limiter, Limiter) {
    let store = Redis::new(server.url()).unwrap().budget(Duration::from_secs(30));
    let address = Limiter::new(Policy::new("address").limit("10/day burst 10"), &store).unwrap();
    let plan = Limiter::new(Policy::new("plan").limit("8 at once"), &store).unwrap();
    drop(address.acquire("connects").await.unwrap());
    (address, plan)
}

/// Polls a future while the server stands still, until its trip is on the way.
async fn begun<F: Future>(server: &RedisProcess, future: Pin<&mut F>) {
    server.signal("STOP");
    assert!(timeout(Duration::from_millis(100), future).await.is_err(), "nobody answers");
    server.signal("CONT");
}

#[tokio::test]
async fn what_was_granted_to_one_who_is_gone_goes_back() {
    let server = RedisProcess::start();
    let (address, plan) = patient(&server).await;
    // Another process, for what the own one does on the key makes it report its seats.
    let (other_address, other_plan) = patient(&server).await;
    let asks = [now(&address, "::1"), now(&plan, "gold")];
    let mut all = Box::pin(Limiter::acquire_all(&asks));
    begun(&server, all.as_mut()).await;
    drop(all);
    let start = Instant::now();
    loop {
        let charged = server.cli(&["KEYS", "forbear:{address*"]).lines().count();
        let (seats, units) = (other_plan.peek("gold").await, other_address.peek("::1").await);
        // Its trip is over once there is a second key beside that of the first call.
        if (charged, seats.remaining(), units.remaining()) == (2, 8, 10) {
            break;
        }
        assert!(start.elapsed() < SOON, "{charged} {seats:?} {units:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn one_who_is_not_polled_holds_back_nobody() {
    let server = RedisProcess::start();
    let (address, plan) = patient(&server).await;
    let asks = [now(&address, "::1"), now(&plan, "gold")];
    let mut all = pin!(Limiter::acquire_all(&asks));
    begun(&server, all.as_mut()).await;
    let seat = timeout(SOON, plan.acquire("gold")).await.expect("a chain holds back nobody").unwrap();
    drop((seat, all.await.unwrap()));
    let mut peek = pin!(plan.peek("gold"));
    begun(&server, peek.as_mut()).await;
    let seat = timeout(SOON, plan.acquire("gold")).await.expect("a look holds back nobody").unwrap();
    drop(seat);
    assert_eq!(peek.await.remaining(), 8);
}

#[tokio::test]
async fn a_pause_that_redis_never_heard_of_holds_them() {
    const PAUSE: Duration = Duration::from_secs(6);
    let mut server = RedisProcess::start();
    let store = Redis::new(server.url()).unwrap();
    let limiter = |name| Limiter::new(Policy::new(name).limit("1000/s burst 100"), &store).unwrap();
    let (address, plan) = (limiter("address"), limiter("plan"));
    drop(address.acquire("connects").await.unwrap());
    take_away(&mut server, &store, &address).await;
    let paused = Instant::now();
    address.pause("::1", PAUSE);
    server.restart();
    while store.health().is_away() {
        sleep(Duration::from_millis(20)).await;
    }
    // Just after the return they would be asked in order in any case.
    sleep(Duration::from_millis(1_100)).await;
    let asks = [(&address, Ask::new("::1")), (&plan, Ask::new("gold"))];
    assert_eq!(Limiter::acquire_all(&asks).await.unwrap().len(), 2);
    assert!(paused.elapsed() >= PAUSE, "{:?}", paused.elapsed());
}

#[tokio::test]
async fn a_pause_while_their_trip_is_under_way_holds_them_and_what_was_granted_goes_back() {
    const PAUSE: Duration = Duration::from_secs(1);
    let server = RedisProcess::start();
    let store = Redis::new(server.url()).unwrap().budget(Duration::from_secs(30));
    let address = Limiter::new(Policy::new("address").limit("1000/s burst 100"), &store).unwrap();
    let plan = Limiter::new(Policy::new("plan").limit("10/day burst 10").limit("8 at once"), &store).unwrap();
    drop(address.acquire("connects").await.unwrap());
    let asks = [(&address, Ask::new("::1")), (&plan, Ask::new("gold"))];
    let mut all = pin!(Limiter::acquire_all(&asks));
    server.signal("STOP");
    assert!(timeout(Duration::from_millis(100), all.as_mut()).await.is_err(), "nobody answers");
    let paused = Instant::now();
    address.pause("::1", PAUSE);
    server.signal("CONT");
    let permits = all.await.unwrap();
    assert!(paused.elapsed() >= PAUSE, "{:?}", paused.elapsed());
    let standing = plan.peek("gold").await;
    assert_eq!(standing.limit("requests/day").unwrap().remaining(), 9, "charged once");
    assert_eq!(standing.limit("at-once").unwrap().remaining(), 7);
    drop(permits);
}

#[tokio::test]
async fn calls_that_a_shared_cap_held_go_as_their_rate_allows() {
    const CALLS: usize = 60;
    let server = RedisProcess::start();
    let store = Redis::new(server.url()).unwrap();
    let each = Limiter::new(Policy::new("each").limit("50/s burst 1"), &store).unwrap();
    let all = Limiter::new(Policy::new("all").limit("4 at once"), &store).unwrap();
    let mut busy = Vec::new();
    for _ in 0..4 {
        busy.push(all.acquire("all").await.unwrap());
    }
    let calls = (0..CALLS).map(|_| {
        let (each, all) = (each.clone(), all.clone());
        tokio::spawn(async move {
            let asks = [(&each, Ask::new("a")), (&all, Ask::new("all"))];
            let permits = Limiter::acquire_all(&asks).await.unwrap();
            let went = Instant::now();
            drop(permits);
            went
        })
    });
    let calls = calls.collect::<Vec<_>>();
    // By now each of them could have had its turn under the rate.
    sleep(Duration::from_millis(1_500)).await;
    drop(busy);
    let mut went = Vec::new();
    for call in calls {
        went.push(call.await.unwrap());
    }
    let soon = went.iter().min().copied().unwrap() + Duration::from_millis(400);
    let first = went.iter().filter(|at| **at < soon).count();
    assert!(first < CALLS / 2, "{first} of {CALLS} within 0.4 s, which is the time of 20");
}

/// A store that lets everything through while it is away does so in spite of a pause.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_holds_no_chain_that_an_outage_lets_through() {
    let mut server = RedisProcess::start();
    let store = Redis::new(server.url()).unwrap().on_outage(OnOutage::Open);
    let limiter = |name| Limiter::new(Policy::new(name).limit("1000/s burst 100"), &store).unwrap();
    let (address, plan) = (limiter("address"), limiter("plan"));
    drop(address.acquire("connects").await.unwrap());
    take_away(&mut server, &store, &address).await;
    address.pause("::1", Duration::from_secs(60));
    let all = tokio::spawn(async move {
        Limiter::acquire_all(&[(&address, Ask::new("::1")), (&plan, Ask::new("gold"))]).await
    });
    assert_eq!(timeout(SOON, all).await.expect("it goes at once").unwrap().unwrap().len(), 2);
}
