//! What the next caller of a line will find: the states of the store with all who wait charged in order.
//!
//! Kept from one entry to the next, for ten thousand callers cannot be counted again for each who comes. It
//! must never refuse one who can make it: whoever it refuses while something was given back since is looked at
//! again with a new one.

use std::time::Duration;

use smallvec::SmallVec;

use super::RefusedKind;
use crate::algorithm::{AHEAD_US, Joint, Rule, State, joint_earliest};
use crate::clock::micros;
use crate::decision::Level;
use crate::store;

/// How far a caller may go from when it was expected to, before the forecast counts as wrong.
const DRIFT_US: u64 = 100_000;
/// A line up to this length is counted again whenever there is a doubt; a longer one spends at most about a
/// fiftieth of the time on it.
const SHORT: usize = 256;
const RECOUNT_US: u64 = 5;

pub(super) struct Forecast {
    made: u64,
    /// The first instant at which anything can go.
    from: u64,
    states: SmallVec<[State; 3]>,
    doubtful: bool,
    wrong: bool,
}

/// Where a caller in line would go, and until when it may.
pub(super) struct Slot {
    pub(super) at: u64,
    pub(super) deadline: u64,
}

impl Forecast {
    pub(super) fn new(store: store::Forecast, now: u64) -> Self {
        // The store looked later than its caller did: what it calls now is no pause.
        Self {
            made: store.now.max(now),
            from: store.from,
            states: store.states,
            doubtful: false,
            wrong: false,
        }
    }

    /// Something was given back since: it may be worse than what is true.
    pub(super) fn doubt(&mut self) {
        self.doubtful = true;
    }

    /// A caller that was `expected` to go at one instant goes `at` another.
    pub(super) fn compare(&mut self, at: u64, expected: u64) {
        self.doubtful |= at < expected;
        self.wrong |= at > expected + DRIFT_US;
    }

    /// Whether it is worth counting `waiting` callers again.
    pub(super) fn is_doubtful(&self, now: u64, waiting: usize) -> bool {
        self.doubtful && (waiting < SHORT || self.made + waiting as u64 * RECOUNT_US <= now)
    }

    /// Whether it promises more than is true.
    pub(super) fn is_wrong(&self) -> bool {
        self.wrong
    }

    pub(super) fn is_paused(&self, now: u64) -> bool {
        self.from > now.max(self.made)
    }

    /// When a caller could go; seats apart, for nobody knows when they come back.
    pub(super) fn earliest(&self, rules: &[Rule], costs: &[u64], now: u64) -> u64 {
        let asked = rules.iter().zip(&self.states).zip(costs).filter(|((rule, _), _)| !rule.is_seats());
        let asked = asked.map(|((rule, state), cost)| (rule, state, *cost));
        let (Joint::Agreed(at) | Joint::NotBefore(at)) = joint_earliest(asked, self.from.max(now));
        at
    }

    /// When one more unit fits under one limit.
    pub(super) fn fits(&self, rules: &[Rule], i: usize, now: u64) -> u64 {
        rules[i].earliest(&self.states[i], self.from.max(now), 1)
    }

    /// How one limit stands behind all who wait.
    pub(super) fn level(&self, rules: &[Rule], i: usize, now: u64) -> Level {
        rules[i].level(&self.states[i], now)
    }

    pub(super) fn charge(&mut self, rules: &[Rule], costs: &[u64], at: u64) {
        for ((rule, state), cost) in rules.iter().zip(&mut self.states).zip(costs) {
            if *cost > 0 && !rule.is_seats() {
                rule.commit(state, at, *cost);
            }
        }
    }

    /// The slot of a caller that may wait, or when it could go and why it may not.
    pub(super) fn slot_of(
        &self,
        rules: &[Rule],
        costs: &[u64],
        now: u64,
        max_wait: Duration,
    ) -> Result<Slot, (u64, RefusedKind)> {
        let now = now.max(self.made);
        let from = self.from.max(now);
        let at = self.earliest(rules, costs, now);
        // A leaky bucket holds a call in its own time, as far as its queue reaches; a pause is not that.
        let (mut holds, mut held_us) = (false, 0);
        for ((rule, state), cost) in rules.iter().zip(&self.states).zip(costs).filter(|(_, cost)| **cost > 0)
        {
            if let Some(hold_us) = rule.hold_us() {
                let slot_us = rule.earliest(state, from, *cost) - from;
                if slot_us > hold_us {
                    return Err((from + slot_us - hold_us, RefusedKind::QueueFull));
                }
                (holds, held_us) = (true, held_us.max(slot_us));
            }
        }
        let deadline = now.saturating_add(held_us).saturating_add(micros(max_wait));
        // Timers wake late, and a call that a bucket holds is not refused for that; nor for its slot having
        // come since the store refused it.
        let slack_us = if holds { AHEAD_US } else { 0 };
        let kind = if self.is_paused(now) { RefusedKind::Paused } else { RefusedKind::RateLimited };
        if at <= deadline { Ok(Slot { at, deadline: deadline + slack_us }) } else { Err((at, kind)) }
    }
}
