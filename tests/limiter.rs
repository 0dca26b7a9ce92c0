//! The limiter on a paused clock: what is granted, what is refused, and what a refusal says. One process, the
//! local store, no HTTP.

mod kit;

use std::time::Duration;

use forbear::store::Local;
use forbear::{Ask, Limit, Limiter, Policy, Rate, RefusedKind};
use kit::{ask, bucket, call, limiter, most_in, ms, secs};
use tokio::time::{Instant, advance, sleep};

#[tokio::test(start_paused = true)]
async fn b026_what_can_never_fit_is_an_error_of_its_own_at_once() {
    let limiter = limiter(Policy::new("b026").limit(Limit::token_bucket(Rate::per_second(10), 5)));
    let start = Instant::now();
    let ask = |cost| Ask::new("k").cost("requests", cost).max_wait(secs(60));
    let refused = limiter.acquire(ask(6)).await.unwrap_err();
    assert_eq!((refused.kind(), refused.retry_after()), (RefusedKind::NeverFits, None));
    assert!(!refused.is_timeout());
    _ = limiter.acquire(ask(5)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn b032_what_one_limit_refuses_is_charged_to_none() {
    let store = Local::new();
    let group = Limiter::new(Policy::new("b032").limit("10/min burst 10").max_wait(Duration::ZERO), &store);
    let route = Limiter::new(Policy::new("b032 r").limit("3/min burst 3").max_wait(Duration::ZERO), &store);
    let (group, route) = (group.unwrap(), route.unwrap());
    let mut special = 0;
    for _ in 0..5 {
        let asks = [(&group, Ask::new("k")), (&route, Ask::new("k"))];
        special += usize::from(Limiter::acquire_all(&asks).await.is_ok());
    }
    let mut normal = 0;
    for _ in 0..8 {
        normal += usize::from(group.acquire("k").await.is_ok());
    }
    assert_eq!((special, normal), (3, 7));
}

#[tokio::test(start_paused = true)]
async fn b032_within_one_policy_too() {
    let policy = Policy::new("b032 one").limit("10/min burst 10").limit("100 tokens/min burst 100");
    let limiter = limiter(policy);
    for _ in 0..5 {
        _ = limiter.try_acquire(Ask::new("k").cost("tokens", 30));
        let before = limiter.peek("k").await;
        let result = limiter.try_acquire(Ask::new("k").cost("tokens", 30)).await;
        if result.is_err() {
            assert_eq!(limiter.peek("k").await.limit("requests/min").unwrap().remaining(), 7);
            assert_eq!(before.limit("requests/min").unwrap().remaining(), 7);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn b037_the_plain_rate_never_exceeds_its_number_in_any_period() {
    let limiter = limiter(Policy::new("b037").limit("60/min").max_wait(secs(3_600)));
    for _ in 0..2 {
        let start = Instant::now();
        let calls = (0..200).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
        let mut times = Vec::new();
        for call in calls {
            times.push(call.await.unwrap().unwrap());
        }
        assert!(most_in(&times, secs(60)) <= 60);
        assert!(times[199] <= secs(204), "and it uses what it has: {:?}", times[199]);
        sleep(secs(600)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn b037_a_burst_by_name_lets_through_what_its_docs_say() {
    let limiter = limiter(Policy::new("b037 burst").limit("60/min burst 60").max_wait(secs(3_600)));
    let start = Instant::now();
    let calls = (0..200).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    let mut times = Vec::new();
    for call in calls {
        times.push(call.await.unwrap().unwrap());
    }
    for span in [1, 10, 60, 120] {
        assert!(most_in(&times, secs(span)) <= 60 + span as usize);
    }
    assert_eq!(times[199], secs(140));
}

#[tokio::test(start_paused = true)]
async fn b043_a_slow_bucket_that_is_often_asked_refills() {
    let slow = limiter(Policy::new("b043").limit(bucket(secs(10), 1)));
    _ = slow.try_acquire("k").await.unwrap();
    let mut admitted = 0;
    for _ in 0..60_000 {
        advance(ms(1)).await;
        admitted += usize::from(slow.try_acquire("k").await.is_ok());
    }
    assert_eq!(admitted, 6);
}

#[tokio::test(start_paused = true)]
async fn b043_long_run_rates_are_exact() {
    let rates = [
        (Rate::new(3, secs(7)), ms(1_000), 3_000u64),
        (Rate::per_day(1), secs(3_600), 10),
        (Rate::per_second(1_000_000), ms(1), 2_000),
    ];
    for (i, (rate, step, units)) in rates.into_iter().enumerate() {
        let limit = Limit::token_bucket(rate, rate.units());
        let limiter = limiter(Policy::new(format!("b043 {i}")).limit(limit).max_wait(Duration::ZERO));
        _ = limiter.acquire(Ask::new("k").cost("requests", rate.units())).await.unwrap();
        let (start, mut admitted) = (Instant::now(), 0u64);
        while admitted < units {
            advance(step).await;
            let mut chunk = rate.units();
            while chunk > 0 {
                let ask = Ask::new("k").cost("requests", chunk);
                match limiter.try_acquire(ask).await {
                    Ok(_) => admitted += chunk,
                    Err(_) => chunk /= 2,
                }
            }
        }
        let ideal = rate.period().as_secs_f64() / rate.units() as f64 * admitted as f64;
        let took = start.elapsed().as_secs_f64();
        assert!(took >= ideal && took <= ideal + step.as_secs_f64() + 0.000_001, "{rate:?}: {took} {ideal}");
    }
}

#[tokio::test(start_paused = true)]
async fn b062_the_slot_is_claimed_before_the_sleep() {
    let limiter = limiter(Policy::new("b062").limit("5/s"));
    let start = Instant::now();
    let calls = (0..60).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    let mut times = Vec::new();
    for call in calls {
        times.push(call.await.unwrap().unwrap());
    }
    assert!(times.is_sorted(), "first come, first served");
    assert!(most_in(&times, secs(1)) <= 5);
    assert_eq!(times[59], ms(59 * 200));
}

#[tokio::test(start_paused = true)]
async fn a_chain_is_held_back_for_its_time_once() {
    let every =
        |name: &str, period| limiter(Policy::new(name).limit(Limit::token_bucket(Rate::new(1, period), 1)));
    let (first, second) = (every("chain of 4 s", ms(4_000)), every("chain of 10 s", ms(10_000)));
    let asks = || [(&first, Ask::new("k").max_wait(ms(6_000))), (&second, Ask::new("k").max_wait(ms(6_000)))];
    let _both = Limiter::acquire_all(&asks()).await.unwrap();
    let start = Instant::now();
    // The first takes 4 s of the 6, and the second would take 6 more.
    let refused = Limiter::acquire_all(&asks()).await.unwrap_err();
    assert_eq!((refused.policy(), start.elapsed()), ("chain of 10 s", ms(4_000)));
    assert_eq!(first.peek("k").await.remaining(), 1, "what the first was charged has gone back");
}

#[tokio::test(start_paused = true)]
async fn b068_a_sliding_limit_holds_at_every_phase() {
    for phase in 0..20 {
        let limits = [
            Limit::sliding_log(Rate::per_second(100)),
            Limit::sliding_window(Rate::per_second(100), 10),
            Limit::rate(Rate::per_second(100)),
        ];
        for (i, limit) in limits.into_iter().enumerate() {
            let limiter = limiter(Policy::new(format!("b068 {phase} {i}")).limit(limit));
            advance(ms(phase * 50)).await;
            let start = Instant::now();
            let mut times = Vec::new();
            for at in [900, 1_100] {
                sleep((start + ms(at)).duration_since(Instant::now())).await;
                for _ in 0..100 {
                    if limiter.try_acquire("k").await.is_ok() {
                        times.push(start.elapsed());
                    }
                }
            }
            assert!(most_in(&times, secs(1)) <= 100, "{i} at {phase}");
            assert!(!times.is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn b106_estimates_are_charged_before_and_corrected_after() {
    let limiter = limiter(Policy::new("b106").limit("1000 tokens/min burst 1000"));
    let mut permits = Vec::new();
    for _ in 0..10 {
        permits.extend(limiter.try_acquire(Ask::new("k").cost("tokens", 400)).await);
    }
    assert_eq!(permits.len(), 2);
    let left = async || limiter.peek("k").await.limit("tokens/min").unwrap().remaining();
    assert_eq!(left().await, 200);
    permits[0].settle("tokens", 380);
    assert_eq!(left().await, 220);
    permits[0].settle("tokens", 380);
    assert_eq!(left().await, 220, "the same statement again changes nothing");
    permits[1].settle("tokens", 0);
    assert_eq!(left().await, 620);
    permits[0].settle("tokens", 0);
    permits[0].settle("elephants", 7);
    assert_eq!(left().await, 1_000, "never above capacity");
    permits[0].settle("tokens", 5_000);
    assert_eq!(left().await, 0, "never below zero");
    drop(permits);
    assert_eq!(limiter.waiting("k"), 0);
}

#[tokio::test(start_paused = true)]
async fn b106_a_settlement_lets_those_who_wait_go_earlier_or_later() {
    let limiter = limiter(Policy::new("b106 wait").limit("1000 tokens/min burst 1000"));
    let first = limiter.acquire(Ask::new("k").cost("tokens", 1_000)).await.unwrap();
    let start = Instant::now();
    let second = ask(&limiter, start, "k", None, &[("tokens", 500)]);
    sleep(secs(1)).await;
    first.settle("tokens", 500);
    assert_eq!(second.await.unwrap().unwrap(), secs(1));
    let third = ask(&limiter, start, "k", None, &[("tokens", 100)]);
    sleep(ms(100)).await;
    first.settle("tokens", 1_000);
    let went = third.await.unwrap().unwrap();
    assert!(went > secs(30), "{went:?}");
}

#[tokio::test(start_paused = true)]
async fn b107_a_cancelled_reservation_was_never_made() {
    let limiter = limiter(Policy::new("b107").limit(Limit::token_bucket(Rate::per_second(10), 20)));
    let start = Instant::now();
    _ = limiter.acquire(Ask::new("k").cost("requests", 15)).await.unwrap();
    sleep(ms(100)).await;
    let second = ask(&limiter, start, "k", None, &[("requests", 10)]);
    sleep(ms(100)).await;
    let third = ask(&limiter, start, "k", None, &[("requests", 2)]);
    sleep(ms(100)).await;
    second.abort();
    // 20 - 15 + 3 of three tenths of a second are 8: the third goes at once and leaves 6.
    assert_eq!(third.await.unwrap().unwrap(), ms(300));
    assert_eq!(limiter.peek("k").await.remaining(), 6);
}

#[tokio::test(start_paused = true)]
async fn b124_a_wait_that_cannot_fit_fails_at_once() {
    let limiter = limiter(Policy::new("b124").limit(bucket(secs(10), 1)));
    let _first = limiter.acquire("k").await.unwrap();
    let start = Instant::now();
    let refused = limiter.acquire(Ask::new("k").max_wait(secs(2))).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(refused.kind(), RefusedKind::RateLimited);
    assert!(refused.is_timeout());
    assert_eq!(refused.retry_after(), Some(secs(10)));
}

#[tokio::test(start_paused = true)]
async fn b124_behind_others_too_with_the_time_at_which_it_could_have_gone() {
    let limiter = limiter(Policy::new("b124 queue").limit(bucket(secs(10), 1)));
    let start = Instant::now();
    let _first = limiter.acquire("k").await.unwrap();
    let waiters = (0..3).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    sleep(secs(1)).await;
    let refused = limiter.acquire(Ask::new("k").max_wait(secs(38))).await.unwrap_err();
    assert_eq!((refused.kind(), refused.retry_after()), (RefusedKind::RateLimited, Some(secs(39))));
    assert_eq!(start.elapsed(), secs(1));
    let just = ask(&limiter, start, "k", Some(secs(39)), &[]);
    assert_eq!(just.await.unwrap().unwrap(), secs(40));
    for (i, waiter) in waiters.into_iter().enumerate() {
        assert_eq!(waiter.await.unwrap().unwrap(), secs(10 * (i as u64 + 1)));
    }
}

#[tokio::test(start_paused = true)]
async fn b149_without_waiting_it_says_so_at_once() {
    let limiter = limiter(Policy::new("b149").limit(bucket(secs(4), 1)).max_wait(Duration::ZERO));
    let _first = limiter.acquire("k").await.unwrap();
    let start = Instant::now();
    let policy = limiter.acquire("k").await.unwrap_err();
    let longer = limiter.acquire(Ask::new("k").max_wait(secs(9))).await.unwrap_err();
    let tried = limiter.try_acquire("k").await.unwrap_err();
    for refused in [policy, longer, tried] {
        assert_eq!((refused.kind(), refused.retry_after()), (RefusedKind::RateLimited, Some(secs(4))));
        assert_eq!(refused.limit(), Some("requests/4s"));
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn b149_an_ask_may_wait_less_than_its_policy() {
    let limiter = limiter(Policy::new("b149 ask").limit(bucket(secs(4), 1)));
    let _first = limiter.acquire("k").await.unwrap();
    let start = Instant::now();
    assert!(limiter.acquire(Ask::new("k").max_wait(Duration::ZERO)).await.is_err());
    assert!(limiter.acquire(Ask::new("k").max_wait(secs(3))).await.is_err());
    assert_eq!(start.elapsed(), Duration::ZERO);
    _ = limiter.acquire(Ask::new("k").max_wait(secs(4))).await.unwrap();
    assert_eq!(start.elapsed(), secs(4));
}

#[tokio::test(start_paused = true)]
async fn b163_a_budget_for_a_minute_holds_a_call_that_needs_it_all() {
    let limiter = limiter(Policy::new("b163").limit("40000 tokens/min"));
    let start = Instant::now();
    for cost in [800, 5_000, 40_000] {
        _ = limiter.acquire(Ask::new("k").cost("tokens", cost)).await.unwrap();
    }
    assert!(start.elapsed() <= secs(60), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn b166_a_refusal_says_whose_limit_it_was() {
    let limiter = limiter(Policy::new("mail").limit(bucket(secs(60), 1)));
    let _first = limiter.acquire("secret@example.com").await.unwrap();
    sleep(secs(1)).await;
    let ask = Ask::new("secret@example.com").max_wait(secs(1));
    let text = limiter.acquire(ask).await.unwrap_err().to_string();
    assert_eq!(text, "client-side limit of policy `mail`, `requests/min`: would wait 59 s, may wait 1 s");
}

#[tokio::test(start_paused = true)]
async fn what_was_not_said_is_an_error_at_once() {
    let limiter = limiter(Policy::new("said").limit("10/s").limit("100 tokens/s"));
    let start = Instant::now();
    let kind = async |ask: Ask<'_>| limiter.acquire(ask).await.unwrap_err().kind();
    assert_eq!(kind(Ask::new("k").cost("tokens", 1).cost("chars", 1)).await, RefusedKind::UnknownUnit);
    assert_eq!(kind(Ask::new("k")).await, RefusedKind::NoCost);
    assert_eq!(kind(Ask::new("k").cost("tokens", 101)).await, RefusedKind::NeverFits);
    let text = limiter.acquire("k").await.unwrap_err().to_string();
    assert!(text.contains("`tokens`"), "{text}");
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_cost_of_zero_neither_asks_nor_moves() {
    let limiter =
        limiter(Policy::new("zero").limit("10/s burst 10").limit(bucket(secs(60), 1).unit("tokens")));
    _ = limiter.acquire(Ask::new("k").cost("tokens", 1)).await.unwrap();
    for _ in 0..9 {
        _ = limiter.try_acquire(Ask::new("k").cost("tokens", 0)).await.unwrap();
    }
    assert_eq!(limiter.peek("k").await.limit("tokens/min").unwrap().reset_after(), secs(60));
    assert!(limiter.try_acquire(Ask::new("k").cost("tokens", 0)).await.is_err());
    // Neither waits behind those who want tokens.
    let start = Instant::now();
    let dear = ask(&limiter, start, "k", None, &[("tokens", 1)]);
    sleep(ms(1)).await;
    let cheap = ask(&limiter, start, "k", None, &[("tokens", 0)]);
    assert_eq!(cheap.await.unwrap().unwrap(), ms(100));
    assert_eq!(dear.await.unwrap().unwrap(), secs(60));
}

#[tokio::test(start_paused = true)]
async fn several_limits_hold_together_and_go_at_one_instant() {
    let policy =
        Policy::new("joint").limit(Limit::sliding_log(Rate::new(5, secs(10)))).limit(bucket(secs(1), 2));
    let limiter = limiter(policy);
    let start = Instant::now();
    let calls = (0..12).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    let mut times = Vec::new();
    for call in calls {
        times.push(call.await.unwrap().unwrap().as_secs());
    }
    assert_eq!(times, [0, 0, 1, 2, 3, 10, 10, 11, 12, 13, 20, 20]);
}

#[tokio::test(start_paused = true)]
async fn callers_that_go_when_a_window_opens_are_not_late_for_it() {
    let limiter = limiter(Policy::new("open").limit(Limit::fixed_window(Rate::new(10, secs(10)))));
    let start = Instant::now();
    let calls = (0..20).map(|_| ask(&limiter, start, "k", Some(secs(10)), &[])).collect::<Vec<_>>();
    for (i, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), secs(if i < 10 { 0 } else { 10 }));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stamp_that_is_late_is_no_clock_that_was_set_back() {
    let limiter = limiter(Policy::new("late").limit("10/s burst 10"));
    let stamp = Instant::now();
    sleep(secs(3_600)).await;
    let mut granted = 0;
    for _ in 0..50 {
        granted += usize::from(limiter.try_acquire("k").await.is_ok());
        granted += usize::from(limiter.try_acquire_at("k", stamp).is_ok());
    }
    assert_eq!(granted, 10);
}
