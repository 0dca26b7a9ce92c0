//! A trip's answer, played back: Redis tells how the states stood and which slots it charged, and this side
//! charges them once more, so that marks, levels and what it takes to give a slot back need not be sent.

use smallvec::SmallVec;

use crate::algorithm::{Mark, NEVER, Rule, State};
use crate::decision::Level;
use crate::store::redis::wire::Snapshot;

pub(super) type Snapshots = SmallVec<[Snapshot; 3]>;
pub(super) type Marks = SmallVec<[Mark; 3]>;

/// Charges `costs` at `at`, as Redis did.
pub(super) fn book(rules: &[Rule], states: &mut Snapshots, at: u64, costs: &[u64]) -> Marks {
    let each = rules.iter().zip(states).zip(costs).map(|((rule, snapshot), cost)| match snapshot {
        Snapshot::Whole(state) if *cost > 0 => rule.commit(state, at, *cost),
        Snapshot::Whole(state) => rule.mark(state, at),
        Snapshot::Log { used, tail } => {
            if *cost > 0 {
                // Units that leave the window in between still count: never more is left than this.
                (*used, *tail) = (*used + cost, at);
            }
            Mark::left(rule.most().saturating_sub(*used), *tail + rule.span_us())
        }
    });
    each.collect()
}

/// How each limit stands at `now`.
pub(super) fn levels(rules: &[Rule], states: &[Snapshot], now: u64) -> SmallVec<[Level; 3]> {
    let each = rules.iter().zip(states).map(|(rule, snapshot)| match snapshot {
        Snapshot::Whole(state) => rule.level(state, now),
        Snapshot::Log { used, tail } => Level {
            most: rule.most(),
            remaining: rule.most().saturating_sub(*used),
            reset_us: if *used == 0 { 0 } else { (*tail + rule.span_us()).saturating_sub(now) },
            wait_us: 0,
        },
    });
    each.collect()
}

/// How long `costs` would have to wait for each limit alone, and for all together at least `wait_us`.
pub(super) fn waits(
    rules: &[Rule],
    states: &[Snapshot],
    now: u64,
    costs: &[u64],
    wait_us: u64,
    levels: &mut [Level],
) {
    for (((rule, snapshot), cost), level) in rules.iter().zip(states).zip(costs).zip(levels) {
        if *cost == 0 {
            continue;
        }
        level.wait_us = match snapshot {
            Snapshot::Whole(state) => match rule.earliest(state, now, *cost) {
                NEVER => NEVER,
                at => at - now,
            },
            Snapshot::Log { .. } if level.remaining < *cost => wait_us,
            Snapshot::Log { .. } => 0,
        };
    }
}

/// The first instant at which `costs` can fit, as far as the states tell: no earlier, whatever others do, unless
/// something goes back.
pub(super) fn earliest(rules: &[Rule], states: &[Snapshot], now: u64, costs: &[u64]) -> u64 {
    let each = rules.iter().zip(states).zip(costs).filter(|((rule, _), cost)| !rule.is_seats() && **cost > 0);
    let each = each.map(|((rule, snapshot), cost)| match snapshot {
        Snapshot::Whole(state) => rule.earliest(state, now, *cost),
        Snapshot::Log { .. } => now,
    });
    each.max().unwrap_or(now)
}

/// Where the schedule stands: the last instant booked under the limits that are touched.
pub(super) fn stands(states: &[Snapshot], costs: &[u64], now: u64) -> u64 {
    let touched = states.iter().zip(costs).filter(|(_, cost)| **cost > 0);
    touched.map(|(snapshot, _)| tail(snapshot)).max().unwrap_or(now).max(now)
}

/// Whether something is booked after `at` under every limit that is touched.
pub(super) fn are_after(states: &[Snapshot], costs: &[u64], at: u64) -> bool {
    states.iter().zip(costs).filter(|(_, cost)| **cost > 0).all(|(snapshot, _)| tail(snapshot) > at)
}

fn tail(snapshot: &Snapshot) -> u64 {
    match snapshot {
        Snapshot::Whole(state) => State::tail(state),
        Snapshot::Log { tail, .. } => *tail,
    }
}
