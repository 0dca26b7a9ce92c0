//! Workers that disagree: other margins, another share or new numbers, all on one state.

use fastrand::Rng;
use proptest::prelude::*;

use super::*;
use crate::limit::Kind;

/// The same limit with a smaller share, with a margin, or with smaller numbers.
fn smaller(rng: &mut Rng, limit: &Limit, kind: usize) -> Limit {
    match rng.u8(0..3) {
        0 => limit.clone().share(rng.choice([0.5, 0.95, 0.1, 0.29]).unwrap()),
        1 => limit.clone().jitter_margin(some_margin(rng, limit)),
        _ => {
            let rate = rate_of(limit);
            let fewer = Rate::new(rng.u64(1..=rate.units()), rate.period());
            match kind {
                0 => Limit::rate(fewer),
                1 => match limit.kind {
                    Kind::TokenBucket { burst, .. } => Limit::token_bucket(fewer, rng.u64(1..=burst)),
                    _ => unreachable!("the first kind is a token bucket"),
                },
                2 => Limit::leaky_bucket(fewer, rng.u64(0..10)),
                3 => Limit::fixed_window(fewer),
                4 => match limit.kind {
                    Kind::SlidingWindow { segments, .. } => Limit::sliding_window(fewer, segments),
                    _ => unreachable!("the fourth kind is segmented"),
                },
                5 => Limit::sliding_counter(fewer),
                _ => Limit::sliding_log(fewer),
            }
        }
    }
}

proptest! {
    #![proptest_config(walks())]

    #[test]
    fn workers_that_disagree_never_get_more_than_the_larger_promise(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        for kind in 0..KINDS {
            let limit = some_limit(&mut rng, kind);
            let other = smaller(&mut rng, &limit, kind);
            let (Ok(rule), Ok(lesser)) = (Rule::new(&limit, Margin::None), Rule::new(&other, Margin::None)) else { continue };
            let workers = [rule, lesser];
            let mut state = workers[0].fresh();
            let mut ledger = Ledger::new(&limit, Duration::ZERO);
            let period_us = rate_of(&limit).period_us();
            let mut now = START;
            for _ in 0..24 {
                now += some_step(&mut rng, period_us);
                let worker = rng.choice(&workers).unwrap();
                // A leaky bucket is even only for calls of one unit; a dear one is a debt to others.
                let cost = if kind == 2 { 1 } else { some_cost(&mut rng, worker.most()) };
                let at = worker.earliest(&state, now, cost);
                prop_assert!(at >= now);
                prop_assert_eq!(worker.earliest(&state, at, cost), at);
                if at > now + AHEAD_US && rng.bool() {
                    continue;
                }
                worker.commit(&mut state, at, cost);
                exact(&state)?;
                ledger.calls.push((at, cost));
                ledger.spans().map_err(|fault| TestCaseError::fail(format!("{fault} beside {other:?}")))?;
                now = now.max(at);
            }
        }
    }

    #[test]
    fn new_numbers_of_any_kind_keep_what_was_used_and_lock_nobody_out(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        for (from, to) in (0..KINDS).flat_map(|from| (0..KINDS).map(move |to| (from, to))) {
            let mut old = Subject::new(&mut rng, from);
            let new = Subject::new(&mut rng, to);
            let now = wander(&mut rng, &mut old)?;
            old.rule.read(&mut old.state, now, 0);
            let used = old.rule.used(&old.state, now);
            let mut state = new.rule.adopt(&old.rule, old.state.clone(), now);
            new.rule.read(&mut state, now, 0);
            if from != to && used >= new.rule.most() && new.rule.hold_us().is_none() {
                prop_assert!(new.rule.earliest(&state, now, 1) > now, "a fresh budget: {:?} to {:?}", old.rule, new.rule);
            }
            let wait = new.rule.earliest(&state, now, new.rule.most()) - now;
            let longest = clocks::longest_wait_us(&new.rule).max(clocks::longest_wait_us(&old.rule));
            prop_assert!(wait <= longest, "{} us from {:?} to {:?}", wait, old.rule, new.rule);
        }
    }
}
