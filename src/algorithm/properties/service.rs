//! What the service sees: calls that are late on the way by no more than the margin, and answers that say when they
//! had arrived.

use std::collections::VecDeque;

use super::*;
use crate::algorithm::NEVER;

/// Whether a service that counts what arrives as the limit does refuses none of it.
fn takes_all(limit: &Limit, arrivals: &mut [(u64, u64)]) -> bool {
    arrivals.sort_unstable();
    let (n, window_us) = (rate_of(limit).units(), rate_of(limit).period_us());
    if matches!(limit.kind, crate::limit::Kind::SlidingLog(_)) {
        return arrivals.iter().enumerate().all(|(i, (at, _))| {
            let since = arrivals[..=i].iter().filter(|(other, _)| other + window_us > *at);
            since.map(|(_, cost)| cost).sum::<u64>() <= n
        });
    }
    let (mut opened, mut count) = (None, 0);
    arrivals.iter().all(|(at, cost)| {
        if opened.is_none_or(|opened| opened + window_us <= *at) {
            (opened, count) = (Some(*at), 0);
        }
        count += cost;
        count <= n
    })
}

/// What became of a client that always has more to send than a service allows, which is less than it believes.
struct Outcome {
    admitted: u64,
    /// In the first period, and later.
    refused: [u64; 2],
}

/// Runs such a client for so many periods; each call takes as long to the service as its answer takes back.
fn run(limit: &Limit, allowed: u64, trip_us: u64, periods: u64) -> Outcome {
    let rule = Rule::new(limit, Margin::None).expect("it has no fault");
    let period_us = rate_of(limit).period_us();
    let (mut state, mut now) = (rule.fresh(), START);
    let (mut seen, mut answers) = (VecDeque::<u64>::new(), VecDeque::<(u64, u64, bool)>::new());
    let mut outcome = Outcome { admitted: 0, refused: [0; 2] };
    loop {
        let slot = rule.earliest(&state, now, 1);
        let answered = answers.front().map_or(NEVER, |(by, ..)| *by);
        now = now.max(slot.min(answered));
        if now >= START + periods * period_us {
            return outcome;
        }
        if answered <= slot {
            let (_, slot, admitted) = answers.pop_front().expect("one was answered");
            if admitted {
                rule.arrived(&mut state, slot, 1, now);
            } else {
                rule.declined(&mut state, now, slot, 1);
                rule.refused(&mut state, now, slot, period_us);
            }
            continue;
        }
        rule.commit(&mut state, now, 1);
        let arrived = now + trip_us;
        seen.retain(|at| at + period_us > arrived);
        let admitted = (seen.len() as u64) < allowed;
        if admitted {
            seen.push_back(arrived);
            outcome.admitted += 1;
        } else {
            outcome.refused[usize::from(now >= START + period_us)] += 1;
        }
        answers.push_back((arrived + trip_us, now, admitted));
    }
}

proptest! {
    #![proptest_config(walks())]

    #[test]
    fn a_log_of_more_than_a_service_allows_uses_all_of_it_and_asks_for_little_more(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        let n = rng.u64(4..=100);
        let period_us = rng.choice([100_000, 1_000_000]).unwrap();
        let (allowed, trip_us) = (rng.u64(n / 2..n), rng.u64(0..=period_us / 100));
        let limit = Limit::sliding_log(Rate::new(n, Duration::from_micros(period_us)));
        let limit = limit.jitter_margin(Duration::from_micros(period_us / 50));
        let Outcome { admitted, refused } = run(&limit, allowed, trip_us, 8);
        prop_assert_eq!(admitted, 8 * allowed, "{:?}: {} allowed, {} us away", limit, allowed, trip_us);
        // One call in a period shows that what is missing is not there; of more than half of N another one.
        let most = 7 * (1 + u64::from(n - allowed > n / 2));
        prop_assert!(refused[1] <= most, "{:?}: {:?} refused, {} allowed, {} us away", limit, refused, allowed, trip_us);
    }

    #[test]
    fn a_service_that_counts_alike_refuses_nothing_whenever_calls_arrive_and_are_answered(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        for kind in [3, 6] {
            let limit = some_limit(&mut rng, kind);
            let period_us = rate_of(&limit).period_us();
            let margin_us = period_us / rng.choice([4, 9, 50]).unwrap();
            let limit = limit.jitter_margin(Duration::from_micros(margin_us));
            let rule = Rule::new(&limit, Margin::None).expect("it has no fault");
            let (mut state, mut now) = (rule.fresh(), START);
            let (mut arrivals, mut answers) = (Vec::new(), Vec::new());
            for _ in 0..40 {
                now += match rng.u8(0..4) {
                    0 => some_step(&mut rng, period_us),
                    1 => rng.u64(0..=margin_us),
                    _ => 0,
                };
                answers.retain(|(slot, cost, by)| {
                    let is_heard = *by <= now;
                    // Some news is lost.
                    if is_heard && rng.u8(0..8) > 0 {
                        rule.arrived(&mut state, *slot, *cost, *by);
                    }
                    !is_heard
                });
                let cost = some_cost(&mut rng, rule.most());
                let at = rule.earliest(&state, now, cost);
                if at > now + AHEAD_US {
                    now = at;
                }
                rule.commit(&mut state, at, cost);
                let late_us = rng.choice([0, margin_us, margin_us / 2, margin_us / 9]).unwrap();
                let answer_us = rng.choice([0, 1, margin_us / 5, 2 * margin_us]).unwrap();
                arrivals.push((at + late_us, cost));
                answers.push((at, cost, at + late_us + answer_us));
            }
            prop_assert!(takes_all(&limit, &mut arrivals), "{limit:?}: {arrivals:?}");
        }
    }
}
