//! Those who wait, on a paused clock: order, bounds, giving up, runtimes that come and go.

mod kit;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use forbear::{Ask, Limit, Permit, Policy, Rate, Refused, RefusedKind};
use kit::{ask, bucket, call, hold, limiter, most_in, ms, secs, settle};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep, timeout};

fn paused_runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
}

#[tokio::test(start_paused = true)]
async fn b017_cancelled_waiters_leave_no_debt() {
    let limiter = limiter(Policy::new("b017").limit(bucket(secs(1), 1)));
    let start = Instant::now();
    let _a = limiter.acquire("k").await.unwrap();
    let waiters = (0..5).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    sleep(ms(100)).await;
    assert_eq!(limiter.waiting("k"), 5);
    waiters.iter().for_each(|waiter| waiter.abort());
    sleep(ms(100)).await;
    assert_eq!(limiter.waiting("k"), 0);
    let _g = limiter.acquire("k").await.unwrap();
    assert_eq!(start.elapsed(), ms(1_000));
}

#[tokio::test(start_paused = true)]
async fn b017_whatever_the_limit() {
    let rate = Rate::new(2, secs(2));
    let limits = [
        Limit::rate(rate),
        Limit::fixed_window(rate),
        Limit::sliding_window(rate, 2),
        Limit::sliding_counter(rate),
        Limit::sliding_log(rate),
        Limit::leaky_bucket(rate, 10),
    ];
    for (i, limit) in limits.into_iter().enumerate() {
        let went = async |cancelled: usize| {
            let limiter = limiter(Policy::new(format!("b017 {i} {cancelled}")).limit(limit.clone()));
            let start = Instant::now();
            for _ in 0..2 {
                _ = limiter.acquire("k").await.unwrap();
            }
            let waiters = (0..cancelled).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
            sleep(ms(500)).await;
            waiters.iter().for_each(|waiter| waiter.abort());
            settle().await;
            _ = limiter.acquire("k").await.unwrap();
            start.elapsed()
        };
        assert_eq!(went(5).await, went(0).await, "{i}");
    }
}

#[tokio::test(start_paused = true)]
async fn b034_an_overload_is_over_when_it_is_over() {
    let limiter = limiter(Policy::new("b034").limit(Limit::token_bucket(Rate::per_second(10), 10)));
    let start = Instant::now();
    let mut calls = Vec::new();
    for _ in 0..20 {
        for _ in 0..500 {
            calls.push(ask(&limiter, start, "k", Some(secs(1)), &[]));
        }
        sleep(secs(1)).await;
    }
    let mut times = Vec::new();
    for call in calls {
        times.extend(call.await.unwrap());
    }
    for second in 1..20 {
        let n = times.iter().filter(|time| time.as_secs() == second).count();
        assert!((9..=11).contains(&n), "{n} in second {second}");
    }
    sleep(secs(1)).await;
    for _ in 0..50 {
        let asked = Instant::now();
        _ = limiter.acquire("k").await.unwrap();
        assert_eq!(asked.elapsed(), Duration::ZERO);
        sleep(ms(200)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn b034_giving_up_costs_nobody_anything() {
    let limiter = limiter(Policy::new("b034 drop").limit(Limit::token_bucket(Rate::per_second(10), 10)));
    let start = Instant::now();
    let mut calls = Vec::new();
    for _ in 0..20 {
        for _ in 0..200 {
            let call = call(&limiter, start, "k");
            calls.push(tokio::spawn(async move { timeout(secs(1), call).await.ok()?.ok()?.ok() }));
        }
        // The calls go on behind their callers: those are limits of their own to what this proves.
        sleep(secs(1)).await;
    }
    let mut times = Vec::new();
    for call in calls {
        times.extend(call.await.unwrap());
    }
    for second in 1..20 {
        let n = times.iter().filter(|time| time.as_secs() == second).count();
        assert!(n <= 11, "{n} in second {second}");
    }
}

#[tokio::test(start_paused = true)]
async fn b055_a_dropped_waiter_does_not_count() {
    let limiter = limiter(Policy::new("b055").limit(bucket(secs(1), 1)).max_waiting(1));
    let start = Instant::now();
    let _first = limiter.acquire("k").await.unwrap();
    let w1 = call(&limiter, start, "k");
    settle().await;
    let full = limiter.acquire("k").await.unwrap_err();
    assert_eq!((full.kind(), full.retry_after()), (RefusedKind::QueueFull, Some(secs(2))));
    w1.abort();
    settle().await;
    let w2 = call(&limiter, start, "k");
    settle().await;
    assert_eq!(limiter.waiting("k"), 1);
    assert_eq!(limiter.peek("k").await.waiting(), 1);
    assert_eq!(w2.await.unwrap().unwrap(), secs(1));
}

#[tokio::test(start_paused = true)]
async fn b058_who_gives_up_at_the_head_blocks_no_one() {
    let limiter = limiter(Policy::new("b058").limit(bucket(secs(1), 2)));
    let start = Instant::now();
    _ = limiter.acquire(Ask::new("k").cost("requests", 2)).await.unwrap();
    let w1 = ask(&limiter, start, "k", None, &[("requests", 2)]);
    settle().await;
    let w2 = call(&limiter, start, "k");
    sleep(ms(500)).await;
    w1.abort();
    assert_eq!(w2.await.unwrap().unwrap(), secs(1));
}

#[tokio::test(start_paused = true)]
async fn b058_nor_with_seats() {
    let limiter = limiter(Policy::new("b058 seats").limit("2 at once"));
    let start = Instant::now();
    let one = limiter.acquire("k").await.unwrap();
    let _two = limiter.acquire("k").await.unwrap();
    let w1 = ask(&limiter, start, "k", None, &[("seats", 2)]);
    settle().await;
    let w2 = call(&limiter, start, "k");
    sleep(ms(500)).await;
    drop(one);
    settle().await;
    assert_eq!(limiter.waiting("k"), 2, "first come, first served");
    w1.abort();
    assert_eq!(w2.await.unwrap().unwrap(), ms(500));
}

#[tokio::test(start_paused = true)]
async fn b076_a_leaky_bucket_serves_all_in_the_order_in_which_they_came() {
    let limit = Limit::leaky_bucket(Rate::per_second(5), 100);
    let limiter = limiter(Policy::new("b076").limit(limit).max_wait(secs(60)));
    let start = Instant::now();
    let calls = (0..100).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    for (i, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), ms(200 * i as u64));
    }
}

#[tokio::test(start_paused = true)]
async fn a_leaky_bucket_holds_calls_in_its_own_time_and_refuses_when_it_is_full() {
    let limit = Limit::leaky_bucket(Rate::per_second(10), 10);
    let limiter = limiter(Policy::new("leaky").limit(limit).max_wait(Duration::ZERO));
    let start = Instant::now();
    let calls = (0..20).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    settle().await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(limiter.waiting("k"), 10);
    let tried = limiter.try_acquire("k").await.unwrap_err();
    assert_eq!(tried.kind(), RefusedKind::QueueFull);
    assert_eq!(limiter.waiting("k"), 10);
    let mut full = 0;
    let mut times = Vec::new();
    for call in calls {
        match call.await.unwrap() {
            Ok(at) => times.push(at),
            Err(refused) => {
                assert_eq!((refused.kind(), refused.retry_after()), (RefusedKind::QueueFull, Some(ms(100))));
                full += 1;
            }
        }
    }
    assert_eq!(full, 9);
    assert_eq!(times, (0..11).map(|i| ms(100 * i)).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_held_call_that_gives_up_moves_the_rest_forward() {
    let limit = Limit::leaky_bucket(Rate::per_second(1), 10);
    let limiter = limiter(Policy::new("leaky cancel").limit(limit).max_wait(Duration::ZERO));
    let start = Instant::now();
    let calls = (0..11).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    sleep(ms(500)).await;
    for i in [1, 4, 5] {
        calls[i].abort();
    }
    settle().await;
    let late = call(&limiter, start, "k");
    let mut times = Vec::new();
    for call in calls {
        times.extend(call.await.map(Result::unwrap).ok());
    }
    times.push(late.await.unwrap().unwrap());
    assert_eq!(times, (0..9).map(secs).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_not_the_leaky_buckets_own_time() {
    let limit = Limit::leaky_bucket(Rate::per_second(1), 10);
    let limiter = limiter(Policy::new("leaky pause").limit(limit).max_wait(Duration::ZERO));
    limiter.pause("k", secs(30));
    let refused = limiter.acquire("k").await.unwrap_err();
    assert_eq!(refused.kind(), RefusedKind::Paused);
}

#[tokio::test(start_paused = true)]
async fn b091_a_slot_that_is_given_up_goes_to_the_next() {
    let limiter = limiter(Policy::new("b091").limit(bucket(secs(1), 1)));
    let start = Instant::now();
    _ = limiter.acquire("k").await.unwrap();
    let b = call(&limiter, start, "k");
    settle().await;
    let c = call(&limiter, start, "k");
    sleep(ms(500)).await;
    c.abort();
    sleep(ms(100)).await;
    let d = call(&limiter, start, "k");
    assert_eq!(b.await.unwrap().unwrap(), secs(1));
    assert_eq!(d.await.unwrap().unwrap(), secs(2));
}

#[tokio::test(start_paused = true)]
async fn b091_behind_bookings_of_other_lines_too() {
    let limit = Limit::token_bucket(Rate::per_second(2), 1);
    let limiter = limiter(Policy::new("b091 lines").limit(limit).limit("600 tokens/s burst 600"));
    let start = Instant::now();
    _ = limiter.acquire(Ask::new("k").cost("tokens", 0)).await.unwrap();
    let first = ask(&limiter, start, "k", None, &[("tokens", 1)]);
    settle().await;
    let second = ask(&limiter, start, "k", None, &[("tokens", 0)]);
    sleep(ms(100)).await;
    first.abort();
    assert_eq!(second.await.unwrap().unwrap(), ms(500));
}

/// Drops another waiter when it is woken.
struct Dropping(Arc<Shelf>, usize);

type Waiting = Pin<Box<dyn Future<Output = Result<Permit, Refused>> + Send>>;

struct Shelf {
    waiters: Vec<Mutex<Option<Waiting>>>,
    full: AtomicBool,
    woken: AtomicUsize,
}

impl Wake for Dropping {
    fn wake(self: Arc<Self>) {
        if !self.0.full.load(Ordering::SeqCst) {
            return;
        }
        self.0.woken.fetch_add(1, Ordering::SeqCst);
        // One further on, so that chains end.
        let other = self.0.waiters.get(self.1 + 500).and_then(|other| other.try_lock().ok()?.take());
        drop(other);
    }
}

#[test]
fn b100_a_waker_may_drop_other_waiters() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let _in_it = runtime.enter();
    let limiter = limiter(Policy::new("b100").limit("4 at once"));
    let permits = (0..4).map(|_| runtime.block_on(limiter.acquire("k")).unwrap()).collect::<Vec<_>>();
    let waiters = (0..1_000).map(|_| {
        let limiter = limiter.clone();
        let waiter: Waiting = Box::pin(async move { limiter.acquire("k").await });
        Mutex::new(Some(waiter))
    });
    let shelf = Arc::new(Shelf {
        waiters: waiters.collect(),
        full: AtomicBool::new(false),
        woken: AtomicUsize::new(0),
    });
    let poll = |i: usize| {
        let mut slot = shelf.waiters[i].lock().unwrap();
        let waker = Waker::from(Arc::new(Dropping(shelf.clone(), i)));
        let polled = slot.as_mut().map(|waiter| waiter.as_mut().poll(&mut Context::from_waker(&waker)));
        match polled {
            Some(Poll::Ready(result)) => {
                let waiter = slot.take();
                drop(slot);
                drop(waiter);
                Some(result.expect("a permit"))
            }
            _ => None,
        }
    };
    for i in 0..1_000 {
        assert!(poll(i).is_none());
    }
    assert_eq!(limiter.waiting("k"), 1_000);
    shelf.full.store(true, Ordering::SeqCst);
    std::thread::scope(|threads| {
        for permit in permits {
            threads.spawn(|| drop(permit));
        }
        for part in 0..4 {
            let poll = &poll;
            let shelf = &shelf;
            threads.spawn(move || {
                let handle = Instant::now();
                loop {
                    let mine = (0..1_000).filter(|i| i % 4 == part);
                    mine.clone().for_each(|i| drop(poll(i)));
                    if mine.clone().all(|i| shelf.waiters[i].lock().unwrap().is_none()) {
                        break;
                    }
                    assert!(handle.elapsed() < secs(60), "a dead-lock, or a waiter was forgotten");
                    std::thread::yield_now();
                }
            });
        }
    });
    assert!(shelf.woken.load(Ordering::SeqCst) > 0);
    assert_eq!(limiter.waiting("k"), 0);
    let again = (0..4).map(|_| runtime.block_on(limiter.try_acquire("k")).unwrap()).collect::<Vec<_>>();
    assert!(runtime.block_on(limiter.try_acquire("k")).is_err());
    drop(again);
}

#[test]
fn b115_nothing_is_lost_between_those_who_try_and_those_who_wait() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let limiter = limiter(Policy::new("b115").limit(Limit::token_bucket(Rate::per_second(1_000), 10)));
    let (admitted, start) = (AtomicUsize::new(0), Instant::now());
    std::thread::scope(|threads| {
        for i in 0..16 {
            let (runtime, limiter, admitted) = (&runtime, &limiter, &admitted);
            threads.spawn(move || {
                while start.elapsed() < ms(1_000) {
                    let result = if i % 2 == 0 {
                        runtime.block_on(limiter.try_acquire("k"))
                    } else {
                        runtime.block_on(limiter.acquire(Ask::new("k").max_wait(ms(50))))
                    };
                    admitted.fetch_add(usize::from(result.is_ok()), Ordering::SeqCst);
                }
            });
        }
    });
    let took = start.elapsed().as_secs_f64();
    let admitted = admitted.into_inner();
    assert!(admitted as f64 <= 11.0 + 1_000.0 * took, "{admitted} in {took} s");
    assert!(admitted > 500, "{admitted} in {took} s");
    std::thread::sleep(ms(20));
    assert!(runtime.block_on(limiter.try_acquire("k")).is_ok());
    assert_eq!(limiter.waiting("k"), 0);
}

#[test]
fn b148_many_threads_on_one_key() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let limiter = limiter(Policy::new("b148").limit(Limit::token_bucket(Rate::per_second(100), 1_000)));
    let (admitted, start) = (AtomicUsize::new(0), Instant::now());
    std::thread::scope(|threads| {
        for _ in 0..32 {
            threads.spawn(|| {
                while start.elapsed() < ms(500) {
                    let permit = runtime.block_on(limiter.try_acquire("k"));
                    admitted.fetch_add(usize::from(permit.is_ok()), Ordering::SeqCst);
                }
            });
        }
    });
    assert!(admitted.into_inner() as f64 <= 1_001.0 + 100.0 * start.elapsed().as_secs_f64());
}

#[tokio::test(start_paused = true)]
async fn b142_the_oldest_goes_first() {
    let limiter = limiter(Policy::new("b142").limit("2 at once"));
    let start = Instant::now();
    let served = Arc::new(Mutex::new(Vec::new()));
    let clients = (0..10).map(|i| {
        let (limiter, served) = (limiter.clone(), served.clone());
        tokio::spawn(async move {
            while start.elapsed() < secs(60) {
                let permit = limiter.acquire("k").await.unwrap();
                served.lock().unwrap().push(i);
                sleep(secs(5)).await;
                drop(permit);
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    let served = served.lock().unwrap();
    for i in 0..10 {
        assert!(served.iter().filter(|served| **served == i).count() >= 2);
    }
    assert_eq!(served[..10], (0..10).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn those_who_try_never_overtake_those_who_wait() {
    let limiter = limiter(Policy::new("overtake").limit(bucket(secs(1), 1)));
    let start = Instant::now();
    _ = limiter.acquire("k").await.unwrap();
    let waiter = call(&limiter, start, "k");
    settle().await;
    sleep(ms(999)).await;
    assert!(limiter.try_acquire("k").await.is_err());
    // Its slot has come, and its task may not have run yet.
    sleep(ms(1)).await;
    assert!(limiter.try_acquire("k").await.is_err());
    assert_eq!(waiter.await.unwrap().unwrap(), secs(1));
    let refused = limiter.try_acquire("k").await.unwrap_err();
    assert_eq!(refused.retry_after(), Some(secs(1)));
}

#[tokio::test(start_paused = true)]
async fn those_who_try_behind_a_line_are_told_its_length() {
    let limiter = limiter(Policy::new("line").limit(bucket(secs(1), 1)));
    let start = Instant::now();
    _ = limiter.acquire("k").await.unwrap();
    let waiters = (0..5).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    sleep(ms(500)).await;
    let refused = limiter.try_acquire("k").await.unwrap_err();
    assert_eq!((refused.kind(), refused.retry_after()), (RefusedKind::RateLimited, Some(ms(5_500))));
    assert_eq!(limiter.waiting("k"), 5);
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn max_waiting_counts_all_lines_of_a_key_and_no_other_key() {
    let limit = Limit::token_bucket(Rate::new(1, secs(1)), 1);
    let policy = Policy::new("bound").limit(limit).limit("60 tokens/min burst 60").max_waiting(3);
    let limiter = limiter(policy);
    let start = Instant::now();
    _ = limiter.acquire(Ask::new("k").cost("tokens", 1)).await.unwrap();
    let mut waiters = Vec::new();
    for tokens in [0, 1, 0] {
        waiters.push(ask(&limiter, start, "k", None, &[("tokens", tokens)]));
        settle().await;
    }
    for tokens in [0, 1] {
        let refused = limiter.acquire(Ask::new("k").cost("tokens", tokens)).await.unwrap_err();
        assert_eq!(refused.kind(), RefusedKind::QueueFull);
    }
    _ = limiter.acquire(Ask::new("other").cost("tokens", 1)).await.unwrap();
    let other = ask(&limiter, start, "other", None, &[("tokens", 1)]);
    settle().await;
    assert_eq!((limiter.waiting("k"), limiter.waiting("other")), (3, 1));
    waiters.push(other);
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_endless_patience_is_one() {
    let limiter = limiter(Policy::new("endless").limit(bucket(secs(1), 1)).max_wait(Duration::MAX));
    let start = Instant::now();
    let calls = (0..5).map(|_| ask(&limiter, start, "k", Some(Duration::MAX), &[]));
    for (i, call) in calls.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), secs(i as u64));
    }
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_makes_room_for_those_who_come_later() {
    let limiter = limiter(Policy::new("room").limit(bucket(secs(1), 1)));
    let start = Instant::now();
    _ = limiter.acquire("k").await.unwrap();
    let waiters = (0..1_000).map(|_| ask(&limiter, start, "k", Some(secs(2_000)), &[])).collect::<Vec<_>>();
    settle().await;
    let admitted = limiter.waiting("k");
    assert_eq!(admitted, 120, "those who can make it in 120 s, and no more");
    waiters.iter().skip(1).for_each(|waiter| waiter.abort());
    settle().await;
    let next = ask(&limiter, start, "k", Some(secs(2)), &[]);
    assert_eq!(next.await.unwrap().unwrap(), secs(2));
}

/// What a poll leaves behind that nobody polls again.
async fn polled_once(future: &mut Pin<&mut impl Future>) {
    std::future::poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_is_never_polled_again_holds_up_no_one_under_a_rate() {
    let limiter = limiter(Policy::new("idle rate").limit(bucket(secs(1), 1)));
    let start = Instant::now();
    _ = limiter.acquire("k").await.unwrap();
    let mut idle = pin!(limiter.acquire("k"));
    polled_once(&mut idle).await;
    let next = call(&limiter, start, "k");
    assert_eq!(next.await.unwrap().unwrap(), secs(2));
    // It has its permit, however late it comes for it.
    sleep(secs(500)).await;
    _ = idle.await.unwrap();
    assert_eq!(start.elapsed(), secs(502));
}

#[tokio::test(start_paused = true)]
async fn who_is_never_polled_again_holds_up_no_one_under_seats() {
    let limiter = limiter(Policy::new("idle seat").limit("1 at once"));
    let start = Instant::now();
    let permit = limiter.acquire("k").await.unwrap();
    let mut idle = pin!(limiter.acquire("k"));
    polled_once(&mut idle).await;
    let mut later = pin!(limiter.acquire("k"));
    polled_once(&mut later).await;
    drop(permit);
    let next = call(&limiter, start, "k");
    assert!(next.await.unwrap().unwrap() <= ms(300));
    settle().await;
    _ = limiter.try_acquire("k").await.unwrap();
    let again = call(&limiter, start, "k");
    again.await.unwrap().unwrap();
    // The one that comes back is served before those who came after it.
    let permit = later.as_mut().await.unwrap();
    drop(permit);
    drop(idle.await.unwrap());
    _ = limiter.try_acquire("k").await.unwrap();
}

#[test]
fn when_its_runtime_ends_the_line_goes_on_in_another() {
    let limiter = limiter(Policy::new("runtimes").limit("1 at once"));
    let first = Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let second = Builder::new_current_thread().enable_time().build().unwrap();
    let permit = first.block_on(limiter.acquire("k")).unwrap();
    let waiter = first.spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire("k").await.map(drop) }
    });
    while limiter.waiting("k") == 0 {
        std::thread::yield_now();
    }
    second.block_on(async {
        let limiter = limiter.clone();
        let waits = tokio::spawn(async move { limiter.acquire("k").await.map(drop) });
        settle().await;
        std::thread::spawn(move || drop((first, waiter, permit))).join().unwrap();
        timeout(secs(60), waits).await.expect("the line has no task").unwrap().unwrap();
    });
    assert_eq!(limiter.waiting("k"), 0);
}

#[test]
fn when_nobody_runs_its_runtime_the_line_goes_on_too() {
    for (name, policy) in [
        ("still seats", Policy::new("still seats").limit("1 at once")),
        ("still rate", Policy::new("still rate").limit(Limit::token_bucket(Rate::per_second(20), 1))),
    ] {
        let limiter = limiter(policy);
        let still = Builder::new_current_thread().enable_time().build().unwrap();
        let permit = still.block_on(limiter.acquire("k")).unwrap();
        // Its task is there, and nobody runs it.
        let gave_up = still.block_on(async { timeout(ms(1), limiter.acquire("k")).await.is_err() });
        assert!(gave_up, "{name}");
        let mut stuck = Box::pin(limiter.acquire("k"));
        still.block_on(polled_once(&mut stuck.as_mut()));
        let second = Builder::new_current_thread().enable_time().build().unwrap();
        second.block_on(async {
            let limiter = limiter.clone();
            let waits = tokio::spawn(async move { limiter.acquire("k").await.map(drop) });
            settle().await;
            drop(permit);
            drop(stuck);
            timeout(secs(60), waits).await.expect(name).unwrap().unwrap();
        });
    }
}

#[test]
fn b154_a_limiter_is_built_and_used_without_a_runtime() {
    let limiter = limiter(Policy::new("b154").limit("1 at once"));
    let mut context = Context::from_waker(Waker::noop());
    let permit = match pin!(limiter.acquire("k")).as_mut().poll(&mut context) {
        Poll::Ready(permit) => permit.unwrap(),
        Poll::Pending => panic!("there is a seat"),
    };
    match pin!(limiter.acquire("k")).as_mut().poll(&mut context) {
        Poll::Ready(refused) => assert_eq!(refused.unwrap_err().kind(), RefusedKind::NoRuntime),
        Poll::Pending => panic!("nothing to wait in"),
    }
    // A permit may be dropped anywhere, with callers waiting elsewhere.
    let runtime = paused_runtime();
    let mut waiter = None;
    runtime.block_on(async {
        waiter = Some(hold(&limiter, "k"));
        settle().await;
    });
    match pin!(limiter.acquire("k")).as_mut().poll(&mut context) {
        Poll::Ready(refused) => assert_eq!(refused.unwrap_err().kind(), RefusedKind::NoRuntime),
        Poll::Pending => panic!("nothing to wait in"),
    }
    drop(permit);
    let permit = runtime.block_on(waiter.expect("it was started")).unwrap().unwrap();
    drop(runtime);
    drop(permit);
    _ = match pin!(limiter.try_acquire("k")).as_mut().poll(&mut context) {
        Poll::Ready(permit) => permit.unwrap(),
        Poll::Pending => panic!("there is a seat"),
    };
}

#[tokio::test(start_paused = true)]
async fn b154_an_idle_limiter_has_no_task() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for i in 0..1_000 {
        let limiter = limiter(Policy::new(format!("b154 {i}")).limit("100/s").limit("1 at once"));
        let first = limiter.acquire("k").await.unwrap();
        let waiter = hold(&limiter, "k");
        let gives_up = hold(&limiter, "k");
        settle().await;
        gives_up.abort();
        drop(first);
        drop(waiter.await.unwrap().unwrap());
        if i % 3 == 0 {
            // A grant that nobody fetches.
            let seat = limiter.acquire("k").await.unwrap();
            let mut idle = Box::pin(limiter.acquire("k"));
            polled_once(&mut idle.as_mut()).await;
            drop(seat);
            sleep(ms(50)).await;
            drop(idle);
        }
    }
    sleep(secs(1)).await;
    assert_eq!(tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_wait_and_all_are_served_in_order() {
    let limiter = limiter(Policy::new("crowd").limit(Limit::token_bucket(Rate::per_second(1_000), 1)));
    let start = Instant::now();
    let calls = (0..10_000).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    let mut times = Vec::new();
    for call in calls {
        times.push(call.await.unwrap().unwrap());
    }
    assert!(times.is_sorted());
    assert_eq!(times[9_999], ms(9_999));
    assert!(most_in(&times[..200], ms(10)) <= 11);
}

#[tokio::test(start_paused = true)]
async fn permits_say_how_long_their_callers_were_held_back() {
    let limiter = limiter(Policy::new("waited").limit(bucket(secs(3), 1)));
    assert_eq!(limiter.acquire("k").await.unwrap().waited(), Duration::ZERO);
    assert_eq!(limiter.acquire("k").await.unwrap().waited(), secs(3));
}
