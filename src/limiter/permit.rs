//! What a caller holds when it may go: its seats, its slot, and what is still to be settled.
//!
//! A permit belongs to nobody's future: it can be moved into a response's body, kept past its runtime, or
//! dropped anywhere. Dropping it never waits and never spawns.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::Plan;
use crate::algorithm::{Costs, Mark, State};
use crate::decision::Decision;
use crate::limit::Margin;
use crate::store::{Answer, Charge, Outcome, PartAnswer, Ticket};

/// The right to send one call. Its seats go back when it is dropped; what it was charged stays charged.
#[must_use = "a seat is given back when its permit is dropped"]
pub struct Permit {
    plan: Arc<Plan>,
    margin: Margin,
    ticket: Ticket,
    slot: u64,
    waited_us: u64,
    /// What the limits were charged, as corrected last.
    costs: Mutex<Costs>,
    answer: Held,
}

/// What is kept of the store's answer.
struct Held {
    granted: bool,
    paused: bool,
    wait_us: Option<u64>,
    levels: SmallVec<[crate::decision::Level; 3]>,
    marks: SmallVec<[Mark; 3]>,
    before: Option<Box<[Option<State>]>>,
}

impl Permit {
    /// A permit for one part of a granted answer, or for one that is only observed.
    pub(super) fn new(
        plan: Arc<Plan>,
        margin: Margin,
        costs: Costs,
        answer: &Answer,
        part: PartAnswer,
    ) -> Self {
        let granted = answer.outcome == Outcome::Granted;
        Self {
            plan,
            margin,
            ticket: part.ticket,
            slot: answer.at,
            waited_us: 0,
            costs: Mutex::new(costs),
            answer: Held {
                granted,
                paused: matches!(answer.outcome, Outcome::Paused { .. }),
                wait_us: (answer.at != crate::algorithm::NEVER).then(|| answer.at.saturating_sub(answer.now)),
                levels: part.levels,
                marks: part.marks,
                before: part.before,
            },
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
        Decision {
            labels: self.plan.rules.labels.clone(),
            granted: self.answer.granted,
            wait_us: self.answer.wait_us,
            paused: self.answer.paused,
            levels: self.answer.levels.clone(),
        }
    }

    /// Corrects an estimate: `used` units were really used, of which the call was charged its cost. Buckets
    /// change their debt; windows and counters change only the window that was charged; a log adds what is
    /// more now and takes back only its own newest. A unit that nothing was charged for is ignored. Stated
    /// again, the later statement holds.
    pub fn settle(&self, unit: &str, used: u64) {
        if !self.answer.granted {
            return;
        }
        let mut costs = self.costs.lock();
        let mut changed = false;
        for (i, label) in self.plan.rules.labels.limits.iter().enumerate() {
            if &*label.unit == unit && costs[i] != used && !self.plan.rules.of(self.margin)[i].is_seats() {
                self.plan.shared.store.settle(self.charge(&costs), i, used, self.answer.marks[i]);
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
        self.plan.rules.rides
    }

    fn charge<'a>(&'a self, costs: &'a [u64]) -> Charge<'a> {
        Charge { ticket: self.ticket, rules: &self.plan.rules, margin: self.margin, slot: self.slot, costs }
    }

    /// Gives everything back: the slot too, if nothing was booked after it.
    pub(super) fn take_back(mut self) {
        if self.answer.granted {
            let costs = std::mem::take(&mut *self.costs.lock());
            self.plan.shared.store.take_back(self.charge(&costs), self.answer.before.as_deref());
            self.answer.granted = false;
        }
    }

    /// Gives everything back as far as a correction can: for a slot that has come.
    pub(super) fn undo(self) {
        let units = self.plan.clone();
        for label in &units.rules.labels.limits {
            self.settle(&label.unit, 0);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.answer.granted && self.plan.rules.rides {
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
