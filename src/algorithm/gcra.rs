//! Token bucket, leaky bucket and the plain rate: one debt that time repays.
//!
//! A unit is P ticks and a microsecond repays R ticks, P/R = period/units in lowest terms, so that no
//! remainder is ever thrown away. The state is a debt and the instant at which it was true. A debt is never
//! below zero: a bucket does not earn while it is full. Twin of `lua/gcra.lua`; keep names and order alike.

use super::{AHEAD_US, Mark, Used};
use crate::decision::Level;
use crate::limit::{MAX_EXACT, Rate, Ticks};

/// The deepest debt that is kept: a quarter of the range, so that sums stay inside it.
const DEEP: u64 = MAX_EXACT / 4;

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
    /// How far ahead of now it may be booked.
    pub(crate) ahead_us: u64,
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
        Some(Self {
            ticks,
            cap: full.saturating_sub(margin).max(ticks.p),
            full,
            most: burst,
            queue: None,
            ahead_us: AHEAD_US,
        })
    }

    /// The plain rate: a fiftieth of N at once, and spaced so that N + 1 sends span the period and the
    /// margin.
    pub(crate) fn plain(rate: Rate, margin_us: u64) -> Option<Self> {
        let n = rate.units();
        let burst = n.div_ceil(50);
        let ticks = Ticks::new(n - burst + 1, rate.period_us() + margin_us, n)?;
        let full = burst * ticks.p;
        Some(Self { ticks, cap: full, full, most: n, queue: None, ahead_us: AHEAD_US })
    }

    /// A rate that is paced and lets a call of all its units through.
    #[cfg(feature = "redis")]
    pub(crate) fn paced(units: u64, period_us: u64) -> Self {
        let ticks = Ticks::at_most(units, period_us, units);
        let full = units.div_ceil(50) * ticks.p;
        Self { ticks, cap: full, full, most: units, queue: None, ahead_us: AHEAD_US }
    }

    /// One of so many equal parts: what can fit stays, what is repaid and what is saved up are shared out, to
    /// one unit at least.
    #[cfg(feature = "redis")]
    pub(crate) fn part_of(&self, workers: u64) -> Self {
        let most = self.most.max(self.full / self.ticks.p);
        let ticks = Ticks::at_most(self.ticks.r, self.ticks.p * workers, most);
        let units = |ticks_owed: u64| (ticks_owed / self.ticks.p / workers).max(1) * ticks.p;
        let queue = self.queue.map(|queue| queue / workers);
        Self {
            ticks,
            cap: units(self.cap),
            full: units(self.full),
            most: self.most,
            queue,
            ahead_us: AHEAD_US,
        }
    }

    /// A leaky bucket: one unit at a time, and `queue` units that wait. A call that costs more than one
    /// unit goes when nothing is owed.
    pub(crate) fn leaky_bucket(rate: Rate, queue: u64) -> Option<Self> {
        let most = queue.max(1);
        let ticks = Ticks::new(rate.units(), rate.period_us(), most + 1)?;
        Some(Self { ticks, cap: ticks.p, full: ticks.p, most, queue: Some(queue), ahead_us: AHEAD_US })
    }

    /// The whole debt at the tail, in this limit's ticks: whole units by the new P, the rest exactly, rounded
    /// up.
    #[inline]
    fn owed(&self, state: &State) -> u64 {
        if state.p == self.ticks.p || state.debt == 0 { state.debt } else { self.converted(state) }
    }

    #[cold]
    fn converted(&self, state: &State) -> u64 {
        let (units, rest) = (state.debt / state.p, state.debt % state.p);
        let rest = (u128::from(rest) * u128::from(self.ticks.p)).div_ceil(u128::from(state.p)) as u64;
        units.saturating_mul(self.ticks.p).saturating_add(rest).min(DEEP)
    }

    /// The debt at `now` that a call has to wait for. Of what was charged under other numbers no more than
    /// this limit's own dearest call could owe, or smaller numbers would be locked out by larger ones.
    #[inline]
    fn debt(&self, state: &State, now: u64) -> u64 {
        let owed = if self.is_beyond(state) { self.deepest() } else { self.owed(state) };
        owed.saturating_sub(self.repaid(state, now))
    }

    #[inline]
    fn repaid(&self, state: &State, now: u64) -> u64 {
        self.ticks.r.saturating_mul(now - state.at)
    }

    /// The deepest debt that this limit's own calls can leave behind.
    fn deepest(&self) -> u64 {
        self.full.max(self.most * self.ticks.p)
    }

    /// Whether a state is in this limit's own ticks.
    #[inline]
    pub(crate) fn is_own(&self, state: &State) -> bool {
        state.p == self.ticks.p
    }

    /// Whether other numbers left a debt that is deeper.
    #[inline]
    fn is_beyond(&self, state: &State) -> bool {
        !self.is_own(state) && self.owed(state) > self.deepest()
    }

    #[inline]
    pub(crate) fn earliest(&self, state: &State, now: u64, cost: u64) -> u64 {
        let now = now.max(state.at);
        let (debt, room) = (self.debt(state, now), self.room(cost));
        if debt <= room { now } else { now + (debt - room).div_ceil(self.ticks.r) }
    }

    /// The debt up to which a call of this cost may go.
    #[inline]
    fn room(&self, cost: u64) -> u64 {
        self.cap.saturating_sub(cost.saturating_mul(self.ticks.p))
    }

    /// A debt before and after a charge.
    #[inline(always)]
    fn charged(&self, debt: u64, cost: u64) -> Mark {
        Mark(debt, debt.saturating_add(cost.saturating_mul(self.ticks.p)).min(DEEP))
    }

    /// The mark of a charge at `now`, if it goes then; for the many calls that meet a state of this limit's own, booked
    /// at no later instant. `None` decides nothing: then `earliest` and `commit` have to be asked. Charges nothing
    /// yet.
    #[inline(always)]
    pub(crate) fn offer(&self, state: &State, now: u64, cost: u64) -> Option<Mark> {
        if !self.is_own(state) || state.at > now {
            return None;
        }
        let debt = state.debt.saturating_sub(self.repaid(state, now));
        // What one call may cost fits well below the deepest debt.
        let charge = cost * self.ticks.p;
        (debt <= self.cap.saturating_sub(charge)).then_some(Mark(debt, debt + charge))
    }

    /// Charges what was offered at `now`.
    #[inline(always)]
    pub(crate) fn take(&self, state: &mut State, now: u64, offered: Mark) {
        (state.debt, state.at) = (offered.1, now);
    }

    #[inline(always)]
    pub(crate) fn commit(&self, state: &mut State, at: u64, cost: u64) -> Mark {
        let mark = self.charged(self.debt(state, at), cost);
        if self.is_beyond(state) {
            self.charge_beyond(state, at, cost);
        } else {
            *state = State { debt: mark.1, at, p: self.ticks.p };
        }
        mark
    }

    /// A debt beyond this limit's own stays whole, in the ticks of the one whose it is: cut short here, it
    /// would be a fresh budget there.
    #[cold]
    fn charge_beyond(&self, state: &mut State, at: u64, units: u64) {
        let p = u128::from(state.p);
        let repaid = u128::from(self.repaid(state, at)) * p / u128::from(self.ticks.p);
        let left = u128::from(state.debt).saturating_sub(repaid);
        // All repaid, it equals a fresh one and may have been forgotten.
        let p = if left == 0 { u128::from(self.ticks.p) } else { p };
        let debt = left + u128::from(units) * p;
        *state = State { debt: debt.min(u128::from(DEEP)) as u64, at, p: p as u64 };
    }

    /// The mark of a charge of nothing.
    #[inline]
    pub(crate) fn mark(&self, state: &State, at: u64) -> Mark {
        let debt = self.debt(state, at.max(state.at));
        Mark(debt, debt)
    }

    /// A debt that only the former numbers could make is carried in ticks that are nobody's own, so that the
    /// new ones tell it from theirs even where P is the same.
    pub(crate) fn adopt(&self, old: &Self, state: State) -> State {
        if state.p != self.ticks.p || state.debt <= self.deepest() || old.deepest() <= self.deepest() {
            return state;
        }
        State { debt: 2 * state.debt, at: state.at, p: 2 * state.p }
    }

    /// The numbers that its twin decides by, and P and R of `wide`, a reader's with the default margin.
    #[cfg(feature = "redis")]
    pub(crate) fn numbers(&self, wide: &Self) -> super::numbers::Numbers {
        let hold = if self.is_leaky() { self.hold() as i64 } else { -1 };
        let [p, r, cap, full, most, ahead, wide_p, wide_r] = [
            self.ticks.p,
            self.ticks.r,
            self.cap,
            self.full,
            self.most,
            self.ahead_us,
            wide.ticks.p,
            wide.ticks.r,
        ]
        .map(|number| number as i64);
        super::numbers::Numbers::from_slice(&[p, r, cap, full, most, hold, ahead, wide_p, wide_r])
    }

    /// How long a leaky bucket holds a call at most; 0 for the others.
    #[inline]
    pub(crate) fn hold(&self) -> u64 {
        self.queue.map_or(0, |queue| (queue * self.ticks.p).div_ceil(self.ticks.r))
    }

    #[inline]
    pub(crate) fn is_leaky(&self) -> bool {
        self.queue.is_some()
    }

    /// More is owed; less is owed by what time cannot have repaid already, had it never been charged.
    pub(crate) fn settle(&self, state: &mut State, now: u64, booked: Used) {
        let now = now.max(state.at);
        self.commit(state, now, booked.used.saturating_sub(booked.charged));
        if booked.used < booked.charged && state.p == self.ticks.p {
            let less = (booked.charged - booked.used).saturating_mul(self.ticks.p);
            let owed_without = booked.mark.0.saturating_add(booked.used.saturating_mul(self.ticks.p));
            let repaid = self.ticks.r.saturating_mul(now.saturating_sub(booked.slot));
            let idle = repaid.saturating_sub(owed_without);
            state.debt = state.debt.saturating_sub(less.saturating_sub(idle));
        }
    }

    /// A debt that is full, or deeper where a dear call left more.
    pub(crate) fn drained(&self, state: &State, at: u64) -> State {
        State { debt: self.debt(state, at).max(self.full), at, p: self.ticks.p }
    }

    pub(crate) fn full(&self, at: u64) -> State {
        State { debt: self.full, at, p: self.ticks.p }
    }

    pub(crate) fn is_fresh(&self, state: &State, now: u64) -> bool {
        state.at <= now && self.owed(state) <= self.repaid(state, now)
    }

    /// The first instant at which the state equals a fresh one.
    #[cfg(feature = "redis")]
    pub(crate) fn fresh_at(&self, state: &State) -> u64 {
        state.at + self.owed(state).div_ceil(self.ticks.r)
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
