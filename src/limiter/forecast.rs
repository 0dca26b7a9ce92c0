//! What the next caller of a line will find: the states of the store with all who wait charged in order.
//!
//! Kept from one entry to the next, for ten thousand callers cannot be counted again for each who comes. It
//! must never refuse one who can make it: whoever it refuses while something was given back since is looked at
//! again with a new one.

use std::time::Duration;

use smallvec::SmallVec;

use super::caller::Waiting;
use super::line::Line;
use super::{Refused, RefusedKind};
use crate::algorithm::{AHEAD_US, Costs, Joint, NEVER, Rule, State, joint_earliest};
use crate::clock::{self, micros};
use crate::decision::{Decision, Level};
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

/// What a line tells those who come.
impl Line {
    /// Until when a caller that comes now may wait, if it can make it behind those who are there; `waiting` is
    /// how many wait for the key, in all its lines.
    pub(super) fn admit(
        &mut self,
        costs: &Costs,
        now: u64,
        max_wait: Duration,
        waiting: usize,
    ) -> Result<Slot, Refused> {
        match self.slot_of(costs, now, max_wait) {
            Ok(Slot { at, .. }) if waiting >= self.plan.policy.waiting_bound() => {
                Err(self.refusal(at, max_wait, RefusedKind::QueueFull))
            }
            Ok(slot) => {
                let rules = self.plan.rules.of(self.margin);
                self.forecast.as_mut().expect("it was just asked").charge(rules, costs, slot.at);
                Ok(slot)
            }
            Err((at, kind)) => Err(self.refusal(at, max_wait, kind)),
        }
    }

    pub(super) fn slot_of(
        &mut self,
        costs: &Costs,
        now: u64,
        max_wait: Duration,
    ) -> Result<Slot, (u64, RefusedKind)> {
        let plan = self.plan.clone();
        let rules = plan.rules.of(self.margin);
        let mut slot = self.forecast(now).slot_of(rules, costs, now, max_wait);
        let doubtful = |forecast: &Forecast| forecast.is_doubtful(now, self.waiting());
        if slot.is_err() && self.forecast.as_ref().is_some_and(doubtful) {
            self.forecast = None;
            slot = self.forecast(now).slot_of(rules, costs, now, max_wait);
        }
        slot
    }

    /// What the next to come will find: the states of the store, and all who wait charged in order.
    fn forecast(&mut self, now: u64) -> &Forecast {
        if self.forecast.is_none() {
            let rules = self.plan.rules.of(self.margin);
            let mut forecast =
                Forecast::new(self.plan.shared.store.forecast(self.plan.whole(self.margin, &self.key)), now);
            let booked = self.booked.as_ref().map(|booked| booked.seq);
            for (seq, caller) in &mut self.callers {
                if matches!(caller.state, Waiting::InLine) && Some(*seq) != booked {
                    caller.expected = forecast.earliest(rules, &caller.costs, now);
                    forecast.charge(rules, &caller.costs, caller.expected);
                }
            }
            self.forecast = Some(forecast);
        }
        self.forecast.as_ref().expect("it was just made")
    }

    /// Something was given back: the forecast may be worse than what is true.
    pub(super) fn doubt(&mut self) {
        if let Some(forecast) = &mut self.forecast {
            forecast.doubt();
        }
    }

    /// The refusal of one who could go at `at`.
    pub(super) fn refusal(&self, at: u64, max_wait: Duration, kind: RefusedKind) -> Refused {
        let now = clock::now_us();
        // Those who wait although they could go wait for a seat, and nobody knows when one comes back.
        let seatless = kind == RefusedKind::NoSeat || (at <= now && self.has_seats());
        let standing = self.plan.shared.store.peek(self.plan.whole(self.margin, &self.key));
        let rules = self.plan.rules.of(self.margin);
        let mut levels = standing.levels;
        for (i, level) in levels.iter_mut().enumerate() {
            match &self.forecast {
                _ if rules[i].is_seats() && seatless && level.remaining == 0 => level.wait_us = NEVER,
                Some(forecast) if !rules[i].is_seats() => {
                    // What those who wait already will use is not left for another.
                    let behind = forecast.level(rules, i, now);
                    level.remaining = level.remaining.min(behind.remaining);
                    level.reset_us = level.reset_us.max(behind.reset_us);
                    // The limit that the wait is for is the one that holds longest for them.
                    level.wait_us = forecast.fits(rules, i, now).saturating_sub(now);
                }
                _ => {}
            }
        }
        let decision = Decision {
            labels: self.plan.rules.labels.clone(),
            granted: false,
            wait_us: (!seatless).then(|| at.saturating_sub(now)),
            paused: kind == RefusedKind::Paused,
            levels,
        };
        Refused::new(kind, decision, max_wait)
    }

    /// The refusal of one who waited in vain until now.
    pub(super) fn too_late(&self, seq: usize) -> Refused {
        let now = clock::now_us();
        let caller = &self.callers[&seq];
        if self.seatless {
            return self.refusal(NEVER, caller.max_wait, RefusedKind::NoSeat);
        }
        let store = self.plan.shared.store.forecast(self.plan.whole(self.margin, &self.key));
        let forecast = Forecast::new(store, now);
        let at = forecast.earliest(self.plan.rules.of(self.margin), &caller.costs, now);
        let kind = if forecast.is_paused(now) { RefusedKind::Paused } else { RefusedKind::RateLimited };
        self.refusal(at.max(caller.expected), caller.max_wait, kind)
    }
}
