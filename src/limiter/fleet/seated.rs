//! The seats of one key, under every limit of seats that it has: what is to be reported, and who is to look for one.
//!
//! Never asks for a seat by itself: it only says what is true here, and wakes the lines that wait.

use smallvec::SmallVec;

use super::key::State;
use super::line::{Line, Slot};
use super::seats::Seats;
use crate::algorithm::NEVER;
use crate::clock;
use crate::decision::Label;
use crate::limit::Margin;
use crate::limiter::Plan;
use crate::store::redis::wire::{ReplyPart, SeatReport};

/// Whether any line is so, by the limit of this label.
fn any_line(lines: &[Line], label: &Label, is: impl Fn(&Line, usize) -> bool) -> bool {
    let of = |line: &Line| seat_labels(&line.plan).find(|(_, of)| of.is_same(label)).map(|(i, _)| i);
    lines.iter().any(|line| of(line).is_some_and(|i| is(line, i)))
}

/// The labels of a plan's limits of seats, each with its index among all, in the policy's order.
pub(super) fn seat_labels(plan: &Plan) -> impl Iterator<Item = (usize, &Label)> + Clone {
    let limits = plan.rules.labels.limits.iter().zip(plan.rules.of(Margin::None)).enumerate();
    limits.filter(|(_, (_, rule))| rule.is_seats()).map(|(i, (label, _))| (i, label))
}

impl State {
    /// The seats of every limit of seats of a plan, as they are to be reported; by a trip for callers of a line.
    pub(super) fn report(
        &mut self,
        plan: &Plan,
        now: u64,
        settling: bool,
        lease_us: u64,
        asking: Option<u64>,
    ) -> SmallVec<[SeatReport; 1]> {
        let labels = seat_labels(plan).map(|(_, label)| label);
        for (known, seats) in &mut self.seats {
            if !labels.clone().any(|label| known.is_same(label)) {
                seats.retire();
            }
        }
        let report = |label: &Label| {
            let others = |line: &Line, i| Some(line.id) != asking && line.waits(i);
            let waits = any_line(&self.lines, label, others);
            SeatReport { waits, ..self.seats_of(label).report(now, settling, lease_us) }
        };
        labels.map(report).collect()
    }

    pub(super) fn seats_of(&mut self, label: &Label) -> &mut Seats {
        let found = self.seats.iter().position(|(known, _)| known.is_same(label));
        let i = found.unwrap_or_else(|| {
            self.seats.push((label.clone(), Seats::default()));
            self.seats.len() - 1
        });
        &mut self.seats[i].1
    }

    /// Whether Redis has to be told of seats, or that nobody waits for one any more.
    pub(super) fn is_unreported(&self) -> bool {
        let left = |label| !any_line(&self.lines, label, Line::waits);
        self.seats.iter().any(|(label, seats)| seats.is_unreported() || (seats.queued && left(label)))
    }

    /// Whether Redis keeps any seats for this process, or its place in a queue.
    pub(super) fn keeps_seats(&self) -> bool {
        self.seats.iter().any(|(_, seats)| seats.is_kept())
    }

    /// What was reported may not have arrived.
    pub(super) fn report_lost(&mut self) {
        self.seats.iter_mut().for_each(|(_, seats)| seats.lost());
    }

    /// Seats under the limit of this label are not used any more.
    pub(super) fn free(&mut self, label: &Label, seats: u64) {
        self.seats_of(label).free(seats);
        self.look_for_seats();
    }

    /// News of seats under the limit of this label.
    pub(super) fn told_seats(&mut self, label: &Label, epoch: u64, granted: u64) {
        if self.seats_of(label).told(epoch, granted, clock::now_us()) {
            self.look_for_seats();
        }
    }

    /// When to look for seats again, of which a trip found too few.
    pub(super) fn look_at(&mut self, plan: &Plan, part: &ReplyPart, now: u64) -> u64 {
        let each = seat_labels(plan).zip(&part.seats);
        let each = each.map(|((_, label), answer)| self.seats_of(label).look_at(answer, now));
        each.min().unwrap_or(NEVER)
    }

    /// Lines that wait for a seat ask again.
    pub(super) fn look_for_seats(&mut self) {
        for line in self.lines.iter_mut().filter(|line| line.seatless) {
            line.seatless = false;
            line.turn.notify_one();
        }
    }

    /// Spare seats are free where nobody keeps them: where some wait for such, one of these. Whether there were any.
    pub(super) fn free_spare(&mut self, now: u64) -> bool {
        let mut freed = false;
        for (label, seats) in self.seats.iter_mut().filter(|(_, seats)| seats.spare > 0) {
            let waited_for = any_line(&self.lines, label, Line::waits);
            let keeps = |line: &Line, i| line.keeps(i, now) && (!waited_for || line.waits(i));
            if !any_line(&self.lines, label, keeps) {
                seats.free_spare();
                freed = true;
            }
        }
        freed
    }

    /// Seats that were given out while Redis was away are in use as well.
    pub(super) fn hold(&mut self, label: &Label, seats: u64) {
        self.seats_of(label).hold(seats);
    }

    /// Frees the seats of a slot.
    pub(super) fn free_slot(&mut self, slot: &Slot) {
        for (i, label) in seat_labels(&slot.plan) {
            self.seats_of(label).free(slot.costs[i]);
        }
        self.look_for_seats();
    }
}
