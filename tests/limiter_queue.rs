//! Those who wait, on a paused clock: order, bounds, giving up.

mod kit;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use forbear::{Ask, Limit, Policy, Rate, RefusedKind};
use kit::{ask, bucket, call, limiter, most_in, ms, secs, settle};
use tokio::time::{Instant, sleep, timeout};

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

/// Of the calls of twenty seconds, ten went in each after the first; the others were refused or given up.
async fn ten_went_each_second<C: IntoIterator<Item = Duration>>(calls: Vec<tokio::task::JoinHandle<C>>) {
    let mut times = Vec::new();
    for call in calls {
        times.extend(call.await.unwrap());
    }
    for second in 1..20 {
        let n = times.iter().filter(|time| time.as_secs() == second).count();
        assert!((9..=11).contains(&n), "{n} in second {second}");
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
    ten_went_each_second(calls).await;
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
            let limiter = limiter.clone();
            calls.push(tokio::spawn(async move {
                _ = timeout(ms(990), limiter.acquire("k")).await.ok()?.ok()?;
                Some(start.elapsed())
            }));
        }
        sleep(secs(1)).await;
    }
    ten_went_each_second(calls).await;
    assert_eq!(limiter.waiting("k"), 0);
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
    let told = tried.decision();
    assert_eq!((told.remaining(), told.reset_after()), (0, ms(1_100)), "the queue is part of what is used");
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
async fn an_endless_max_wait_is_one() {
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
