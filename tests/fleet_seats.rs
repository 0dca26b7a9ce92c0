//! Seats that a fleet shares, where others wait for them: who gets one, who leaves the queue, and what is left
//! behind by those who go.
#![cfg(feature = "redis")]

#[path = "kit/redis_process.rs"]
mod redis_process;

use std::future::Future;
use std::time::Duration;

use forbear::store::{OnOutage, Redis};
use forbear::{Ask, Limit, Limiter, Permit, Policy, Rate, Refused, RefusedKind};
use redis_process::RedisProcess;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// Long enough for anything that does not wait, on a machine that is busy with other things.
const SOON: Duration = Duration::from_secs(5);

/// What so many take at most together that are to go at once: where nobody looks before the next heartbeat, one takes half
/// of three seconds on average.
const ROUNDS: u32 = 6;
const AT_ONCE: Duration = Duration::from_millis(500 * ROUNDS as u64);

fn limiter(server: &RedisProcess, policy: &Policy) -> Limiter {
    let store = Redis::new(server.url()).expect("a good URL");
    Limiter::new(policy.clone(), store).expect("a good policy")
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(SOON, future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    soon(what, async {
        while !is_so() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Waits with patience.
fn wait(limiter: &Limiter, ask: Ask<'static>) -> JoinHandle<Result<Permit, Refused>> {
    let limiter = limiter.clone();
    tokio::spawn(async move { limiter.acquire(ask.max_wait(20 * SOON)).await })
}

async fn granted(call: JoinHandle<Result<Permit, Refused>>) -> Permit {
    call.await.expect("no panic").expect("it goes")
}

/// How many processes are in Redis's queue for seats, under any limit.
fn in_queue(server: &RedisProcess) -> u64 {
    sum(server, "*:q", |key| server.cli(&["ZCARD", key]))
}

/// How many seats it takes as used, under any limit.
fn used(server: &RedisProcess) -> u64 {
    sum(server, "*:s", |key| server.cli(&["HGET", key, "#used"]))
}

fn sum(server: &RedisProcess, pattern: &str, of: impl Fn(&str) -> String) -> u64 {
    let keys = server.cli(&["KEYS", pattern]);
    let keys = keys.lines().map(str::trim).filter(|key| !key.is_empty());
    keys.map(|key| of(key).trim().parse::<u64>().unwrap_or(0)).sum()
}

#[tokio::test]
async fn a_call_that_may_not_wait_takes_no_place_in_the_queue() {
    let server = RedisProcess::start();
    let policy = Policy::new("seats").limit("1 at once");
    let [one, other, third] = [(); 3].map(|()| limiter(&server, &policy));
    for _ in 0..10 {
        let held = soon("a free seat", one.acquire("k")).await.expect("it goes");
        let refused = soon("a refusal", other.try_acquire("k")).await.expect_err("it is taken");
        assert_eq!(refused.kind(), RefusedKind::NoSeat);
        assert_eq!(in_queue(&server), 0);
        drop(held);
        until("giving it back", || used(&server) == 0).await;
        _ = soon("a free seat", third.try_acquire("k")).await.expect("nobody is before it");
        until("giving it back", || used(&server) == 0).await;
    }
}

#[tokio::test]
async fn those_behind_one_who_may_not_wait_keep_their_places() {
    let server = RedisProcess::start();
    let policy = Policy::new("seats").limit("1 at once");
    let [one, other] = [(); 2].map(|()| limiter(&server, &policy));
    _ = other.peek("k").await;
    for _ in 0..5 {
        let held = soon("a free seat", one.acquire("k")).await.expect("it goes");
        // Both are there before the first trip leaves.
        let hasty = async { other.acquire(Ask::new("k").max_wait(Duration::ZERO)).await };
        let patient = async { other.acquire(Ask::new("k").max_wait(20 * SOON)).await };
        let free = async {
            until("waiting", || in_queue(&server) == 1).await;
            drop(held);
        };
        let (hasty, patient, ()) = soon("all", async { tokio::join!(hasty, patient, free) }).await;
        assert_eq!(hasty.expect_err("it is taken").kind(), RefusedKind::NoSeat);
        drop(patient.expect("it is free now"));
    }
}

#[tokio::test]
async fn who_gives_up_leaves_the_queue() {
    let server = RedisProcess::start();
    let policy = Policy::new("seats").limit("1 at once");
    let [one, other] = [(); 2].map(|()| limiter(&server, &policy));
    let held = soon("a free seat", one.acquire("k")).await.expect("it goes");
    let waits = [wait(&other, Ask::new("k")), wait(&other, Ask::new("k"))];
    until("waiting", || in_queue(&server) == 1).await;
    let [first, second] = waits;
    first.abort();
    sleep(Duration::from_millis(100)).await;
    assert_eq!(in_queue(&server), 1, "the second waits still");
    second.abort();
    until("leaving the queue", || in_queue(&server) == 0).await;
    drop(held);
    until("giving it back", || used(&server) == 0).await;
}

/// Also when its callers do: what it left would be unused until its lease ran out.
#[tokio::test]
async fn a_limiter_that_goes_leaves_nothing_behind() {
    let server = RedisProcess::start();
    let policy = Policy::new("seats").limit("4 at once");
    for _ in 0..8 {
        let limiters = [(); 2].map(|()| limiter(&server, &policy));
        let calls = (0..20).map(|i| {
            let limiter = limiters[i % 2].clone();
            tokio::spawn(async move {
                let granted = limiter.acquire(Ask::new("k").max_wait(Duration::ZERO)).await;
                sleep(Duration::from_millis(20)).await;
                granted.is_ok()
            })
        });
        let calls = calls.collect::<Vec<_>>();
        let waits = limiters.iter().map(|limiter| wait(limiter, Ask::new("k"))).collect::<Vec<_>>();
        drop(limiters);
        let mut granted = 0;
        for call in calls {
            granted += usize::from(soon("a call", call).await.expect("no panic"));
        }
        assert!(granted >= 4, "{granted}: all seats were free");
        waits.iter().for_each(JoinHandle::abort);
        drop(waits);
        until("giving all back", || used(&server) == 0 && in_queue(&server) == 0).await;
    }
}

/// Each of two gets one of the two seats that both need, at the same moment.
#[tokio::test]
async fn two_calls_that_need_the_same_two_seats_never_wait_for_each_other() {
    let server = RedisProcess::start();
    let seat = |unit| Limit::concurrency(1).unit(unit);
    let policy = Policy::new("seats").limit(seat("a")).limit(seat("b"));
    let [holder, one, other] = [(); 3].map(|()| limiter(&server, &policy));
    let ask = |a, b| Ask::new("k").cost("a", a).cost("b", b);
    for _ in 0..5 {
        let b = soon("a free seat", holder.acquire(ask(0, 1))).await.expect("it goes");
        let first = wait(&one, ask(1, 1));
        until("waiting for b", || in_queue(&server) == 1).await;
        let a = soon("a free seat", holder.acquire(ask(1, 0))).await.expect("nobody keeps it");
        let second = wait(&other, ask(1, 1));
        until("waiting for a", || in_queue(&server) == 2).await;
        drop((a, b));
        let done = async |call| drop::<Permit>(granted(call).await);
        soon("both", async { tokio::join!(done(first), done(second)) }).await;
        until("giving all back", || used(&server) == 0).await;
    }
}

/// The same, where one of the processes has a second line, of calls that cost tokens besides.
#[tokio::test]
async fn nor_do_those_of_several_lines() {
    let server = RedisProcess::start();
    let seat = |unit| Limit::concurrency(1).unit(unit);
    let tokens = Limit::token_bucket(Rate::per_second(1_000), 1_000).unit("tokens");
    let policy = Policy::new("seats").limit(seat("a")).limit(seat("b")).limit(tokens);
    let [holder, one, other] = [(); 3].map(|()| limiter(&server, &policy));
    let ask = |a, b, tokens| Ask::new("k").cost("a", a).cost("b", b).cost("tokens", tokens);
    for _ in 0..5 {
        let b = soon("a free seat", holder.acquire(ask(0, 1, 0))).await.expect("it goes");
        let first = wait(&one, ask(1, 1, 0));
        until("waiting for b", || in_queue(&server) == 1).await;
        let a = soon("a free seat", holder.acquire(ask(1, 0, 0))).await.expect("nobody keeps it");
        let second = wait(&other, ask(1, 1, 0));
        until("waiting for a", || in_queue(&server) == 2).await;
        // Where a heartbeat came between, the first waits for a too, and no place is added.
        let third = wait(&one, ask(1, 1, 1));
        sleep(Duration::from_millis(50)).await;
        drop(b);
        sleep(Duration::from_millis(20)).await;
        drop(a);
        let done = async |call| drop::<Permit>(granted(call).await);
        soon("all", async { tokio::join!(done(first), done(second), done(third)) }).await;
        until("giving all back", || used(&server) == 0).await;
    }
}

/// Two calls need both seats, and each process was to have one for a call that is gone.
#[tokio::test]
async fn nobody_keeps_a_part_of_the_seats_that_a_call_needs() {
    let server = RedisProcess::start();
    let tokens = Limit::token_bucket(Rate::per_second(1_000), 1_000).unit("tokens");
    let policy = Policy::new("seats").limit(Limit::concurrency(2).unit("seats")).limit(tokens);
    let [holder, one, other] = [(); 3].map(|()| limiter(&server, &policy));
    let ask = |seats, tokens| Ask::new("k").cost("seats", seats).cost("tokens", tokens);
    for _ in 0..5 {
        let held = soon("free seats", holder.acquire(ask(2, 0))).await.expect("it goes");
        let dear = [wait(&one, ask(2, 0)), wait(&other, ask(2, 0))];
        until("waiting", || in_queue(&server) == 2).await;
        let cheap = [wait(&one, ask(1, 1)), wait(&other, ask(1, 1))];
        sleep(Duration::from_millis(50)).await;
        cheap.iter().for_each(JoinHandle::abort);
        sleep(Duration::from_millis(20)).await;
        drop(held);
        let [first, second] = dear;
        let done = async |call| drop::<Permit>(granted(call).await);
        soon("both", async { tokio::join!(done(first), done(second)) }).await;
        drop(cheap);
        until("giving all back", || used(&server) == 0).await;
    }
}

#[tokio::test]
async fn a_call_that_waits_for_time_keeps_no_seat() {
    let server = RedisProcess::start();
    let tokens = Limit::token_bucket(Rate::new(1, 12 * SOON), 1).unit("tokens");
    let policy = Policy::new("seats").limit(Limit::concurrency(1).unit("seats")).limit(tokens);
    let [holder, one, other] = [(); 3].map(|()| limiter(&server, &policy));
    let ask = |seats, tokens| Ask::new("k").cost("seats", seats).cost("tokens", tokens);
    let held = soon("a free seat", holder.acquire(ask(1, 0))).await.expect("it goes");
    let waits = wait(&one, ask(1, 1));
    until("waiting", || in_queue(&server) == 1).await;
    drop(soon("a token", other.acquire(ask(0, 1))).await.expect("there is one"));
    drop(held);
    drop(soon("a free seat", other.acquire(ask(1, 0).max_wait(SOON))).await.expect("nobody keeps it"));
    assert!(!waits.is_finished());
}

/// Nor does a call that lacks another one keep what those need who wait for nothing else.
#[tokio::test]
async fn a_seat_that_waits_for_another_goes_to_those_who_need_no_other() {
    let server = RedisProcess::start();
    let policy =
        Policy::new("seats").limit(Limit::concurrency(2).unit("a")).limit(Limit::concurrency(1).unit("b"));
    let [holder, one] = [(); 2].map(|()| limiter(&server, &policy));
    let ask = |a, b| Ask::new("k").cost("a", a).cost("b", b);
    let hold = async |a, b| soon("a free seat", holder.acquire(ask(a, b))).await.expect("it goes");
    let mut waited = Duration::ZERO;
    for _ in 0..ROUNDS {
        let (first, second, b) = (hold(1, 0).await, hold(1, 0).await, hold(0, 1).await);
        let both = wait(&one, ask(1, 1));
        until("waiting for a", || in_queue(&server) == 1).await;
        drop(first);
        sleep(Duration::from_millis(50)).await;
        let two = wait(&one, ask(2, 0));
        until("waiting for two", || in_queue(&server) == 2).await;
        let freed = Instant::now();
        drop(second);
        drop(soon("both", granted(two)).await);
        waited += freed.elapsed();
        drop(b);
        drop(soon("a and b", granted(both)).await);
        until("giving all back", || used(&server) == 0).await;
    }
    assert!(waited < AT_ONCE, "{waited:?} for {ROUNDS}");
}

/// Behind one who has given up, in a line that goes on because a slot of it is yet to come.
#[tokio::test]
async fn the_next_in_line_takes_a_place_of_its_own() {
    let server = RedisProcess::start();
    let tokens = Limit::token_bucket(Rate::new(1, Duration::from_millis(500)), 1).unit("tokens");
    let policy = Policy::new("seats").limit(Limit::concurrency(2).unit("seats")).limit(tokens);
    let [holder, one] = [(); 2].map(|()| limiter(&server, &policy));
    let ask = |seats, tokens| Ask::new("k").cost("seats", seats).cost("tokens", tokens);
    let mut held = Some(soon("a free seat", holder.acquire(ask(1, 0))).await.expect("it goes"));
    let mut waited = Duration::ZERO;
    for _ in 0..ROUNDS {
        drop(soon("a token", one.acquire(ask(0, 1))).await.expect("it comes"));
        // In one trip: a slot ahead for the first, no seat for the second.
        let [booked, gone] = [wait(&one, ask(1, 1)), wait(&one, ask(1, 1))];
        until("booking ahead", || used(&server) == 2 && in_queue(&server) == 1).await;
        gone.abort();
        until("giving up", || in_queue(&server) == 0).await;
        let next = wait(&one, ask(1, 1));
        let first = soon("its slot", granted(booked)).await;
        let asked = Instant::now();
        until("waiting", || in_queue(&server) == 1).await;
        waited += asked.elapsed();
        drop(held.take());
        drop(soon("the next slot", granted(next)).await);
        drop(first);
        held = Some(soon("a free seat", holder.acquire(ask(1, 0))).await.expect("it goes"));
        until("giving back", || used(&server) == 1).await;
    }
    assert!(waited < AT_ONCE, "{waited:?} for {ROUNDS}");
}

#[tokio::test]
async fn a_runtime_that_ends_leaves_no_seat_booked() {
    let server = RedisProcess::start();
    let tokens = Limit::token_bucket(Rate::new(1, Duration::from_millis(800)), 1).unit("tokens");
    let policy = Policy::new("seats").limit(Limit::concurrency(1).unit("seats")).limit(tokens);
    let limiter = limiter(&server, &policy);
    let ask = |seats| Ask::new("k").cost("seats", seats).cost("tokens", 1);
    drop(soon("a token", limiter.acquire(ask(0))).await.expect("there is one"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let other = limiter.clone();
    let _never_goes = runtime.spawn(async move { other.acquire(ask(1).max_wait(SOON)).await });
    until("booking ahead", || used(&server) == 1).await;
    runtime.shutdown_background();
    until("giving it back", || used(&server) == 0).await;
}

/// Or what it says later of its seats is taken for news of a life that Redis has forgotten.
#[tokio::test]
async fn who_was_refused_and_asks_no_more_is_forgotten_in_order() {
    let server = RedisProcess::start();
    let policy = Policy::new("seats").limit("1 at once");
    let [one, other] = [(); 2].map(|()| limiter(&server, &policy));
    let held = soon("a free seat", one.acquire("k")).await.expect("it goes");
    _ = soon("a refusal", other.try_acquire("k")).await.expect_err("it is taken");
    let counted = || sum(&server, "*:l", |key| server.cli(&["ZCARD", key]));
    until("forgetting the other", || counted() == 1).await;
    drop(held);
    until("giving it back", || used(&server) == 0).await;
    _ = soon("a free seat", other.try_acquire("k")).await.expect("it knows of no other life");
}

#[tokio::test]
async fn who_waits_while_redis_goes_away_goes_by_the_local_share() {
    let mut server = RedisProcess::start();
    let policy = Policy::new("seats").limit("2 at once");
    let [one, other] = [(); 2].map(|()| {
        let share = OnOutage::local_share(2);
        let store = Redis::new(server.url()).expect("a good URL").on_outage(share);
        Limiter::new(policy.clone(), store).expect("a good policy")
    });
    let _held = [one.acquire("k").await.expect("it goes"), one.acquire("k").await.expect("it goes")];
    let waits = wait(&other, Ask::new("k"));
    until("waiting", || in_queue(&server) == 1).await;
    server.kill();
    _ = soon("another call", other.try_acquire("another")).await;
    _ = soon("its share", granted(waits)).await;
}

/// Both seats of one worker go in one report, while another waits for one and the first for the other.
async fn waited_for_the_last_seat(policy: Policy, rounds: u32) -> Duration {
    let server = RedisProcess::start();
    let [first, second] = [(); 2].map(|()| limiter(&server, &policy));
    let mut waited = Duration::ZERO;
    for _ in 0..rounds {
        let held = [soon("both are free", first.acquire("k")).await, soon("both", first.acquire("k")).await];
        let other = wait(&second, Ask::new("k"));
        sleep(Duration::from_millis(50)).await;
        let own = wait(&first, Ask::new("k"));
        sleep(Duration::from_millis(50)).await;
        let freed = Instant::now();
        drop(held);
        let other = soon("a seat is free", other).await.expect("no panic").expect("it goes");
        let own = soon("a seat is free", own).await.expect("no panic").expect("it goes");
        waited += freed.elapsed();
        drop((other, own));
    }
    waited
}

#[tokio::test]
async fn a_seat_that_a_trip_gives_at_its_very_end_is_used_at_once() {
    let one = Policy::new("seats").limit("2 at once");
    let two = one.clone().limit(Limit::concurrency(100).named("plenty"));
    let (one, two) =
        tokio::join!(waited_for_the_last_seat(one, ROUNDS), waited_for_the_last_seat(two, ROUNDS));
    for waited in [one, two] {
        assert!(waited < AT_ONCE, "{waited:?} for {ROUNDS}");
    }
}
