//! What came of a simulation.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::run::{Clock, Record};
use crate::figures::{histogram, per_bin, percentile};

/// Bins of the curve of admissions, at most about so many.
const BINS: u64 = 150;
/// Upper ends of the bins of waits: 1, 2, 5 of each power of ten.
const BOUNDS_US: [u64; 19] = [
    0,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
];

/// All figures of a run; times are in microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) clock: Clock,
    /// How long the run took for whoever waited for it.
    pub(crate) real_us: u64,
    /// From the first ask to the end of the last call.
    pub(crate) makespan_us: u64,
    pub(crate) admitted: u64,
    pub(crate) refused: BTreeMap<String, u64>,
    pub(crate) waits: Waits,
    pub(crate) waited_for: Vec<WaitedFor>,
    pub(crate) most_at_once: u64,
    pub(crate) limits: Vec<Used>,
    pub(crate) bin_us: u64,
    pub(crate) admissions: Vec<u32>,
    /// Of so many calls the wait was at most so long; the last bin has no end.
    pub(crate) histogram: Vec<(Option<u64>, u64)>,
}

/// How long calls waited that were let go.
#[derive(Debug, Serialize)]
pub(crate) struct Waits {
    pub(crate) mean_us: u64,
    pub(crate) p50_us: u64,
    pub(crate) p95_us: u64,
    pub(crate) p99_us: u64,
    pub(crate) longest_us: u64,
}

/// What calls waited for.
#[derive(Debug, Serialize)]
pub(crate) struct WaitedFor {
    pub(crate) what: String,
    pub(crate) calls: u64,
    pub(crate) total_us: u64,
    pub(crate) longest_us: u64,
}

/// A limit that counts requests, and what was seen of it.
#[derive(Debug, Serialize)]
pub(crate) struct Used {
    pub(crate) limit: String,
    pub(crate) quota: u64,
    pub(crate) period_us: u64,
    /// The most that went in any period.
    pub(crate) most_in_a_period: u64,
}

/// Name, unit, quota and period of a limit.
pub(crate) type Stated = (String, String, u64, Option<Duration>);

impl Outcome {
    pub(crate) fn new(clock: Clock, real: Duration, record: Record, limits: &[Stated]) -> Self {
        let (admissions, mut waits): (Vec<u64>, Vec<u64>) = record.admitted.iter().copied().unzip();
        let bin_us = (record.end / BINS).clamp(1_000, 3_600_000_000);
        let admitted = waits.len() as u64;
        let waited_for = record.waits.into_iter().map(|(what, (calls, total_us, longest_us))| WaitedFor {
            what,
            calls,
            total_us,
            longest_us,
        });
        let counted = limits.iter().filter(|(_, unit, ..)| unit == "requests");
        let used = counted.filter_map(|(name, _, quota, period)| {
            let period_us = (*period)?.as_micros() as u64;
            let most_in_a_period = most_in_any(&admissions, period_us);
            Some(Used { limit: name.clone(), quota: *quota, period_us, most_in_a_period })
        });
        let bounds = BOUNDS_US.into_iter().map(Some).chain([None]);
        Self {
            clock,
            real_us: real.as_micros() as u64,
            makespan_us: record.end,
            admitted,
            refused: record.refused,
            waits: Waits {
                mean_us: waits.iter().sum::<u64>() / admitted.max(1),
                p50_us: percentile(&mut waits, 50),
                p95_us: percentile(&mut waits, 95),
                p99_us: percentile(&mut waits, 99),
                longest_us: percentile(&mut waits, 100),
            },
            waited_for: waited_for.collect(),
            most_at_once: record.most_at_once,
            limits: used.collect(),
            bin_us,
            histogram: bounds.zip(histogram(&waits, &BOUNDS_US)).collect(),
            admissions: per_bin(admissions, bin_us),
        }
    }

    /// Calls a second, over the whole run.
    pub(crate) fn pace(&self) -> f64 {
        self.admitted as f64 / (self.makespan_us.max(1) as f64 / 1e6)
    }
}

/// The most of sorted instants in any span, which is open at its end.
fn most_in_any(instants: &[u64], span_us: u64) -> u64 {
    let (mut first, mut most) = (0, 0);
    for (last, at) in instants.iter().enumerate() {
        while instants[first] + span_us <= *at {
            first += 1;
        }
        most = most.max(last - first + 1);
    }
    most as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_in_any_span_is_counted_once_over() {
        assert_eq!(most_in_any(&[0, 5, 9, 10, 14, 30], 10), 4);
        assert_eq!(most_in_any(&[], 10), 0);
    }
}
