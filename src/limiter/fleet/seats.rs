//! The seats that this process holds under one limit of one key, as it has to tell Redis.
//!
//! All numbers are absolute, so a report that is lost, late or repeated can only leave a seat unused for a
//! while. A seat that was reported free is not used again without a new grant.

use crate::algorithm::NEVER;
use crate::store::redis::wire::{SeatAnswer, SeatReport};

/// How long no seat is taken after this process was forgotten, or Redis lost its state: until everyone has
/// reported.
pub(super) const SETTLING_US: u64 = 3_000_000;

/// Redis is asked so long after a lease is over that it is over there, too.
const LATE_US: u64 = 2_000;

/// The seats held here under one limit.
#[derive(Debug, Default)]
pub(super) struct Seats {
    epoch: u64,
    turn: u64,
    /// News of grants in a life of this process of which it has not heard yet: its epoch, and they.
    early: Option<(u64, u64)>,
    /// Grants heard of, in all.
    seen: u64,
    /// Held by calls, and by slots that nobody has taken yet.
    held: u64,
    /// Granted, and not given to anyone yet.
    pub(super) spare: u64,
    /// Redis had this process in its queue for them when it was last heard of.
    pub(super) queued: bool,
    /// What Redis has in its books: what it was told last, and what it has granted since.
    reported: Option<u64>,
    settled: u64,
    /// When the lease ends that the last report asked for, and that which was answered; counted from the sending.
    asked_until: u64,
    leased_until: u64,
}

impl Seats {
    /// What to tell Redis now.
    pub(super) fn report(&mut self, now: u64, settling: bool, lease_us: u64) -> SeatReport {
        // Beyond what a former record of the key has said.
        self.turn = now.max(self.turn + 1);
        self.asked_until = now + lease_us;
        if now >= self.leased_until {
            // Others may have them by now.
            self.spare = 0;
        }
        let in_use = self.held + self.spare;
        self.reported = Some(in_use);
        SeatReport {
            epoch: self.epoch,
            turn: self.turn,
            seen: self.seen,
            in_use,
            spare: self.spare,
            may_take: !settling && now >= self.settled,
            waits: false,
        }
    }

    /// The policy has the limit no more. What is held stays counted, should the limit come back.
    pub(super) fn retire(&mut self) {
        (self.spare, self.queued, self.reported, self.leased_until) = (0, false, None, u64::MAX);
    }

    /// Whether Redis knows of other numbers than are true.
    pub(super) fn is_unreported(&self) -> bool {
        self.reported.is_some_and(|reported| reported != self.held + self.spare)
    }

    /// Whether Redis keeps anything for this process, or will.
    pub(super) fn is_kept(&self) -> bool {
        self.held + self.spare > 0 || (self.epoch != 0 && self.reported.is_some())
    }

    /// A report may not have arrived: it is to be made again.
    pub(super) fn lost(&mut self) {
        self.reported = Some(u64::MAX);
    }

    /// Takes in an answer. Whether there are new grants.
    pub(super) fn answered(&mut self, answer: &SeatAnswer, now: u64) -> bool {
        // Without anything to keep Redis forgets this process, which is no loss.
        if self.epoch != 0 && answer.epoch != 0 && answer.epoch != self.epoch {
            // Forgotten: what was granted and not heard of is lost, and others may be unreported too.
            self.settled = now + SETTLING_US;
            self.seen = answer.granted;
        }
        self.epoch = answer.epoch;
        self.queued = answer.queued;
        self.leased_until = self.asked_until;
        let told =
            self.early.take().filter(|(epoch, _)| *epoch == self.epoch).map_or(0, |(_, granted)| granted);
        self.granted(answer.granted.max(told))
    }

    /// Whether others may have the seats that are held here: no call begins with one of those.
    pub(super) fn is_lease_over(&self, now: u64) -> bool {
        now >= self.leased_until
    }

    /// Hears of grants by news; of another life of this process they mean nothing unless an answer tells of that life, and
    /// what comes after the lease is to be asked about. Whether there are new ones.
    pub(super) fn told(&mut self, epoch: u64, granted: u64, now: u64) -> bool {
        if epoch != self.epoch {
            self.early = Some((epoch, granted));
            return false;
        }
        if self.is_lease_over(now) { granted > self.seen } else { self.granted(granted) }
    }

    /// When there may be seats again that were not there for this answer: when the others have reported, or when a lease
    /// is over.
    pub(super) fn look_at(&self, answer: &SeatAnswer, now: u64) -> u64 {
        let lease = if answer.lease_left_us == 0 { NEVER } else { now + answer.lease_left_us + LATE_US };
        if self.settled > now { lease.min(self.settled) } else { lease }
    }

    fn granted(&mut self, granted: u64) -> bool {
        let new = granted.saturating_sub(self.seen);
        self.seen += new;
        self.spare += new;
        self.reported = self.reported.map(|reported| reported.saturating_add(new));
        new > 0
    }

    /// Gives seats to a slot: spare ones, but for those that were freed here while the trip was under way.
    pub(super) fn take(&mut self, seats: u64) {
        self.spare = self.spare.saturating_sub(seats);
        self.held += seats;
    }

    /// Seats are in use that Redis did not grant.
    pub(super) fn hold(&mut self, seats: u64) {
        self.held += seats;
        self.reported.get_or_insert(0);
    }

    /// Seats are not used any more; they are free once reported.
    pub(super) fn free(&mut self, seats: u64) {
        self.held = self.held.saturating_sub(seats);
    }

    /// Spare seats that nobody waits for are free too.
    pub(super) fn free_spare(&mut self) {
        self.spare = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_that_overtakes_the_answer_which_it_follows_is_kept_for_it() {
        let mut seats = Seats::default();
        seats.report(0, false, 10_000_000);
        assert!(!seats.told(7, 1, 1), "of no life that it knows");
        assert!(seats.answered(&SeatAnswer { epoch: 7, used: 8, ..SeatAnswer::default() }, 2));
        assert_eq!(seats.spare, 1);
    }
}
