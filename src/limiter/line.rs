//! One line: the callers that wait under one key for one set of limits, first come, first served.
//!
//! Books the first caller's slot and no other, so whoever gives up leaves no debt. Slots are counted from the
//! slot before and never from the wake, for timers wake late. What the next to come will find is in `forecast`.
//! Everything here happens under the queue's lock: no waker is woken and no permit dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::caller::{Caller, Waiting};
use super::driver::Driver;
use super::forecast::Forecast;
use super::{Permit, Plan, Refused};
use crate::algorithm::{AHEAD_US, NEVER, Rule};
use crate::clock;
use crate::limit::Margin;
use crate::store::{Outcome, When};

/// How far a late wake is made good: slots that came due in that time are granted together.
const CATCH_UP_US: u64 = 20_000;
/// How long a granted seat waits for its caller while others wait for a seat.
pub(super) const UNCLAIMED_US: u64 = 100_000;

/// Woken after the lock is let go: wakers are foreign code.
pub(super) type Wakers = SmallVec<[Waker; 4]>;

/// The callers that wait under one key for one set of limits.
pub(super) struct Line {
    pub(super) id: usize,
    pub(super) key: Arc<str>,
    pub(super) margin: Margin,
    /// The limits that they touch, a bit each.
    pub(super) limits: u32,
    pub(super) plan: Arc<Plan>,
    /// In the order in which they came; with those who were answered and have not come for it yet.
    pub(super) callers: BTreeMap<usize, Caller>,
    /// Those of them who wait and are there, and those who were granted and have not come for it.
    in_line: BTreeSet<usize>,
    unclaimed: BTreeSet<usize>,
    /// How many of them wait.
    waiting: usize,
    /// The first caller's slot, charged ahead.
    pub(super) booked: Option<Booked>,
    /// Nothing is granted for an instant before: the last slot granted, or when something last changed what is
    /// possible. A late wake is made good from there.
    since: u64,
    /// What the next to come will find; `None` when it has to be made anew.
    pub(super) forecast: Option<Forecast>,
    /// A seat is missing.
    pub(super) seatless: bool,
    /// Whether it has a task.
    pub(super) driven: bool,
    pub(super) turn: Arc<Notify>,
}

pub(super) struct Booked {
    pub(super) seq: usize,
    /// Bookings are taken back in the opposite order.
    pub(super) order: usize,
    pub(super) permit: Permit,
}

/// What came of a step.
pub(super) enum Step {
    /// Someone was answered or booked; there may be more to do.
    Again,
    /// Nothing until that instant.
    Sleep(u64),
    /// Nothing until a seat comes back.
    Seatless,
    /// Nobody is in line.
    Done,
}

impl Line {
    pub(super) fn new(id: usize, plan: &Arc<Plan>, key: &str, margin: Margin, limits: u32) -> Self {
        Self {
            id,
            key: key.into(),
            margin,
            limits,
            plan: plan.clone(),
            callers: BTreeMap::new(),
            in_line: BTreeSet::new(),
            unclaimed: BTreeSet::new(),
            waiting: 0,
            booked: None,
            since: clock::now_us(),
            forecast: None,
            seatless: false,
            driven: false,
            turn: Arc::default(),
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Something has changed what is possible, now and not before; the line has to have a turn.
    pub(super) fn changed(&mut self, now: u64) {
        self.since = self.since.max(now);
        self.turn.notify_one();
    }

    /// Whether `seq` is the first in line.
    pub(super) fn is_first(&self, seq: usize) -> bool {
        self.in_line.first() == Some(&seq)
    }

    /// Whether anyone waits who would be overtaken: one that does not come for what it was granted is not.
    pub(super) fn is_busy(&self) -> bool {
        !self.in_line.is_empty()
    }

    /// Whether it has ended: nobody is left, and no task has to be told.
    pub(super) fn is_over(&self) -> bool {
        self.callers.is_empty() && !self.driven
    }

    /// Whether the first one's slot has come.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.booked.as_ref().is_some_and(|booked| booked.permit.slot() <= now)
    }

    pub(super) fn has_seats(&self) -> bool {
        self.plan.rules.of(self.margin).iter().any(Rule::is_seats)
    }

    pub(super) fn has(&self, seq: usize) -> bool {
        self.callers.contains_key(&seq)
    }

    pub(super) fn caller(&self, seq: usize) -> &Caller {
        &self.callers[&seq]
    }

    /// Changes a caller's waker; the one that is left over is to be dropped after the lock.
    pub(super) fn swap_waker(&mut self, seq: usize, waker: &mut Option<Waker>) {
        let caller = self.callers.get_mut(&seq).expect("the line was found by it");
        let same = caller.waker.as_ref().zip(waker.as_ref()).is_some_and(|(old, new)| old.will_wake(new));
        if !same {
            std::mem::swap(&mut caller.waker, waker);
        }
    }

    pub(super) fn insert(&mut self, seq: usize, caller: Caller) {
        self.callers.insert(seq, caller);
        self.count(seq);
    }

    pub(super) fn remove(&mut self, seq: usize) -> Option<Caller> {
        self.uncount(seq);
        self.callers.remove(&seq)
    }

    /// Everyone, in order; nobody is left.
    pub(super) fn take_all(&mut self) -> BTreeMap<usize, Caller> {
        self.in_line.clear();
        self.unclaimed.clear();
        self.plan.shared.queue.waiting.fetch_sub(std::mem::take(&mut self.waiting), Ordering::SeqCst);
        std::mem::take(&mut self.callers)
    }

    pub(super) fn set(&mut self, seq: usize, state: Waiting) -> Waiting {
        self.uncount(seq);
        let caller = self.callers.get_mut(&seq).expect("only a caller that is there changes its state");
        let before = std::mem::replace(&mut caller.state, state);
        self.count(seq);
        before
    }

    fn count(&mut self, seq: usize) {
        let caller = &self.callers[&seq];
        match caller.state {
            Waiting::InLine => _ = self.in_line.insert(seq),
            Waiting::Granted(..) => _ = self.unclaimed.insert(seq),
            Waiting::Refused(_) | Waiting::Absent => {}
        }
        if caller.waits() {
            self.waiting += 1;
            self.plan.shared.queue.waiting.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn uncount(&mut self, seq: usize) {
        self.in_line.remove(&seq);
        self.unclaimed.remove(&seq);
        if self.callers.get(&seq).is_some_and(Caller::waits) {
            self.waiting -= 1;
            self.plan.shared.queue.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Answers a caller that waits.
    pub(super) fn answer(&mut self, seq: usize, state: Waiting, wakers: &mut Wakers) {
        self.set(seq, state);
        wakers.extend(self.callers.get_mut(&seq).and_then(|caller| caller.waker.take()));
    }

    /// Refuses those who wait and of whom `which` says so.
    pub(super) fn refuse(
        &mut self,
        which: impl Fn(&Caller) -> bool,
        refusal: impl Fn(&mut Self, Duration) -> Refused,
        wakers: &mut Wakers,
    ) {
        let those = self.callers.iter().filter(|(_, caller)| caller.waits() && which(caller));
        for seq in those.map(|(seq, _)| *seq).collect::<Vec<_>>() {
            let refused = refusal(self, self.callers[&seq].max_wait);
            self.answer(seq, Waiting::Refused(refused), wakers);
        }
    }

    /// Does what can be done now for the first in line.
    pub(super) fn step(&mut self, now: &mut u64, wakers: &mut Wakers) -> Step {
        if let Some(booked) = self.booked.take_if(|booked| booked.permit.slot() <= *now) {
            self.since = self.since.max(booked.permit.slot());
            self.grant(booked.seq, booked.permit, *now, wakers);
            return Step::Again;
        }
        if let Some(booked) = &self.booked {
            return Step::Sleep(booked.permit.slot());
        }
        let Some(&seq) = self.in_line.first() else { return Step::Done };
        let caller = &self.callers[&seq];
        let (deadline, max_wait, expected) = (caller.deadline, caller.max_wait, caller.expected);
        let (plan, key, costs) = (self.plan.clone(), self.key.clone(), caller.costs.clone());
        let observed = plan.policy.is_observe_only();
        let part = plan.part(self.margin, &key, &costs);
        let when = if observed {
            When::NOW
        } else {
            let from = self.since.max(caller.arrived).max(now.saturating_sub(CATCH_UP_US));
            When { from: Some(from), latest: Some(deadline.min(*now + AHEAD_US)) }
        };
        let mut answer = plan.shared.store.decide(&[part], when);
        let answered = answer.parts.pop().expect("one part was asked about");
        *now = answer.now.max(*now);
        match answer.outcome {
            _ if observed => {
                let permit = Permit::of(&plan, self.margin, costs, &answer, answered);
                self.grant(seq, permit, *now, wakers);
            }
            Outcome::Granted => {
                if let Some(forecast) = &mut self.forecast {
                    forecast.compare(answer.at, expected);
                }
                self.forecast.take_if(|forecast| forecast.is_wrong());
                let order = plan.shared.queue.number();
                let permit = Permit::of(&plan, self.margin, costs, &answer, answered);
                self.booked = Some(Booked { seq, order, permit });
            }
            _ if answer.at != NEVER && answer.at > deadline => {
                let refused = plan.refuse_answer(&answer, &answered, max_wait);
                self.answer(seq, Waiting::Refused(refused), wakers);
                self.changed(*now);
                self.doubt();
            }
            Outcome::Paused { ask_again } => return Step::Sleep(ask_again),
            Outcome::Refused if answer.at == NEVER => return Step::Seatless,
            Outcome::Refused => {
                let ahead_us = plan.shared.store.ahead_us();
                return Step::Sleep(answer.at.saturating_sub(ahead_us).max(*now + 1_000));
            }
        }
        Step::Again
    }

    fn grant(&mut self, seq: usize, permit: Permit, now: u64, wakers: &mut Wakers) {
        let waited = now.saturating_sub(self.callers[&seq].arrived);
        self.answer(seq, Waiting::Granted(Box::new(permit.waited_us(waited)), now), wakers);
    }

    /// Takes back seats that were granted and that nobody came for. How many those were, and when to look
    /// again.
    pub(super) fn claim(&mut self, now: u64) -> (usize, u64) {
        let (mut absent, mut look_again) = (SmallVec::<[usize; 4]>::new(), NEVER);
        for seq in &self.unclaimed {
            match &self.callers[seq].state {
                Waiting::Granted(_, since) if since + UNCLAIMED_US > now => {
                    look_again = look_again.min(since + UNCLAIMED_US);
                }
                _ => absent.push(*seq),
            }
        }
        for seq in &absent {
            if let Waiting::Granted(permit, _) = self.set(*seq, Waiting::Absent) {
                permit.take_back();
            }
        }
        if !absent.is_empty() {
            self.changed(now);
        }
        (absent.len(), look_again)
    }

    /// The line's task, to be started after the lock is let go, if it has none and there is a runtime to run
    /// it.
    pub(super) fn driver(&mut self, hash: u64) -> Option<Driver> {
        if self.driven || Handle::try_current().is_err() {
            return None;
        }
        self.driven = true;
        Some(Driver::new(self.plan.clone(), hash, self.id, self.turn.clone()))
    }

    /// All wakers, when the line has lost its task.
    pub(super) fn undriven(&mut self) -> Wakers {
        self.driven = false;
        self.callers.values_mut().filter_map(|caller| caller.waker.take()).collect()
    }
}
