//! The weighted sliding counter: this window's count, and the part of the last window's that a window
//! ending now would still cover.
//!
//! Windows open with the first call and follow one another while there are calls. Weights are exact: they
//! are compared as products, in a grain of time coarse enough to stay inside 2^53. Twin of
//! `lua/sliding_counter.lua`; keep names and order alike.

use super::{AHEAD_US, Used};
use crate::decision::Level;
use crate::limit::{MAX_EXACT, Rate};

/// The numbers of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlidingCounter {
    /// The limit, and the limit less its share in the margin.
    n: u64,
    cap: u64,
    /// Microseconds of a grain, and grains of a window.
    grain_us: u64,
    grains: u64,
    /// How far ahead of now it may be booked.
    pub(crate) ahead_us: u64,
}

/// Counts of the window that began at `start` and of the one before; the last was booked at `tail`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct State {
    pub(crate) start: u64,
    pub(crate) tail: u64,
    pub(crate) count: u64,
    pub(crate) last: u64,
}

impl SlidingCounter {
    pub(crate) fn new(rate: Rate, margin_us: u64) -> Option<Self> {
        let (n, period_us) = (rate.units(), rate.period_us());
        let mut grain_us = 1;
        while period_us.div_ceil(grain_us).checked_mul(n).is_none_or(|product| product > MAX_EXACT / 4) {
            grain_us *= 10;
            if grain_us > period_us / 1_000 {
                return None;
            }
        }
        // Whole grains make the window longer; by no more than a rate may be slowed down.
        let longer_us = period_us.div_ceil(grain_us) * grain_us - period_us;
        if longer_us > period_us / 1_000_000 {
            return None;
        }
        let share = (u128::from(n) * u128::from(margin_us)).div_ceil(u128::from(period_us)) as u64;
        Some(Self {
            n,
            cap: n.saturating_sub(share).max(1),
            grain_us,
            grains: period_us.div_ceil(grain_us),
            ahead_us: AHEAD_US,
        })
    }

    pub(crate) fn most(&self) -> u64 {
        self.n
    }

    /// The numbers that its twin decides by.
    #[cfg(feature = "redis")]
    pub(crate) fn numbers(&self) -> super::numbers::Numbers {
        let numbers = [self.n, self.cap, self.grain_us, self.grains, self.ahead_us];
        numbers.map(|number| number as i64).into_iter().collect()
    }

    fn window_us(&self) -> u64 {
        self.grains * self.grain_us
    }

    /// The most that the last window can weigh: above the limit, after a correction, and still exact.
    fn heaviest(&self) -> u64 {
        MAX_EXACT / self.grains
    }

    /// The state as a call at `at`, not before its tail, finds it.
    fn rolled(&self, state: &State, at: u64) -> State {
        let unused = state.count == 0 && state.last == 0;
        match (at - state.start) / self.window_us() {
            0 if !unused => *state,
            1 if state.count > 0 => {
                State { start: state.start + self.window_us(), tail: state.tail, count: 0, last: state.count }
            }
            _ => State { start: at, tail: state.tail, count: 0, last: 0 },
        }
    }

    pub(crate) fn earliest(&self, state: &State, now: u64, cost: u64) -> u64 {
        let now = now.max(state.tail);
        let state = self.rolled(state, now);
        let room = self.cap.saturating_sub(cost);
        // In this window the rest of the last one weighs; in the next window this one does.
        let (start, last, room) = if state.count <= room {
            (state.start, state.last, room - state.count)
        } else {
            (state.start + self.window_us(), state.count, room)
        };
        if last == 0 {
            return now;
        }
        let last = last.min(self.heaviest());
        let from = self.grains - (room * self.grains / last).min(self.grains);
        now.max(start + from * self.grain_us)
    }

    pub(crate) fn commit(&self, state: &mut State, at: u64, cost: u64) {
        *state = self.rolled(state, at);
        state.tail = at;
        state.count += cost;
    }

    /// Only the window of the slot, while it is this one.
    pub(crate) fn settle(&self, state: &mut State, booked: Used) {
        if booked.slot >= state.start {
            state.count = (state.count + booked.used).saturating_sub(booked.charged).min(MAX_EXACT / 4);
        }
    }

    /// Windows keep their phase. What they leave of N is added as an even stream would have used it: to the
    /// last window, up to N there, and the rest to this one.
    pub(crate) fn drained(&self, state: &State, at: u64) -> State {
        let rolled = self.rolled(state, at);
        let left = self.grains - (at - rolled.start) / self.grain_us;
        let rest = self.n.saturating_sub(rolled.count);
        let last = (rest * self.grains).div_ceil(left).min(self.n).max(rolled.last);
        let weight = last.min(self.heaviest()) * left / self.grains;
        let count = rolled.count.max(self.n.saturating_sub(weight));
        State { start: rolled.start, tail: at, count, last }
    }

    pub(crate) fn full(&self, at: u64) -> State {
        State { start: at, tail: at, count: 0, last: self.n }
    }

    pub(crate) fn is_fresh(&self, state: &State, now: u64) -> bool {
        let unused = state.count == 0 && state.last == 0;
        state.tail <= now && (unused || now >= state.start + 2 * self.window_us())
    }

    pub(crate) fn used(&self, state: &State, now: u64) -> u64 {
        let now = now.max(state.tail);
        let state = self.rolled(state, now);
        let left = self.grains - (now - state.start) / self.grain_us;
        state.count + (state.last.min(self.heaviest()) * left).div_ceil(self.grains)
    }

    pub(crate) fn budget_us(&self) -> u64 {
        2 * self.window_us()
    }

    pub(crate) fn level(&self, state: &State, now: u64) -> Level {
        let rolled = self.rolled(state, now.max(state.tail));
        let gone = match (rolled.count, rolled.last) {
            (0, 0) => now,
            (0, _) => rolled.start + self.window_us(),
            _ => rolled.start + 2 * self.window_us(),
        };
        Level {
            most: self.n,
            remaining: self.n.saturating_sub(self.used(state, now)),
            reset_us: gone.saturating_sub(now),
            wait_us: 0,
        }
    }
}
