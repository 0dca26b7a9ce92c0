//! One line of one key in this process: the callers that wait for one set of limits, and the slots that were
//! booked for them ahead.
//!
//! A slot belongs to nobody until it is due: then it goes to the first caller whose cost it covers in every
//! unit, so one who gives up leaves its slot to the next. Everything here happens under the key's lock; nobody
//! is woken under it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};

use super::replay::{Marks, Snapshots};
use crate::algorithm::{Costs, NEVER, Rule};
use crate::limit::Margin;
use crate::limiter::line::UNCLAIMED_US;
use crate::limiter::{Plan, Refused};

/// Callers of one trip, at most.
pub(super) const BATCH: usize = 64;

/// Within that Redis has heard of a soft 429 that was heard of here.
const TOLD_US: u64 = 10_000;

/// What a caller is told.
pub(super) enum Told {
    /// It may go: the slot has come.
    Go(Box<Slot>),
    /// The same, where the slot has seats: it is to be taken from the line, for others may wait for them.
    Come,
    Refused(Refused),
    /// It has to ask again: the policy has changed, or whoever drove its line is gone.
    Again,
    /// Redis is away.
    Away,
}

pub(super) type Answer = oneshot::Sender<Told>;

/// A slot that Redis charged for this process.
pub(super) struct Slot {
    /// The caller that it was booked for.
    pub(super) owner: u64,
    /// When it comes, on this process's clock, and on Redis's.
    pub(super) due: u64,
    pub(super) at: u64,
    /// When it was asked for, on this process's clock, and Redis's time of the decision.
    pub(super) asked: u64,
    pub(super) now: u64,
    pub(super) plan: Arc<Plan>,
    pub(super) margin: Margin,
    pub(super) costs: Costs,
    pub(super) marks: Marks,
    /// The states around the booking.
    pub(super) before: Snapshots,
    pub(super) after: Snapshots,
    /// Whether it is the probe of a pause.
    pub(super) probes: bool,
    /// Redis would not take it back.
    pub(super) was_offered: bool,
}

impl Slot {
    pub(super) fn has_seats(&self) -> bool {
        self.plan
            .rules
            .of(self.margin)
            .iter()
            .zip(&self.costs)
            .any(|(rule, cost)| rule.is_seats() && *cost > 0)
    }

    /// Whether a soft 429 at that instant leaves nothing of it: it comes before the buckets that were drained then
    /// give a unit, or it was asked for before of a log, which may have taken for left what the service does not have.
    pub(super) fn lapses(&self, throttled: u64) -> bool {
        let limits = super::touched(&self.costs);
        empty_us(&self.plan, self.margin, limits).is_some_and(|empty_us| {
            self.due < throttled + empty_us || (self.asked <= throttled && self.is_of_log())
        })
    }

    /// Whether nothing but logs, which take it back wherever it is, has something of it.
    pub(super) fn is_of_logs_alone(&self) -> bool {
        let limits = super::touched(&self.costs);
        let is_log = |rule: &Rule| matches!(rule, Rule::SlidingLog(_) | Rule::Seats(_));
        !self.probes && self.is_of_log() && touched(&self.plan, self.margin, limits).all(is_log)
    }

    /// Whether a log was charged for it.
    pub(super) fn is_of_log(&self) -> bool {
        let limits = super::touched(&self.costs);
        touched(&self.plan, self.margin, limits).any(|rule| matches!(rule, Rule::SlidingLog(_)))
    }
}

pub(super) struct Caller {
    pub(super) costs: Costs,
    /// The last instant at which it may go, apart from what the limits themselves hold it, and with that.
    pub(super) patient_until: u64,
    pub(super) deadline: u64,
    pub(super) max_wait: Duration,
    /// Whether a slot was booked for it.
    pub(super) booked: bool,
    pub(super) answer: Answer,
}

pub(super) struct Line {
    pub(super) id: u64,
    pub(super) plan: Arc<Plan>,
    pub(super) margin: Margin,
    /// The limits that are touched, a bit each.
    pub(super) limits: u32,
    pub(super) callers: BTreeMap<u64, Caller>,
    pub(super) slots: VecDeque<Slot>,
    /// Slots with seats that were given away and not taken yet: to whom, and when.
    unclaimed: Vec<(u64, u64, Slot)>,
    /// Nothing is asked before: the next caller's instant lies far ahead, or the key is paused.
    pub(super) quiet_until: u64,
    /// When a call was last answered with a soft 429, and whether its task has not heard of it yet.
    throttled: u64,
    unheard: bool,
    /// Until then nothing is asked, for there is nothing.
    drained_until: u64,
    /// The first unbooked caller waits for a seat, and until then looks for none unless it is told of some.
    pub(super) seatless: bool,
    pub(super) look_at: u64,
    /// The limit of which the last trip that looked for seats found too few, for a call that can wait.
    pub(super) lacks: Option<usize>,
    /// Whether it has a task.
    pub(super) driven: bool,
    pub(super) turn: Arc<Notify>,
}

/// Who is asked for in a trip.
pub(super) struct Asked {
    pub(super) seq: u64,
    /// When the trip leaves.
    pub(super) at: u64,
    pub(super) costs: Costs,
    pub(super) patient_until: u64,
}

impl Line {
    pub(super) fn new(id: u64, plan: &Arc<Plan>, margin: Margin, limits: u32, drained_until: u64) -> Self {
        Self {
            id,
            plan: plan.clone(),
            margin,
            limits,
            callers: BTreeMap::new(),
            slots: VecDeque::new(),
            unclaimed: Vec::new(),
            quiet_until: 0,
            throttled: 0,
            unheard: false,
            drained_until,
            seatless: false,
            look_at: 0,
            lacks: None,
            driven: false,
            turn: Arc::default(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_empty() && !self.driven
    }

    /// Whether there is nobody, and nothing to give to anybody.
    pub(super) fn is_empty(&self) -> bool {
        self.callers.is_empty() && self.slots.is_empty() && self.unclaimed.is_empty()
    }

    /// Whether those who wait do so in a leaky bucket's queue, which is part of its state: they are booked as soon
    /// as they come, however far ahead, or refused.
    fn is_leaky(&self) -> bool {
        touched(&self.plan, self.margin, self.limits).any(|rule| rule.hold_us().is_some())
    }

    /// A soft 429 came, and nothing is to be had until then.
    pub(super) fn drained(&mut self, throttled: u64, until: u64) {
        (self.throttled, self.drained_until, self.unheard) = (throttled, until, true);
        self.turn.notify_one();
    }

    /// The slots that a soft 429 leaves nothing of, and whether there is any news of one.
    pub(super) fn lapse(&mut self) -> (Vec<Slot>, bool) {
        let throttled = self.throttled;
        let lapses = |slot: &Slot| throttled > 0 && slot.lapses(throttled);
        let (lapsed, kept) = std::mem::take(&mut self.slots).into_iter().partition::<Vec<_>, _>(lapses);
        self.slots = kept.into();
        for slot in &lapsed {
            if let Some(owner) = self.callers.get_mut(&slot.owner) {
                owner.booked = false;
            }
        }
        let news = std::mem::take(&mut self.unheard) || !lapsed.is_empty();
        (lapsed, news)
    }

    /// Before when nothing is asked.
    pub(super) fn asks_at(&self) -> u64 {
        self.quiet_until.max(self.drained_until)
    }

    /// What a caller is told whose slot has come.
    pub(super) fn give(&mut self, seq: u64, slot: Slot, now: u64) -> Told {
        if !slot.has_seats() {
            return Told::Go(Box::new(slot));
        }
        self.unclaimed.push((seq, now, slot));
        Told::Come
    }

    /// The slot that was given to a caller, unless it came too late for it.
    pub(super) fn claim(&mut self, seq: u64) -> Option<Slot> {
        let i = self.unclaimed.iter().position(|(to, ..)| *to == seq)?;
        self.turn.notify_one();
        Some(self.unclaimed.swap_remove(i).2)
    }

    /// Slots whose callers are there and do not come for them go to the next.
    pub(super) fn reclaim(&mut self, now: u64) {
        let absent = self.unclaimed.extract_if(.., |(_, since, _)| *since + UNCLAIMED_US <= now);
        absent.for_each(|(.., slot)| self.slots.push_front(slot));
    }

    /// Whether what is booked takes seats.
    pub(super) fn has_seats(&self) -> bool {
        self.slots.front().is_some_and(Slot::has_seats)
    }

    /// Whether it waits for seats of the limit at `i`.
    pub(super) fn waits(&self, i: usize) -> bool {
        self.lacks == Some(i) && self.unbooked().next().is_some()
    }

    /// Whether it keeps spare seats of the limit at `i`: not while it waits for time, for more of them, or for those of
    /// an earlier limit, so that no two calls wait for each other.
    pub(super) fn keeps(&self, i: usize, now: u64) -> bool {
        let is_short = self.seatless && self.lacks <= Some(i);
        self.limits >> i & 1 == 1 && !is_short && now >= self.asks_at() && self.unbooked().next().is_some()
    }

    /// Those for whom nothing is booked, in order. Slots whose owners have left serve the first of them.
    pub(super) fn unbooked(&self) -> impl Iterator<Item = (&u64, &Caller)> {
        let free = self.slots.iter().filter(|slot| !self.callers.contains_key(&slot.owner));
        let mut free = free.collect::<SmallVec<[&Slot; 4]>>();
        self.callers.iter().filter(|(_, caller)| !caller.booked).filter(move |(_, caller)| {
            let serves = |slot: &&Slot| covers(&slot.costs, &caller.costs) && slot.due <= caller.deadline;
            let found = free.iter().position(serves);
            found.map(|i| free.remove(i)).is_none()
        })
    }

    /// Whom to ask for next, if anybody: not while what is booked reaches further than a trip takes.
    pub(super) fn to_ask(&self, now: u64, lead_us: u64) -> Vec<Asked> {
        let reaches = !self.is_leaky() && self.slots.back().is_some_and(|slot| slot.due > now + lead_us);
        if reaches || now < self.asks_at() || (self.seatless && now < self.look_at) {
            return Vec::new();
        }
        let asked = self.unbooked().take(BATCH);
        asked
            .map(|(seq, caller)| Asked {
                seq: *seq,
                at: now,
                costs: caller.costs.clone(),
                patient_until: caller.patient_until,
            })
            .collect()
    }

    /// When this line has something to do by itself.
    pub(super) fn next_wake(&self, lead_us: u64, asking: bool) -> u64 {
        let due = self.slots.front().map_or(NEVER, |slot| slot.due);
        let reclaim = self.unclaimed.iter().map(|(_, since, _)| since + UNCLAIMED_US).min();
        let due = due.min(reclaim.unwrap_or(NEVER));
        if asking || self.unbooked().next().is_none() {
            return due;
        }
        let last = self.slots.back().filter(|_| !self.is_leaky());
        let ask = last.map_or(0, |slot| slot.due.saturating_sub(lead_us)).max(self.asks_at());
        due.min(if self.seatless { ask.max(self.look_at) } else { ask })
    }

    /// The first caller that a slot covers.
    pub(super) fn fitting(&self, costs: &[u64]) -> Option<u64> {
        self.callers.iter().find(|(_, caller)| covers(costs, &caller.costs)).map(|(seq, _)| *seq)
    }

    /// Takes a caller out. The slot that it leaves behind, if it was booked, is for the next.
    pub(super) fn remove(&mut self, seq: u64) -> Option<Caller> {
        let caller = self.callers.remove(&seq)?;
        let next = self.callers.iter().find(|(_, next)| !next.booked);
        if let Some((after, next)) = next
            && !caller.booked
            && *after > seq
            && next.costs != caller.costs
        {
            // What kept the first one need not keep the next.
            (self.quiet_until, self.seatless) = (0, false);
        }
        self.turn.notify_one();
        Some(caller)
    }

    /// Puts a slot among the others, by when it comes.
    pub(super) fn insert(&mut self, slot: Slot) {
        let i = self.slots.partition_point(|other| other.due <= slot.due);
        self.slots.insert(i, slot);
        self.turn.notify_one();
    }

    /// All slots that have not come, the last booked first; whoever they were for is unbooked.
    pub(super) fn take_slots(&mut self) -> Vec<Slot> {
        self.callers.values_mut().for_each(|caller| caller.booked = false);
        self.slots.drain(..).rev().collect()
    }
}

/// How long after a soft 429 no call goes under these limits: Redis drains no bucket that is booked ahead, so each
/// process waits until every bucket, drained then, gives a unit, and until Redis knows what a log has not. Not in a
/// leaky bucket's queue, which is charged.
pub(super) fn empty_us(plan: &Plan, margin: Margin, limits: u32) -> Option<u64> {
    let rules = || touched(plan, margin, limits);
    if plan.policy.is_observe_only() || rules().any(|rule| rule.hold_us().is_some()) {
        return None;
    }
    let empty = rules().filter_map(|rule| match rule {
        Rule::Gcra(_) => Some(rule.earliest(&rule.full(0), 0, 1)),
        Rule::SlidingLog(_) => Some(TOLD_US),
        _ => None,
    });
    empty.max()
}

fn touched(plan: &Plan, margin: Margin, limits: u32) -> impl Iterator<Item = &Rule> {
    let rules = plan.rules.of(margin).iter().enumerate();
    rules.filter(move |(i, _)| limits >> i & 1 == 1).map(|(_, rule)| rule)
}

/// Whether a slot of these costs is enough for a call of those.
pub(super) fn covers(slot: &[u64], call: &[u64]) -> bool {
    slot.iter().zip(call).all(|(slot, call)| slot >= call)
}
