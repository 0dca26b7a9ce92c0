//! The fixed window, which is one segment, and the segmented sliding window.
//!
//! A window opens with the first call and again with the first after its end. The state is the counts of
//! the newest segments, newest first, and when the newest began. A fixed window keeps a quiet band of one
//! jitter margin on both sides of its end, after it only until the answer to one of its calls says that the service
//! has opened its own; a segmented window with a margin looks at one segment more.
//! Twin of `lua/window.lua`; keep names and order alike.

use smallvec::{SmallVec, smallvec};

use super::{AHEAD_US, Used};
use crate::decision::Level;
use crate::limit::{MAX_EXACT, Rate};

/// The numbers of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    n: u64,
    segment_us: u64,
    /// Segments of a window.
    segments: usize,
    /// Segments looked at: those of a window, and one more for a margin.
    look: usize,
    /// Segments kept: of a sliding window one more, for readers with a margin.
    kept: usize,
    /// Quiet time on both sides of a fixed window's end.
    band_us: u64,
    /// How far ahead of now it may be booked.
    pub(crate) ahead_us: u64,
}

/// Units in the newest segments, newest first; the newest began at `start`, the last was booked at `tail`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct State {
    pub(crate) start: u64,
    pub(crate) tail: u64,
    /// By when a call of the fixed window had arrived, as its answer says; [`MAX_EXACT`] if none has come.
    pub(crate) arrived: u64,
    pub(crate) counts: SmallVec<[u64; 2]>,
}

impl Window {
    pub(crate) fn fixed(rate: Rate, margin_us: u64) -> Self {
        // A band of half the window would never open it.
        let band_us = margin_us.min(rate.period_us() / 4);
        Self {
            n: rate.units(),
            segment_us: rate.period_us(),
            segments: 1,
            look: 1,
            kept: 1,
            band_us,
            ahead_us: AHEAD_US,
        }
    }

    pub(crate) fn segmented(rate: Rate, segments: u32, margin_us: u64) -> Self {
        let segments = segments as usize;
        Self {
            n: rate.units(),
            segment_us: rate.period_us().div_ceil(segments as u64),
            segments,
            look: segments + usize::from(margin_us > 0),
            kept: segments + 1,
            band_us: 0,
            ahead_us: AHEAD_US,
        }
    }

    pub(crate) fn most(&self) -> u64 {
        self.n
    }

    #[cfg(feature = "client")]
    pub(crate) fn band_us(&self) -> u64 {
        self.band_us
    }

    /// The numbers that its twin decides by, and the budget of `wide`, a reader's with the default margin.
    #[cfg(feature = "redis")]
    pub(crate) fn numbers(&self, wide: &Self) -> super::numbers::Numbers {
        let [segments, look, kept] = [self.segments, self.look, self.kept].map(|count| count as u64);
        let numbers =
            [self.n, self.segment_us, segments, look, kept, self.band_us, self.ahead_us, wide.budget_us()];
        numbers.map(|number| number as i64).into_iter().collect()
    }

    /// Whether a state of `other` reads the same here.
    pub(crate) fn same_segments(&self, other: &Self) -> bool {
        (self.segment_us, self.segments, self.kept) == (other.segment_us, other.segments, other.kept)
    }

    /// Units in the segments looked at, `shift` segments after the state's newest.
    fn count(&self, state: &State, shift: u64) -> u64 {
        let seen = (self.look as u64).saturating_sub(shift) as usize;
        state.counts.iter().take(seen).sum()
    }

    fn shift(&self, state: &State, at: u64) -> u64 {
        (at - state.start) / self.segment_us
    }

    pub(crate) fn earliest(&self, state: &State, now: u64, cost: u64) -> u64 {
        let now = now.max(state.tail);
        if state.counts.is_empty() {
            return now;
        }
        if self.band_us > 0 && now >= state.start + self.segment_us - self.band_us {
            return now.max(state.start + self.segment_us + self.late_us(state));
        }
        let mut shift = self.shift(state, now);
        if self.count(state, shift) + cost <= self.n {
            return now;
        }
        while shift < self.look as u64 && self.count(state, shift) + cost > self.n {
            shift += 1;
        }
        state.start + shift * self.segment_us + self.late_us(state)
    }

    /// How much later than this window the service's may have opened: with the first call that arrived.
    fn late_us(&self, state: &State) -> u64 {
        self.band_us.min(state.arrived.saturating_sub(state.start))
    }

    /// A call that was charged at `slot` had arrived by that instant. Whether that says something new.
    pub(crate) fn arrived(&self, state: &mut State, slot: u64, by: u64) -> bool {
        let is_of_window =
            !state.counts.is_empty() && slot >= state.start && slot < state.start + self.segment_us;
        let is_new = is_of_window && by >= slot && by - state.start < self.late_us(state);
        if is_new {
            state.arrived = by;
        }
        is_new
    }

    pub(crate) fn commit(&self, state: &mut State, at: u64, cost: u64) {
        let shift = if state.counts.is_empty() { u64::MAX } else { self.shift(state, at) };
        if shift >= self.look as u64 {
            *state = State { start: at, tail: at, arrived: MAX_EXACT, counts: smallvec![0; self.kept] };
        } else if shift > 0 {
            for _ in 0..shift {
                state.counts.pop();
                state.counts.insert(0, 0);
            }
            state.start += shift * self.segment_us;
        }
        state.tail = at;
        state.counts[0] += cost;
    }

    /// Only the segment of the slot, while it is kept.
    pub(crate) fn settle(&self, state: &mut State, booked: Used) {
        let ago = match state.start.checked_sub(booked.slot) {
            None => 0,
            Some(ahead) => ahead.div_ceil(self.segment_us),
        };
        if let Some(count) = state.counts.get_mut(ago as usize) {
            *count = (*count + booked.used).saturating_sub(booked.charged).min(MAX_EXACT);
        }
    }

    /// A fixed window is opened again and full. Segments keep their counts and their phase, and what they
    /// leave of N is spread over them.
    pub(crate) fn drained(&self, state: &State, at: u64) -> State {
        if self.segments == 1 {
            return self.full(at);
        }
        let mut drained = state.clone();
        self.commit(&mut drained, at, 0);
        let used = drained.counts.iter().take(self.segments).sum::<u64>();
        self.spread(&mut drained, self.n.saturating_sub(used));
        drained
    }

    /// The service refused a call at `now`. A fixed window that is open is full, and opens again when it would have.
    pub(crate) fn refused(&self, state: &State, now: u64) -> State {
        if self.segments > 1 || state.counts.is_empty() || now >= state.start + self.segment_us {
            return self.drained(state, now);
        }
        let mut refused = state.clone();
        (refused.tail, refused.counts[0]) = (now, state.counts[0].max(self.n));
        refused
    }

    fn spread(&self, state: &mut State, units: u64) {
        let segments = self.segments as u64;
        for (i, count) in (0..segments).zip(&mut state.counts) {
            *count += (i + 1) * units / segments - i * units / segments;
        }
    }

    /// N, spread over the window that is open at `at`.
    pub(crate) fn full(&self, at: u64) -> State {
        let mut state = State::default();
        self.commit(&mut state, at, 0);
        self.spread(&mut state, self.n);
        state
    }

    pub(crate) fn is_fresh(&self, state: &State, now: u64) -> bool {
        state.counts.is_empty() || (state.tail <= now && now >= state.start + self.budget_us())
    }

    pub(crate) fn used(&self, state: &State, now: u64) -> u64 {
        if state.counts.is_empty() { 0 } else { self.count(state, self.shift(state, now.max(state.tail))) }
    }

    pub(crate) fn budget_us(&self) -> u64 {
        self.kept as u64 * self.segment_us + self.band_us
    }

    pub(crate) fn level(&self, state: &State, now: u64) -> Level {
        let used = self.used(state, now);
        let newest = state.counts.iter().take(self.look).position(|count| *count > 0);
        let reset_us = newest.map_or(0, |ago| {
            let gone = state.start + (self.look - ago) as u64 * self.segment_us + self.late_us(state);
            gone.saturating_sub(now)
        });
        Level { most: self.n, remaining: self.n.saturating_sub(used), reset_us, wait_us: 0 }
    }
}
