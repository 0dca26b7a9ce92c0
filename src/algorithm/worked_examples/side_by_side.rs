//! All limiters side by side under one load, at the level of the algorithms: ten requests a second for each.

use super::*;

/// A load around a boundary: 1 request at 0 ms, 9 at 900 ms, 10 at 1100 ms.
fn across_the_boundary() -> Vec<u64> {
    [(0, 1), (900, 9), (1_100, 10)].iter().flat_map(|(ms, calls)| vec![ms * 1_000; *calls]).collect()
}

/// 30 requests a second, evenly spaced, for 3 s.
fn sustained_overload() -> Vec<u64> {
    (0..90).map(|i| i * 1_000_000 / 30).collect()
}

/// The slots of those admitted, and how long each was held. Only a leaky bucket holds.
fn admitted(limit: &Limit, load: &[u64]) -> Vec<(u64, u64)> {
    let rule = rule(limit);
    let mut state = rule.fresh();
    let mut slots = Vec::new();
    for us in load {
        let now = START + us;
        let at = rule.earliest(&state, now, 1);
        if at <= now + rule.hold_us().unwrap_or(0) {
            rule.commit(&mut state, at, 1);
            slots.push((at, at - now));
        }
    }
    slots
}

/// The most that went in any second.
fn most_in_a_second(slots: &[(u64, u64)]) -> usize {
    let in_second = |from: u64| slots.iter().filter(|(at, _)| (from..from + 1_000_000).contains(at)).count();
    slots.iter().map(|(at, _)| in_second(*at)).max().unwrap_or(0)
}

#[test]
fn scenarios_1_and_2_come_out_as_the_notes_say_for_every_limiter() {
    let rate = ten_a_second();
    let rows = [
        // Limiter, most in any second of scenario 1, admitted of the 90 of scenario 2.
        (Limit::fixed_window(rate), 19..=19, 30..=30),
        (Limit::sliding_log(rate), 10..=10, 30..=30),
        (Limit::sliding_window(rate, 10), 10..=10, 30..=30),
        (Limit::sliding_counter(rate), 10..=10, 28..=30),
        (Limit::token_bucket(rate, 10), 12..=13, 39..=40),
        (Limit::leaky_bucket(rate, 10), 10..=11, 40..=41),
        // Not in the notes: what people get who say only a number.
        (Limit::rate(rate), 1..=10, 30..=30),
    ];
    for (limit, most, of_90) in rows {
        let first = most_in_a_second(&admitted(&limit, &across_the_boundary()));
        assert!(most.contains(&first), "{limit}: {first} in a second of scenario 1");
        let second = admitted(&limit, &sustained_overload());
        assert!(of_90.contains(&second.len()), "{limit}: {} of scenario 2", second.len());
    }
}

#[test]
fn a_leaky_bucket_under_overload_holds_a_call_for_a_second() {
    let slots = admitted(&Limit::leaky_bucket(ten_a_second(), 10), &sustained_overload());
    let mut held = slots.iter().map(|(_, held)| *held).collect::<Vec<_>>();
    held.sort_unstable();
    let p95 = held[held.len() * 95 / 100];
    assert!((950_000..=1_000_000).contains(&p95), "{p95} us");
    assert!(slots.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 100_000));
}

#[test]
fn in_scenario_3_four_are_under_way_at_once_and_sixteen_refused() {
    let rule = rule(&Limit::concurrency(4));
    let mut state = rule.fresh();
    let mut granted = 0;
    for _ in 0..20 {
        if rule.earliest(&state, START, 1) == START {
            rule.commit(&mut state, START, 1);
            granted += 1;
        }
    }
    assert_eq!((granted, rule.level(&state, START).remaining), (4, 0));
    // Time frees no seat; a call that ended does.
    assert_eq!(rule.earliest(&state, START + 250_000, 1), crate::algorithm::NEVER);
    rule.take_back(&mut state, START, 1, None);
    assert_eq!(rule.earliest(&state, START + 250_000, 1), START + 250_000);
}

#[test]
fn two_replicas_that_share_nothing_let_twice_as_much_through() {
    let replica = |odd: usize| sustained_overload().into_iter().skip(odd).step_by(2).collect::<Vec<_>>();
    for limit in [Limit::fixed_window(ten_a_second()), Limit::sliding_log(ten_a_second())] {
        let apart = admitted(&limit, &replica(0)).len() + admitted(&limit, &replica(1)).len();
        assert!(apart > 55, "{limit}: {apart}");
    }
}
