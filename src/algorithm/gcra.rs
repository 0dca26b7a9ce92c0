//! Token bucket, leaky bucket and the plain rate: one debt that time repays.
//!
//! A unit is P ticks and a microsecond repays R ticks, P/R = period/units in lowest terms, so that no
//! remainder is ever thrown away. The state is a debt and the instant at which it was true. A debt is never
//! below zero: a bucket does not earn while it is full. Twin of `lua/gcra.lua`; keep names and order alike.

use super::{Mark, Used};
use crate::decision::Level;
use crate::limit::{Rate, Ticks};

/// The numbers of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gcra {
    /// Ticks of a unit, and ticks that a microsecond repays.
    ticks: Ticks,
    /// The debt up to which a call may go, in ticks.
    cap: u64,
    /// The debt of an exhausted budget, in ticks: what a drain leaves.
    full: u64,
    /// Units that one call may cost.
    pub(crate) most: u64,
    /// A leaky bucket's queue in units.
    queue: Option<u64>,
}

/// A debt in ticks of `p` to the unit, as it was at `at`, the last instant booked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct State {
    pub(crate) debt: u64,
    pub(crate) at: u64,
    pub(crate) p: u64,
}

impl Gcra {
    /// A bucket of `burst` units: its capacity less what the rate yields in the margin, never below one
    /// unit. A burst of one is spaced wider instead, by at most a tenth.
    pub(crate) fn token_bucket(rate: Rate, burst: u64, margin_us: u64) -> Option<Self> {
        let wider_us = match burst {
            1 => margin_us.saturating_mul(rate.units()).min(rate.period_us() / 10),
            _ => 0,
        };
        let ticks = Ticks::new(rate.units(), rate.period_us() + wider_us, burst)?;
        let full = burst * ticks.p;
        let margin = if burst == 1 { 0 } else { ticks.r.saturating_mul(margin_us) };
        Some(Self { ticks, cap: full.saturating_sub(margin).max(ticks.p), full, most: burst, queue: None })
    }

    /// The plain rate: a fiftieth of N at once, and spaced so that N + 1 sends span the period and the
    /// margin.
    pub(crate) fn plain(rate: Rate, margin_us: u64) -> Option<Self> {
        let n = rate.units();
        let burst = n.div_ceil(50);
        let ticks = Ticks::new(n - burst + 1, rate.period_us() + margin_us, n)?;
        let full = burst * ticks.p;
        Some(Self { ticks, cap: full, full, most: n, queue: None })
    }

    /// A leaky bucket: one unit at a time, and `queue` units that wait. A call that costs more than one
    /// unit goes when nothing is owed.
    pub(crate) fn leaky_bucket(rate: Rate, queue: u64) -> Option<Self> {
        let most = queue.max(1);
        let ticks = Ticks::new(rate.units(), rate.period_us(), most + 1)?;
        Some(Self { ticks, cap: ticks.p, full: ticks.p, most, queue: Some(queue) })
    }

    /// The debt at `now`, in this limit's ticks: whole units by the new P, the rest exactly, rounded up.
    fn debt(&self, state: &State, now: u64) -> u64 {
        let mut debt = state.debt;
        if state.p != self.ticks.p && debt > 0 {
            let (units, rest) = (debt / state.p, debt % state.p);
            let rest = (u128::from(rest) * u128::from(self.ticks.p)).div_ceil(u128::from(state.p)) as u64;
            debt = units.saturating_mul(self.ticks.p).saturating_add(rest).min(self.deepest());
        }
        debt.saturating_sub(self.ticks.r.saturating_mul(now - state.at))
    }

    /// The deepest debt that other numbers may leave behind: that of the dearest call.
    fn deepest(&self) -> u64 {
        self.full.max(self.most * self.ticks.p)
    }

    pub(crate) fn earliest(&self, state: &State, now: u64, cost: u64) -> u64 {
        let now = now.max(state.at);
        let debt = self.debt(state, now);
        let room = self.cap.saturating_sub(cost * self.ticks.p);
        if debt <= room { now } else { now + (debt - room).div_ceil(self.ticks.r) }
    }

    pub(crate) fn commit(&self, state: &mut State, at: u64, cost: u64) -> Mark {
        let debt = self.debt(state, at);
        let charged = debt + cost * self.ticks.p;
        *state = State { debt: charged, at, p: self.ticks.p };
        Mark(debt, charged)
    }

    /// The mark of a charge of nothing.
    pub(crate) fn mark(&self, state: &State, at: u64) -> Mark {
        let debt = self.debt(state, at.max(state.at));
        Mark(debt, debt)
    }

    /// How long a leaky bucket holds a call at most; 0 for the others.
    pub(crate) fn hold(&self) -> u64 {
        self.queue.map_or(0, |queue| (queue * self.ticks.p).div_ceil(self.ticks.r))
    }

    pub(crate) fn is_leaky(&self) -> bool {
        self.queue.is_some()
    }

    /// More is owed; less is owed by what time cannot have repaid already, had it never been charged.
    pub(crate) fn settle(&self, state: &mut State, now: u64, booked: Used) {
        let now = now.max(state.at);
        let debt = self.debt(state, now);
        let debt = if booked.used >= booked.charged {
            let more = (booked.used - booked.charged).saturating_mul(self.ticks.p);
            debt.saturating_add(more).min(crate::limit::MAX_EXACT / 4)
        } else {
            let less = (booked.charged - booked.used).saturating_mul(self.ticks.p);
            let owed_without = booked.mark.0 + booked.used * self.ticks.p;
            let repaid = self.ticks.r.saturating_mul(now.saturating_sub(booked.slot));
            debt.saturating_sub(less.saturating_sub(repaid.saturating_sub(owed_without)))
        };
        *state = State { debt, at: now, p: self.ticks.p };
    }

    pub(crate) fn full(&self, at: u64) -> State {
        State { debt: self.full, at, p: self.ticks.p }
    }

    pub(crate) fn is_fresh(&self, state: &State, now: u64) -> bool {
        state.at <= now && self.debt(state, now) == 0
    }

    /// Units owed at `now`, rounded up.
    pub(crate) fn used(&self, state: &State, now: u64) -> u64 {
        self.debt(state, now.max(state.at)).div_ceil(self.ticks.p)
    }

    /// From a full debt to none.
    pub(crate) fn budget_us(&self) -> u64 {
        self.full.div_ceil(self.ticks.r)
    }

    pub(crate) fn level(&self, state: &State, now: u64) -> Level {
        let ahead = state.at.saturating_sub(now);
        let debt = self.debt(state, now.max(state.at)).saturating_add(self.ticks.r.saturating_mul(ahead));
        self.level_of(debt)
    }

    /// How it stood right after a charge at `slot`.
    pub(crate) fn level_after(&self, mark: Mark, slot: u64, now: u64) -> Level {
        let ahead = self.ticks.r.saturating_mul(slot.saturating_sub(now));
        self.level_of(mark.1.saturating_add(ahead))
    }

    fn level_of(&self, debt: u64) -> Level {
        let room = match self.queue {
            Some(queue) => (queue + 1) * self.ticks.p,
            None => self.full,
        };
        Level {
            most: room / self.ticks.p,
            remaining: room.saturating_sub(debt) / self.ticks.p,
            reset_us: debt.div_ceil(self.ticks.r),
            wait_us: 0,
        }
    }
}
