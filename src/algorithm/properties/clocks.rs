//! Clocks that jump, states that are forgotten, and budgets that a service says are used up.

use fastrand::Rng;
use proptest::prelude::*;

use super::*;
use crate::algorithm::{Mark, Used};

/// Twice a budget's time is more than any call may have to wait; plus what may be booked ahead.
pub(super) fn longest_wait_us(rule: &Rule) -> u64 {
    let dearest = {
        let mut state = rule.full(START);
        let at = rule.earliest(&state, START, rule.most());
        rule.commit(&mut state, at, rule.most());
        rule.earliest(&state, at, rule.most()) - at
    };
    rule.budget_us().max(dearest) + AHEAD_US + rule.hold_us().unwrap_or(0)
}

/// A limit with its rule for those who have the default margin and for those who have none.
fn two_readers(rng: &mut Rng, kind: usize) -> ([Rule; 2], u64) {
    loop {
        let limit = some_limit(rng, kind);
        let period_us = rate_of(&limit).period_us();
        if let (Ok(bare), Ok(margined)) =
            (Rule::new(&limit, Margin::None), Rule::new(&limit, Margin::Default))
        {
            return ([bare, margined], period_us);
        }
    }
}

proptest! {
    #![proptest_config(walks())]

    #[test]
    fn forgetting_a_state_that_equals_a_fresh_one_changes_no_decision(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        for kind in 0..KINDS {
            let (readers, period_us) = two_readers(&mut rng, kind);
            let [_, margined] = &readers;
            let (mut kept, mut forgetful) = (margined.fresh(), margined.fresh());
            let mut now = START;
            for _ in 0..24 {
                now += some_step(&mut rng, period_us);
                if margined.is_fresh(&forgetful, now) {
                    forgetful = margined.fresh();
                }
                let rule = rng.choice(&readers).unwrap();
                let cost = some_cost(&mut rng, rule.most());
                let at = rule.earliest(&kept, now, cost);
                prop_assert_eq!(rule.earliest(&forgetful, now, cost), at, "{:?} {:?}", rule, &kept);
                prop_assert_eq!(rule.level(&forgetful, now).remaining, rule.level(&kept, now).remaining);
                if at <= now + AHEAD_US {
                    rule.commit(&mut kept, at, cost);
                    rule.commit(&mut forgetful, at, cost);
                }
            }
        }
    }

    #[test]
    fn a_budget_left_alone_for_its_time_equals_a_fresh_one(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        for kind in 0..KINDS {
            let ([bare, margined], _) = two_readers(&mut rng, kind);
            for rule in [bare, margined] {
                let full = rule.full(START);
                prop_assert_eq!(full.tail(), START);
                prop_assert_eq!(rule.level(&full, START).remaining, if rule.hold_us().is_some() { rule.level(&full, START).most - 1 } else { 0 });
                prop_assert!(rule.earliest(&full, START, 1) > START);
                prop_assert!(!rule.is_fresh(&full, START));
                prop_assert!(rule.is_fresh(&full, START + rule.budget_us()));
            }
        }
    }

    #[test]
    fn what_a_service_empties_is_empty_and_never_looser_than_before(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        for kind in 0..KINDS {
            let mut subject = Subject::new(&mut rng, kind);
            let mut now = START;
            for _ in 0..24 {
                now += some_step(&mut rng, subject.period_us);
                if rng.u8(0..4) == 0 {
                    let (rule, before) = (&subject.rule, &subject.state);
                    let at = now.max(before.tail());
                    let (mut drained, wait_us) = (before.clone(), rng.choice([0, 1, AHEAD_US / 8, AHEAD_US]).unwrap());
                    let took_us = if rng.bool() { rng.u64(0..=subject.period_us) } else { 0 };
                    match rng.bool() {
                        true => drained = rule.drained(before, at),
                        false => rule.refused(&mut drained, at, at - took_us, wait_us),
                    }
                    prop_assert_eq!(drained.tail(), at);
                    // What has come free since a refused call was sent is there.
                    let is_empty = rule.earliest(&drained, at, 1) > at;
                    prop_assert!(is_empty || took_us > 0, "{:?} {:?}", rule, &drained);
                    let later = at + some_step(&mut rng, subject.period_us);
                    let cost = some_cost(&mut rng, rule.most());
                    let (was, is) = (rule.earliest(before, later, cost), rule.earliest(&drained, later, cost));
                    prop_assert!(is >= was, "{:?}: {} before {}: {:?} of {:?}", rule, is, was, &drained, before);
                    let longest_us = longest_wait_us(rule) + AHEAD_US;
                    prop_assert!(is <= later + longest_us, "{:?} {:?}", rule, &drained);
                    subject.state = drained;
                }
                let cost = some_cost(&mut rng, subject.rule.most());
                let at = subject.rule.earliest(&subject.state, now, cost);
                if at <= now + AHEAD_US {
                    // A drain may open a window, of which the ledger would not know.
                    subject.rule.commit(&mut subject.state, at, cost);
                }
            }
        }
    }

    #[test]
    fn a_clock_that_steps_back_locks_nothing_and_mints_nothing(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        for kind in 0..KINDS {
            let mut subject = Subject::new(&mut rng, kind);
            let was = wander(&mut rng, &mut subject)?;
            let back = match rng.u8(0..4) {
                0 => rng.u64(0..=2 * AHEAD_US),
                1 => rng.u64(0..=subject.period_us),
                2 => 3_600_000_000,
                _ => 366 * 86_400_000_000,
            };
            let mut now = was - back;
            // A pause may have ended, or a service may have said that all is used up, before it stepped.
            let drained = if rng.bool() { rng.u64(now..=was) } else { 0 };
            subject.rule.read(&mut subject.state, now, drained);
            prop_assert!(subject.state.tail() <= now + AHEAD_US + subject.rule.hold_us().unwrap_or(0));
            let wait = subject.rule.earliest(&subject.state, now, subject.rule.most()) - now;
            prop_assert!(wait <= longest_wait_us(&subject.rule), "{} {:?} {:?}", wait, subject.rule, subject.state);
            // What goes from here on is no more than after a fresh start, and at once no more than before.
            subject.ledger.calls.clear();
            for _ in 0..8 {
                let cost = some_cost(&mut rng, subject.rule.most());
                let at = subject.rule.earliest(&subject.state, now, cost);
                now = now.max(at.saturating_sub(AHEAD_US));
                subject.rule.commit(&mut subject.state, at, cost);
                subject.ledger.calls.push((at, cost));
                subject.ledger.spans().map_err(TestCaseError::fail)?;
                now += some_step(&mut rng, subject.period_us);
            }
        }
    }

    #[test]
    fn a_drained_budget_gives_nothing_at_once_and_all_of_it_in_its_time(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        for kind in 0..KINDS {
            let mut subject = Subject::new(&mut rng, kind);
            let now = wander(&mut rng, &mut subject)?;
            let drained = now.max(subject.state.tail()) + rng.u64(1..=subject.period_us);
            subject.rule.read(&mut subject.state, drained, drained);
            let again = subject.state.clone();
            prop_assert!(subject.rule.earliest(&subject.state, drained, 1) > drained);
            let wait = subject.rule.earliest(&subject.state, drained, subject.rule.most()) - drained;
            prop_assert!(wait <= longest_wait_us(&subject.rule));
            subject.rule.read(&mut subject.state, drained + 1, drained);
            prop_assert_eq!(&subject.state, &again, "a drain counts once");
        }
    }

    #[test]
    fn a_correction_down_gives_back_what_was_not_used_and_no_more(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        for kind in 0..KINDS {
            let mut subject = Subject::new(&mut rng, kind);
            let mut now = wander(&mut rng, &mut subject)?;
            let charged = some_cost(&mut rng, subject.rule.most());
            let slot = subject.rule.earliest(&subject.state, now, charged);
            let mut frugal = subject.state.clone();
            let mark = subject.rule.commit(&mut subject.state, slot, charged);
            let used = rng.u64(0..=charged);
            // Where a charge may have opened a window, the two worlds' windows differ.
            let alike = !(matches!(kind, 3 | 4) || kind == 5 && used == 0);
            if used > 0 {
                subject.rule.commit(&mut frugal, slot, used);
            }
            now = now.max(slot);
            // Both worlds go on alike; the one that charged less never has less left.
            for _ in 0..rng.usize(0..4) {
                now += some_step(&mut rng, subject.period_us);
                let cost = some_cost(&mut rng, subject.rule.most());
                let at = subject.rule.earliest(&subject.state, now, cost);
                subject.rule.commit(&mut subject.state, at, cost);
                if alike {
                    prop_assert!(subject.rule.earliest(&frugal, now, cost) <= at);
                }
                subject.rule.commit(&mut frugal, at, cost);
                now = now.max(at);
            }
            now += some_step(&mut rng, subject.period_us);
            let without = subject.state.clone();
            subject.rule.settle(&mut subject.state, now, Used { slot, charged, used, mark });
            let cost = some_cost(&mut rng, subject.rule.most());
            let settled = subject.rule.earliest(&subject.state, now, cost);
            prop_assert!(settled <= subject.rule.earliest(&without, now, cost));
            if alike {
                prop_assert!(settled >= subject.rule.earliest(&frugal, now, cost), "{:?}: {:?}, not {:?}", subject.rule, subject.state, frugal);
            }
        }
    }

    #[test]
    fn a_correction_up_is_owed_and_no_number_breaks_it(seed: u64, used in prop_oneof![0..1_000_u64, Just(u64::MAX), Just(1 << 53), any::<u64>()]) {
        let mut rng = Rng::with_seed(seed);
        for kind in 0..KINDS {
            let mut subject = Subject::new(&mut rng, kind);
            let mut now = wander(&mut rng, &mut subject)?;
            let slot = subject.state.tail();
            for (charged, used) in [(1, used), (used, used / 2), (used / 2, used), (used, 0), (0, used)] {
                let before = subject.rule.earliest(&subject.state, now, 1);
                let mark = Mark::default();
                subject.rule.settle(&mut subject.state, now, Used { slot, charged, used, mark });
                exact(&subject.state)?;
                if used >= charged {
                    prop_assert!(subject.rule.earliest(&subject.state, now, 1) >= before);
                }
                subject.rule.level(&subject.state, now);
            }
            // What was owed is kept in mind by the next window, and by the one after.
            for _ in 0..3 {
                subject.rule.level(&subject.state, now + subject.period_us);
                now = subject.rule.earliest(&subject.state, now + subject.period_us, 1);
                prop_assert!(now < 1 << 53);
                subject.rule.commit(&mut subject.state, now, 1);
                subject.rule.level(&subject.state, now);
            }
        }
    }
}
