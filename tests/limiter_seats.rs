//! Seats: never more than the cap at once, and all of them back, whatever becomes of the futures.

mod kit;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use forbear::{Ask, Limit, Limiter, Permit, Policy, Rate, RefusedKind};
use kit::{call, hold, limiter, ms, secs, settle};
use tokio::time::{Instant, sleep, timeout};

/// Takes all seats, and says how many those are.
async fn free(limiter: &Limiter) -> usize {
    let mut permits = Vec::new();
    while let Ok(permit) = limiter.try_acquire("k").await {
        permits.push(permit);
    }
    permits.len()
}

#[derive(Default)]
struct Gauge {
    now: AtomicUsize,
    peak: AtomicUsize,
}

struct Inside<'a>(&'a Gauge, #[allow(dead_code, reason = "it is held")] Permit);

impl Gauge {
    fn enter(&self, permit: Permit) -> Inside<'_> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.peak.fetch_max(now, Ordering::SeqCst);
        Inside(self, permit)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn b020_never_more_than_the_cap_and_all_seats_come_back() {
    let limiter = limiter(Policy::new("b020").limit("3 at once"));
    let gauge = Arc::new(Gauge::default());
    for round in 0..100 {
        let mut random = fastrand::Rng::with_seed(round);
        let calls = (0..50).map(|i| {
            let (limiter, gauge) = (limiter.clone(), gauge.clone());
            let (work, gives_up) = (random.u64(0..8), (i % 5 < 2).then(|| random.u64(0..60)));
            tokio::spawn(async move {
                let call = async {
                    let permit = limiter.acquire("k").await.unwrap();
                    let _inside = gauge.enter(permit);
                    sleep(ms(work)).await;
                };
                timeout(ms(gives_up.unwrap_or(100_000)), call).await.is_ok()
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap();
        }
        assert_eq!((limiter.waiting("k"), free(&limiter).await), (0, 3), "round {round}");
    }
    assert_eq!(gauge.peak.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn b020_a_waiter_is_polled_a_bounded_number_of_times() {
    let limiter = limiter(Policy::new("b020 polls").limit("1 at once"));
    let permit = limiter.acquire("k").await.unwrap();
    let others = (0..100).map(|_| hold(&limiter, "k")).collect::<Vec<_>>();
    settle().await;
    let polls = AtomicUsize::new(0);
    let mut waiter = pin!(limiter.acquire("k"));
    let waits = std::future::poll_fn(|context| {
        polls.fetch_add(1, Ordering::SeqCst);
        waiter.as_mut().poll(context)
    });
    tokio::spawn(async move {
        sleep(secs(60)).await;
        drop(permit);
        for other in others {
            drop(other.await.unwrap().unwrap());
        }
    });
    _ = waits.await.unwrap();
    // Once on entry, once when granted, and whenever it has waited twice as long as when it looked last.
    let polls = polls.into_inner();
    assert!(polls <= 14, "{polls}");
}

#[tokio::test(start_paused = true)]
async fn b046_a_call_that_waits_for_a_seat_is_charged_once() {
    let window = Limit::fixed_window(Rate::new(10, secs(10)));
    let limiter = limiter(Policy::new("b046").limit(window).limit("1 at once"));
    let calls = (0..6).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let _permit = limiter.acquire("k").await.unwrap();
            sleep(ms(100)).await;
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    assert_eq!(limiter.peek("k").await.limit("requests/10s").unwrap().remaining(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_not_charged_to_who_still_waits_for_a_seat() {
    let limiter = limiter(Policy::new("order").limit("10/s burst 10").limit("1 at once"));
    let permit = limiter.acquire("k").await.unwrap();
    let waiters = (0..5).map(|_| hold(&limiter, "k")).collect::<Vec<_>>();
    settle().await;
    assert_eq!(limiter.peek("k").await.limit("requests/s").unwrap().remaining(), 9);
    let refused = limiter.acquire(Ask::new("k").max_wait(secs(2))).await.unwrap_err();
    assert_eq!((refused.kind(), refused.limit()), (RefusedKind::NoSeat, Some("at-once")));
    assert_eq!(refused.retry_after(), None);
    assert!(refused.is_timeout());
    for refused in [
        limiter.try_acquire("k").await.unwrap_err(),
        limiter.acquire(Ask::new("k").max_wait(Duration::ZERO)).await.unwrap_err(),
    ] {
        assert_eq!((refused.kind(), refused.retry_after()), (RefusedKind::NoSeat, None));
        assert_eq!(
            refused.to_string(),
            "client-side limit of policy `order`, `at-once`: no seat came free in 0 s; each is held until \
             its permit is dropped, or its response's body"
        );
    }
    drop(permit);
    for waiter in waiters {
        drop(waiter.await.unwrap().unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_wait_is_told_of_seats_where_others_wait_for_seats() {
    let limiter = limiter(Policy::new("busy").limit("100/s burst 20").limit("8 at once"));
    let callers = (0..40).map(|i| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let _permit = limiter.acquire("k").await.unwrap();
            sleep(ms(20 + i * 37 % 181)).await;
        })
    });
    let callers = callers.collect::<Vec<_>>();
    settle().await;
    while limiter.waiting("k") > 0 {
        let refused = limiter.try_acquire("k").await.unwrap_err();
        assert_eq!((refused.kind(), refused.limit()), (RefusedKind::NoSeat, Some("at-once")));
        sleep(ms(7)).await;
    }
    for caller in callers {
        caller.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn b140_callers_of_a_paused_key_hold_nothing() {
    let limiter = limiter(Policy::new("b140").limit("1000/s burst 1000").limit("2 at once"));
    limiter.pause("a", secs(30));
    let start = Instant::now();
    let paused = (0..500).map(|_| call(&limiter, start, "a")).collect::<Vec<_>>();
    settle().await;
    assert_eq!(limiter.waiting("a"), 500);
    for _ in 0..100 {
        let (one, two) = (limiter.acquire("b").await.unwrap(), limiter.acquire("b").await.unwrap());
        drop((one, two));
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    for call in paused {
        assert!(call.await.unwrap().unwrap() >= secs(30));
    }
}

#[tokio::test(start_paused = true)]
async fn b155_a_seat_comes_back_once() {
    let limiter = limiter(Policy::new("b155").limit("2 at once"));
    for _ in 0..10_000 {
        let permit = limiter.acquire("k").await.unwrap();
        drop(permit);
    }
    assert_eq!(free(&limiter).await, 2);
    assert_eq!(limiter.peek("k").await.remaining(), 2);
}

#[tokio::test(start_paused = true)]
async fn seats_may_cost_more_than_one() {
    let limiter = limiter(Policy::new("dear").limit("4 at once"));
    let three = limiter.acquire(Ask::new("k").cost("seats", 3)).await.unwrap();
    let _one = limiter.acquire("k").await.unwrap();
    assert!(limiter.try_acquire("k").await.is_err());
    drop(three);
    assert_eq!(free(&limiter).await, 3);
    let never = limiter.acquire(Ask::new("k").cost("seats", 5)).await.unwrap_err();
    assert_eq!(never.kind(), RefusedKind::NeverFits);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_for_seats_names_no_time() {
    let limiter = limiter(Policy::new("full").limit("1 at once").max_waiting(1));
    let permit = limiter.acquire("k").await.unwrap();
    let waiter = hold(&limiter, "k");
    settle().await;
    let refused = limiter.acquire("k").await.unwrap_err();
    assert_eq!((refused.kind(), refused.retry_after()), (RefusedKind::QueueFull, None));
    drop(permit);
    drop(waiter.await.unwrap().unwrap());
}

/// A call that its caller may drop at any point.
async fn storm(limiter: Limiter, gauge: Arc<Gauge>, seed: u64, longest: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let calls = (0..500).map(|_| {
        let (limiter, gauge, mut random) = (limiter.clone(), gauge.clone(), random.fork());
        tokio::spawn(async move {
            sleep(ms(random.u64(0..20))).await;
            let drop_at = if random.u8(0..3) == 0 { random.usize(1..6) } else { usize::MAX };
            let gives_up = ms(if drop_at == 5 { random.u64(0..30) } else { 1_000_000 });
            let mut polls = 0;
            let mut acquire = Some(Box::pin(limiter.acquire("k")));
            let granted = std::future::poll_fn(|context| {
                polls += 1;
                if polls > drop_at && drop_at < 5 {
                    // Woken, so granted or nearly, and dropped before the poll.
                    acquire = None;
                    return Poll::Ready(None);
                }
                acquire.as_mut().expect("it is dropped at the end").as_mut().poll(context).map(Some)
            });
            let Ok(Some(permit)) = timeout(gives_up, granted).await else { return };
            let inside = gauge.enter(permit.expect("a patient caller gets its seat"));
            let work = sleep(ms(random.u64(0..longest)));
            _ = timeout(ms(random.u64(0..longest + 2)), work).await;
            drop(inside);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
}

#[test]
fn a_third_of_all_futures_dropped_anywhere_paused() {
    for seed in 0..100 {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let policy = Policy::new(format!("storm {seed}")).limit("7 at once").limit("2000/s burst 50");
            let (limiter, gauge) = (limiter(policy), Arc::new(Gauge::default()));
            storm(limiter.clone(), gauge.clone(), seed, 3).await;
            assert_eq!((limiter.waiting("k"), gauge.now.load(Ordering::SeqCst)), (0, 0), "{seed}");
            assert_eq!(gauge.peak.load(Ordering::SeqCst), 7, "{seed}");
            sleep(secs(1)).await;
            assert_eq!(free(&limiter).await, 7, "{seed}");
        });
    }
}

#[test]
fn a_third_of_all_futures_dropped_anywhere_on_threads() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    for seed in 0..100 {
        runtime.block_on(async {
            let policy = Policy::new(format!("threads {seed}")).limit("7 at once");
            let (limiter, gauge) = (limiter(policy), Arc::new(Gauge::default()));
            let storm = tokio::spawn(storm(limiter.clone(), gauge.clone(), seed, 1));
            timeout(secs(120), storm).await.expect("it hangs").unwrap();
            assert_eq!((limiter.waiting("k"), gauge.now.load(Ordering::SeqCst)), (0, 0), "{seed}");
            assert!(gauge.peak.load(Ordering::SeqCst) <= 7, "{seed}");
            assert_eq!(free(&limiter).await, 7, "{seed}");
        });
    }
}
