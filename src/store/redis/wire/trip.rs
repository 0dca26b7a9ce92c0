//! One trip as it is asked: which budgets, who waits for them, and what this process knows already.
//!
//! Twin of the tables of arguments at the top of `lua/book.lua` and `lua/quick.lua`.

use std::sync::atomic::Ordering;

use super::{Args, Call, Packed, ReplyPart, Snapshot, Worker, fingerprint};
use crate::algorithm::{Costs, NEVER, Rule, Rules};
use crate::limit::{MAX_EXACT, Margin};
use crate::store::redis::names::Names;
use crate::store::redis::script;

/// One trip: which budgets, and who waits for them, in order. Without callers it only reads, and reports seats.
pub(crate) struct Trip<'a> {
    /// The clock of tests; by default Redis's own.
    pub(crate) now: Option<u64>,
    pub(crate) worker: &'a Worker,
    pub(crate) parts: &'a [TripPart<'a>],
    /// At most 64.
    pub(crate) callers: &'a [Waiter<'a>],
    /// Charges the callers at once, whatever the state: what was already sent.
    pub(crate) forced: bool,
}

/// One key of one policy.
pub(crate) struct TripPart<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) margin: Margin,
    pub(crate) names: &'a Names,
    /// What this process saw last, to heal what was lost.
    pub(crate) seen: Option<&'a ReplyPart>,
    /// By limit of seats, in the policy's order.
    pub(crate) seats: &'a [SeatReport],
    /// What became of calls of this process since the last trip.
    pub(crate) fates: &'a [Fate],
}

/// What became of calls of one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) slot: u64,
    /// How long before this the last of them was answered: the service has seen them by then. `None` if it counts none
    /// of them: they were refused, or not sent.
    pub(crate) answered_ago_us: Option<u64>,
    /// What they were charged, by limit.
    pub(crate) costs: Costs,
}

/// A caller that waits.
#[derive(Debug, Clone)]
pub(crate) struct Waiter<'a> {
    /// How long from now it may still be held, apart from what a leaky bucket holds it in its own time.
    pub(crate) held_us: u64,
    /// By limit, over all parts.
    pub(crate) costs: &'a [u64],
}

/// What a process knows of its seats under one limit of one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SeatReport {
    /// Which life of the session this is; 0 before the first answer.
    pub(crate) epoch: u64,
    /// Grows with each report; an older one is ignored.
    pub(crate) turn: u64,
    /// The grants that it has heard of, in all.
    pub(crate) seen: u64,
    /// Seats that calls hold, and those that are spare.
    pub(crate) in_use: u64,
    /// Seats in hand for the callers of this trip; they are part of `in_use`.
    pub(crate) spare: u64,
    /// Whether it may be granted new ones.
    pub(crate) may_take: bool,
    /// Whether more calls of it wait than those of this trip.
    pub(crate) waits: bool,
}

impl TripPart<'_> {
    pub(super) fn rules(&self) -> &[Rule] {
        self.rules.of(self.margin)
    }

    pub(in crate::store::redis) fn fingerprint(&self) -> u64 {
        fingerprint(self.rules, self.margin)
    }

    /// What was seen of the states, if it was by these numbers.
    fn seen(&self) -> Option<&ReplyPart> {
        self.seen.filter(|seen| seen.numbers == self.fingerprint())
    }

    fn pack(&self, packed: &mut Packed) {
        let pause = self.seen.map(|seen| seen.pause).unwrap_or_default();
        packed.numbers([self.rules().len() as u64, self.rules.budget_us()]);
        packed.numbers(pause.numbers());
        let seen = self.seen();
        let mut reports = self.seats.iter();
        for (i, (rule, wide)) in self.rules().iter().zip(self.rules.of(Margin::Default)).enumerate() {
            packed.number(u64::from(rule.letter()));
            rule.numbers(wide).iter().for_each(|number| packed.signed(*number));
            if rule.is_seats() {
                let report = reports.next().copied().unwrap_or_default();
                packed.numbers([report.epoch, report.turn, report.seen, report.in_use, report.spare]);
                packed.numbers([report.may_take, report.waits].map(u64::from));
            } else {
                packed.number(seen.map_or(0, |seen| seen.versions[i]));
            }
        }
    }

    fn pack_seen(&self, packed: &mut Packed) {
        let Some(seen) = self.seen() else { return };
        for (state, _) in seen.states.iter().zip(&seen.versions).filter(|(_, version)| **version > 0) {
            let numbers = state.numbers();
            packed.number(numbers.len() as u64);
            packed.numbers(numbers);
        }
    }
}

impl Trip<'_> {
    pub(crate) fn call(&self) -> Call {
        let mut keys = Vec::new();
        for part in self.parts {
            keys.push(part.names.pause.clone().into_bytes());
            let timed = part.rules().iter().zip(&part.names.limits).filter(|(rule, _)| !rule.is_seats());
            keys.extend(timed.map(|(_, name)| name.clone().into_bytes()));
        }
        let mut has_seats = false;
        for part in self.parts {
            for (i, _) in part.rules().iter().enumerate().filter(|(_, rule)| rule.is_seats()) {
                has_seats = true;
                keys.extend(part.names.seats(i).map(String::into_bytes));
            }
        }
        let presence = self.worker.presence.as_deref().filter(|_| has_seats);
        keys.extend(presence.map(|name| name.as_bytes().to_vec()));

        let mut args = Args::default();
        args.0.push(self.quick().unwrap_or_default().0);
        args.0.push(self.packed().0);
        if has_seats {
            args.text(self.worker.session.as_bytes());
            args.text(self.worker.channel.as_bytes());
            args.number(self.worker.lease_us);
        }
        if presence.is_some() {
            args.number(self.worker.born.load(Ordering::Relaxed));
        }
        Call { script: &script::BOOK, keys, args: args.0 }
    }

    fn packed(&self) -> Packed {
        let runs = self.callers.chunk_by(|caller, next| caller.costs == next.costs);
        let mut packed = Packed::default();
        packed.number(self.now.unwrap_or(0));
        packed.number(u64::from(self.forced));
        packed.number(self.parts.len() as u64);
        self.parts.iter().for_each(|part| part.pack(&mut packed));
        packed.number(runs.clone().count() as u64);
        for run in runs {
            packed.number(run.len() as u64);
            packed.numbers(run[0].costs.iter().copied());
            packed.numbers(run.iter().map(|caller| caller.held_us));
        }
        self.parts.iter().for_each(|part| part.pack_seen(&mut packed));
        for part in self.parts {
            packed.number(part.fates.len() as u64);
            for fate in part.fates {
                packed.number(fate.slot);
                packed.signed(fate.answered_ago_us.map_or(-1, |ago_us| ago_us.min(MAX_EXACT) as i64));
                packed.numbers(fate.costs.iter().copied());
            }
        }
        packed
    }

    /// The numbers of a trip that is about one bucket, not leaky and of small numbers, for callers of one cost.
    fn quick(&self) -> Option<Packed> {
        let ([part], [first, ..]) = (self.parts, self.callers) else { return None };
        let ([rule @ Rule::Gcra(_)], [wide]) = (part.rules(), part.rules.of(Margin::Default)) else {
            return None;
        };
        let [p, r, cap, _, most, hold, ahead, wide_p, wide_r] = rule.numbers(wide)[..] else { return None };
        let is_small = p < 1 << 32 && r < 1 << 24 && most < 1 << 24 && p * most < 1 << 40;
        let is_even = self.callers.iter().all(|caller| caller.costs == first.costs);
        if !is_small
            || !is_even
            || first.costs[0] == 0
            || self.forced
            || hold >= 0
            || (p, r) != (wide_p, wide_r)
        {
            return None;
        }
        let pause = part.seen.map(|seen| seen.pause).unwrap_or_default();
        let seen = part.seen().filter(|seen| seen.versions[0] > 0);
        let fresh_at = seen.map_or(0, |seen| match &seen.states[0] {
            Snapshot::Whole(state) => rule.fresh_at(state).unwrap_or(NEVER),
            Snapshot::Log { .. } => NEVER,
        });
        let mut packed = Packed::default();
        packed.number(self.now.unwrap_or(0));
        packed.numbers([part.rules.budget_us(), pause.until, pause.drained, pause.generation]);
        [p, r, cap, most, ahead].into_iter().for_each(|number| packed.signed(number));
        packed.numbers([seen.map_or(0, |seen| seen.versions[0]), fresh_at]);
        packed.numbers([self.callers.len() as u64, first.costs[0]]);
        packed.numbers(self.callers.iter().map(|caller| caller.held_us));
        Some(packed)
    }
}
