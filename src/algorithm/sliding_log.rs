//! The sliding log: the time of each admission, so that no period ever holds more than the limit.
//!
//! Admissions at one instant are one entry. Entries carry running totals, so that a decision is a binary
//! search and not a walk. What has left the window is dropped when something is booked, never when
//! something is refused. Twin of `lua/sliding_log.lua`; keep names and order alike.

use std::collections::VecDeque;

use super::{AHEAD_US, NEVER, Used};
use crate::decision::Level;
use crate::limit::{MAX_EXACT, Rate};

/// Instants in a margin to which calls are moved: those of one burst meet, however many answers tell of them.
const GRAINS: u64 = 32;
/// Among so many of the newest entries is one looked for: its twin has them in memory for that.
const NEWEST: usize = 256;
/// The longest wait after which a refused call comes again while others go on.
const SOFT_WAIT_US: u64 = 1_000_000;
/// What is missing after a refusal returns over such a part of a window, but for the first of it.
const RETURNS: u64 = 32;
/// The first of it returns sooner by so many times as long as the refused call took: by as much as the others take at
/// least, and half of a window at most.
const PROBES: u64 = 2;
/// What lies no further apart than such a part of a window is of one burst.
const BURST: u64 = 8;

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
    /// The widest margin by which entries were moved to when their calls had arrived; every reader adds it.
    moved_us: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    at: u64,
    /// Units admitted up to and with this entry.
    total: u64,
}

/// Units that count as used evenly over a window, since a drain, but for the first of those that were refused, which
/// shows how the others would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Spread {
    units: u64,
    /// When the drain was.
    since: u64,
    /// When the window ends, with the last of them, and how long it is.
    at: u64,
    window_us: u64,
    /// How long before the window's beginning the first of them lies; nothing where it lies in it.
    probe_us: u64,
    /// What is booked from then on up to there leaves before the first of them.
    yields_to: u64,
}

impl Spread {
    /// How many lie in the last `age_us` before its end.
    fn newer(&self, age_us: u64) -> u64 {
        match age_us {
            0 => 0,
            _ if age_us > self.returns_us() => self.units,
            _ if age_us >= self.window_us => self.in_window(),
            _ => {
                let units = u128::from(self.in_window()) * u128::from(age_us);
                units.div_ceil(u128::from(self.window_us)) as u64
            }
        }
    }

    /// How long all of them take to return.
    fn returns_us(&self) -> u64 {
        self.window_us + self.probe_us
    }

    fn in_window(&self) -> u64 {
        self.units - u64::from(self.units > 0 && self.probe_us > 0)
    }

    /// How many lie at an instant or before.
    fn until(&self, instant: u64) -> u64 {
        self.units - self.newer(self.at.saturating_sub(instant))
    }

    /// How long before its end the unit lies that so many are newer than.
    fn age_us(&self, newer: u64) -> u64 {
        let in_window = self.in_window();
        if newer == in_window {
            return self.returns_us();
        }
        (u128::from(newer) * u128::from(self.window_us) / u128::from(in_window)) as u64
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

    /// Instants and units, oldest first; of what was drained the units, since when, the window's end and its length, how
    /// long before it the first lies and what it yields to; and by how much entries were moved at most.
    #[cfg(all(test, feature = "redis"))]
    pub(crate) fn entries(&self) -> (Vec<(u64, u64)>, [u64; 7]) {
        let units = |i| self.entries[i].total - self.total_before(i);
        let entries = (0..self.entries.len()).map(|i| (self.entries[i].at, units(i))).collect();
        let Spread { units, since, at, window_us, probe_us, yields_to } = self.spread;
        (entries, [units, since, at, window_us, probe_us, yields_to, self.moved_us])
    }

    /// Which of the newest entries lies at an instant, and its units.
    fn find(&self, at: u64) -> Option<(usize, u64)> {
        let index = self.entries.partition_point(|entry| entry.at < at);
        let entry = self.entries.get(index).filter(|entry| entry.at == at)?;
        let units = entry.total - self.total_before(index);
        (self.entries.len() - index <= NEWEST).then_some((index, units))
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

    #[cfg(feature = "client")]
    pub(crate) fn margin_us(&self) -> u64 {
        self.margin_us
    }

    /// From an admission until it no longer counts, where nothing is known of its arrival.
    #[cfg(feature = "redis")]
    pub(crate) fn span_us(&self) -> u64 {
        self.window_us + self.margin_us
    }

    /// How long an entry is kept that others of wider margins may have moved.
    fn kept_us(&self, state: &State) -> u64 {
        self.keep_us().max(self.counts_us(state))
    }

    /// From an entry until it no longer counts.
    fn counts_us(&self, state: &State) -> u64 {
        self.window_us + self.margin_us.max(state.moved_us)
    }

    pub(crate) fn earliest(&self, state: &State, now: u64, cost: u64) -> u64 {
        let now = now.max(state.tail());
        let State { base, entries, spread, .. } = state;
        let counts_us = self.counts_us(state);
        // At most n - cost units may stay: all before that point have to leave.
        let total = state.total() + spread.units;
        let leave = (total + cost).saturating_sub(self.n).min(total);
        if leave <= *base {
            return now;
        }
        let last = entries.partition_point(|entry| entry.total + spread.until(entry.at) < leave);
        let of_entry = entries.get(last).map_or(NEVER, |entry| entry.at + counts_us);
        // Or a unit of the spread that lies before that entry.
        let newer = spread.units.checked_sub(leave - state.total_before(last));
        let of_spread = newer.map(|newer| spread.age_us(newer));
        now.max(
            of_spread.map_or(of_entry, |age_us| of_entry.min((spread.at + counts_us).saturating_sub(age_us))),
        )
    }

    pub(crate) fn commit(&self, state: &mut State, at: u64, cost: u64) {
        self.forget(state, at);
        state.push(at, cost);
        if at <= state.spread.yields_to {
            // Once it is known when it arrived it leaves sooner than with its margin: as if its call took as long as the
            // probe waits.
            let margin_us = self.counts_us(state) - self.window_us;
            let leaves = (at + margin_us.min(state.spread.probe_us)).saturating_sub(margin_us);
            state.spread.at = state.spread.at.max(leaves + state.spread.returns_us());
        }
    }

    /// Drops what nobody counts any more.
    fn forget(&self, state: &mut State, at: u64) {
        let kept_us = self.kept_us(state);
        while state.entries.front().is_some_and(|entry| entry.at + kept_us <= at) {
            state.base = state.entries.pop_front().expect("there is a first entry").total;
        }
        if state.base > MAX_EXACT / 4 {
            state.rebase();
        }
        if state.spread.at + kept_us <= at {
            state.spread = Spread::default();
        }
        if state.entries.is_empty() {
            state.moved_us = 0;
        }
    }

    /// Units that were charged at `slot` are not, after all.
    pub(crate) fn take_back(&self, state: &mut State, slot: u64, cost: u64) -> bool {
        let Some((at, there)) = state.find(slot).filter(|(_, there)| cost > 0 && *there >= cost) else {
            return false;
        };
        state.entries.range_mut(at..).for_each(|entry| entry.total -= cost);
        if there == cost {
            state.entries.remove(at);
        }
        true
    }

    /// Units that were charged at `slot` had arrived by that instant: they are moved to where, with the margin, they
    /// count from then on. Whether that says something new.
    pub(crate) fn arrived(&self, state: &mut State, slot: u64, units: u64, by: u64) -> bool {
        let margin_us = self.margin_us.max(state.moved_us);
        let to = by.saturating_sub(margin_us).next_multiple_of((margin_us / GRAINS).max(1));
        if to >= slot || slot > by || slot + self.kept_us(state) <= state.tail() {
            return false;
        }
        let Some((from, there)) = state.find(slot) else { return false };
        let first = state.entries.partition_point(|entry| entry.at < to);
        let units = units.min(there);
        if units == 0 || state.entries.len() - first > NEWEST {
            return false;
        }
        // The newest stays, for nothing is booked before it.
        if units == there && from + 1 < state.entries.len() {
            state.entries.remove(from);
        }
        state.entries.range_mut(first..from).for_each(|entry| entry.total += units);
        if state.entries[first].at != to {
            let total = state.total_before(first) + units;
            state.entries.insert(first, Entry { at: to, total });
        }
        state.moved_us = margin_us;
        true
    }

    pub(crate) fn settle(&self, state: &mut State, now: u64, booked: Used) {
        match booked.used.checked_sub(booked.charged) {
            Some(0) => {}
            // As many as the limit fill it; more could not be told from them.
            Some(more) => self.commit(state, now.max(state.tail()), more.min(self.n)),
            None => _ = self.take_back(state, booked.slot, booked.charged - booked.used),
        }
    }

    /// The entries stay, and what they leave of N is spread evenly over the window that ends at `at`, in place of what an
    /// earlier drain left: no less than that, for a correction may have taken more than N, and none of it sooner.
    pub(crate) fn drained(&self, state: &State, at: u64) -> State {
        let before = self.spread(state, at);
        let units = self.n.saturating_sub(self.entered(state, at)).max(before);
        let (ends, mut window_us) = (state.spread.at.max(at), self.window_us);
        if before > 0 {
            let left_us = state.spread.window_us.min(state.spread.at + self.counts_us(state) - at);
            let over_us =
                u128::from(ends - state.spread.at + left_us) * u128::from(units) / u128::from(before);
            window_us = over_us.min(u128::from(window_us)) as u64;
        }
        self.with_spread(state, Spread { units, since: at, at: ends, window_us, ..Spread::default() })
    }

    /// The service refused what was charged at `slot`, so it counts none of it: as much is missing instead, unless it
    /// was missing already when that was sent. Half of N at most, for a service may refuse a part of all calls, however
    /// few they are; where more than N was taken, the rest of it goes.
    pub(crate) fn declined(&self, state: &mut State, now: u64, slot: u64, units: u64) -> bool {
        let (missing, before) = self.missing(state, now);
        let (used, counts_us) = (self.counted(state, slot, slot), self.counts_us(state));
        let is_room = missing < self.n / 2 || missing > self.n.saturating_sub(used);
        if now >= slot + counts_us || !is_room || !self.take_back(state, slot, units) {
            return false;
        }
        let (left, over_us) = (self.n.saturating_sub(used - units), self.window_us / RETURNS);
        // A refusal says next for how long; until then all of it for a part of a window.
        let at = (now + over_us).saturating_sub(self.window_us + state.moved_us);
        let units = (missing + units).max(before).min(left).max(missing);
        let spread = &mut state.spread;
        if missing == 0 {
            *spread = Spread { since: spread.since, at, ..Spread::default() };
        } else if missing < before {
            // None of it has returned by now.
            (spread.window_us, spread.probe_us) = (spread.window_us.min(spread.at + counts_us - now), 0);
        }
        (spread.units, spread.at) = (units, spread.at.max(at));
        true
    }

    /// The service refused a call that was `sent` then and asks for `wait_us`: what the entries left of N is not there
    /// before that, and returns evenly over a part of a window, all but one unit as much later as shows how that one
    /// does. What came free since it was sent is there; what has returned of what was missing is not, but for what
    /// calls up to this one took.
    pub(crate) fn refused(&self, state: &State, now: u64, sent: u64, wait_us: u64) -> State {
        let took_us = now.saturating_sub(sent);
        // What was used when it was sent, and is no longer, says nothing of now. Of longer ago not all is kept.
        let sent = if sent + self.counts_us(state) <= now { now } else { sent };
        let sent = sent.clamp(now.saturating_sub(self.ahead_us), now);
        let (missing, before) = self.missing(state, now);
        let [left, left_then] =
            [now, sent].map(|until| self.n.saturating_sub(self.counted(state, until, sent)));
        let units = missing.max(left).max(before.min(left_then));
        let was = if missing > 0 { state.spread } else { Spread::default() };
        // Nothing has returned since an earlier refusal said when.
        let waits = was.probe_us > 0 && missing == was.units;
        // A later end than any wait makes is one of before a clock was set back.
        let latest = now + SOFT_WAIT_US;
        let was_at = was.at.min(latest);
        let first = was_at.saturating_sub(missing.checked_sub(1).map_or(0, |newer| was.age_us(newer)));
        // Where none asks for a wait nothing says when, and it is asked less often.
        let part_us = (self.window_us / RETURNS).max(1);
        let (window_us, probe_us) = match wait_us {
            0 if !waits => (self.window_us, 0),
            _ => (part_us, (PROBES * took_us).min(self.window_us / 2).max(part_us)),
        };
        // However late the first of it is by now, all of it is back in time.
        let window_us = window_us.min((latest - first).saturating_sub(1)).max(1);
        let probe_us = probe_us.min((latest - first).saturating_sub(window_us));
        let mut refused =
            self.with_spread(state, Spread { units, since: now, window_us, probe_us, ..Spread::default() });
        // A reader may have no margin.
        let (counts_us, near_us) = (self.window_us + refused.moved_us, self.window_us / BURST);
        let begins = (now + wait_us).saturating_sub(counts_us);
        let spread = &mut refused.spread;
        if waits {
            // Calls of one burst are refused one after the other: a little later is no news.
            let from = if first + near_us >= begins { first } else { begins };
            spread.probe_us = probe_us.max(was_at.saturating_sub(window_us + from));
            spread.at = from + spread.returns_us();
        } else {
            spread.at = begins + spread.returns_us();
            // None of it sooner than before; what was only declined says nothing of when.
            if missing > 0 && was.window_us > 0 {
                spread.at = spread.at.max(was_at).max(first + spread.age_us(missing - 1));
            }
        }
        // What is booked from now on and leaves at about the same time is there, and goes first.
        if spread.probe_us > 0 {
            spread.yields_to = (spread.at + near_us).min(latest).saturating_sub(spread.returns_us());
        }
        refused
    }

    fn with_spread(&self, state: &State, spread: Spread) -> State {
        let newest = state.entries.back().filter(|newest| spread.since < newest.at + self.kept_us(state));
        State { spread, moved_us: newest.map_or(0, |_| state.moved_us), ..state.clone() }
    }

    /// N units evenly over the window that ends at `at`.
    pub(crate) fn full(&self, at: u64) -> State {
        self.drained(&State::default(), at)
    }

    pub(crate) fn is_fresh(&self, state: &State, now: u64) -> bool {
        state.tail() <= now && self.used(state, now) == 0 && state.end() + self.kept_us(state) <= now
    }

    pub(crate) fn used(&self, state: &State, now: u64) -> u64 {
        self.entered(state, now) + self.spread(state, now)
    }

    /// Units of the spread that count at `now`.
    fn spread(&self, state: &State, now: u64) -> u64 {
        state.spread.newer((state.spread.at + self.counts_us(state)).saturating_sub(now))
    }

    /// The same, and as long as any does, how many there were before they began to return.
    fn missing(&self, state: &State, now: u64) -> (u64, u64) {
        match self.spread(state, now) {
            0 => (0, 0),
            missing => (missing, state.spread.units),
        }
    }

    /// Units of the entries that count at `now`.
    fn entered(&self, state: &State, now: u64) -> u64 {
        self.counted(state, NEVER, now)
    }

    /// Units of the entries up to `until` that count at `at`.
    fn counted(&self, state: &State, until: u64, at: u64) -> u64 {
        let counts_us = self.counts_us(state);
        let gone = state.entries.partition_point(|entry| entry.at + counts_us <= at);
        let end = state.entries.partition_point(|entry| entry.at <= until);
        state.total_before(end).saturating_sub(state.total_before(gone))
    }

    pub(crate) fn budget_us(&self) -> u64 {
        self.keep_us()
    }

    pub(crate) fn level(&self, state: &State, now: u64) -> Level {
        let used = self.used(state, now);
        let reset_us = if used == 0 { 0 } else { (state.end() + self.counts_us(state)).saturating_sub(now) };
        Level { most: self.n, remaining: self.n.saturating_sub(used), reset_us, wait_us: 0 }
    }
}
