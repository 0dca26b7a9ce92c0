//! Faults that limiters of this field really had, each named after its case.

use super::*;
use crate::Policy;
use crate::algorithm::{CostFault, Rules};

/// Asks at each instant, in microseconds from the start; those that went.
fn granted(limit: &Limit, asks: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let rule = rule(limit);
    let mut state = rule.fresh();
    let mut went = Vec::new();
    for us in asks {
        if rule.earliest(&state, START + us, 1) == START + us {
            rule.commit(&mut state, START + us, 1);
            went.push(us);
        }
    }
    went
}

/// The most that went within `span_us`, counted from each that went.
fn most_in(went: &[u64], span_us: u64) -> usize {
    let from = |from: u64| went.iter().filter(|us| (from..from + span_us).contains(us)).count();
    went.iter().map(|us| from(*us)).max().unwrap_or(0)
}

fn seconds(seconds: u64) -> u64 {
    seconds * 1_000_000
}

#[test]
pub(super) fn b026_a_cost_that_never_fits_is_a_fault_of_its_own_and_takes_nothing() {
    let policy = Policy::new("b026").limit(Limit::token_bucket(ten_a_second(), 5));
    let rules = Rules::new(&policy).unwrap();
    assert_eq!(rules.costs(&[("requests", 6)]), Err(CostFault::NeverFits(0)));
    assert_eq!(rules.costs(&[("requests", u64::MAX)]), Err(CostFault::NeverFits(0)));
    let cost = rules.costs(&[("requests", 5)]).unwrap()[0];
    play(&[Limit::token_bucket(ten_a_second(), 5)], &[(0.0, Ask(cost), Granted(0))]);
}

#[test]
fn b032_a_call_that_one_limit_refuses_takes_nothing_of_the_others() {
    let group = rule(&Limit::fixed_window(Rate::per_minute(10)));
    let special = rule(&Limit::fixed_window(Rate::per_minute(3)));
    let (mut of_group, mut of_special) = (group.fresh(), special.fresh());
    let mut pass = |special_cost| {
        let parts = [(&group, &of_group, 1), (&special, &of_special, special_cost)];
        let passes = joint_earliest(parts.into_iter(), START) == Joint::Agreed(START);
        if passes {
            group.commit(&mut of_group, START, 1);
            if special_cost > 0 {
                special.commit(&mut of_special, START, special_cost);
            }
        }
        passes
    };
    assert_eq!((0..5).map(|_| pass(1)).collect::<Vec<_>>(), [true, true, true, false, false]);
    assert_eq!((0..8).filter(|_| pass(0)).count(), 7);
}

#[test]
fn b037_sixty_a_minute_is_never_more_than_sixty_in_any_minute_unless_a_burst_is_asked_for() {
    let rate = Rate::per_minute(60);
    // As fast as possible for a minute, and again after ten idle ones.
    let offered = || (0..60_000).step_by(10).chain((660_000..720_000).step_by(10)).map(|ms| ms * 1_000);
    for limit in [Limit::rate(rate), Limit::sliding_log(rate)] {
        let went = granted(&limit, offered());
        assert!((115..=120).contains(&went.len()), "{limit}: {}", went.len());
        assert!(most_in(&went, seconds(60)) <= 60, "{limit}");
    }
    // The burst and the rate times the span, exactly: the docs of `token_bucket` say so.
    let went = granted(&Limit::token_bucket(rate, 60), offered());
    assert_eq!(most_in(&went, seconds(60)), 60 + 59);
    assert_eq!(went.len(), 2 * (60 + 59));
}

#[test]
fn b043_a_slow_bucket_that_is_polled_often_still_fills() {
    let slow = Limit::token_bucket(Rate::new(1, Duration::from_secs(10)), 1);
    assert_eq!(
        granted(&slow, (0..60_000).map(|ms| ms * 1_000)),
        (0..6).map(|i| seconds(10 * i)).collect::<Vec<_>>()
    );
    // Once two are gone the next go one by one, each in the very microsecond in which its unit is there. (A
    // burst of one is strict instead: it is full for the rest of that microsecond, and does not earn.)
    for (rate, calls) in [
        (Rate::new(3, Duration::from_secs(7)), 1_000),
        (Rate::per_day(1), 400),
        (Rate::per_minute(7_000_000), 10_000),
        (Rate::per_second(1_000_000), 10_000),
    ] {
        let rule = rule(&Limit::token_bucket(rate, 2));
        let mut state = rule.fresh();
        rule.commit(&mut state, START, 2);
        for k in 1..calls {
            let due = START + (k * rate.period_us()).div_ceil(rate.units());
            assert_eq!(rule.earliest(&state, due - 1, 1), due, "{rate}: call {k}");
            rule.commit(&mut state, due, 1);
        }
    }
}

#[test]
fn b068_a_sliding_limit_has_no_border_at_any_phase() {
    let rate = Rate::per_second(100);
    for phase in 0..20 {
        let at = |ms: u64| vec![(ms + 50 * phase) * 1_000; 100];
        let asks = || [0].into_iter().chain(at(900)).chain(at(1_100)).chain(at(2_000));
        for limit in [Limit::sliding_log(rate), Limit::rate(rate)] {
            assert!(most_in(&granted(&limit, asks()), seconds(1)) <= 100, "{limit} at phase {phase}");
        }
        // The one that counts by tenths promises it for ten of its own.
        let went = granted(&Limit::sliding_window(rate, 10), asks());
        assert!(most_in(&went, 900_000) <= 100, "sliding window at phase {phase}");
    }
}

#[test]
pub(super) fn b107_a_booking_taken_back_comes_back_whole_and_never_under_a_later_one() {
    let bucket = Limit::token_bucket(ten_a_second(), 20);
    play(
        std::slice::from_ref(&bucket),
        &[
            (0.0, Book(15), Granted(5)),
            (100.0, Book(10), Until(500.0, 0)),
            (100.0, TakeBack, Left(6)),
            (200.0, Book(2), Granted(5)),
            (300.0, TakeBack, Left(8)),
            (2_000.0, Ask(20), Granted(0)),
        ],
    );
    // With the third booked after it, the second stays charged: what it was given is never given twice.
    let rule = rule(&bucket);
    let mut state = rule.fresh();
    rule.commit(&mut state, START, 15);
    let before = rule.before(&state);
    let slot = rule.earliest(&state, START + 100_000, 10);
    rule.commit(&mut state, slot, 10);
    let third = rule.earliest(&state, START + 200_000, 2);
    rule.commit(&mut state, third, 2);
    let booked = state.clone();
    rule.take_back(&mut state, slot, 10, before.as_ref());
    assert_eq!(state, booked);
    assert_eq!(rule.level(&state, START + 2_700_000).remaining, 20);
}

#[test]
fn b125_a_full_bucket_does_not_earn() {
    let bucket = Limit::token_bucket(Rate::new(1, Duration::from_secs(10)), 1);
    let asks = [0, 25, 29, 30, 40].map(seconds);
    assert_eq!(granted(&bucket, asks), [0, 25, 40].map(seconds));
}

#[test]
fn b145_a_lower_number_holds_at_once() {
    let (ten, five) = (ten_a_second(), Rate::per_second(5));
    let pairs = [
        (Limit::fixed_window(ten), Limit::fixed_window(five)),
        (Limit::sliding_window(ten, 5), Limit::sliding_window(five, 5)),
        (Limit::sliding_counter(ten), Limit::sliding_counter(five)),
        (Limit::sliding_log(ten), Limit::sliding_log(five)),
        (Limit::token_bucket(ten, 10), Limit::token_bucket(five, 5)),
    ];
    for (old, new) in pairs {
        let mut story = Story::of(&[old]);
        assert_eq!(story.step(START, &Ask(3)), Granted(7));
        story.step(START, &Numbers(new.clone()));
        let more = (0..7).filter(|_| matches!(story.step(START, &Ask(1)), Granted(_))).count();
        assert_eq!(more, 2, "{new}");
    }
}

#[test]
fn b163_a_call_up_to_the_whole_rate_passes_within_a_period() {
    let mut story = Story::of(&[Limit::rate(Rate::per_minute(40_000))]);
    let mut now = START;
    for cost in [800, 5_000, 40_000] {
        now = story.earliest(now, cost);
        story.commit(now, cost);
    }
    assert!(now <= START + seconds(60), "{} us", now - START);
}
