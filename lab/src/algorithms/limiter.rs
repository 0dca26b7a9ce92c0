//! The limiters side by side, all on one budget, and what each run of them has to show.
//!
//! The budget everywhere: 10 requests a second (token bucket: capacity 10; leaky bucket: queue 10), or 4 at
//! once. What has to come out was stated before anything ran; nothing here is adjusted to a measurement.

use std::ops::RangeInclusive;

use forbear::{Limit, Rate};
use serde::Serialize;

use super::deployment::Deployment;
use super::scenario::Scenario;

/// The budget of one second.
pub(crate) const BUDGET: u64 = 10;
/// Seats of the concurrency limit.
const SEATS: u64 = 4;
const RATE: Rate = Rate::per_second(BUDGET);

/// One of the limiters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Limiter {
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    SlidingCounter,
    TokenBucket,
    LeakyBucket,
    PlainRate,
    Concurrency,
}

/// A figure of a run that something is asked of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Figure {
    MostInASecond,
    /// The most in a second that begins with one of the segments, which begin with the first request.
    MostInSegments,
    Admitted,
    P95Millis,
    MostAtOnce,
    Refused,
    SlowestRefusalMillis,
}

/// What a figure has to be.
#[derive(Debug, Clone)]
pub(crate) struct Must {
    pub(crate) figure: Figure,
    pub(crate) range: RangeInclusive<u64>,
}

impl Limiter {
    pub(crate) const ALL: [Self; 8] = [
        Self::FixedWindow,
        Self::SlidingLog,
        Self::SlidingWindow,
        Self::SlidingCounter,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::PlainRate,
        Self::Concurrency,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed window",
            Self::SlidingLog => "sliding log",
            Self::SlidingWindow => "window of 10 segments",
            Self::SlidingCounter => "weighted counter",
            Self::TokenBucket => "token bucket of 10",
            Self::LeakyBucket => "leaky bucket, queue 10",
            Self::PlainRate => "plain rate",
            Self::Concurrency => "4 at once",
        }
    }

    pub(crate) fn limit(self) -> Limit {
        match self {
            Self::FixedWindow => Limit::fixed_window(RATE),
            Self::SlidingLog => Limit::sliding_log(RATE),
            Self::SlidingWindow => Limit::sliding_window(RATE, 10),
            Self::SlidingCounter => Limit::sliding_counter(RATE),
            Self::TokenBucket => Limit::token_bucket(RATE, BUDGET),
            Self::LeakyBucket => Limit::leaky_bucket(RATE, BUDGET),
            Self::PlainRate => Limit::rate(RATE),
            Self::Concurrency => Limit::concurrency(SEATS as u32),
        }
    }

    /// Whether it holds requests in its own time, so that they are decided when they are let go.
    pub(crate) fn holds(self) -> bool {
        self == Self::LeakyBucket
    }

    /// What has to come out.
    pub(crate) fn must(self, scenario: Scenario, deployment: Deployment) -> Vec<Must> {
        let replicas_apart = match deployment {
            Deployment::One | Deployment::TwoOnRedis => 1,
            Deployment::Two => 2,
        };
        match scenario {
            Scenario::Boundary if replicas_apart == 1 => self.boundary(),
            // Each replica sees half of the burst, which says nothing.
            Scenario::Boundary => Vec::new(),
            Scenario::Overload => self.overload(replicas_apart),
            Scenario::SlowBackend => self.slow_backend(replicas_apart, deployment),
        }
    }

    fn boundary(self) -> Vec<Must> {
        let range = match self {
            Self::FixedWindow => 19..=19,
            Self::SlidingLog | Self::SlidingWindow | Self::SlidingCounter => 10..=10,
            Self::TokenBucket => 12..=13,
            Self::LeakyBucket => 10..=11,
            Self::PlainRate => 1..=BUDGET,
            Self::Concurrency => return Vec::new(),
        };
        vec![Must { figure: Figure::MostInASecond, range }]
    }

    fn overload(self, replicas_apart: u64) -> Vec<Must> {
        let one = match self {
            Self::FixedWindow | Self::SlidingLog | Self::SlidingWindow => 30..=30,
            Self::SlidingCounter => 28..=30,
            Self::TokenBucket => 39..=40,
            Self::LeakyBucket => 40..=41,
            // What is paced more finely than the load comes depends on how the two beats meet.
            Self::PlainRate => 20..=30,
            Self::Concurrency => return Vec::new(),
        };
        let range = one.start() * replicas_apart..=one.end() * replicas_apart;
        let mut must = vec![Must { figure: Figure::Admitted, range }];
        if self == Self::LeakyBucket {
            must.push(Must { figure: Figure::P95Millis, range: 950..=1_050 });
        }
        if replicas_apart == 1 && self == Self::SlidingWindow {
            must.push(Must { figure: Figure::MostInSegments, range: 1..=BUDGET });
        }
        if replicas_apart == 1 && matches!(self, Self::SlidingLog | Self::PlainRate) {
            must.push(Must { figure: Figure::MostInASecond, range: 1..=BUDGET });
        }
        must
    }

    fn slow_backend(self, replicas_apart: u64, deployment: Deployment) -> Vec<Must> {
        if self != Self::Concurrency {
            return Vec::new();
        }
        let seats = SEATS * replicas_apart;
        let exactly = |figure, value| Must { figure, range: value..=value };
        let mut must = vec![exactly(Figure::MostAtOnce, seats), exactly(Figure::Refused, 20 - seats)];
        // The time was published for a process that decides by itself; through Redis it is only shown.
        if deployment != Deployment::TwoOnRedis {
            must.push(Must { figure: Figure::SlowestRefusalMillis, range: 0..=2 });
        }
        must
    }
}

impl Must {
    /// `30`, `28 to 30`, `at most 10`, in the unit of the figure.
    pub(crate) fn text(&self) -> String {
        let (from, to) = (self.range.start(), self.range.end());
        let unit = match self.figure {
            Figure::P95Millis | Figure::SlowestRefusalMillis => " ms",
            _ => "",
        };
        match from {
            _ if from == to => format!("{to}{unit}"),
            0 | 1 => format!("at most {to}{unit}"),
            _ => format!("{from} to {to}{unit}"),
        }
    }
}
