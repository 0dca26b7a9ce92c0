//! The seats of the one process of a walk: what `lua/seats.lua` opens and closes a trip with.
//!
//! It loses nothing and nobody else is there, so that a report is always true. Everything that can go wrong with one is
//! walked in `fleet`.

use super::{Model, Open};
use crate::algorithm::{Rule, State};
use crate::store::redis::wire::*;

#[derive(Debug, Default, Clone)]
pub(super) struct Seats {
    answer: SeatAnswer,
    need: u64,
    leased_until: u64,
}

impl Model {
    /// What the only process says that it has in use.
    pub(super) fn report(&mut self, name: &str, report: &SeatReport, trip: &Trip<'_>) -> u64 {
        let now = trip.now.unwrap();
        let Some(kept) = self.seats.get_mut(name) else {
            if trip.callers.is_empty() && report.in_use == 0 && report.epoch == 0 {
                return 0;
            }
            assert_eq!(report.epoch, 0, "nothing is lost here");
            let answer =
                SeatAnswer { epoch: now, granted: report.seen, used: report.in_use, ..SeatAnswer::default() };
            let leased_until = now + trip.worker.lease_us;
            self.seats.insert(name.to_owned(), Seats { answer, need: 0, leased_until });
            return report.in_use;
        };
        kept.leased_until = now + trip.worker.lease_us;
        kept.answer.used = report.in_use + kept.answer.granted - report.seen;
        kept.answer.used
    }

    pub(super) fn close(&mut self, limit: Open<'_>, trip: &Trip<'_>, paused: bool) -> SeatAnswer {
        let now = trip.now.unwrap();
        let State::Seats(state) = &limit.state else { unreachable!("it is one of seats") };
        let Rule::Seats(rule) = limit.rule() else { unreachable!("it is one of seats") };
        let Some(kept) = self.seats.get_mut(limit.name) else {
            return SeatAnswer { granted: limit.report.seen, ..SeatAnswer::default() };
        };
        kept.answer.granted += state.in_use - kept.answer.used;
        kept.answer.used = state.in_use;
        let is_served = (limit.satisfied && !paused) || trip.callers.is_empty();
        if limit.report.may_take && limit.need > 0 {
            let others = limit.report.waits && kept.need > 0;
            kept.need = if others { kept.need.min(limit.need) } else { limit.need };
        } else if !limit.report.may_take || (is_served && !limit.report.waits) {
            kept.need = 0;
        }
        while kept.need > 0 && kept.answer.used + kept.need <= rule.cap {
            kept.answer.used += kept.need;
            kept.answer.granted += kept.need;
            kept.need = if kept.need < limit.need { limit.need } else { 0 };
        }
        kept.answer.lease_left_us = kept.leased_until - now;
        kept.answer.queued = kept.need > 0;
        if kept.answer.used == 0 && kept.need == 0 {
            let granted = kept.answer.granted;
            self.seats.remove(limit.name);
            return SeatAnswer { granted, ..SeatAnswer::default() };
        }
        kept.answer
    }
}
