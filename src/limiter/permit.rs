//! What a caller holds when it may go: its seats, its slot, and what is still to be settled.
//!
//! A permit belongs to nobody's future: it can be moved into a response's body, kept past its runtime, or
//! dropped anywhere. Dropping it never waits and never spawns.

use std::fmt;
use std::time::Duration;

#[cfg(feature = "client")]
use tokio::time::Instant;

#[cfg(feature = "redis")]
use smallvec::SmallVec;

use super::Plan;
#[cfg(feature = "redis")]
use super::fleet;
use super::held::{Held, Later};
#[cfg(feature = "client")]
use crate::algorithm::Rule;
use crate::algorithm::{Costs, Mark};
#[cfg(any(feature = "client", feature = "redis"))]
use crate::clock;
use crate::decision::Decision;
use crate::limit::Margin;
#[cfg(feature = "client")]
use crate::limit::{REQUESTS, SEATS};
use crate::store::{Answer, Charged, Grant, Outcome, PartAnswer, Ticket};

/// The right to send one call. Its seats go back when it is dropped; what it was charged stays charged.
#[must_use = "a seat is given back when its permit is dropped"]
pub struct Permit(
    /// `None` only while it is dropped.
    Option<Box<Held>>,
);

impl Permit {
    /// A permit that the store grants at once, or nothing.
    #[inline]
    pub(super) fn now(
        plan: &Plan,
        margin: Margin,
        key: &str,
        costs: &[u64],
        at: Option<u64>,
    ) -> Option<Self> {
        let mut held = Held::new();
        let store = &plan.shared.store;
        let known = store.try_known(&plan.part(margin, key, costs), at, &mut held.grant);
        // Of a part of its own, or the one above could not be kept in registers.
        if known.unwrap_or_else(|| store.try_new(&plan.part(margin, key, costs), at, &mut held.grant)) {
            held.set_issuer(&plan.issuer);
            (held.charged, held.rides) = (Some(margin), plan.rules.rides);
            #[cfg(feature = "metrics")]
            crate::metrics::granted(&plan.granted);
            Some(Self(Some(held)))
        } else {
            held.spare();
            None
        }
    }

    #[inline]
    fn held(&self) -> &Held {
        self.0.as_ref().expect("a permit holds something until it is dropped")
    }

    /// A permit for one part of an answer: a granted one, or one that is only observed.
    pub(super) fn of(plan: &Plan, margin: Margin, costs: Costs, answer: &Answer, part: PartAnswer) -> Self {
        let charged = answer.outcome == Outcome::Granted;
        let later = Later {
            slot: if charged { answer.at } else { answer.now },
            waited_us: 0,
            before: part.before,
            probes: part.probes,
            observed: (!charged).then(|| plan.decision(answer, part.levels)),
            #[cfg(feature = "redis")]
            fleet: None,
        };
        let marks = part.marks.into_iter().chain(std::iter::repeat(Mark::default()));
        let mut held = Held::new();
        let charges = costs.into_iter().zip(marks).map(|(cost, mark)| Charged::new(cost, mark)).collect();
        held.grant = Grant { now: answer.now, ticket: part.ticket, charges };
        (held.charged, held.rides) = (charged.then_some(margin), plan.rules.rides);
        held.later = Some(Box::new(later));
        held.set_issuer(&plan.issuer);
        #[cfg(feature = "metrics")]
        crate::metrics::granted(&plan.granted);
        Self(Some(held))
    }

    /// The permit of a call that goes although nothing was charged; with what was decided, if anything was.
    #[cfg(feature = "redis")]
    pub(super) fn let_through(plan: &Plan, margin: Margin, costs: Costs, observed: Option<Decision>) -> Self {
        let labels = plan.rules.labels.clone();
        let decision = observed.unwrap_or_else(|| Decision::standing(labels, None, SmallVec::new()));
        let mut permit = Self::counted(plan, margin, costs, decision);
        if let Some(held) = &mut permit.0 {
            held.charged = None;
        }
        permit
    }

    /// The permit of a call of which this process keeps count by itself.
    #[cfg(feature = "redis")]
    pub(super) fn counted(plan: &Plan, margin: Margin, costs: Costs, decision: Decision) -> Self {
        let now = clock::now_us();
        let answer = Answer { now, at: now, outcome: Outcome::Granted, parts: SmallVec::new() };
        let mut permit = Self::of(plan, margin, costs, &answer, PartAnswer::default());
        if let Some(held) = &mut permit.0 {
            held.later().observed = Some(decision);
        }
        permit
    }

    /// A permit that was charged in a fleet's store.
    #[cfg(feature = "redis")]
    pub(super) fn of_fleet(mut self, charge: fleet::Charge) -> Self {
        if let Some(held) = &mut self.0 {
            held.later().fleet = Some(charge);
        }
        self
    }

    /// Whether it is the probe of a pause, which goes although that holds the key.
    pub(super) fn probes(&self) -> bool {
        self.held().later.as_ref().is_some_and(|later| later.probes)
    }

    pub(super) fn waited_us(mut self, waited_us: u64) -> Self {
        if let Some(held) = &mut self.0 {
            held.later().waited_us = waited_us;
        }
        self
    }

    pub(super) fn ticket(&self) -> Ticket {
        self.held().grant.ticket
    }

    /// When the caller may go.
    pub(super) fn slot(&self) -> u64 {
        self.held().slot()
    }

    /// When the caller was let go, where that is told by the clock of this process.
    #[cfg(feature = "client")]
    pub(crate) fn due(&self) -> Option<Instant> {
        let held = self.held();
        #[cfg(feature = "redis")]
        if held.fleet().is_some() {
            return None;
        }
        held.charged.map(|_| clock::instant(held.slot()))
    }

    /// The instant for which it was charged, in microseconds of the store's clock: for checks of what a fleet
    /// let through.
    #[doc(hidden)]
    pub fn slot_us(&self) -> u64 {
        self.slot()
    }

    /// How long the caller was held back for this permit.
    pub fn waited(&self) -> Duration {
        Duration::from_micros(self.held().later.as_ref().map_or(0, |later| later.waited_us))
    }

    /// The decision by which it was given.
    pub fn decision(&self) -> Decision {
        let held = self.held();
        if let Some(observed) = held.later.as_ref().and_then(|later| later.observed.as_ref()) {
            return observed.clone();
        }
        let margin = held.charged.expect("a permit was charged or is only observed");
        let (now, slot) = (held.grant.now, held.slot());
        let levels = held.issuer().rules.of(margin).iter().zip(&held.grant.charges);
        let levels = levels.map(|(rule, charged)| rule.level_after(charged.mark, slot, now)).collect();
        Decision {
            labels: held.issuer().rules.labels.clone(),
            granted: true,
            wait_us: Some(slot.saturating_sub(now)),
            paused: false,
            levels,
        }
    }

    /// Corrects an estimate: `used` units were really used, of which the call was charged its cost. Buckets
    /// change their debt; windows and counters change only the window that was charged; a log adds what is
    /// more now and takes back what is less among its newest 256 instants. A unit that no limit counts is ignored.
    /// Stated again, the later statement holds. Of a policy that counts nothing but `requests`, a key is forgotten
    /// once it is unused; a correction that comes later than that finds nothing to correct.
    pub fn settle(&self, unit: &str, used: u64) {
        let held = self.held();
        let Some(margin) = held.charged else { return };
        let issuer = held.issuer();
        let limits = issuer.rules.labels.limits.iter().zip(issuer.rules.of(margin)).enumerate();
        for (i, (label, rule)) in limits {
            if &*label.unit == unit && held.grant.charges[i].cost() != used && !rule.is_seats() {
                #[cfg(feature = "redis")]
                if let Some(fleet) = held.fleet() {
                    fleet.settle(held.charge(margin), i, used);
                    continue;
                }
                issuer.reach(
                    |store| store.settle(held.charge(margin), i, used),
                    |queue| queue.corrected(held.grant.ticket),
                );
            }
        }
    }

    /// Whether a limit counts by what the service has seen.
    #[cfg(feature = "client")]
    #[inline]
    pub(crate) fn is_told_of_answers(&self) -> bool {
        let held = self.held();
        held.charged.is_some_and(|margin| held.issuer().rules.are_told_of_answers(margin))
    }

    /// The call, sent at `sent`, was answered at `by`, so the service has seen it no later: a limit that leaves a margin
    /// for what it does not know of that may leave less.
    #[cfg(feature = "client")]
    pub(crate) fn arrived(&self, sent: u64, by: u64) {
        let held = self.held();
        let Some(margin) = held.charged else { return };
        let charge = held.charge(margin);
        if by.saturating_sub(sent) >= charge.rules.arrivals_us(margin) {
            return;
        }
        #[cfg(feature = "redis")]
        if let Some(fleet) = held.fleet() {
            return fleet.arrived(&charge, by);
        }
        held.issuer().rebook(charge.ticket, |store| store.arrived(charge, by));
    }

    /// The service refused the call: a log counts it no more than that does.
    #[cfg(feature = "client")]
    pub(crate) fn declined(&self) {
        let held = self.held();
        let Some(margin) = held.charged else { return };
        let charge = held.charge(margin);
        if !charge.rules.of(margin).iter().any(|rule| matches!(rule, Rule::SlidingLog(_))) {
            return;
        }
        #[cfg(feature = "redis")]
        if let Some(fleet) = held.fleet() {
            return fleet.declined(&charge);
        }
        held.issuer().reach(|store| store.declined(charge), |_| {});
    }

    /// Whether something rides on it until it is dropped.
    #[cfg(feature = "client")]
    pub(crate) fn rides(&self) -> bool {
        self.held().issuer().rules.rides && self.held().charged.is_some()
    }

    /// Gives the seats back before the permit; what was charged can still be settled.
    #[cfg(feature = "client")]
    pub(crate) fn free_seats(&self) {
        let held = self.held();
        let issuer = held.issuer();
        let Some(margin) = held.charged.filter(|_| issuer.rules.rides) else { return };
        let mut charges = issuer.rules.of(margin).iter().zip(&held.grant.charges);
        if charges.any(|(rule, charged)| rule.is_seats() && charged.cost() > 0) {
            #[cfg(feature = "redis")]
            if let Some(fleet) = held.fleet() {
                return fleet.free_seats(&held.charge(margin));
            }
            issuer
                .reach(|store| store.free_seats(held.charge(margin)), |queue| queue.freed(held.grant.ticket));
        }
    }

    /// Gives everything back: the slot too, if nothing was booked after it. Tells nobody who waits.
    pub(super) fn take_back(mut self) {
        let Some(held) = &mut self.0 else { return };
        if let Some(margin) = held.charged.take() {
            let before = held.later.as_ref().and_then(|later| later.before.as_deref());
            held.issuer().reach(|store| store.take_back(held.charge(margin), before), |_| {});
        }
    }

    /// Gives back all that was estimated: neither requests nor seats.
    #[cfg(feature = "client")]
    pub(crate) fn unspent(&self) {
        let units = self.held().issuer().rules.labels.limits.iter().map(|label| &*label.unit);
        units.filter(|unit| !matches!(*unit, REQUESTS | SEATS)).for_each(|unit| self.settle(unit, 0));
    }

    /// Gives everything back as far as a correction can: for a slot that has come.
    pub(crate) fn undo(&self) {
        for label in &self.held().issuer().rules.labels.limits {
            self.settle(&label.unit, 0);
        }
        let held = self.held();
        #[cfg(feature = "redis")]
        let is_local = held.fleet().is_none();
        #[cfg(not(feature = "redis"))]
        let is_local = true;
        if let Some(margin) = held.charged.filter(|_| is_local && self.probes()) {
            held.issuer().reach(
                |store| store.unprobe(held.charge(margin)),
                |queue| queue.corrected(held.grant.ticket),
            );
        }
    }
}

impl Drop for Permit {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            held.spare();
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy = &self.held().issuer().rules.labels.policy;
        f.debug_struct("Permit").field("policy", policy).finish_non_exhaustive()
    }
}
