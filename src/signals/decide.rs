//! Which of a response's signals wins: the one place where that is decided.
//!
//! An explicit wait beats budgets, and the body can only lengthen. Of several exhausted budgets the
//! longest counts, since a call passes only when all of them let it. A budget that has something left is
//! not why a call was refused, unless it counts cost, of which one call may need more than is left. Pure:
//! the same facts give the same answer, and no signal that is absent turns into a wait of zero.

use std::time::Duration;

use http::StatusCode;

use super::budget::Budget;
use super::{Class, Profile, Source};

const AIRTABLE: Duration = Duration::from_secs(30);
const GITHUB_SECONDARY: Duration = Duration::from_secs(60);

/// Everything that a response said.
#[derive(Clone, Copy)]
pub(super) struct Facts<'a> {
    pub(super) profile: Profile,
    pub(super) status: StatusCode,
    /// The explicit wait of the headers.
    pub(super) asked: Option<(Duration, Source)>,
    /// The explicit wait of the body.
    pub(super) told: Option<Duration>,
    pub(super) should_retry: Option<bool>,
    /// The service named this a throttle in a way of its own.
    pub(super) is_throttle: bool,
    /// What its documentation asks for where the response does not.
    pub(super) floor: Option<Duration>,
    pub(super) budgets: &'a [Budget],
}

/// What it comes to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdict {
    pub(super) wait: Option<Duration>,
    pub(super) source: Source,
    pub(super) class: Class,
    /// The index of the budget that binds.
    pub(super) binding: Option<usize>,
    /// Whether the wait is only what the service's documentation asks for.
    #[cfg_attr(not(feature = "client"), allow(dead_code, reason = "only the client's side asks for it"))]
    pub(super) is_floor: bool,
}

impl Verdict {
    pub(super) const NOTHING: Self =
        Self { wait: None, source: Source::None, class: Class::None, binding: None, is_floor: false };
}

impl Facts<'_> {
    pub(super) fn decide(&self) -> Verdict {
        if self.is_silent() {
            return Verdict::NOTHING;
        }
        let class = self.class();
        let (binding, is_cause) = self.binding();
        // Nothing is to be repeated where the class is none, so its budgets hold only the next call.
        let budget =
            binding.filter(|_| is_cause && class != Class::None).and_then(|index| self.reset_of(index));
        let stated = self.longest(budget);
        let wait = stated.or_else(|| {
            let floor = if class == Class::Throttle { self.documented() } else { None };
            floor.map(|floor| (floor, Source::Vendor))
        });
        Verdict {
            wait: wait.map(|(wait, _)| wait),
            source: wait.map_or(Source::None, |(_, s)| s),
            class,
            binding,
            is_floor: stated.is_none() && wait.is_some(),
        }
    }

    /// Whether this is one of the many responses that are no error and say nothing.
    fn is_silent(&self) -> bool {
        let says =
            self.asked.is_some() || self.told.is_some() || self.is_throttle || !self.budgets.is_empty();
        !says && self.status.as_u16() < 400
    }

    fn longest(&self, budget: Option<(Duration, Source)>) -> Option<(Duration, Source)> {
        // GitHub documents both conditions, so both have to be met.
        let both_hold = self.profile == Profile::GitHub;
        let budget =
            budget.filter(|(reset, _)| self.asked.is_none_or(|(asked, _)| both_hold && asked < *reset));
        let headers = budget.or(self.asked);
        let body = self.told.filter(|told| headers.is_none_or(|(wait, _)| wait < *told));
        body.map(|told| (told, Source::Body)).or(headers)
    }

    fn class(&self) -> Class {
        let is_limit = self.asked.is_some() || self.told.is_some() || self.has_exhausted();
        match self.status.as_u16() {
            _ if self.is_vendors_throttle() => Class::Throttle,
            429 | 529 => Class::Throttle,
            403 | 413 | 503 if is_limit => Class::Throttle,
            408 | 425 | 500 | 502 | 503 | 504 => Class::Transient,
            // A code that no standard names is its class's first (RFC 9110, 15), such as Cloudflare's 520 to 530.
            509 | 512..600 => Class::Transient,
            400.. if self.should_retry == Some(true) => Class::Transient,
            _ => Class::None,
        }
    }

    /// Whether this service means a throttle by a status that others use for something else.
    fn is_vendors_throttle(&self) -> bool {
        if self.is_throttle {
            return true;
        }
        match (self.profile, self.status.as_u16()) {
            (Profile::Binance, 418) => self.asked.is_some(),
            (Profile::Linear, 400) => self.has_exhausted(),
            (Profile::Nvd | Profile::SecEdgar, 403) => true,
            _ => false,
        }
    }

    fn has_exhausted(&self) -> bool {
        self.budgets.iter().any(Budget::is_exhausted)
    }

    /// The budget that binds, and whether it can be why the call was refused.
    fn binding(&self) -> (Option<usize>, bool) {
        let latest = |wanted: &dyn Fn(&Budget) -> bool| {
            let of_kind = self.budgets.iter().enumerate().filter(|(_, budget)| wanted(budget));
            // Of equal ones the first, which `max_by_key` would leave for the last.
            of_kind.rev().max_by_key(|(_, budget)| budget.reset()).map(|(index, _)| index)
        };
        if let Some(exhausted) = latest(&Budget::is_exhausted) {
            return (Some(exhausted), true);
        }
        if self.status == StatusCode::TOO_MANY_REQUESTS || self.is_vendors_throttle() {
            let unknown = latest(&|budget| budget.is_unknown() && budget.reset().is_some());
            let cost = || latest(&|budget| budget.counts_cost() && budget.reset().is_some());
            if let Some(cause) = unknown.or_else(cost) {
                return (Some(cause), true);
            }
        }
        let nearest =
            self.budgets.iter().enumerate().min_by(|(_, one), (_, other)| one.by_what_is_left(other));
        (nearest.map(|(index, _)| index), false)
    }

    /// When a budget resets; a service may state one reset for all of its counters.
    fn reset_of(&self, index: usize) -> Option<(Duration, Source)> {
        let common =
            || self.budgets.iter().filter(|budget| budget.is_common_reset()).max_by_key(|b| b.reset());
        let stated = Some(&self.budgets[index]).filter(|budget| budget.reset().is_some()).or_else(common)?;
        stated.reset().map(|reset| (reset, stated.source()))
    }

    /// What a service's documentation asks for when a throttle states no wait.
    fn documented(&self) -> Option<Duration> {
        match self.profile {
            Profile::Airtable => Some(AIRTABLE),
            Profile::GitHub if self.is_throttle || matches!(self.status.as_u16(), 403 | 429) => {
                Some(GITHUB_SECONDARY)
            }
            Profile::AmazonSpApi | Profile::HubSpot => self.floor,
            _ => None,
        }
    }
}
