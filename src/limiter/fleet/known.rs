//! How a key stood when Redis was last heard of, and what can be refused by that without asking.
//!
//! For at most a second: after that others may have given back what they had.

use std::time::Duration;

use smallvec::SmallVec;

use super::key::{Answers, State};
use super::line::{Caller, Told};
use super::replay::{self, Snapshots};
use crate::algorithm::{NEVER, Rule};
use crate::clock;
use crate::decision::{Decision, Level};
use crate::limit::Margin;
use crate::limiter::{Plan, Refused, RefusedKind};
use crate::store::redis::wire::ReplyPart;

/// How long this process refuses by what Redis said, and asks nothing.
const KNOWN_US: u64 = 1_000_000;

/// How the key stood after a trip.
pub(super) struct Known {
    /// Redis's time of the decision, and when this process heard of it.
    pub(super) now: u64,
    pub(super) received: u64,
    pub(super) part: ReplyPart,
    /// The states after the trip, under which plan; and whether something may have gone back since.
    pub(super) states: Snapshots,
    pub(super) plan: usize,
    pub(super) is_doubtful: bool,
    /// Which limits, the first instant at which another call may go under them, and when that was heard.
    pub(super) stands: SmallVec<[(u32, u64, u64); 2]>,
}

impl State {
    /// Until when slots are booked, by anyone: as far ahead as the schedule stood when Redis was last heard of, for
    /// others have gone on with it since.
    pub(super) fn booked_until(&self, now: u64) -> u64 {
        let own = self.lines.iter().filter_map(|line| line.slots.back()).map(|slot| slot.due).max();
        let known = self.known.as_ref().filter(|known| now < known.received + KNOWN_US);
        let ahead = known.map_or(0, |known| {
            let stands = known.stands.iter().map(|(_, at, _)| *at).max().unwrap_or(0);
            // What lies further ahead was not booked.
            stands.saturating_sub(known.now).min(KNOWN_US)
        });
        own.unwrap_or(0).max(now + ahead)
    }

    /// Redis's time at `now`.
    pub(super) fn at_redis(known: &Known, now: u64) -> u64 {
        known.now + now.saturating_sub(known.received)
    }

    /// What was seen last, to pass back.
    pub(super) fn seen(&self) -> Option<&ReplyPart> {
        self.known.as_ref().map(|known| &known.part)
    }

    /// When a call could go at the earliest, as Redis said in the last second: not before those who were booked,
    /// and not before its own cost fits.
    pub(super) fn stands(&self, plan: &Plan, margin: Margin, costs: &[u64], now: u64) -> Option<u64> {
        let known = self.known.as_ref().filter(|known| !known.is_doubtful && known.plan == plan.id)?;
        let limits = super::touched(costs);
        let told =
            known.stands.iter().find(|(touched, _, heard)| *touched == limits && now < heard + KNOWN_US);
        let told = told.map(|(_, at, _)| *at);
        let fits = (now < known.received + KNOWN_US).then(|| {
            replay::earliest(plan.rules.of(margin), &known.states, Self::at_redis(known, now), costs)
        });
        let at = told.max(fits)?;
        Some(known.received + at.saturating_sub(known.now))
    }

    /// Something may have gone back: until the next trip nobody is refused by what is known.
    pub(super) fn doubt(&mut self) {
        if let Some(known) = &mut self.known {
            known.is_doubtful = true;
            known.stands.clear();
        }
    }

    /// The refusal of a call that could go at `at`.
    pub(super) fn refusal(
        &self,
        plan: &Plan,
        margin: Margin,
        costs: &[u64],
        at: u64,
        max_wait: Duration,
        kind: RefusedKind,
    ) -> Refused {
        let (rules, now) = (plan.rules.of(margin), clock::now_us());
        // A leaky bucket holds whom it can; whom it refuses, its queue has no room for.
        let holds = rules.iter().any(|rule| rule.hold_us().is_some());
        let kind = if kind == RefusedKind::RateLimited && holds { RefusedKind::QueueFull } else { kind };
        let wait_us = at.saturating_sub(now);
        let levels = match &self.known {
            Some(known) if known.states.len() == rules.len() => {
                let redis_now = Self::at_redis(known, now);
                let mut levels = replay::levels(rules, &known.states, redis_now);
                replay::waits(rules, &known.states, redis_now, costs, wait_us, &mut levels);
                levels
            }
            _ => SmallVec::new(),
        };
        let decision = Decision {
            labels: plan.rules.labels.clone(),
            granted: false,
            wait_us: (kind != RefusedKind::NoSeat && at != NEVER).then_some(wait_us),
            paused: kind == RefusedKind::Paused,
            levels,
        };
        Refused::new(kind, decision, max_wait)
    }

    /// Why, and when it could go, if a caller that comes now cannot make it.
    pub(super) fn hopeless(
        &self,
        plan: &Plan,
        margin: Margin,
        costs: &[u64],
        deadline: u64,
        now: u64,
    ) -> Option<(u64, RefusedKind)> {
        if let Some(until) = self.paused(now).filter(|until| *until > deadline) {
            return Some((until, RefusedKind::Paused));
        }
        let drained_until = self.drained_until(plan, margin, super::touched(costs));
        if let Some(until) = drained_until.filter(|until| *until > deadline.max(now)) {
            return Some((until, RefusedKind::RateLimited));
        }
        // A leaky bucket's own time counts from when Redis is asked.
        let deadline = deadline.max(now.saturating_add(super::hold_us(plan, margin, costs)));
        let stands = self.stands(plan, margin, costs, now).filter(|at| *at > deadline)?;
        Some((stands, RefusedKind::RateLimited))
    }

    pub(super) fn know(
        &mut self,
        plan: &Plan,
        (now, received): (u64, u64),
        part: ReplyPart,
        states: Snapshots,
        (limits, at): (u32, u64),
    ) {
        let known = self.known.take().filter(|known| known.plan == plan.id);
        let mut stands = known.map(|known| known.stands).unwrap_or_default();
        stands.retain(|(touched, _, heard)| *touched != limits && received < *heard + KNOWN_US);
        stands.push((limits, at, received));
        let plan = plan.id;
        self.known = Some(Known { now, received, part, states, plan, is_doubtful: false, stands });
    }

    /// Refuses those for whom nothing is booked and whose time does not reach what is known.
    pub(super) fn refuse_hopeless(&mut self, id: u64, now: u64, answers: &mut Answers) {
        let Some(line) = self.lines.iter().find(|line| line.id == id) else { return };
        let (plan, margin) = (line.plan.clone(), line.margin);
        let why = |caller: &Caller| {
            if line.seatless && caller.deadline <= now {
                return Some((NEVER, RefusedKind::NoSeat));
            }
            self.hopeless(&plan, margin, &caller.costs, caller.deadline, now)
        };
        let hopeless = line.unbooked().filter_map(|(seq, caller)| Some((*seq, why(caller)?)));
        for (seq, (at, kind)) in hopeless.collect::<Vec<_>>() {
            let Some(caller) = self.line(id).and_then(|line| line.remove(seq)) else { continue };
            let refused = self.refusal(&plan, margin, &caller.costs, at, caller.max_wait, kind);
            answers.push(caller, Told::Refused(refused));
        }
    }

    /// A caller's time is over: its refusal, if it is still in line and nothing is booked for it. Whose slot is
    /// charged goes, however late the wake. The caller is to be dropped with no lock held, for that wakes it.
    pub(super) fn too_late(&mut self, id: u64, seq: u64, now: u64) -> Option<(Refused, Caller)> {
        let line =
            self.line(id).filter(|line| line.callers.get(&seq).is_some_and(|caller| !caller.booked))?;
        let (plan, margin, seatless) = (line.plan.clone(), line.margin, line.seatless);
        let (quiet, caller) = (line.asks_at(), line.remove(seq)?);
        let (at, kind) = match (self.paused(now), self.stands(&plan, margin, &caller.costs, now)) {
            _ if seatless => (NEVER, RefusedKind::NoSeat),
            (Some(until), _) => (until, RefusedKind::Paused),
            (None, stands) => (stands.unwrap_or(0).max(quiet).max(now), RefusedKind::RateLimited),
        };
        Some((self.refusal(&plan, margin, &caller.costs, at, caller.max_wait, kind), caller))
    }

    /// How the limits stood, as of now, and how long the key is still held.
    pub(super) fn standing(&self, rules: &[Rule], now: u64) -> SmallVec<[Level; 3]> {
        match &self.known {
            Some(known) if known.states.len() == rules.len() => {
                replay::levels(rules, &known.states, Self::at_redis(known, now))
            }
            _ => SmallVec::new(),
        }
    }
}
