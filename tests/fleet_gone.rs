//! Callers of a fleet that leave, never come back, wait for too long, or whose runtime ends: nobody else is held up.
#![cfg(feature = "redis")]

#[path = "kit/redis_process.rs"]
mod redis_process;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use forbear::store::Redis;
use forbear::{Ask, Limit, Limiter, Policy, Rate};
use redis_process::RedisProcess;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Long enough for anything that does not wait, on a machine that is busy with other things.
const SOON: Duration = Duration::from_secs(5);

fn limiter(server: &RedisProcess, policy: Policy) -> Limiter {
    Limiter::new(policy, Redis::new(server.url()).expect("a good URL")).expect("a good policy")
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(SOON, future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}

/// Begins to wait, as far as one poll goes.
fn polled_once<F: Future>(mut future: std::pin::Pin<&mut F>) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut context).is_pending(), "it has to ask first");
}

#[tokio::test]
async fn one_who_never_comes_back_is_passed_over() {
    let server = RedisProcess::start();
    for (name, limit) in
        [("rate", Limit::token_bucket(Rate::per_second(20), 1)), ("seats", Limit::concurrency(1))]
    {
        let limiter = limiter(&server, Policy::new(name).limit(limit));
        let mut absent = pin!(limiter.acquire("k"));
        polled_once(absent.as_mut());
        sleep(Duration::from_millis(50)).await;
        for _ in 0..3 {
            _ = soon(name, limiter.acquire("k")).await.expect("it goes");
        }
        // One that comes after all still gets its permit.
        _ = soon(name, absent).await.expect("it goes");
    }
}

/// Asks a limiter whenever it is woken, as the wakers of some executors do that poll at once.
struct Asks {
    limiter: Limiter,
    was_locked: AtomicBool,
    then: Waker,
}

impl Wake for Asks {
    fn wake(self: Arc<Self>) {
        let (told, hears) = mpsc::channel();
        let limiter = self.limiter.clone();
        std::thread::spawn(move || told.send(limiter.waiting("k")));
        if hears.recv_timeout(SOON).is_err() {
            self.was_locked.store(true, Ordering::SeqCst);
        }
        self.then.wake_by_ref();
    }
}

#[tokio::test]
async fn one_whose_time_is_over_is_woken_with_no_lock_held() {
    let server = RedisProcess::start();
    let store = Redis::new(server.url()).expect("a good URL").budget(Duration::from_secs(30));
    let limiter = Limiter::new(Policy::new("woken").limit("9/day burst 9"), store).expect("a good policy");
    drop(limiter.acquire("k").await.expect("it connects"));
    server.signal("STOP");
    let mut call = pin!(limiter.acquire(Ask::new("k").max_wait(Duration::from_millis(100))));
    let mut was_locked = false;
    let answer = std::future::poll_fn(|cx| {
        let (limiter, then) = (limiter.clone(), cx.waker().clone());
        let asks = Arc::new(Asks { limiter, was_locked: AtomicBool::new(false), then });
        let answer = call.as_mut().poll(&mut Context::from_waker(&asks.clone().into()));
        was_locked |= asks.was_locked.load(Ordering::SeqCst);
        answer
    });
    assert!(answer.await.is_err(), "nobody answered in time");
    server.signal("CONT");
    assert!(!was_locked);
}

#[tokio::test]
async fn what_was_booked_for_those_who_left_goes_to_the_next() {
    let server = RedisProcess::start();
    for (name, limit) in
        [("rate", Limit::token_bucket(Rate::new(1, SOON / 10), 1)), ("seats", Limit::concurrency(1))]
    {
        let limiter = limiter(&server, Policy::new(name).limit(limit));
        let first = limiter.acquire("k").await.expect("the first goes");
        for _ in 0..5 {
            assert!(timeout(Duration::from_millis(20), limiter.acquire("k")).await.is_err());
        }
        assert_eq!(limiter.waiting("k"), 0, "{name}");
        drop(first);
        _ = soon(name, limiter.acquire("k")).await.expect("nobody's seat and nobody's slot is left behind");
    }
}

#[test]
fn a_runtime_that_ends_takes_nobody_with_it() {
    let server = RedisProcess::start();
    let limiter = limiter(&server, Policy::new("runtimes").limit("100/s burst 1"));
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
    };
    let (first, second) = (runtime(), runtime());
    // The first has the connection, and drives the line.
    let begun = limiter.clone();
    first.block_on(async move {
        _ = begun.acquire("k").await.expect("it goes");
        for _ in 0..1_000 {
            let limiter = begun.clone();
            tokio::spawn(async move { limiter.acquire("k").await });
        }
        sleep(Duration::from_millis(100)).await;
    });
    let waiting = limiter.clone();
    let all = second.spawn(async move {
        let mut set = JoinSet::new();
        for _ in 0..20 {
            let limiter = waiting.clone();
            set.spawn(async move { limiter.acquire(Ask::new("k").max_wait(6 * SOON)).await });
        }
        set.join_all().await
    });
    std::thread::sleep(Duration::from_millis(100));
    drop(first);
    let answers = second.block_on(async { timeout(6 * SOON, all).await.expect("they are driven on") });
    let answers = answers.expect("no panic");
    let refused = answers.into_iter().find_map(Result::err);
    assert!(refused.is_none(), "{refused:?}");
}
