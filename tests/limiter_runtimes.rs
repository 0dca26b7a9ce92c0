//! Threads, wakers and runtimes: those that end, that nobody runs, and callers that nobody polls again.

mod kit;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use forbear::{Ask, Limit, Permit, Policy, Rate, Refused, RefusedKind};
use kit::{bucket, call, hold, limiter, ms, secs, settle};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep, timeout};

fn paused_runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
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
    let limiter = limiter(Policy::new("b115").limit(Limit::token_bucket(Rate::per_second(100), 100)));
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
    assert!(admitted as f64 <= 101.0 + 100.0 * took, "{admitted} in {took} s");
    // The burst is as long as any thread may be kept waiting by the others.
    assert!(admitted >= 150, "{admitted} in {took} s");
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
