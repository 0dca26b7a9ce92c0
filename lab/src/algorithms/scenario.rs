//! The load: when requests come, and how long the backend takes for each.

use std::time::Duration;

use serde::Serialize;

/// One of the three loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scenario {
    /// A burst across the boundary of a window.
    Boundary,
    /// Thirty a second, evenly spaced, for three seconds.
    Overload,
    /// Twenty at once on a backend that takes its time.
    SlowBackend,
}

impl Scenario {
    pub(crate) const ALL: [Self; 3] = [Self::Boundary, Self::Overload, Self::SlowBackend];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Boundary => "1: a burst across the boundary (1 at 0 ms, 9 at 900 ms, 10 at 1100 ms)",
            Self::Overload => "2: sustained overload (30 a second for 3 s, 90 in all)",
            Self::SlowBackend => "3: a slow backend (20 at once, each takes 250 ms)",
        }
    }

    /// When each request comes.
    pub(crate) fn times(self) -> Vec<Duration> {
        let millis = Duration::from_millis;
        match self {
            Self::Boundary => {
                let later = [900; 9].into_iter().chain([1_100; 10]);
                std::iter::once(0).chain(later).map(millis).collect()
            }
            Self::Overload => (0..90).map(|i| Duration::from_secs(i) / 30).collect(),
            Self::SlowBackend => vec![Duration::ZERO; 20],
        }
    }

    /// Whether a burst that goes late puts off those after it: what a bucket earns between two of them is what counts.
    pub(crate) fn keeps_distance(self) -> bool {
        self == Self::Boundary
    }

    /// How long the backend takes.
    pub(crate) fn takes(self) -> Duration {
        match self {
            Self::SlowBackend => Duration::from_millis(250),
            Self::Boundary | Self::Overload => Duration::ZERO,
        }
    }
}
