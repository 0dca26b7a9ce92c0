//! The sliding log: the time of each admission, so that no period ever holds more than the limit.
//!
//! Admissions at one instant are one entry. Entries carry running totals, so that a decision is a binary
//! search and not a walk. What has left the window is dropped when something is booked, never when
//! something is refused. Twin of `lua/sliding_log.lua`; keep names and order alike.

use std::collections::VecDeque;

use super::{AHEAD_US, Used};
use crate::decision::Level;
use crate::limit::{MAX_EXACT, Rate};

/// The most entries that a drained log is spread over.
const SPREAD: u64 = 1_000;

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

/// The entries, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct State {
    /// Units admitted before the first entry.
    base: u64,
    entries: VecDeque<Entry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    at: u64,
    /// Units admitted up to and with this entry.
    total: u64,
}

impl State {
    pub(crate) fn tail(&self) -> u64 {
        self.entries.back().map_or(0, |entry| entry.at)
    }

    fn total(&self) -> u64 {
        self.entries.back().map_or(self.base, |entry| entry.total)
    }

    /// Units admitted before the entry at `index`.
    fn total_before(&self, index: usize) -> u64 {
        if index == 0 { self.base } else { self.entries[index - 1].total }
    }

    /// Instants and units, oldest first.
    #[cfg(all(test, feature = "redis"))]
    pub(crate) fn entries(&self) -> Vec<(u64, u64)> {
        let units = |i| self.entries[i].total - self.total_before(i);
        (0..self.entries.len()).map(|i| (self.entries[i].at, units(i))).collect()
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
        // At most n - cost units may stay: all before that point have to leave.
        let leave = (state.total() + cost).saturating_sub(self.n).min(state.total());
        if leave <= state.base {
            return now;
        }
        let last = state.entries.partition_point(|entry| entry.total < leave);
        now.max(state.entries[last].at + self.span_us())
    }

    pub(crate) fn commit(&self, state: &mut State, at: u64, cost: u64) {
        while state.entries.front().is_some_and(|entry| entry.at + self.keep_us() <= at) {
            state.base = state.entries.pop_front().expect("there is a first entry").total;
        }
        if state.base > MAX_EXACT / 4 {
            state.rebase();
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

    /// The entries stay, and what they leave of N is spread evenly over the window that ends at `at`.
    pub(crate) fn drained(&self, state: &State, at: u64) -> State {
        let rest = self.n.saturating_sub(self.used(state, at));
        let mut spread = self.even(rest, at).peekable();
        let mut drained = State { base: state.base, entries: VecDeque::new() };
        for (i, entry) in state.entries.iter().enumerate() {
            while let Some((at, units)) = spread.next_if(|(at, _)| *at <= entry.at) {
                drained.push(at, units);
            }
            drained.push(entry.at, entry.total - state.total_before(i));
        }
        spread.for_each(|(at, units)| drained.push(at, units));
        // So that it counts as drained, and is not drained again.
        drained.push(at, 0);
        drained
    }

    /// N units evenly over the window that ends at `at`.
    pub(crate) fn full(&self, at: u64) -> State {
        let mut full = State::default();
        self.even(self.n, at).for_each(|(at, units)| full.push(at, units));
        full
    }

    /// So many units, evenly over the window that ends at `at`.
    fn even(&self, units: u64, at: u64) -> impl Iterator<Item = (u64, u64)> {
        let groups = units.min(SPREAD);
        let (window_us, opens) = (self.window_us, at.saturating_sub(self.window_us));
        let part = move |whole: u64, i: u64| u128::from(whole) * u128::from(i);
        let total = move |i| (part(units, i) / u128::from(groups)) as u64;
        (1..=groups).map(move |i| {
            let at = opens + part(window_us, i).div_ceil(u128::from(groups)) as u64;
            (at, total(i) - total(i - 1))
        })
    }

    pub(crate) fn is_fresh(&self, state: &State, now: u64) -> bool {
        state.tail() <= now && self.used(state, now) == 0 && state.tail() + self.keep_us() <= now
    }

    pub(crate) fn used(&self, state: &State, now: u64) -> u64 {
        let gone = state.entries.partition_point(|entry| entry.at + self.span_us() <= now);
        state.total() - state.total_before(gone)
    }

    pub(crate) fn budget_us(&self) -> u64 {
        self.keep_us()
    }

    pub(crate) fn level(&self, state: &State, now: u64) -> Level {
        let used = self.used(state, now);
        let reset_us = if used == 0 { 0 } else { (state.tail() + self.span_us()).saturating_sub(now) };
        Level { most: self.n, remaining: self.n.saturating_sub(used), reset_us, wait_us: 0 }
    }
}
