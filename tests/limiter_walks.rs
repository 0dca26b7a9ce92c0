//! Random walks of arrivals and of callers that give up, each on a paused clock of its own: first come, first
//! served, and nobody pays for who gave up.

mod kit;

use std::collections::VecDeque;
use std::time::Duration;

use forbear::{Limit, Policy, Rate};
use kit::{ask, bucket, limiter, most_in, ms, settle};
use proptest::prelude::*;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep_until};

/// Milliseconds. Arrivals are at whole steps, and each caller gives up at a moment between them that is its own,
/// so that nobody gives up at the very instant of its slot.
const STEP: u64 = 64;

#[derive(Debug, Clone, Copy)]
struct Arrival {
    /// In steps.
    at: u64,
    cost: u64,
    /// After which step it gives up.
    gives_up: Option<u64>,
}

fn arrivals(costs: std::ops::RangeInclusive<u64>, most: usize) -> impl Strategy<Value = Vec<Arrival>> {
    let one = (0..6_u64, costs, proptest::option::weighted(0.4, 0..40_u64));
    proptest::collection::vec(one, 1..most).prop_map(|walk| {
        let mut at = 0;
        let arrival = |(gap, cost, stays): (u64, u64, Option<u64>)| {
            // Often several at once.
            at += gap.saturating_sub(2);
            Arrival { at, cost, gives_up: stays.map(|stays| at + stays) }
        };
        walk.into_iter().map(arrival).collect()
    })
}

/// Who comes and who gives up, in order of time.
fn events(arrivals: &[Arrival]) -> Vec<(u64, usize, bool)> {
    let all = arrivals.iter().enumerate().flat_map(|(i, arrival)| {
        let gives_up = arrival.gives_up.map(|step| (step * STEP + 1 + 2 * i as u64, i, false));
        [Some((arrival.at * STEP, i, true)), gives_up]
    });
    let mut events = all.flatten().collect::<Vec<_>>();
    events.sort_unstable();
    events
}

/// When each one went, in milliseconds.
fn walk(policy: Policy, arrivals: &[Arrival], unit: &'static str) -> Vec<Option<u64>> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let limiter = limiter(policy.max_wait(Duration::from_secs(3_600)));
        let start = Instant::now();
        let mut calls = Vec::new();
        for (at, i, arrives) in events(arrivals) {
            sleep_until(start + ms(at)).await;
            if arrives {
                calls.push(ask(&limiter, start, "k", None, &[(unit, arrivals[i].cost)]));
            } else {
                calls[i].abort();
            }
            settle().await;
        }
        let mut times = Vec::new();
        for call in calls {
            times.push(call.await.ok().map(|time| time.unwrap().as_millis() as u64));
        }
        assert_eq!(limiter.waiting("k"), 0);
        times
    })
}

/// What a bucket of `burst`, one unit every `every` milliseconds, owes such a walk: the first in line goes when
/// what went before allows it, and whoever gave up was never there.
fn expected(arrivals: &[Arrival], every: u64, burst: u64) -> Vec<Option<u64>> {
    let mut times = vec![None; arrivals.len()];
    let mut events = events(arrivals);
    events.push((u64::MAX, 0, false));
    let mut line = VecDeque::<usize>::new();
    let (mut debt, mut tail) = (0_u64, 0_u64);
    let mut now = 0;
    for (at, i, arrives) in events {
        while let Some(&first) = line.front() {
            // From the last event on, as far as the next.
            let owed: u64 = debt.saturating_sub(now - tail);
            let cost = arrivals[first].cost * every;
            let slot = now + (owed + cost).saturating_sub(burst * every);
            if slot > at {
                break;
            }
            (debt, tail, now) = (debt.saturating_sub(slot - tail) + cost, slot, slot);
            times[first] = Some(slot);
            line.pop_front();
        }
        now = at;
        if arrives {
            line.push_back(i);
        } else {
            line.retain(|waits| *waits != i);
        }
    }
    times
}

/// So many walks, or as many as the environment asks for.
fn walks(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    config
}

/// Numbers the policies, for two local limiters of one name are a mistake elsewhere.
fn name() -> String {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    format!("walk {}", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
}

proptest! {
    #![proptest_config(walks(10_000))]

    #[test]
    fn first_come_first_served_and_no_debt(
        arrivals in arrivals(0..=3, 14),
        every in 1..12_u64,
        burst in 3..6_u64,
    ) {
        let policy = Policy::new(name()).limit(bucket(ms(every * STEP), burst));
        let asks = arrivals.iter().map(|arrival| Arrival { cost: arrival.cost.max(1), ..*arrival });
        let asks = asks.collect::<Vec<_>>();
        let times = walk(policy, &asks, "requests");
        let expected = expected(&asks, every * STEP, burst);
        prop_assert_eq!(times, expected);
    }
}

proptest! {
    #![proptest_config(walks(1_000))]

    #[test]
    fn under_any_limit_who_gave_up_was_never_there(
        arrivals in arrivals(1..=1, 20),
        which in 0..7_usize,
        n in 1..5_u64,
    ) {
        let rate = Rate::new(n, ms(n * 5 * STEP));
        let limit = match which {
            0 => Limit::rate(rate),
            1 => Limit::token_bucket(rate, n),
            2 => Limit::leaky_bucket(rate, 100),
            3 => Limit::fixed_window(rate),
            4 => Limit::sliding_window(rate, 2),
            5 => Limit::sliding_counter(rate),
            _ => Limit::sliding_log(rate),
        };
        let policy = || Policy::new(name()).limit(limit.clone());
        let times = walk(policy(), &arrivals, "requests");
        let went = times.iter().zip(&arrivals).filter(|(time, _)| time.is_some());
        let went = went.map(|(_, arrival)| Arrival { gives_up: None, ..*arrival }).collect::<Vec<_>>();
        prop_assert_eq!(times.iter().copied().filter(Option::is_some).collect::<Vec<_>>(), walk(policy(), &went, "requests"));
        prop_assert!(times.iter().flatten().is_sorted());
    }

    #[test]
    fn lines_of_one_key_each_keep_their_order_and_together_the_promise(
        arrivals in arrivals(0..=1, 20),
        every in 1..12_u64,
    ) {
        let requests = bucket(ms(every * STEP), 2);
        let tokens = bucket(ms(every * STEP * 2), 1).unit("tokens");
        let times = walk(Policy::new(name()).limit(requests).limit(tokens), &arrivals, "tokens");
        for cost in [0, 1] {
            let line = times.iter().zip(&arrivals).filter(|(_, arrival)| arrival.cost == cost);
            prop_assert!(line.filter_map(|(time, _)| *time).is_sorted());
        }
        let times = times.iter().flatten().map(|time| ms(*time)).collect::<Vec<_>>();
        for units in 1..6 {
            let most = most_in(&times, ms(units * every * STEP));
            prop_assert!(most <= 1 + units as usize, "{most} of {times:?} in {units}");
        }
    }
}
