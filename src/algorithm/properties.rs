//! Properties of the algorithms, on random walks through virtual time.
//!
//! A walk is a seed: limits, costs and steps come out of it, with a liking for the instants around which
//! mistakes live: now again, a period later, and just when something fits.

mod clocks;
mod promise;
mod readers;
mod service;

use std::time::Duration;

use fastrand::Rng;
use proptest::prelude::*;

use super::{AHEAD_US, Joint, Rule, State, joint_earliest};
use crate::limit::{Limit, Margin, Rate, Ticks};
use promise::Ledger;

/// Where the walks begin.
const START: u64 = 1 << 50;
/// Limits that time frees.
const KINDS: usize = 7;

/// Ten thousand walks, or as many as the environment asks for.
pub(super) fn walks() -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 10_000;
    }
    config
}

fn some_rate(rng: &mut Rng) -> Rate {
    let units = [1, 2, 3, 5, 7, 10, 51, 120];
    let periods = [7, 1_000, 999_983, 1_000_000, 7_000_000, 60_000_000];
    Rate::new(rng.choice(units).unwrap(), Duration::from_micros(rng.choice(periods).unwrap()))
}

fn some_limit(rng: &mut Rng, kind: usize) -> Limit {
    let rate = some_rate(rng);
    match kind {
        0 => Limit::rate(rate),
        1 => Limit::token_bucket(rate, rng.u64(1..=2 * rate.units())),
        2 => Limit::leaky_bucket(rate, rng.u64(0..10)),
        3 => Limit::fixed_window(rate),
        4 => Limit::sliding_window(rate, rng.u32(1..=7)),
        5 => Limit::sliding_counter(rate),
        _ => Limit::sliding_log(rate),
    }
}

fn rate_of(limit: &Limit) -> Rate {
    limit.kind.rate().expect("the walks use limits that time frees")
}

/// None mostly; else small beside the period, or nearly as large.
fn some_margin(rng: &mut Rng, limit: &Limit) -> Duration {
    let period = rate_of(limit).period();
    match rng.u8(0..4) {
        0 => period / 50,
        1 => period / rng.u32(2..9),
        _ => Duration::ZERO,
    }
}

fn some_cost(rng: &mut Rng, most: u64) -> u64 {
    match rng.u8(0..8) {
        0 => most,
        1 | 2 => rng.u64(1..=most),
        _ => 1,
    }
}

/// Nothing, a moment, about a period, or a year.
fn some_step(rng: &mut Rng, period_us: u64) -> u64 {
    match rng.u8(0..16) {
        0..=5 => 0,
        6 => 1,
        7 => rng.u64(1..10),
        8 | 9 => rng.u64(0..=period_us / 2),
        10 | 11 => rng.u64(0..=2 * period_us),
        12 => period_us,
        13 => period_us - 1,
        14 => period_us + rng.u64(0..3),
        _ if rng.u8(0..8) == 0 => 366 * 86_400_000_000,
        _ => rng.u64(0..=20 * period_us),
    }
}

/// One limit in a walk: the rule, its state, and what it promises.
struct Subject {
    rule: Rule,
    state: State,
    ledger: Ledger,
    period_us: u64,
}

impl Subject {
    fn new(rng: &mut Rng, kind: usize) -> Self {
        loop {
            let limit = some_limit(rng, kind);
            let margin = some_margin(rng, &limit);
            let margined = limit.clone().jitter_margin(margin);
            if let Ok(rule) = Rule::new(&margined, Margin::None) {
                let period_us = rate_of(&limit).period_us();
                return Self { state: rule.fresh(), rule, ledger: Ledger::new(&limit, margin), period_us };
            }
        }
    }

    fn went(&mut self, at: u64, cost: u64) -> Result<(), TestCaseError> {
        if cost > 0 {
            self.rule.commit(&mut self.state, at, cost);
            self.ledger.went(at, cost).map_err(TestCaseError::fail)?;
        }
        exact(&self.state)
    }
}

/// Every number of a bucket's state is one that a double holds.
fn exact(state: &State) -> Result<(), TestCaseError> {
    if let State::Gcra(state) = state {
        prop_assert!(state.debt < 1 << 53 && state.at < 1 << 53 && state.p < 1 << 53, "{state:?}");
    }
    Ok(())
}

fn joint(subjects: &[Subject], now: u64, costs: &[u64]) -> Joint {
    let parts = subjects.iter().zip(costs).map(|(subject, cost)| (&subject.rule, &subject.state, *cost));
    joint_earliest(parts, now)
}

/// Asks, is granted, refused and held, some steps long; all that was granted keeps every promise.
fn walk(rng: &mut Rng, subjects: &mut [Subject], steps: usize) -> Result<(), TestCaseError> {
    let hold_us = subjects.iter().filter_map(|subject| subject.rule.hold_us()).max().unwrap_or(0);
    subjects.iter_mut().for_each(|subject| subject.rule.held_beside(hold_us));
    let ahead_us = AHEAD_US + hold_us;
    let mut now = START;
    for _ in 0..steps {
        let period_us = subjects[rng.usize(0..subjects.len())].period_us;
        now += some_step(rng, period_us);
        let costs = subjects.iter().map(|subject| some_cost(rng, subject.rule.most())).collect::<Vec<_>>();
        for subject in subjects.iter_mut() {
            let before = subject.state.clone();
            subject.rule.read(&mut subject.state, now, 0);
            prop_assert_eq!(&before, &subject.state, "a reader changed what a clock that only grows wrote");
        }
        match joint(subjects, now, &costs) {
            Joint::Agreed(at) => {
                prop_assert!(at >= now);
                if at > now {
                    for earlier in [now, at - 1, rng.u64(now..at)] {
                        prop_assert_eq!(
                            joint(subjects, earlier, &costs),
                            Joint::Agreed(at),
                            "asked at {}",
                            earlier
                        );
                    }
                }
                prop_assert_eq!(joint(subjects, at, &costs), Joint::Agreed(at));
                let far = rng.u8(0..3) == 0 && at > now + ahead_us;
                if far {
                    continue;
                }
                if at > now + ahead_us {
                    now = at;
                }
                for (subject, cost) in subjects.iter_mut().zip(&costs) {
                    subject.went(at, *cost)?;
                }
            }
            Joint::NotBefore(at) => prop_assert!(at > now),
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(walks())]

    #[test]
    fn no_limit_lets_more_through_than_it_promises_in_any_span(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        for kind in 0..KINDS {
            let mut subjects = [Subject::new(&mut rng, kind)];
            walk(&mut rng, &mut subjects, 24)?;
        }
    }

    #[test]
    fn two_limits_of_any_kinds_keep_both_promises_together(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        for (a, b) in (0..KINDS).flat_map(|a| (a..KINDS).map(move |b| (a, b))) {
            let mut subjects = [Subject::new(&mut rng, a), Subject::new(&mut rng, b)];
            walk(&mut rng, &mut subjects, 8)?;
        }
    }

    #[test]
    fn all_kinds_of_limits_keep_their_promises_together(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        let mut subjects = (0..KINDS).map(|kind| Subject::new(&mut rng, kind)).collect::<Vec<_>>();
        walk(&mut rng, &mut subjects, 12)?;
    }

    #[test]
    fn a_booking_taken_back_leaves_what_was_before(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        for kind in 0..KINDS {
            let mut subject = Subject::new(&mut rng, kind);
            // Sometimes beside a leaky bucket, which books further ahead.
            let ahead_us = AHEAD_US + rng.choice([0, 0, 3 * subject.period_us]).unwrap();
            subject.rule.held_beside(ahead_us - AHEAD_US);
            let now = wander(&mut rng, &mut subject)?;
            let mut untouched = subject.state.clone();
            let cost = some_cost(&mut rng, subject.rule.most());
            let at = subject.rule.earliest(&subject.state, now + rng.u64(0..=ahead_us), cost);
            if at > now + ahead_us {
                continue;
            }
            let before = subject.rule.before(&subject.state);
            subject.rule.commit(&mut subject.state, at, cost);
            subject.rule.take_back(&mut subject.state, at, cost, before.as_ref());
            let mut now = now;
            for _ in 0..8 {
                now += some_step(&mut rng, subject.period_us);
                let cost = some_cost(&mut rng, subject.rule.most());
                let at = subject.rule.earliest(&untouched, now, cost);
                prop_assert_eq!(subject.rule.earliest(&subject.state, now, cost), at);
                prop_assert_eq!(subject.rule.level(&subject.state, now), subject.rule.level(&untouched, now));
                if at <= now + ahead_us {
                    subject.rule.commit(&mut untouched, at, cost);
                    subject.rule.commit(&mut subject.state, at, cost);
                }
            }
        }
    }

    #[test]
    fn a_booking_taken_back_under_a_later_one_mints_nothing(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        for kind in 0..KINDS {
            let mut subject = Subject::new(&mut rng, kind);
            let mut now = wander(&mut rng, &mut subject)?;
            for _ in 0..4 {
                let mine = some_cost(&mut rng, subject.rule.most());
                let at = subject.rule.earliest(&subject.state, now, mine);
                now = now.max(at.saturating_sub(AHEAD_US));
                let before = subject.rule.before(&subject.state);
                let ledger = subject.ledger.clone();
                subject.went(at, mine)?;
                let later = some_cost(&mut rng, subject.rule.most());
                let then = subject.rule.earliest(&subject.state, at, later);
                subject.went(then, later)?;
                let booked = subject.state.clone();
                subject.rule.take_back(&mut subject.state, at, mine, before.as_ref());
                if subject.state != booked {
                    // Only a log knows of each instant what was booked there.
                    prop_assert!(kind == 6);
                    subject.ledger = ledger;
                    subject.ledger.went(then, later).map_err(TestCaseError::fail)?;
                }
                now = now.max(then);
            }
        }
    }

    #[test]
    fn a_greedy_caller_gets_the_rate_of_a_bucket_to_the_unit(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        let rates = [
            Rate::new(3, Duration::from_secs(7)),
            Rate::per_day(1),
            Rate::per_minute(7_000_000),
            Rate::per_second(1_000_000),
            some_rate(&mut rng),
        ];
        for rate in rates {
            // So large that no step between two asks fills it.
            let burst = rng.u64(2..50) + rate.units() / rate.period_us();
            let rule = Rule::new(&Limit::token_bucket(rate, burst), Margin::None).expect("it is exact");
            let mut state = rule.fresh();
            let longest = (burst - 1) * rate.period_us() / rate.units();
            let (mut now, mut admitted) = (START, 0_u128);
            for _ in 0..20 {
                while rule.earliest(&state, now, 1) == now {
                    rule.commit(&mut state, now, 1);
                    admitted += 1;
                }
                let earned = u128::from(rate.units()) * u128::from(now - START) / u128::from(rate.period_us());
                prop_assert_eq!(admitted, u128::from(burst) + earned);
                now += rng.u64(1..=longest);
            }
        }
    }

    #[test]
    fn ticks_are_exact_or_a_millionth_slower(units in magnitude(53), period in magnitude(51), most in magnitude(53)) {
        let Some(ticks) = Ticks::new(units, period, most) else { return Ok(()) };
        let quarter = 1_u128 << 51;
        prop_assert!(u128::from(ticks.p) * u128::from(most) <= quarter && u128::from(ticks.r) <= quarter);
        // r/p against units/period, multiplied out.
        let (ours, exact) = (u128::from(ticks.r) * u128::from(period), u128::from(units) * u128::from(ticks.p));
        prop_assert!(ours <= exact);
        prop_assert!((exact - ours) as f64 <= exact as f64 * 1.000_001e-6, "{} of {}", ours, exact);
    }

    #[test]
    fn numbers_that_fit_are_taken_and_others_are_an_error(units in magnitude(53), period in magnitude(51), burst in magnitude(53), kind in 0..KINDS) {
        let rate = Rate::new(units, Duration::from_micros(period));
        let limit = match kind {
            0 => Limit::rate(rate),
            1 => Limit::token_bucket(rate, burst),
            2 => Limit::leaky_bucket(rate, burst),
            3 => Limit::fixed_window(rate),
            4 => Limit::sliding_window(rate, 1 + (burst % 100) as u32),
            5 => Limit::sliding_counter(rate),
            _ => Limit::sliding_log(rate),
        };
        for margin in [Margin::None, Margin::Default] {
            let Ok(rule) = Rule::new(&limit, margin) else { continue };
            let mut state = rule.fresh();
            for cost in [1, rule.most(), 1] {
                let at = rule.earliest(&state, START, cost);
                prop_assert!(at < 1 << 53);
                rule.commit(&mut state, at, cost);
                exact(&state)?;
                rule.level(&state, START);
            }
        }
    }
}

/// Whole numbers of up to so many bits, all magnitudes alike.
fn magnitude(bits: u32) -> impl Strategy<Value = u64> {
    (1..bits).prop_flat_map(|bits| 1..1_u64 << bits)
}

/// A short walk of one limit; gives where it ended.
fn wander(rng: &mut Rng, subject: &mut Subject) -> Result<u64, TestCaseError> {
    let mut now = START;
    for _ in 0..rng.usize(0..8) {
        now += some_step(rng, subject.period_us);
        let cost = some_cost(rng, subject.rule.most());
        let at = subject.rule.earliest(&subject.state, now, cost);
        now = now.max(at.saturating_sub(AHEAD_US));
        subject.went(at, cost)?;
    }
    Ok(now)
}
