//! Pauses, 429s and what comes after them, on a paused clock.

mod kit;

use std::time::Duration;

use forbear::{Ask, Limit, Limiter, Policy, Rate, RefusedKind};
use kit::{ask, bucket, call, limiter, most_in, ms, secs, settle, signals};
use tokio::time::{Instant, advance, sleep};

#[tokio::test(start_paused = true)]
async fn b025_an_endless_pause_is_one() {
    for (name, time) in [("b025 max", Duration::MAX), ("b025 half", secs(u64::MAX / 2))] {
        let limiter = limiter(Policy::new(name).limit("10/s"));
        limiter.pause("k", time);
        for _ in 0..3 {
            let refused = limiter.try_acquire("k").await.unwrap_err();
            assert_eq!(refused.kind(), RefusedKind::Paused);
            assert!(refused.retry_after().unwrap() > secs(86_400 * 365));
            advance(secs(1)).await;
        }
        advance(secs(86_400)).await;
        assert!(limiter.try_acquire("k").await.is_err());
        assert!(limiter.peek("k").await.paused().is_some());
        // Who would wait for it is refused at once.
        assert_eq!(limiter.acquire("k").await.unwrap_err().kind(), RefusedKind::Paused);
        limiter.resume("k");
        _ = limiter.acquire("k").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn b031_a_wait_below_zero_does_not_shorten_a_pause() {
    let limiter = limiter(Policy::new("b031").limit("10/s"));
    limiter.pause("k", secs(5));
    limiter.observe("k", &signals(429, &[("retry-after", "-5")]));
    assert_eq!(limiter.peek("k").await.paused(), Some(secs(5)));
    limiter.observe("k", &signals(429, &[("retry-after", "-5")]));
    assert_eq!(limiter.peek("k").await.paused(), Some(secs(5)));
    let start = Instant::now();
    let calls = [call(&limiter, start, "k"), call(&limiter, start, "k")];
    for call in calls {
        assert!(call.await.unwrap().unwrap() >= secs(5));
    }
}

#[tokio::test(start_paused = true)]
async fn b041_a_429_holds_the_whole_key_and_no_other() {
    let limiter = limiter(Policy::new("b041").limit("1 at once").limit("100/s burst 100"));
    let first = limiter.acquire("host").await.unwrap();
    let start = Instant::now();
    let queued = (0..19).map(|_| call(&limiter, start, "host")).collect::<Vec<_>>();
    sleep(ms(20)).await;
    limiter.observe("host", &signals(429, &[("retry-after", "7")]));
    drop(first);
    _ = limiter.try_acquire("other").await.unwrap();
    for call in queued {
        assert!(call.await.unwrap().unwrap() >= ms(7_020));
    }
}

#[tokio::test(start_paused = true)]
async fn b071_a_429_empties_what_was_saved_up() {
    let limits = [
        Limit::token_bucket(Rate::per_second(100), 100),
        Limit::rate(Rate::per_second(100)),
        Limit::fixed_window(Rate::per_second(100)),
        Limit::sliding_window(Rate::per_second(100), 10),
        Limit::sliding_counter(Rate::per_second(100)),
        Limit::sliding_log(Rate::per_second(100)),
    ];
    for (i, limit) in limits.into_iter().enumerate() {
        let limiter = limiter(Policy::new(format!("b071 {i}")).limit("50 at once").limit(limit));
        let first = limiter.acquire("k").await.unwrap();
        sleep(secs(10)).await;
        let start = Instant::now();
        limiter.observe("k", &signals(429, &[("retry-after", "2")]));
        drop(first);
        let queued = (0..149).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
        let mut times = Vec::new();
        for call in queued {
            times.push(call.await.unwrap().unwrap());
        }
        assert!(times.iter().all(|time| *time >= secs(2)), "{i}");
        assert!(most_in(&times, secs(1)) <= 101, "{i}");
        // A fixed window opens again as a whole: that is what its docs say.
        if i != 2 {
            assert!(most_in(&times, ms(200)) <= 41, "{i}: {}", most_in(&times, ms(200)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn b092_each_header_counts_by_itself() {
    let limiter = limiter(Policy::new("b092").limit("10/s burst 10"));
    for headers in
        [[("x-ratelimit-remaining", "5")], [("x-ratelimit-reset", "5")], [("x-ratelimit-remaining", "abc")]]
    {
        limiter.observe("k", &signals(200, &headers));
        _ = limiter.try_acquire("k").await.unwrap();
    }
    limiter.observe("k", &signals(429, &[("retry-after", "2"), ("x-ratelimit-global", "true")]));
    assert_eq!(limiter.peek("k").await.paused(), Some(secs(2)));
}

#[tokio::test(start_paused = true)]
async fn b130_one_shared_pause_and_an_end_by_the_total_limit() {
    let limiter = limiter(Policy::new("b130").limit("100/s burst 100").max_wait(secs(300)));
    let start = Instant::now();
    let calls = (0..100).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let mut sent = 0;
            loop {
                let left = secs(300).saturating_sub(start.elapsed());
                match limiter.acquire(Ask::new("k").max_wait(left)).await {
                    Ok(_permit) => {
                        sent += 1;
                        // On the way; then the answer.
                        sleep(ms(50)).await;
                        limiter.observe("k", &signals(429, &[("retry-after", "60")]));
                    }
                    Err(refused) => return (sent, refused.kind()),
                }
            }
        })
    });
    let mut sent = 0;
    for call in calls.collect::<Vec<_>>() {
        let (more, kind) = call.await.unwrap();
        sent += more;
        assert_eq!(kind, RefusedKind::Paused);
    }
    assert!(start.elapsed() <= secs(300));
    // The first hundred were sent together; after that a few a minute, for nothing was saved up.
    assert!(sent - 100 <= 5 * 6, "{sent}");
}

#[tokio::test(start_paused = true)]
async fn a_soft_429_leaves_the_key_open_and_nothing_saved_up() {
    let limiter = limiter(Policy::new("soft").limit("10/s burst 10"));
    _ = limiter.acquire("k").await.unwrap();
    limiter.observe("k", &signals(429, &[("retry-after", "1")]));
    assert_eq!(limiter.peek("k").await.paused(), None);
    assert_eq!(limiter.peek("k").await.remaining(), 0);
    let start = Instant::now();
    let calls = (0..5).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    for (i, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), ms(100 * (i as u64 + 1)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_reaches_a_budget_that_is_booked_ahead() {
    let limiter = limiter(Policy::new("booked").limit("2/s burst 1").limit("100 tokens/s burst 100"));
    let start = Instant::now();
    _ = limiter.acquire(Ask::new("k").cost("tokens", 1)).await.unwrap();
    let waiter = ask(&limiter, start, "k", None, &[("tokens", 1)]);
    sleep(ms(10)).await;
    limiter.observe("k", &signals(429, &[]));
    settle().await;
    assert_eq!(limiter.peek("k").await.limit("tokens/s").unwrap().remaining(), 0);
    assert_eq!(waiter.await.unwrap().unwrap(), ms(510));
    assert!(limiter.peek("k").await.limit("tokens/s").unwrap().remaining() <= 50);
}

#[tokio::test(start_paused = true)]
async fn a_second_429_in_a_row_is_hard_and_doubles_until_a_success() {
    let limiter = limiter(Policy::new("row").limit("10/s"));
    let paused = async || limiter.peek("k").await.paused();
    limiter.observe("k", &signals(429, &[]));
    assert_eq!(paused().await, None);
    let mut expected = 500;
    for _ in 0..9 {
        limiter.observe("k", &signals(429, &[]));
        assert_eq!(paused().await, Some(ms(expected)));
        sleep(ms(expected)).await;
        expected = (expected * 2).min(30_000);
    }
    limiter.observe("k", &signals(200, &[]));
    limiter.observe("k", &signals(429, &[]));
    assert_eq!(paused().await, None);
    limiter.observe("k", &signals(429, &[]));
    assert_eq!(paused().await, Some(ms(500)));
}

#[tokio::test(start_paused = true)]
async fn a_pause_only_ever_grows() {
    let limiter = limiter(Policy::new("grows").limit("10/s"));
    limiter.pause("k", secs(10));
    limiter.pause("k", secs(5));
    limiter.observe("k", &signals(429, &[("retry-after", "3")]));
    assert_eq!(limiter.peek("k").await.paused(), Some(secs(10)));
    limiter.observe("k", &signals(429, &[("retry-after", "20")]));
    assert_eq!(limiter.peek("k").await.paused(), Some(secs(20)));
    limiter.observe("k", &signals(200, &[]));
    assert_eq!(limiter.peek("k").await.paused(), Some(secs(20)), "a success does not end it");
}

#[tokio::test(start_paused = true)]
async fn a_long_pause_is_probed_once_an_hour() {
    let limiter = limiter(Policy::new("probe").limit("10/s burst 10").limit("1 at once"));
    limiter.observe("k", &signals(429, &[("retry-after", "36000")]));
    let start = Instant::now();
    let mut went = Vec::new();
    while start.elapsed() < secs(4 * 3_600 + 600) {
        if limiter.try_acquire("k").await.is_ok() {
            went.push(start.elapsed().as_secs() / 60);
        }
        sleep(secs(60)).await;
    }
    assert_eq!(went, [60, 120, 180, 240]);
    sleep(secs(3_600)).await;
    let probe = limiter.try_acquire("k").await.unwrap();
    assert!(limiter.try_acquire("k").await.is_err());
    sleep(ms(50)).await;
    limiter.observe("k", &signals(200, &[]));
    drop(probe);
    assert_eq!(limiter.peek("k").await.paused(), None, "it did well, so the pause is over");
    _ = limiter.acquire("k").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_refused_is_not_spent() {
    let limiter = limiter(Policy::new("probe kept").limit("1 at once"));
    let held = limiter.acquire("k").await.unwrap();
    limiter.observe("k", &signals(429, &[("retry-after", "36000")]));
    sleep(secs(3_601)).await;
    assert_eq!(limiter.try_acquire("k").await.unwrap_err().kind(), RefusedKind::NoSeat);
    drop(held);
    drop(limiter.try_acquire("k").await.unwrap());
    assert_eq!(limiter.try_acquire("k").await.unwrap_err().kind(), RefusedKind::Paused);
}

#[tokio::test(start_paused = true)]
async fn nothing_probes_an_operators_pause() {
    let limiter = limiter(Policy::new("operator").limit("10/s").max_wait(secs(86_400 * 2)));
    limiter.pause("k", secs(7_200));
    limiter.observe("k", &signals(429, &[("retry-after", "36000")]));
    let start = Instant::now();
    let probe = call(&limiter, start, "k");
    assert_eq!(probe.await.unwrap().unwrap(), secs(7_200));
    limiter.pause("k", secs(86_400));
    sleep(secs(86_399)).await;
    assert!(limiter.try_acquire("k").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn resuming_lets_those_who_wait_go_paced() {
    let limiter = limiter(Policy::new("resume").limit("10/s burst 10").max_wait(secs(7_200)));
    limiter.pause("k", secs(3_600));
    let start = Instant::now();
    let calls = (0..20).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    sleep(secs(10)).await;
    assert_eq!(limiter.waiting("k"), 20);
    limiter.resume("k");
    for (i, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), secs(10) + ms(100 * (i as u64 + 1)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_takes_back_what_is_booked_and_refuses_who_cannot_make_it() {
    let limiter = limiter(Policy::new("lapse").limit(bucket(secs(1), 1)));
    let start = Instant::now();
    _ = limiter.acquire("k").await.unwrap();
    let patient = call(&limiter, start, "k");
    settle().await;
    let hasty = ask(&limiter, start, "k", Some(secs(5)), &[]);
    sleep(ms(500)).await;
    limiter.pause("k", secs(10));
    let refused = hasty.await.unwrap().unwrap_err();
    assert_eq!((refused.kind(), refused.retry_after()), (RefusedKind::Paused, Some(secs(10))));
    assert_eq!(start.elapsed(), ms(500), "at once");
    let patient = patient.await.unwrap().unwrap();
    assert_eq!(patient, ms(11_500), "the budget was empty at the end of the pause");
}

#[tokio::test(start_paused = true)]
async fn callers_are_refused_at_once_if_the_pause_is_too_long_for_them() {
    let limiter = limiter(Policy::new("too long").limit("10/s"));
    limiter.pause("k", secs(300));
    let start = Instant::now();
    let refused = limiter.acquire("k").await.unwrap_err();
    assert_eq!(refused.kind(), RefusedKind::Paused);
    assert!(refused.retry_after().unwrap() >= secs(300));
    assert!(refused.is_timeout() && refused.decision().paused());
    assert_eq!(refused.limit(), None);
    let text = refused.to_string();
    assert!(text.starts_with("client-side limit of policy `too long`: paused for another 300"), "{text}");
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_policy_without_limits_only_follows_pauses() {
    let limiter: Limiter = limiter(Policy::new("bare"));
    for _ in 0..1_000 {
        _ = limiter.try_acquire("k").await.unwrap();
    }
    assert_eq!(limiter.peek("k").await.remaining(), u64::MAX);
    limiter.observe("k", &signals(429, &[("retry-after", "5")]));
    let start = Instant::now();
    let calls = (0..10).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), secs(5));
    }
    let permit = limiter.try_acquire("k").await.unwrap();
    assert_eq!((permit.decision().limit(), permit.decision().remaining()), (None, u64::MAX));
}

#[tokio::test(start_paused = true)]
async fn of_those_who_wait_one_probes_and_its_success_frees_the_rest() {
    let policy = Policy::new("probing").limit("10/s burst 10").max_wait(secs(86_400));
    let limiter: Limiter = limiter(policy);
    limiter.observe("k", &signals(429, &[("retry-after", "36000")]));
    let start = Instant::now();
    let calls = (0..50).map(|_| call(&limiter, start, "k")).collect::<Vec<_>>();
    sleep(secs(3_600) + ms(100)).await;
    assert_eq!(limiter.waiting("k"), 49);
    limiter.observe("k", &signals(200, &[]));
    for (i, call) in calls.into_iter().enumerate() {
        let at = if i == 0 { ms(0) } else { ms(100 + 100 * i as u64) };
        assert_eq!(call.await.unwrap().unwrap(), secs(3_600) + at);
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_gives_up_before_it_goes_leaves_its_turn_to_the_next() {
    let limiter: Limiter =
        limiter(Policy::new("gone probe").limit(bucket(secs(1), 1)).max_wait(secs(86_400)));
    limiter.pause("k", ms(3_599_500));
    limiter.observe("k", &signals(429, &[("retry-after", "36000")]));
    let start = Instant::now();
    // The operator's pause ends, and the first probe's slot is booked half a second ahead.
    let probe = call(&limiter, start, "k");
    let next = call(&limiter, start, "k");
    sleep(secs(3_599)).await;
    probe.abort();
    assert!(next.await.unwrap().unwrap() <= secs(3_601));
    assert!(limiter.try_acquire("k").await.is_err());
}
