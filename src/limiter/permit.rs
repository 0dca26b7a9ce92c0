//! What a caller holds when it may go: its seats, its slot, and what is still to be settled.
//!
//! A permit belongs to nobody's future: it can be moved into a response's body, kept past its runtime, or
//! dropped anywhere. Dropping it never waits and never spawns.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Plan, decision};
use crate::algorithm::{Costs, State};
use crate::decision::Decision;
use crate::limit::Margin;
use crate::store::{Answer, Charge, Grant, Marks, Outcome, PartAnswer, Ticket};

/// The right to send one call. Its seats go back when it is dropped; what it was charged stays charged.
#[must_use = "a seat is given back when its permit is dropped"]
pub struct Permit {
    plan: Arc<Plan>,
    margin: Margin,
    ticket: Ticket,
    /// When it was decided, and when the caller may go.
    now: u64,
    slot: u64,
    waited_us: u64,
    /// What the limits were charged, as corrected last.
    costs: Mutex<Costs>,
    marks: Marks,
    /// The states before a booking ahead.
    before: Option<Box<[Option<State>]>>,
    /// What a policy that only observes would have answered: nothing was charged.
    observed: Option<Box<Decision>>,
}

impl Permit {
    /// A permit that was granted at once.
    pub(super) fn now(plan: Arc<Plan>, margin: Margin, costs: Costs, grant: Grant) -> Self {
        Self {
            plan,
            margin,
            ticket: grant.ticket,
            now: grant.now,
            slot: grant.now,
            waited_us: 0,
            costs: Mutex::new(costs),
            marks: grant.marks,
            before: None,
            observed: None,
        }
    }

    /// A permit for one part of an answer: a granted one, or one that is only observed.
    pub(super) fn of(
        plan: Arc<Plan>,
        margin: Margin,
        costs: Costs,
        answer: &Answer,
        part: PartAnswer,
    ) -> Self {
        let observed =
            (answer.outcome != Outcome::Granted).then(|| Box::new(decision(&plan, answer, part.levels)));
        Self {
            plan,
            margin,
            ticket: part.ticket,
            now: answer.now,
            slot: answer.at,
            waited_us: 0,
            costs: Mutex::new(costs),
            marks: part.marks,
            before: part.before,
            observed,
        }
    }

    pub(super) fn waited_us(mut self, waited_us: u64) -> Self {
        self.waited_us = waited_us;
        self
    }

    pub(super) fn slot(&self) -> u64 {
        self.slot
    }

    /// How long the caller was held back for this permit.
    pub fn waited(&self) -> Duration {
        Duration::from_micros(self.waited_us)
    }

    /// The decision by which it was given.
    pub fn decision(&self) -> Decision {
        if let Some(observed) = &self.observed {
            return (**observed).clone();
        }
        let levels = self.plan.rules.of(self.margin).iter().zip(&self.marks);
        let levels = levels.map(|(rule, mark)| rule.level_after(*mark, self.slot, self.now));
        Decision {
            labels: self.plan.rules.labels.clone(),
            granted: true,
            wait_us: Some(self.slot.saturating_sub(self.now)),
            paused: false,
            levels: levels.collect(),
        }
    }

    /// Corrects an estimate: `used` units were really used, of which the call was charged its cost. Buckets
    /// change their debt; windows and counters change only the window that was charged; a log adds what is
    /// more now and takes back only its own newest. A unit that nothing was charged for is ignored. Stated
    /// again, the later statement holds.
    pub fn settle(&self, unit: &str, used: u64) {
        if self.observed.is_some() {
            return;
        }
        let mut costs = self.costs.lock();
        let mut changed = false;
        for (i, label) in self.plan.rules.labels.limits.iter().enumerate() {
            if &*label.unit == unit && costs[i] != used && !self.plan.rules.of(self.margin)[i].is_seats() {
                self.plan.shared.store.settle(self.charge(&costs), i, used, self.marks[i]);
                costs[i] = used;
                changed = true;
            }
        }
        drop(costs);
        if changed {
            self.plan.shared.queue.moved(self.ticket.hash);
        }
    }

    /// Whether something rides on it until it is dropped.
    #[cfg(feature = "client")]
    pub(crate) fn rides(&self) -> bool {
        self.plan.rules.rides && self.observed.is_none()
    }

    fn charge<'a>(&'a self, costs: &'a [u64]) -> Charge<'a> {
        Charge { ticket: self.ticket, rules: &self.plan.rules, margin: self.margin, slot: self.slot, costs }
    }

    /// Gives everything back: the slot too, if nothing was booked after it.
    pub(super) fn take_back(mut self) {
        if self.observed.is_none() {
            let costs = std::mem::take(&mut *self.costs.lock());
            self.plan.shared.store.take_back(self.charge(&costs), self.before.as_deref());
            // Nothing is left for its drop to give back.
            self.observed = Some(Box::new(self.decision()));
        }
    }

    /// Gives everything back as far as a correction can: for a slot that has come.
    pub(super) fn undo(self) {
        let plan = self.plan.clone();
        for label in &plan.rules.labels.limits {
            self.settle(&label.unit, 0);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.plan.rules.rides && self.observed.is_none() {
            let costs = self.costs.lock();
            self.plan.shared.store.release(self.charge(&costs));
            drop(costs);
            self.plan.shared.queue.moved(self.ticket.hash);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("policy", &self.plan.rules.labels.policy).finish_non_exhaustive()
    }
}
