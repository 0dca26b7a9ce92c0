//! What the service sees: calls that are late on the way by no more than the margin, and answers that say when they
//! had arrived.

use super::*;

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

proptest! {
    #![proptest_config(walks())]

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
