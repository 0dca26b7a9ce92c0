//! The one answer: what was decided about a call, by which limit, and what is left.
//!
//! A [`Decision`] is taken from the state in the same step that changed it and never looked up afterwards,
//! so headers and errors that are made of it cannot contradict what was decided. All times are relative to
//! the instant of the decision.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

/// How one limit stands after a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Level {
    /// Most units: of a period, a burst, a queue, or seats.
    pub(crate) most: u64,
    /// Units left of them.
    pub(crate) remaining: u64,
    /// Until all of them are there again, if nothing more is taken; 0 for seats.
    pub(crate) reset_us: u64,
    /// Until the call fits under this limit; `u64::MAX` where nobody can tell, as for a seat.
    pub(crate) wait_us: u64,
}

/// What is fixed about the limits of a policy: names and units, shared by all its decisions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Labels {
    pub(crate) policy: Box<str>,
    pub(crate) limits: Box<[Label]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) name: Box<str>,
    pub(crate) unit: Box<str>,
    pub(crate) quota: u64,
    pub(crate) window_us: Option<u64>,
}

impl Label {
    /// Whether both are one limit, whatever its numbers: of the same name and unit.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.unit == other.unit
    }
}

/// What was decided about one call.
///
/// Over several limits it reports the one with the longest wait (refused) or the smallest share left
/// (granted); [`limits`](Self::limits) has all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub(crate) labels: Arc<Labels>,
    pub(crate) granted: bool,
    /// Until the call goes, or could go; `None` where that cannot be told, as for a seat.
    pub(crate) wait_us: Option<u64>,
    pub(crate) paused: bool,
    pub(crate) levels: SmallVec<[Level; 3]>,
}

impl Decision {
    /// How a key stands that nobody asks for: it is open, or paused for so long.
    pub(crate) fn standing(
        labels: Arc<Labels>,
        paused_us: Option<u64>,
        levels: SmallVec<[Level; 3]>,
    ) -> Self {
        let granted = paused_us.is_none();
        Self { labels, granted, wait_us: Some(paused_us.unwrap_or(0)), paused: !granted, levels }
    }

    /// Whether the call may go: at once, or after [`wait`](Self::wait).
    pub fn granted(&self) -> bool {
        self.granted
    }

    /// From the decision until the call goes, or could have gone at the earliest. Zero where a seat is
    /// missing: nobody can tell when one comes back.
    pub fn wait(&self) -> Duration {
        Duration::from_micros(self.wait_us.unwrap_or(0))
    }

    /// How long to hold back before asking again; `None` if the call was granted, or if the time is not
    /// known, as for a seat.
    pub fn retry_after(&self) -> Option<Duration> {
        if self.granted { None } else { self.wait_us.map(Duration::from_micros) }
    }

    /// Whether the key is paused, because the service or an operator said so.
    pub fn paused(&self) -> bool {
        self.paused
    }

    /// Name of the limit that this decision reports; `None` for a policy without limits.
    pub fn limit(&self) -> Option<&str> {
        self.reported().map(|i| &*self.labels.limits[i].name)
    }

    /// Units left under the reported limit: of its period, burst, queue or seats. `u64::MAX` for a policy
    /// without limits.
    pub fn remaining(&self) -> u64 {
        self.reported().map_or(u64::MAX, |i| self.levels[i].remaining)
    }

    /// Until the reported limit is unused again, if nothing more is taken.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reported().map_or(0, |i| self.levels[i].reset_us))
    }

    /// Name of the limit that refused; `None` if the call was granted or refused for another reason.
    pub fn refused_by(&self) -> Option<&str> {
        if self.granted || self.paused { None } else { self.limit() }
    }

    /// Name of the policy that was asked.
    pub fn policy(&self) -> &str {
        &self.labels.policy
    }

    /// Every limit of the policy, in the policy's order.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitStatus<'_>> {
        self.labels.limits.iter().zip(&self.levels).map(|(label, level)| LimitStatus { label, level })
    }

    /// The limit with the longest wait, or the smallest share left.
    fn reported(&self) -> Option<usize> {
        let all = 0..self.levels.len();
        if self.granted {
            all.min_by(|&a, &b| {
                let (a, b) = (&self.levels[a], &self.levels[b]);
                (u128::from(a.remaining) * u128::from(b.most))
                    .cmp(&(u128::from(b.remaining) * u128::from(a.most)))
            })
        } else {
            // The first of equals: max_by_key would give the last.
            all.rev().max_by_key(|&i| self.levels[i].wait_us)
        }
    }
}

/// How one limit stands in a [`Decision`].
#[derive(Debug, Clone, Copy)]
pub struct LimitStatus<'a> {
    label: &'a Label,
    level: &'a Level,
}

impl<'a> LimitStatus<'a> {
    /// Name of the limit.
    pub fn name(&self) -> &'a str {
        &self.label.name
    }

    /// The unit that it counts.
    pub fn unit(&self) -> &'a str {
        &self.label.unit
    }

    /// What the limit promises: units of a period, or seats.
    pub fn quota(&self) -> u64 {
        self.label.quota
    }

    /// The period of [`quota`](Self::quota); `None` for seats.
    pub fn period(&self) -> Option<Duration> {
        self.label.window_us.map(Duration::from_micros)
    }

    /// Units left: of the period, burst, queue or seats.
    pub fn remaining(&self) -> u64 {
        self.level.remaining
    }

    /// Until all of it is there again, if nothing more is taken; zero for seats.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.level.reset_us)
    }

    /// Until the call fits under this limit; zero where it fits now, and where nobody can tell, as for a seat.
    pub fn wait(&self) -> Duration {
        Duration::from_micros(if self.level.wait_us == u64::MAX { 0 } else { self.level.wait_us })
    }
}
