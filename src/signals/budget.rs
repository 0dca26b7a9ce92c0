//! What a response says is left of one limit.
//!
//! Every dialect ends here, so whoever follows budgets needs to know none of them. A field that was not
//! sent, or could not be read, is `None`: never zero, never a default.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::time::Duration;

use super::Source;

/// What of a call there is more than one, as the names of fields spell it.
const COSTS: [&str; 9] =
    ["token", "byte", "character", "complexity", "cost", "credit", "image", "point", "unit"];

/// The state of one limit, as the service told it.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    pub(super) name: Option<Box<str>>,
    pub(super) unit: Option<Cow<'static, str>>,
    pub(super) limit: Option<u64>,
    pub(super) remaining: Option<u64>,
    pub(super) reset: Option<Duration>,
    pub(super) window: Option<Duration>,
    pub(super) standing: Option<Standing>,
    pub(super) source: Source,
}

/// A verdict that some services send in place of a count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Standing {
    Allowed,
    Rejected,
}

impl Budget {
    pub(super) fn new(source: Source) -> Self {
        Self {
            name: None,
            unit: None,
            limit: None,
            remaining: None,
            reset: None,
            window: None,
            standing: None,
            source,
        }
    }

    /// What the service calls this limit, where it has a name.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// What is counted, such as `requests`, `tokens` or `content-bytes`; `None` where it was not said.
    pub fn unit(&self) -> Option<&str> {
        self.unit.as_deref()
    }

    /// Units in a full budget.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Units left, rounded down; a counter that ran below zero is 0.
    pub fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// Time from the receipt of the response until the service resets this budget.
    pub fn reset(&self) -> Option<Duration> {
        self.reset
    }

    /// Length of the period that the limit counts in. This is no wait.
    pub fn window(&self) -> Option<Duration> {
        self.window
    }

    /// Which kind of field told it: [`Source::RateLimit`], [`Source::Vendor`] or [`Source::Body`].
    pub fn source(&self) -> Source {
        self.source
    }

    /// Whether nothing is left. `false` where nothing was said about it.
    pub fn is_exhausted(&self) -> bool {
        self.remaining == Some(0) || self.standing == Some(Standing::Rejected)
    }

    /// Whether it counts something that one call may need more than one of.
    pub(super) fn counts_cost(&self) -> bool {
        self.unit.as_deref().is_some_and(|unit| match self.source {
            Source::RateLimit => !unit.contains("request"),
            // Out of a field's name it may as well be a group of calls, such as `search` or `user`.
            _ => unit.split(['-', '_']).any(|word| {
                COSTS.contains(&word) || word.strip_suffix('s').is_some_and(|one| COSTS.contains(&one))
            }),
        })
    }

    /// Whether it is a reset alone, that the service may mean for all of its counters.
    pub(super) fn is_common_reset(&self) -> bool {
        self.is_unknown() && self.reset.is_some() && self.unit.is_none() && self.window.is_none()
    }

    /// Whether nothing was said about what is left.
    pub(super) fn is_unknown(&self) -> bool {
        self.remaining.is_none() && self.standing.is_none()
    }

    pub(super) fn says_nothing(&self) -> bool {
        self.limit.is_none() && self.remaining.is_none() && self.reset.is_none() && self.standing.is_none()
    }

    /// Orders budgets by how near they are to binding, the nearest first.
    pub(super) fn by_what_is_left(&self, other: &Self) -> Ordering {
        // A share can be compared with a share only, so budgets that have one come first.
        let rank = |budget: &Self| match (budget.remaining, budget.limit, budget.reset) {
            (Some(_), Some(_), _) => 0,
            (Some(_), None, _) => 1,
            (None, _, Some(_)) => 2,
            (None, _, None) => 3,
        };
        let left = |budget: &Self| u128::from(budget.remaining.unwrap_or(0));
        let full = |budget: &Self| u128::from(budget.limit.unwrap_or(1));
        rank(self)
            .cmp(&rank(other))
            .then_with(|| (left(self) * full(other)).cmp(&(left(other) * full(self))))
            .then_with(|| other.reset.cmp(&self.reset))
    }
}
