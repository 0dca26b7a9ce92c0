//! The sliding log: the time of each admission, so that no period ever holds more than the limit.
//!
//! Admissions at one instant are one entry. Entries carry running totals, so that a decision is a binary
//! search and not a walk. What has left the window is dropped when something is booked, never when
//! something is refused. Twin of `lua/sliding_log.lua`; keep names and order alike.

use std::collections::VecDeque;

use super::{AHEAD_US, NEVER, Used};
use crate::decision::Level;
use crate::limit::{MAX_EXACT, Rate};

/// The numbers of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlidingLog {
    n: u64,
    /// The window, and its jitter margin.
    window_us: u64,
    margin_us: u64,
    /// The widest margin of a reader.
    keep_margin_us: u64,
    /// How far ahead of now it may be booked.
    pub(crate) ahead_us: u64,
}

/// The entries, oldest first, and what the last drain left of the limit beside them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct State {
    /// Units admitted before the first entry.
    base: u64,
    entries: VecDeque<Entry>,
    spread: Spread,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    at: u64,
    /// Units admitted up to and with this entry.
    total: u64,
}

/// Units that count as used evenly over a window, since a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Spread {
    units: u64,
    /// When the drain was.
    since: u64,
    /// When the window ends, with the last of them, and how long it is.
    at: u64,
    window_us: u64,
}

impl Spread {
    /// How many lie in the last `age_us` before its end.
    fn newer(&self, age_us: u64) -> u64 {
        match age_us {
            0 => 0,
            _ if age_us >= self.window_us => self.units,
            _ => (u128::from(self.units) * u128::from(age_us)).div_ceil(u128::from(self.window_us)) as u64,
        }
    }

    /// How many lie at an instant or before.
    fn until(&self, instant: u64) -> u64 {
        self.units - self.newer(self.at.saturating_sub(instant))
    }

    /// How long before its end the unit of that number lies, from 1 on.
    fn age_us(&self, number: u64) -> Option<u64> {
        let newer = u128::from(self.units.checked_sub(number)?);
        (newer * u128::from(self.window_us)).checked_div(u128::from(self.units)).map(|age_us| age_us as u64)
    }
}

impl State {
    pub(crate) fn tail(&self) -> u64 {
        self.entries.back().map_or(0, |entry| entry.at).max(self.spread.since)
    }

    /// The last instant at which something is used.
    fn end(&self) -> u64 {
        self.tail().max(self.spread.at)
    }

    fn total(&self) -> u64 {
        self.entries.back().map_or(self.base, |entry| entry.total)
    }

    /// Units admitted before the entry at `index`.
    fn total_before(&self, index: usize) -> u64 {
        if index == 0 { self.base } else { self.entries[index - 1].total }
    }

    /// Instants and units, oldest first; and of what was drained the units, since when, the window's end and its
    /// length.
    #[cfg(all(test, feature = "redis"))]
    pub(crate) fn entries(&self) -> (Vec<(u64, u64)>, [u64; 4]) {
        let units = |i| self.entries[i].total - self.total_before(i);
        let entries = (0..self.entries.len()).map(|i| (self.entries[i].at, units(i))).collect();
        (entries, [self.spread.units, self.spread.since, self.spread.at, self.spread.window_us])
    }

    /// Counts from zero again, once in the life of a busy log, so that totals stay exact.
    fn rebase(&mut self) {
        let base = std::mem::take(&mut self.base);
        self.entries.iter_mut().for_each(|entry| entry.total -= base);
    }

    fn push(&mut self, at: u64, units: u64) {
        let total = self.total() + units;
        match self.entries.back_mut() {
            Some(newest) if newest.at == at => newest.total = total,
            _ => self.entries.push_back(Entry { at, total }),
        }
    }
}

impl SlidingLog {
    pub(crate) fn new(rate: Rate, margin_us: u64, keep_margin_us: u64) -> Self {
        Self {
            n: rate.units(),
            window_us: rate.period_us(),
            margin_us,
            keep_margin_us: margin_us.max(keep_margin_us),
            ahead_us: AHEAD_US,
        }
    }

    /// How long an entry is kept: for readers with another margin, and for a booking ahead that is taken
    /// back.
    fn keep_us(&self) -> u64 {
        self.window_us + self.keep_margin_us + self.ahead_us
    }

    /// The numbers that its twin decides by; the last one says that times or totals are too large for the
    /// compact form of an entry.
    #[cfg(feature = "redis")]
    pub(crate) fn numbers(&self) -> super::numbers::Numbers {
        let wide = u64::from(self.keep_us() >= 1 << 39 || self.n >= 1 << 20);
        let numbers = [self.n, self.window_us, self.margin_us, self.keep_us(), self.ahead_us, wide];
        numbers.map(|number| number as i64).into_iter().collect()
    }

    pub(crate) fn most(&self) -> u64 {
        self.n
    }

    /// From an admission until it no longer counts.
    pub(crate) fn span_us(&self) -> u64 {
        self.window_us + self.margin_us
    }

    pub(crate) fn earliest(&self, state: &State, now: u64, cost: u64) -> u64 {
        let now = now.max(state.tail());
        let State { base, entries, spread } = state;
        // At most n - cost units may stay: all before that point have to leave.
        let total = state.total() + spread.units;
        let leave = (total + cost).saturating_sub(self.n).min(total);
        if leave <= *base {
            return now;
        }
        let last = entries.partition_point(|entry| entry.total + spread.until(entry.at) < leave);
        let of_entry = entries.get(last).map_or(NEVER, |entry| entry.at + self.span_us());
        // Or a unit of the spread that lies before that entry.
        let of_spread = spread.age_us(leave - state.total_before(last));
        now.max(
            of_spread
                .map_or(of_entry, |age_us| of_entry.min((spread.at + self.span_us()).saturating_sub(age_us))),
        )
    }

    pub(crate) fn commit(&self, state: &mut State, at: u64, cost: u64) {
        while state.entries.front().is_some_and(|entry| entry.at + self.keep_us() <= at) {
            state.base = state.entries.pop_front().expect("there is a first entry").total;
        }
        if state.base > MAX_EXACT / 4 {
            state.rebase();
        }
        if state.spread.at + self.keep_us() <= at {
            state.spread = Spread::default();
        }
        state.push(at, cost);
    }

    /// A log removes only its own newest.
    pub(crate) fn take_back(&self, state: &mut State, slot: u64, cost: u64) {
        let before = state.entries.len().checked_sub(1).map(|newest| state.total_before(newest));
        if let (Some(before), Some(newest)) = (before, state.entries.back_mut())
            && newest.at == slot
            && newest.total - before >= cost
        {
            newest.total -= cost;
            if newest.total == before {
                state.entries.pop_back();
            }
        }
    }

    pub(crate) fn settle(&self, state: &mut State, now: u64, booked: Used) {
        match booked.used.checked_sub(booked.charged) {
            Some(0) => {}
            // As many as the limit fill it; more could not be told from them.
            Some(more) => state.push(now.max(state.tail()), more.min(self.n)),
            None => self.take_back(state, booked.slot, booked.charged - booked.used),
        }
    }

    /// The entries stay, and what they leave of N is spread evenly over the window that ends at `at`, in place of
    /// what an earlier drain left, and no less and no sooner than that: a correction may have taken more than N.
    pub(crate) fn drained(&self, state: &State, at: u64) -> State {
        let units = self.n.saturating_sub(self.entered(state, at)).max(self.spread(state, at));
        let end = state.spread.at.max(at);
        State { spread: Spread { units, since: at, at: end, window_us: self.window_us }, ..state.clone() }
    }

    /// The service refused a call at `now` and asks for `wait_us`: what the entries leave of N is not there before
    /// that, and returns evenly over a window. Nor was the call served, so one less returns with its entry; of half of
    /// N at most, for a service may refuse a part of all calls, however few they are.
    pub(crate) fn refused(&self, state: &State, now: u64, wait_us: u64) -> State {
        let left = self.n.saturating_sub(self.entered(state, now));
        let spread = self.spread(state, now);
        let units = left.max(spread + u64::from(spread < self.n / 2));
        // A later end than any wait makes is one of before a clock was set back.
        let at = state.spread.at.min(now + self.ahead_us).max(now + wait_us);
        State { spread: Spread { units, since: now, at, window_us: self.window_us }, ..state.clone() }
    }

    /// N units evenly over the window that ends at `at`.
    pub(crate) fn full(&self, at: u64) -> State {
        self.drained(&State::default(), at)
    }

    pub(crate) fn is_fresh(&self, state: &State, now: u64) -> bool {
        state.tail() <= now && self.used(state, now) == 0 && state.end() + self.keep_us() <= now
    }

    pub(crate) fn used(&self, state: &State, now: u64) -> u64 {
        self.entered(state, now) + self.spread(state, now)
    }

    /// Units of the spread that count at `now`.
    fn spread(&self, state: &State, now: u64) -> u64 {
        state.spread.newer((state.spread.at + self.span_us()).saturating_sub(now))
    }

    /// Units of the entries that count at `now`.
    fn entered(&self, state: &State, now: u64) -> u64 {
        let gone = state.entries.partition_point(|entry| entry.at + self.span_us() <= now);
        state.total() - state.total_before(gone)
    }

    pub(crate) fn budget_us(&self) -> u64 {
        self.keep_us()
    }

    pub(crate) fn level(&self, state: &State, now: u64) -> Level {
        let used = self.used(state, now);
        let reset_us = if used == 0 { 0 } else { (state.end() + self.span_us()).saturating_sub(now) };
        Level { most: self.n, remaining: self.n.saturating_sub(used), reset_us, wait_us: 0 }
    }
}
