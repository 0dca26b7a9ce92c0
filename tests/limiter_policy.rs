//! Policies that change, only observe or chain; closing. On a paused clock.

mod kit;

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forbear::store::Local;
use forbear::{Ask, ConfigError, Limit, Limiter, Policy, Rate, RefusedKind};
use kit::{ask, bucket, call, hold, limiter, ms, secs, settle};
use tokio::time::{Instant, sleep};

fn poll_once<F: Future>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn b145_new_numbers_hold_at_once_and_what_was_used_stays_used() {
    let limits: [fn(u64) -> Limit; 4] = [
        |n| Limit::fixed_window(Rate::per_second(n)),
        |n| Limit::sliding_log(Rate::per_second(n)),
        |n| Limit::sliding_window(Rate::per_second(n), 10),
        |n| Limit::token_bucket(Rate::per_second(n), n),
    ];
    for (i, limit) in limits.into_iter().enumerate() {
        let policy = |n| Policy::new(format!("b145 {i}")).limit(limit(n)).max_wait(Duration::ZERO);
        let limiter = limiter(policy(10));
        for _ in 0..3 {
            _ = limiter.acquire("k").await.unwrap();
        }
        limiter.set_policy(policy(5)).unwrap();
        let mut more = 0;
        for _ in 0..7 {
            more += usize::from(limiter.acquire("k").await.is_ok());
        }
        assert_eq!(more, 2, "{i}");
    }
}

#[tokio::test(start_paused = true)]
async fn b146_nobody_fails_because_of_the_swap() {
    let policy = |rate: u64| Policy::new("b146").limit(Limit::token_bucket(Rate::per_second(rate), 1));
    let limiter = limiter(policy(1));
    let start = Instant::now();
    let calls = (0..50).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    let others = (0..10).map(|_| call(&limiter, start, "other")).collect::<Vec<_>>();
    for rate in [2, 5, 10] {
        sleep(secs(1)).await;
        limiter.set_policy(policy(rate)).unwrap();
    }
    let mut times = Vec::new();
    for call in calls {
        times.push(call.await.unwrap().unwrap());
    }
    assert!(times.is_sorted(), "they keep their order");
    assert!(times[49] < secs(9), "under the new limits: {:?}", times[49]);
    for other in others {
        assert!(other.await.unwrap().unwrap() < secs(5));
    }
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_keep_their_place_when_limits_come_and_go() {
    let limiter = limiter(Policy::new("come").limit("1 at once"));
    let permit = limiter.acquire("k").await.unwrap();
    let start = Instant::now();
    let calls = (0..5).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    settle().await;
    limiter.set_policy(Policy::new("come").limit("1 at once").limit(bucket(secs(2), 1))).unwrap();
    settle().await;
    assert_eq!(limiter.waiting("k"), 5);
    drop(permit);
    for (i, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), secs(2 * i as u64));
    }
    limiter.set_policy(Policy::new("come")).unwrap();
    _ = limiter.try_acquire("k").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_wants_what_the_new_policy_cannot_hold_is_told() {
    let limiter = limiter(Policy::new("smaller").limit("100 tokens/s burst 100"));
    let start = Instant::now();
    _ = limiter.acquire(Ask::new("k").cost("tokens", 100)).await.unwrap();
    let dear = ask(&limiter, start, "k", None, &[("tokens", 90)]);
    let cheap = ask(&limiter, start, "k", None, &[("tokens", 10)]);
    sleep(ms(10)).await;
    limiter.set_policy(Policy::new("smaller").limit("50 tokens/s burst 50")).unwrap();
    assert_eq!(dear.await.unwrap().unwrap_err().kind(), RefusedKind::NeverFits);
    cheap.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn seats_that_are_out_count_when_their_limit_comes_back() {
    let (seats, bare) = (|| Policy::new("back").limit("3 at once"), || Policy::new("back"));
    let limiter = limiter(seats());
    let mut permits = Vec::new();
    for _ in 0..3 {
        permits.push(limiter.acquire("k").await.unwrap());
    }
    limiter.set_policy(bare()).unwrap();
    let uncounted = limiter.acquire("k").await.unwrap();
    permits.pop();
    limiter.set_policy(seats()).unwrap();
    assert_eq!(limiter.peek("k").await.remaining(), 1);
    let last = limiter.try_acquire("k").await.unwrap();
    drop(uncounted);
    assert!(limiter.try_acquire("k").await.is_err());
    drop((permits, last));
    assert_eq!(limiter.peek("k").await.remaining(), 3);
}

#[tokio::test(start_paused = true)]
async fn seats_that_are_out_count_under_their_limit_and_no_other_of_its_name() {
    let named = |limit: Limit| Policy::new("named").limit(limit.named("x"));
    let (seats, jobs) = (|| named(Limit::concurrency(1)), || named(Limit::concurrency(1).unit("requests")));
    let limiter = limiter(seats());
    let seat = limiter.acquire("k").await.unwrap();
    limiter.set_policy(jobs()).unwrap();
    let job = limiter.try_acquire("k").await.unwrap();
    drop(seat);
    assert!(limiter.try_acquire("k").await.is_err(), "what came back was no job");
    // A rate of that name in between.
    limiter.set_policy(named("100/s".into())).unwrap();
    drop(limiter.try_acquire("k").await.unwrap());
    limiter.set_policy(jobs()).unwrap();
    assert!(limiter.try_acquire("k").await.is_err(), "the job is still under way");
    drop(job);
    drop(limiter.try_acquire("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn who_was_granted_and_waits_again_pays_what_the_new_policy_counts() {
    let limiter = limiter(Policy::new("again").limit("1 at once"));
    let first = limiter.acquire("k").await.unwrap();
    let mut late = std::pin::pin!(limiter.acquire("k"));
    assert!(poll_once(&mut late).is_pending());
    drop(first);
    settle().await;
    limiter.set_policy(Policy::new("again").limit("100/s").limit("1 at once")).unwrap();
    // It does not come for its seat, and others do.
    let other = hold(&limiter, "k").await.unwrap().unwrap();
    assert!(poll_once(&mut late).is_pending(), "its seat is taken");
    drop(other);
    let late = late.await.unwrap();
    late.settle("requests", 2);
    assert!(limiter.try_acquire("k").await.is_err(), "it has the only seat");
}

#[tokio::test(start_paused = true)]
async fn a_faulty_policy_changes_nothing() {
    let limiter = limiter(Policy::new("kept").limit("10/s"));
    let fault = limiter.set_policy(Policy::new("other").limit("10/s")).unwrap_err();
    assert!(matches!(fault, ConfigError::Field { field: "name", .. }), "{fault}");
    assert!(limiter.set_policy(Policy::new("kept").limit("nonsense")).is_err());
    assert_eq!(*limiter.policy(), Policy::new("kept").limit("10/s"));
}

#[tokio::test(start_paused = true)]
async fn observing_lets_all_through_and_says_what_it_would_have_refused() {
    let limiter = limiter(Policy::new("observed").limit("5/s burst 5").limit("2 at once").observe_only());
    let start = Instant::now();
    let mut permits = Vec::new();
    let mut granted = 0;
    for _ in 0..10 {
        let permit = limiter.acquire("k").await.unwrap();
        granted += usize::from(permit.decision().granted());
        permits.push(permit);
    }
    assert_eq!((granted, start.elapsed()), (2, Duration::ZERO));
    assert_eq!(permits[9].decision().refused_by(), Some("at-once"));
    permits.clear();
    for _ in 0..10 {
        let permit = limiter.try_acquire("k").await.unwrap();
        granted += usize::from(permit.decision().granted());
    }
    assert_eq!(granted, 5);
    let refused = limiter.acquire("k").await.unwrap().decision();
    assert_eq!((refused.refused_by(), refused.retry_after()), (Some("requests/s"), Some(ms(200))));
    limiter.pause("k", secs(5));
    let paused = limiter.acquire("k").await.unwrap().decision();
    assert!(!paused.granted() && paused.paused());
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn observing_lets_through_what_can_never_fit() {
    let limiter = limiter(Policy::new("never").limit("5 tokens/s burst 5").observe_only());
    let dear = || Ask::new("k").cost("tokens", 6);
    for permit in [limiter.acquire(dear()).await.unwrap(), limiter.try_acquire(dear()).await.unwrap()] {
        assert!(!permit.decision().granted());
        permit.settle("tokens", 5);
    }
    let chain = Limiter::acquire_all(&[(&limiter, dear())]).await.unwrap();
    assert!(!chain[0].decision().granted());
    assert_eq!(limiter.peek("k").await.remaining(), 5, "nothing was charged");
    limiter.close();
    assert_eq!(limiter.acquire(dear()).await.map(drop).unwrap_err().policy(), "never");
}

#[tokio::test(start_paused = true)]
async fn who_waits_goes_when_the_policy_is_only_observed_any_more() {
    let limiter = limiter(Policy::new("freed").limit(bucket(secs(60), 1)).max_wait(secs(3_600)));
    let start = Instant::now();
    let calls = (0..20).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    sleep(secs(1)).await;
    limiter.set_policy(Policy::new("freed").limit(bucket(secs(60), 1)).observe_only()).unwrap();
    for call in calls {
        assert!(call.await.unwrap().unwrap() <= secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn closing_refuses_all_who_wait_and_all_who_come() {
    let limiter = limiter(Policy::new("closed").limit("1/s burst 1").limit("5 at once"));
    let permit = limiter.acquire("k").await.unwrap();
    let waiters = (0..3).map(|_| hold(&limiter, "k")).collect::<Vec<_>>();
    sleep(ms(10)).await;
    limiter.close();
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap().unwrap_err().kind(), RefusedKind::Closed);
    }
    let refused = limiter.acquire("k").await.unwrap_err();
    assert_eq!((refused.kind(), refused.retry_after()), (RefusedKind::Closed, None));
    assert_eq!(limiter.try_acquire("k").await.unwrap_err().kind(), RefusedKind::Closed);
    assert_eq!(limiter.waiting("k"), 0);
    drop(permit);
    assert_eq!(limiter.peek("k").await.limit("at-once").unwrap().remaining(), 5);
}

#[tokio::test(start_paused = true)]
async fn peeking_changes_nothing() {
    let store = Local::new();
    let limiter =
        Limiter::new(Policy::new("peek").limit("10/s burst 10").limit("3 at once"), &store).unwrap();
    let peek = limiter.peek("k").await;
    assert_eq!((peek.remaining(), peek.waiting(), peek.paused()), (10, 0, None));
    assert_eq!(store.len(), 0);
    let _permit = limiter.acquire("k").await.unwrap();
    for _ in 0..3 {
        let peek = limiter.peek("k").await;
        assert_eq!(peek.limit("requests/s").unwrap().remaining(), 9);
        assert_eq!(peek.limit("requests/s").unwrap().reset_after(), ms(100));
        assert_eq!(peek.limit("at-once").unwrap().remaining(), 2);
        assert_eq!(peek.limits().map(|limit| limit.quota()).collect::<Vec<_>>(), [10, 3]);
    }
}

#[test]
fn b146_nobody_fails_while_threads_come_and_policies_change() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let policies = [
        Policy::new("b146 threads").limit("2000/s burst 10").limit("3 at once"),
        Policy::new("b146 threads").limit("3 at once"),
        Policy::new("b146 threads").limit("3 at once").limit("5000/s burst 1").limit("1000/s burst 100 "),
        Policy::new("b146 threads").limit("3 at once").limit(Limit::sliding_log(Rate::per_second(3_000))),
    ];
    let policies = policies.into_iter().filter(|policy| Limiter::new(policy, Local::new()).is_ok());
    let policies = policies.collect::<Vec<_>>();
    assert!(policies.len() >= 3);
    let limiter = limiter(policies[0].clone());
    runtime.block_on(async {
        let calls = (0..2_000).map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { drop(limiter.acquire("k").await.expect("nobody fails")) })
        });
        let calls = calls.collect::<Vec<_>>();
        let swapping = tokio::task::spawn_blocking({
            let limiter = limiter.clone();
            move || {
                for i in 0..200 {
                    limiter.set_policy(&policies[i % policies.len()]).unwrap();
                    std::thread::yield_now();
                }
                limiter.set_policy(Policy::new("b146 threads").limit("3 at once")).unwrap();
            }
        });
        for call in calls {
            tokio::time::timeout(secs(60), call).await.expect("it hangs").unwrap();
        }
        swapping.await.unwrap();
        let seats = (0..3).map(|_| limiter.try_acquire("k"));
        for seat in seats {
            drop(seat.await.unwrap());
        }
    });
    assert_eq!(limiter.waiting("k"), 0);
}

#[tokio::test(start_paused = true)]
async fn who_only_observes_lets_a_call_through_whose_cost_is_missing_or_unknown() {
    let limiter = limiter(Policy::new("costs").limit("5 tokens/s burst 5").observe_only());
    assert!(limiter.acquire("k").await.is_ok());
    assert!(limiter.acquire(Ask::new("k").cost("tokens", 1).cost("pages", 1)).await.is_ok());
    let real = kit::limiter(Policy::new("real").limit("5/s burst 5"));
    let chain = [(&limiter, Ask::new("k")), (&real, Ask::new("k"))];
    assert_eq!(Limiter::acquire_all(&chain).await.expect("all go").len(), 2);
}
