//! What each limit promises, counted over the calls that went and nothing else: no state, no ticks, none of
//! the algorithms' own arithmetic.

use std::time::Duration;

use crate::limit::{Kind, Limit, Rate};

/// A call that went: when, and its cost.
pub(super) type Call = (u64, u64);

/// The numbers of a limit, and the calls that went under it.
#[derive(Debug, Clone)]
pub(super) struct Ledger {
    kind: Kind,
    margin_us: u64,
    pub(super) calls: Vec<Call>,
    /// The window that is open, as the calls opened it: its start, and units by segment or window.
    grid: Option<Grid>,
}

#[derive(Debug, Clone)]
struct Grid {
    start: u64,
    /// Units by segment since the start.
    counts: Vec<u64>,
    /// Units of the window before it.
    last: u64,
}

impl Ledger {
    pub(super) fn new(limit: &Limit, margin: Duration) -> Self {
        let kind = limit.checked().expect("the walks use limits without a fault");
        Self { kind, margin_us: margin.as_micros() as u64, calls: Vec::new(), grid: None }
    }

    /// Notes a call and checks every span that ends with it.
    pub(super) fn went(&mut self, at: u64, cost: u64) -> Result<(), String> {
        if self.calls.last().is_some_and(|(last, _)| *last > at) {
            return Err(format!("{at} is before the last call of {:?}", self.calls));
        }
        self.calls.push((at, cost));
        self.spans()?;
        self.windows(at, cost)
    }

    fn fault<T>(&self, what: &str, from: usize) -> Result<T, String> {
        let origin = self.calls[from].0;
        let calls = self.calls[from..].iter().map(|(at, cost)| (at - origin, *cost)).collect::<Vec<_>>();
        Err(format!("{what}: {:?}, margin {} us, {calls:?}", self.kind, self.margin_us))
    }

    /// What holds whatever the windows' phase.
    pub(super) fn spans(&self) -> Result<(), String> {
        let Some((end, last)) = self.calls.last().copied() else { return Ok(()) };
        let (mut units, mut dearest) = (0, 0);
        for (i, (at, cost)) in self.calls.iter().enumerate().rev() {
            units += cost;
            dearest = dearest.max(*cost);
            if !self.span_holds(end - at, units, dearest, last) {
                return self.fault("too many in a span", i);
            }
        }
        Ok(())
    }

    /// Whether `units` may go within `span_us`, first and last call included.
    fn span_holds(&self, span_us: u64, units: u64, dearest: u64, last: u64) -> bool {
        let margin_us = u128::from(self.margin_us);
        // More than `owed` units only as time repays them: units - owed <= rate * (span - lost).
        let repaid = |units: u128, rate: Rate, lost_us: u128| {
            units * u128::from(rate.period_us()) + u128::from(rate.units()) * lost_us
                <= u128::from(rate.units()) * u128::from(span_us)
        };
        let beyond = |owed: u64| u128::from(units.saturating_sub(owed));
        match self.kind {
            Kind::Plain(rate) => {
                let burst = rate.units().div_ceil(50);
                span_us >= rate.period_us() + self.margin_us
                    || units <= rate.units() + dearest.saturating_sub(burst)
            }
            Kind::TokenBucket { rate, burst: 1 } => {
                let spacing = u128::from(rate.period_us())
                    + (margin_us * u128::from(rate.units())).min(u128::from(rate.period_us() / 10));
                beyond(1) * spacing <= u128::from(rate.units()) * u128::from(span_us)
            }
            Kind::TokenBucket { rate, burst } => {
                repaid(beyond(dearest), rate, 0)
                    || u128::from(units) * u128::from(rate.period_us()) + u128::from(rate.units()) * margin_us
                        <= u128::from(burst) * u128::from(rate.period_us())
                            + u128::from(rate.units()) * u128::from(span_us)
            }
            Kind::LeakyBucket { rate, .. } => repaid(beyond(last), rate, 0),
            Kind::FixedWindow(rate) | Kind::SlidingCounter(rate) => {
                span_us >= rate.period_us() || units <= 2 * rate.units()
            }
            Kind::SlidingWindow { rate, segments } => {
                let segment_us = rate.period_us().div_ceil(u64::from(segments));
                span_us >= segment_us * u64::from(segments - 1) || units <= rate.units()
            }
            Kind::SlidingLog(rate) => span_us >= rate.period_us() + self.margin_us || units <= rate.units(),
            Kind::Concurrency(_) => true,
        }
    }

    /// What holds in the windows that the calls themselves opened.
    fn windows(&mut self, at: u64, cost: u64) -> Result<(), String> {
        let holds = match self.kind {
            Kind::FixedWindow(rate) => {
                let (window_us, band_us) = (rate.period_us(), self.margin_us.min(rate.period_us() / 4));
                let grid = self.grid.get_or_insert_with(|| Grid::open(at));
                if at >= grid.start + window_us - band_us {
                    let quiet = band_us > 0 && at < grid.start + window_us + band_us;
                    *grid = Grid::open(at);
                    grid.counts[0] = if quiet { u64::MAX - cost } else { 0 };
                }
                grid.counts[0] += cost;
                grid.counts[0] <= rate.units()
            }
            Kind::SlidingWindow { rate, segments } => {
                let segment_us = rate.period_us().div_ceil(u64::from(segments));
                let look = segments as usize + usize::from(self.margin_us > 0);
                let grid = self.grid.get_or_insert_with(|| Grid::open(at));
                if (at - grid.start) / segment_us >= (grid.counts.len() - 1 + look) as u64 {
                    *grid = Grid::open(at);
                }
                grid.counts.resize(((at - grid.start) / segment_us) as usize + 1, 0);
                *grid.counts.last_mut().expect("there is a newest segment") += cost;
                grid.counts.iter().rev().take(look).sum::<u64>() <= rate.units()
            }
            Kind::SlidingCounter(rate) => {
                let (n, window_us) = (rate.units(), rate.period_us());
                let share = (u128::from(n) * u128::from(self.margin_us)).div_ceil(u128::from(window_us));
                let cap = n.saturating_sub(share as u64).max(1).max(cost);
                let grid = self.grid.get_or_insert_with(|| Grid::open(at));
                match (at - grid.start) / window_us {
                    0 => {}
                    1 => {
                        let (start, last) = (grid.start + window_us, grid.counts[0]);
                        *grid = Grid { start, counts: vec![0], last };
                    }
                    _ => *grid = Grid::open(at),
                }
                grid.counts[0] += cost;
                let left_us = u128::from(window_us - (at - grid.start));
                grid.counts[0] <= cap
                    && u128::from(grid.last) * left_us
                        <= u128::from(cap - grid.counts[0]) * u128::from(window_us)
            }
            _ => true,
        };
        if holds { Ok(()) } else { self.fault("too many in a window", 0) }
    }
}

impl Grid {
    fn open(at: u64) -> Self {
        Grid { start: at, counts: vec![0], last: 0 }
    }
}
