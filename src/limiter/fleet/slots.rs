//! Slots: what a trip brings, who gets it when it is due, and what becomes of those that nobody wants.

use std::sync::Arc;

use super::key::{Answers, State};
use super::known::Known;
use super::line::{Asked, Line, Slot, Told, covers};
use super::replay::{self, Snapshots};
use super::seated::seat_labels;
use crate::algorithm::{AHEAD_US, Costs, NEVER};
use crate::clock;
use crate::limit::Margin;
use crate::limiter::{Plan, RefusedKind};
use crate::store::redis::wire::Slot as Booked;
use crate::store::redis::wire::{Ended, Reply, ReplyPart};

/// How long after it was due a slot that was left behind is still good: no longer than a timer may wake late.
const LATE_US: u64 = 5_000;
/// A caller whose slot lies further ahead than anyone books asks again so long before it, at random.
const ASK_AGAIN_US: (u64, u64) = (AHEAD_US / 2, AHEAD_US);

/// What Redis charged, and for when: on its clock, and `due` on this process's.
pub(super) struct Booking<'a> {
    pub(super) plan: &'a Arc<Plan>,
    pub(super) margin: Margin,
    pub(super) now: u64,
    pub(super) at: u64,
    pub(super) due: u64,
    /// When it was asked for, on this process's clock.
    pub(super) asked: u64,
    /// Whether the key was paused: it is the probe of that.
    pub(super) probes: bool,
}

/// Whether a slot was booked for such calls as stand in a line.
fn is_of(slot: &Slot, line: &Line) -> bool {
    Arc::ptr_eq(&slot.plan, &line.plan)
        && slot.margin == line.margin
        && super::touched(&slot.costs) == line.limits
}

impl State {
    /// Whether it is known that others have booked after a slot, so that it cannot go back. Inside a pause it may
    /// be a probe, and goes back in any case.
    pub(super) fn is_passed(&self, slot: &Slot) -> bool {
        let known = self.known.as_ref().filter(|known| known.plan == slot.plan.id);
        let is_passed = |known: &Known| replay::are_after(&known.states, &slot.costs, slot.at);
        self.paused(clock::now_us()).is_none() && known.is_some_and(is_passed)
    }

    /// Keeps slots that are still charged although nobody wants them. Those with seats have given these back.
    pub(super) fn keep(&mut self, slots: impl IntoIterator<Item = Slot>, now: u64) {
        if self.paused(now).is_some() {
            return;
        }
        for mut slot in slots.into_iter().filter(|slot| !slot.has_seats()) {
            if !self.lapses(&slot) {
                slot.was_offered = true;
                self.left.push(slot);
            }
        }
        for i in 0..self.lines.len() {
            if !self.lines[i].callers.is_empty() {
                self.offer_left(i, now);
            }
        }
    }

    /// Slots of a log that lapsed: the next trip says so, whoever has booked after them.
    pub(super) fn uncharge(&mut self, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            self.free_slot(&slot);
            self.fates.add(&slot.plan, slot.at, slot.costs.iter().copied(), None);
        }
    }

    /// Gives the slots that were left to the line at `i`, where they fit it.
    pub(super) fn offer_left(&mut self, i: usize, now: u64) {
        self.left.retain(|slot| slot.due + LATE_US > now);
        let line = &mut self.lines[i];
        for slot in self.left.extract_if(.., |slot| is_of(slot, line)).collect::<Vec<_>>() {
            line.insert(slot);
        }
    }

    /// Gives every slot that is due to the first caller that it covers. Slots that nobody wants, the last
    /// booked first.
    pub(super) fn grant_due(&mut self, id: u64, now: u64, answers: &mut Answers) -> Vec<Slot> {
        let paused = self.paused(now).is_some();
        let lease_is_over = self.seats.iter().any(|(_, seats)| seats.is_lease_over(now));
        let Some(line) = self.line(id) else { return Vec::new() };
        line.reclaim(now);
        if paused || line.callers.is_empty() || (lease_is_over && line.has_seats()) {
            // Inside a pause, or when others may have their seats, they lapse and are booked again.
            let unwanted = line.take_slots();
            unwanted.iter().for_each(|slot| self.free_slot(slot));
            if !unwanted.is_empty() {
                self.doubt();
                self.refuse_hopeless(id, now, answers);
            }
            return unwanted;
        }
        let (lapsed, is_drained) = line.lapse();
        let (of_logs, mut unwanted): (Vec<_>, Vec<_>) = lapsed.into_iter().partition(Slot::is_of_logs_alone);
        self.uncharge(of_logs);
        let line = self.line(id).expect("it was there just now");
        while line.slots.front().is_some_and(|slot| slot.due <= now) {
            let slot = line.slots.pop_front().expect("there is a first");
            let Some(seq) = line.fitting(&slot.costs) else {
                unwanted.push(slot);
                continue;
            };
            let caller = line.callers.remove(&seq).expect("it was just found");
            if slot.owner != seq
                && let Some(owner) = line.callers.get_mut(&slot.owner)
            {
                // Its own slot goes to the one whose slot it takes, if that is enough for it.
                let serves = |own: &&mut Slot| {
                    own.owner == seq && covers(&own.costs, &owner.costs) && own.due <= owner.deadline
                };
                match line.slots.iter_mut().find(serves) {
                    Some(own) => own.owner = slot.owner,
                    None => owner.booked = false,
                }
            }
            let told = line.give(seq, slot, now);
            answers.push(caller, told);
        }
        unwanted.reverse();
        unwanted.iter().for_each(|slot| self.free_slot(slot));
        if is_drained {
            self.doubt();
            self.refuse_hopeless(id, now, answers);
        }
        unwanted
    }

    /// Answers all in a line for whom nothing is booked: the others go when their slots come, wherever Redis is.
    pub(super) fn tell_unbooked(&mut self, id: u64, told: impl Fn() -> Told, answers: &mut Answers) {
        let Some(line) = self.line(id) else { return };
        let unbooked = line.unbooked().map(|(seq, _)| *seq).collect::<Vec<_>>();
        for seq in unbooked {
            answers.push(line.remove(seq).expect("it was just found"), told());
        }
    }

    /// Answers all who wait in a line.
    pub(super) fn tell_all(&mut self, id: u64, told: impl Fn() -> Told, answers: &mut Answers) {
        let Some(line) = self.line(id) else { return };
        for (_, caller) in std::mem::take(&mut line.callers) {
            answers.push(caller, told());
        }
    }

    /// Takes in what a trip for a line answered.
    pub(super) fn answered(
        &mut self,
        id: u64,
        plan: &Arc<Plan>,
        asked: Vec<Asked>,
        mut reply: Reply,
        received: u64,
        answers: &mut Answers,
    ) {
        let part = reply.parts.pop().expect("one part was asked about");
        let local = |at: u64| received.saturating_add(at.saturating_sub(reply.now));
        self.heard(plan, &part, reply.now, received);
        let probes = part.pause.until > reply.now;
        let Some(line) = self.lines.iter().find(|line| line.id == id) else { return };
        let (margin, limits) = (line.margin, line.limits);
        let rules = plan.rules.of(margin);
        let mut states = part.states.clone();
        let mut refused = Vec::new();
        let mut slots = Vec::new();
        let short = match (reply.ended, asked.get(reply.slots.len())) {
            (Ended::Seatless(i), Some(next)) => Some((next.seq, i, next.costs[i])),
            _ => None,
        };
        for (asked, decided) in asked.into_iter().zip(&reply.slots) {
            match *decided {
                Booked::TooLate(at) => refused.push((asked, at)),
                Booked::At(at) => {
                    // Who is only observed goes at once.
                    let due = if plan.policy.is_observe_only() { received } else { local(at) };
                    let booking = Booking { plan, margin, now: reply.now, at, due, asked: asked.at, probes };
                    slots.push(self.book(asked.seq, booking, asked.costs, &mut states));
                }
            }
        }
        let touched = (0..rules.len()).map(|i| u64::from(limits >> i & 1 == 1)).collect::<Vec<_>>();
        let stands = match reply.ended {
            Ended::Ahead(at) => at,
            Ended::Paused { until, .. } => until,
            _ => replay::stands(&states, &touched, reply.now),
        };
        let look_at = self.look_at(plan, &part, received);
        self.know(plan, (reply.now, received), part, states, (limits, stands));
        for (asked, at) in refused {
            let seatless = at == NEVER;
            let at = if seatless { NEVER } else { local(at) };
            let Some(caller) = self.line(id).and_then(|line| line.remove(asked.seq)) else { continue };
            let kind = if seatless { RefusedKind::NoSeat } else { RefusedKind::RateLimited };
            let refused = self.refusal(plan, margin, &caller.costs, at, caller.max_wait, kind);
            answers.push(caller, Told::Refused(refused));
        }
        let paused = self.paused(received);
        let line = self.line(id).expect("it was there just now");
        for slot in slots {
            if let Some(owner) = line.callers.get_mut(&slot.owner) {
                owner.booked = true;
            }
            line.slots.push_back(slot);
        }
        match reply.ended {
            Ended::All | Ended::Span => (line.seatless, line.lacks) = (false, None),
            Ended::Ahead(at) => {
                (line.seatless, line.lacks) = (false, None);
                let early = fastrand::u64(ASK_AGAIN_US.0..=ASK_AGAIN_US.1);
                line.quiet_until = local(at).saturating_sub(early);
            }
            Ended::Seatless(_) => (line.seatless, line.look_at) = (true, look_at),
            Ended::Paused { ask_again, .. } => line.quiet_until = local(ask_again),
        }
        // A pause that Redis has not heard of yet.
        line.quiet_until = line.quiet_until.max(paused.unwrap_or(0));
        self.refuse_hopeless(id, clock::now_us(), answers);
        if let Some((seq, i, cost)) = short {
            // One that has left, or could not wait and was refused just now, says nothing of those behind it; and by the
            // end of the trip there may be enough.
            let has_enough = cost <= self.seats_of(&plan.rules.labels.limits[i]).spare;
            let line = self.line(id).expect("it was there just now");
            line.lacks = line.callers.contains_key(&seq).then_some(i);
            line.seatless = line.lacks.is_some() && !has_enough;
        }
        self.free_spare(received);
    }

    /// A slot that Redis charged, with its seats.
    pub(super) fn book(
        &mut self,
        owner: u64,
        booking: Booking<'_>,
        costs: Costs,
        states: &mut Snapshots,
    ) -> Slot {
        let Booking { plan, margin, now, at, due, asked, probes } = booking;
        let rules = plan.rules.of(margin);
        let before = states.clone();
        let marks = replay::book(rules, states, at, &costs);
        for (i, label) in seat_labels(plan).filter(|(i, _)| costs[*i] > 0) {
            self.seats_of(label).take(costs[i]);
        }
        let (plan, after) = (plan.clone(), states.clone());
        Slot {
            owner,
            due,
            at,
            asked,
            now,
            plan,
            margin,
            costs,
            marks,
            before,
            after,
            probes,
            was_offered: false,
        }
    }

    /// The slot of a call that stood in no line.
    pub(super) fn book_now(&mut self, booking: Booking<'_>, costs: Costs, part: ReplyPart) -> Slot {
        let (plan, now, due) = (booking.plan, booking.now, booking.due);
        self.heard(plan, &part, now, due);
        let limits = super::touched(&costs);
        let mut states = part.states.clone();
        let slot = self.book(0, booking, costs, &mut states);
        self.know(plan, (now, due), part, states, (limits, now));
        slot
    }
}
