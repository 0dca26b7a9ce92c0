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

/// Whom a trip asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asks {
    Nobody,
    /// One that stands in no line, and may not wait.
    One,
    Line(u64),
}

impl Asks {
    fn line(self) -> Option<u64> {
        match self {
            Self::Line(id) => Some(id),
            Self::Nobody | Self::One => None,
        }
    }
}

/// Whether callers wait for a seat under the limit of this label, apart from those in one line.
fn is_waited_for(lines: &[Line], label: &Label, but: Option<u64>) -> bool {
    let touches =
        |line: &Line| seat_labels(&line.plan).any(|(i, of)| line.limits >> i & 1 == 1 && of.is_same(label));
    let mut others = lines.iter().filter(|line| Some(line.id) != but);
    others.any(|line| touches(line) && line.unbooked().next().is_some())
}

/// The labels of a plan's limits of seats, each with its index among all, in the policy's order.
pub(super) fn seat_labels(plan: &Plan) -> impl Iterator<Item = (usize, &Label)> + Clone {
    let limits = plan.rules.labels.limits.iter().zip(plan.rules.of(Margin::None)).enumerate();
    limits.filter(|(_, (_, rule))| rule.is_seats()).map(|(i, (label, _))| (i, label))
}

impl State {
    /// The seats of every limit of seats of a plan, as they are to be reported by a trip for that line, for a call that
    /// stands in none, or for nobody.
    pub(super) fn report(
        &mut self,
        plan: &Plan,
        now: u64,
        settling: bool,
        lease_us: u64,
        asks: Asks,
    ) -> SmallVec<[SeatReport; 1]> {
        let labels = seat_labels(plan).map(|(_, label)| label);
        for (known, seats) in &mut self.seats {
            if !labels.clone().any(|label| known.is_same(label)) {
                seats.retire();
            }
        }
        labels
            .map(|label| {
                let waits = is_waited_for(&self.lines, label, asks.line());
                let seats = self.seats_of(label);
                seats.queued &= waits || asks != Asks::Nobody;
                SeatReport { waits, ..seats.report(now, settling, lease_us) }
            })
            .collect()
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
        let left = |label, seats: &Seats| seats.queued && !is_waited_for(&self.lines, label, None);
        self.seats.iter().any(|(label, seats)| seats.is_unreported() || left(label, seats))
    }

    /// A trip for a line that touches these limits has ended: who waits in Redis's queue now, and for what. Whoever waits
    /// for a seat holds back none of a later limit, so that no two wait for each other.
    pub(super) fn queued(&mut self, plan: &Plan, limits: u32, line: u64, seatless: Option<usize>) {
        for (i, label) in seat_labels(plan).filter(|(i, _)| limits >> i & 1 == 1) {
            let others = is_waited_for(&self.lines, label, Some(line));
            let seats = self.seats_of(label);
            seats.queued = seatless == Some(i) || (seats.queued && others);
            if seatless.is_some_and(|seatless| seatless < i) && !others {
                seats.free_spare();
            }
        }
    }

    /// Whether seats are held, or waited for.
    pub(super) fn holds_seats(&self) -> bool {
        self.seats.iter().any(|(_, seats)| seats.is_held()) || self.lines.iter().any(|line| line.seatless)
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

    /// News of seats for the limit at `index` of the newest plan.
    pub(super) fn told_seats(&mut self, label: &Label, epoch: u64, granted: u64) -> bool {
        let new = self.seats_of(label).told(epoch, granted, clock::now_us());
        if new {
            self.look_for_seats();
        }
        new
    }

    /// When to look for seats of the limit at this index, of which a trip found too few for a call of that cost: at once if
    /// they have come meanwhile, be it by news or by the end of the trip itself.
    pub(super) fn look_at(&mut self, plan: &Plan, i: usize, cost: u64, part: &ReplyPart, now: u64) -> u64 {
        if cost <= self.seats_of(&plan.rules.labels.limits[i]).spare {
            return now;
        }
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

    /// Spare seats are free where nobody waits for them. Whether there were any.
    pub(super) fn free_spare(&mut self) -> bool {
        let mut freed = false;
        for (label, seats) in self.seats.iter_mut().filter(|(_, seats)| seats.spare > 0) {
            if !is_waited_for(&self.lines, label, None) {
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
