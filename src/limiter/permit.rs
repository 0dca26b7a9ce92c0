//! What a caller holds when it may go: its seats, its slot, and what is still to be settled.
//!
//! A permit belongs to nobody's future: it can be moved into a response's body, kept past its runtime, or
//! dropped anywhere. Dropping it never waits and never spawns.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Plan;
use crate::algorithm::{Costs, Mark, State};
use crate::decision::Decision;
use crate::limit::Margin;
use crate::store::{Answer, Charge, Charged, Charges, Grant, Outcome, PartAnswer, Ticket};

/// The right to send one call. Its seats go back when it is dropped; what it was charged stays charged.
#[must_use = "a seat is given back when its permit is dropped"]
pub struct Permit {
    plan: Arc<Plan>,
    /// By the rules with which margin it was charged; `None` if it was not, or all of it was taken back.
    charged: Option<Margin>,
    grant: Grant,
    charges: Charges,
    /// `None` for the many that were granted at once.
    later: Option<Box<Later>>,
}

/// What there is to know of a permit that was not granted at once.
#[derive(Default)]
struct Later {
    /// From the decision to the slot.
    ahead_us: u64,
    waited_us: u64,
    /// The states before a booking ahead.
    before: Option<Box<[Option<State>]>>,
    /// What a policy that only observes would have answered.
    observed: Option<Decision>,
}

impl Permit {
    /// A permit that was granted at once.
    #[inline]
    pub(super) fn new(plan: Arc<Plan>, margin: Margin, grant: Grant, charges: Charges) -> Self {
        Self { plan, charged: Some(margin), grant, charges, later: None }
    }

    /// A permit for one part of an answer: a granted one, or one that is only observed.
    pub(super) fn of(
        plan: Arc<Plan>,
        margin: Margin,
        costs: Costs,
        answer: &Answer,
        part: PartAnswer,
    ) -> Self {
        let charged = answer.outcome == Outcome::Granted;
        let later = Later {
            ahead_us: answer.at.saturating_sub(answer.now),
            waited_us: 0,
            before: part.before,
            observed: (!charged).then(|| plan.decision(answer, part.levels)),
        };
        let marks = part.marks.into_iter().chain(std::iter::repeat(Mark::default()));
        let charges = costs.into_iter().zip(marks).map(|(cost, mark)| Charged::new(cost, mark)).collect();
        let grant = Grant { now: answer.now, ticket: part.ticket };
        let charged = charged.then_some(margin);
        Self { plan, charged, grant, charges, later: Some(Box::new(later)) }
    }

    pub(super) fn waited_us(mut self, waited_us: u64) -> Self {
        self.later.get_or_insert_default().waited_us = waited_us;
        self
    }

    pub(super) fn ticket(&self) -> Ticket {
        self.grant.ticket
    }

    /// When the caller may go.
    pub(super) fn slot(&self) -> u64 {
        self.grant.now + self.later.as_ref().map_or(0, |later| later.ahead_us)
    }

    /// How long the caller was held back for this permit.
    pub fn waited(&self) -> Duration {
        Duration::from_micros(self.later.as_ref().map_or(0, |later| later.waited_us))
    }

    /// The decision by which it was given.
    pub fn decision(&self) -> Decision {
        if let Some(observed) = self.later.as_ref().and_then(|later| later.observed.as_ref()) {
            return observed.clone();
        }
        let margin = self.charged.expect("a permit was charged or is only observed");
        let (now, slot) = (self.grant.now, self.slot());
        let levels = self.plan.rules.of(margin).iter().zip(&self.charges);
        let levels = levels.map(|(rule, charged)| rule.level_after(charged.mark, slot, now)).collect();
        Decision {
            labels: self.plan.rules.labels.clone(),
            granted: true,
            wait_us: Some(slot - now),
            paused: false,
            levels,
        }
    }

    /// Corrects an estimate: `used` units were really used, of which the call was charged its cost. Buckets
    /// change their debt; windows and counters change only the window that was charged; a log adds what is
    /// more now and takes back only its own newest. A unit that no limit counts is ignored. Stated again, the
    /// later statement holds.
    pub fn settle(&self, unit: &str, used: u64) {
        let Some(margin) = self.charged else { return };
        let mut changed = false;
        for (i, label) in self.plan.rules.labels.limits.iter().enumerate() {
            let is_seats = self.plan.rules.of(margin)[i].is_seats();
            if &*label.unit == unit && self.charges[i].cost() != used && !is_seats {
                self.plan.shared.store.settle(self.charge(margin), i, used);
                changed = true;
            }
        }
        if changed {
            self.plan.shared.queue.corrected(self.grant.ticket);
        }
    }

    /// Whether something rides on it until it is dropped.
    #[cfg(feature = "client")]
    pub(crate) fn rides(&self) -> bool {
        self.plan.rules.rides && self.charged.is_some()
    }

    /// Gives the seats back before the permit; what was charged can still be settled.
    #[cfg(feature = "client")]
    pub(crate) fn free_seats(&self) {
        let Some(margin) = self.charged.filter(|_| self.plan.rules.rides) else { return };
        let mut charges = self.plan.rules.of(margin).iter().zip(&self.charges);
        if charges.any(|(rule, charged)| rule.is_seats() && charged.cost() > 0) {
            self.plan.shared.store.free_seats(self.charge(margin));
            self.plan.shared.queue.freed(self.grant.ticket);
        }
    }

    fn charge(&self, margin: Margin) -> Charge<'_> {
        Charge {
            ticket: self.grant.ticket,
            rules: &self.plan.rules,
            margin,
            slot: self.slot(),
            charges: &self.charges,
        }
    }

    /// Gives everything back: the slot too, if nothing was booked after it. Tells nobody who waits.
    pub(super) fn take_back(mut self) {
        if let Some(margin) = self.charged.take() {
            let before = self.later.as_ref().and_then(|later| later.before.as_deref());
            self.plan.shared.store.take_back(self.charge(margin), before);
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
    #[inline]
    fn drop(&mut self) {
        if let Some(margin) = self.charged.filter(|_| self.plan.rules.rides) {
            self.plan.shared.store.release(self.charge(margin));
            self.plan.shared.queue.freed(self.grant.ticket);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("policy", &self.plan.rules.labels.policy).finish_non_exhaustive()
    }
}
