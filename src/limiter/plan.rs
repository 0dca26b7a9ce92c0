//! A policy, reduced, with what it takes to decide by it and to say why not.
//!
//! Replaced as a whole when the policy changes; a permit keeps the one that it was given under.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;

use super::issuer::Issuer;
use super::{Ask, Permit, Refused, RefusedKind, Shared};
use crate::algorithm::{CostFault, Costs, NEVER, Rules};
use crate::clock;
use crate::decision::{Decision, Level};
use crate::limit::Margin;
use crate::policy::{ConfigError, MAX_LIMITS, MAX_WAIT, Policy};
use crate::store::{Answer, Outcome, Part, PartAnswer, Space};

/// A policy, reduced; replaced as a whole.
pub(super) struct Plan {
    /// Tells it from those before; the first is 0.
    pub(super) id: usize,
    pub(super) policy: Arc<Policy>,
    pub(super) rules: Arc<Rules>,
    pub(super) space: Space,
    pub(super) shared: Arc<Shared>,
    pub(super) issuer: Arc<Issuer>,
    /// Under which name its permits are counted.
    #[cfg(feature = "metrics")]
    pub(super) granted: metrics::Key,
}

impl Plan {
    pub(super) fn new(
        id: usize,
        policy: Policy,
        space: Space,
        shared: Arc<Shared>,
    ) -> Result<Self, ConfigError> {
        let rules = Arc::new(Rules::new(&policy)?);
        let issuer = Arc::new(Issuer::new(rules.clone(), &shared));
        Ok(Self {
            id,
            #[cfg(feature = "metrics")]
            granted: crate::metrics::granted_key(policy.name()),
            policy: Arc::new(policy),
            rules,
            space,
            shared,
            issuer,
        })
    }

    /// One worker's part of every limit, as a plan of its own.
    #[cfg(feature = "redis")]
    pub(super) fn part_of(&self, workers: u32, rank: u32, shared: Arc<Shared>) -> Self {
        let rules = Arc::new(self.rules.part_of(workers, rank));
        let issuer = Arc::new(Issuer::new(rules.clone(), &shared));
        Self {
            id: 0,
            policy: self.policy.clone(),
            rules,
            space: Space(0),
            shared,
            issuer,
            #[cfg(feature = "metrics")]
            granted: self.granted.clone(),
        }
    }

    pub(super) fn part<'a>(&'a self, margin: Margin, key: &'a str, costs: &'a [u64]) -> Part<'a> {
        Part { space: self.space, rules: &self.rules, margin, key, costs }
    }

    /// A part that asks for nothing.
    pub(super) fn whole<'a>(&'a self, margin: Margin, key: &'a str) -> Part<'a> {
        self.part(margin, key, &[])
    }

    /// A permit that the store gives in one step, or nothing happened.
    #[inline(never)]
    pub(super) fn grant(&self, margin: Margin, ask: &Ask<'_>, at: Option<u64>) -> Option<Permit> {
        let mut stated;
        let costs = match self.rules.usual(&ask.costs) {
            Some(usual) => usual,
            None => {
                stated = [0; MAX_LIMITS];
                self.rules.costs_in(&mut stated, &ask.costs).ok()?
            }
        };
        Permit::now(self, margin, ask.key, costs, at)
    }

    /// How long a call may be held back.
    pub(super) fn max_wait(&self) -> Duration {
        self.policy.stated_max_wait().unwrap_or(MAX_WAIT)
    }

    /// How long an ask may be held back.
    pub(super) fn max_wait_of(&self, ask: &Ask<'_>) -> Duration {
        ask.max_wait.unwrap_or(Duration::MAX).min(self.max_wait())
    }

    /// An ask's costs by limit, if it may be asked at all.
    pub(super) fn check(&self, ask: &Ask<'_>, max_wait: Duration) -> Result<Costs, Refused> {
        let costs = self.rules.costs(&ask.costs).map_err(|fault| self.refuse_cost(fault, max_wait))?;
        if self.shared.closed.load(Ordering::Relaxed) {
            return Err(self.refuse(RefusedKind::Closed, max_wait));
        }
        Ok(costs)
    }

    /// Whether a call may go: it was granted, or the policy only observes, and counts it as refused.
    pub(super) fn lets_through(&self, answer: &Answer, part: &PartAnswer) -> bool {
        let is_granted = answer.outcome == Outcome::Granted;
        if cfg!(feature = "metrics") && !is_granted && self.policy.is_observe_only() {
            _ = self.refuse_answer(answer, part, Duration::ZERO);
        }
        is_granted || self.policy.is_observe_only()
    }

    /// The permit of a call that could never be granted, under a policy that only observes.
    pub(super) fn observed(&self, margin: Margin, refused: &Refused) -> Option<Permit> {
        let closed = self.shared.closed.load(Ordering::Relaxed);
        let is_of_costs =
            matches!(refused.kind(), RefusedKind::NeverFits | RefusedKind::NoCost | RefusedKind::UnknownUnit);
        if !self.policy.is_observe_only() || !is_of_costs || closed {
            return None;
        }
        let answer =
            Answer { now: clock::now_us(), at: NEVER, outcome: Outcome::Refused, parts: SmallVec::new() };
        Some(Permit::of(self, margin, Costs::new(), &answer, PartAnswer::default()))
    }

    /// The refusal of a call before anything was asked.
    pub(super) fn refuse(&self, kind: RefusedKind, max_wait: Duration) -> Refused {
        let decision = Decision {
            labels: self.rules.labels.clone(),
            granted: false,
            wait_us: None,
            paused: false,
            levels: SmallVec::new(),
        };
        Refused::new(kind, decision, max_wait)
    }

    pub(super) fn refuse_cost(&self, fault: CostFault<'_>, max_wait: Duration) -> Refused {
        match fault {
            CostFault::Unknown(unit) => self.refuse(RefusedKind::UnknownUnit, max_wait).naming(unit),
            CostFault::Missing(i) => {
                self.refuse(RefusedKind::NoCost, max_wait).naming(&self.rules.labels.limits[i].unit)
            }
            CostFault::NeverFits(i) => {
                self.refuse(RefusedKind::NeverFits, max_wait).naming(&self.rules.labels.limits[i].name)
            }
        }
    }

    /// The refusal that a store's answer amounts to.
    pub(super) fn refuse_answer(&self, answer: &Answer, part: &PartAnswer, max_wait: Duration) -> Refused {
        let kind = match answer.outcome {
            Outcome::Paused { .. } => RefusedKind::Paused,
            _ if answer.at == NEVER => RefusedKind::NoSeat,
            _ => RefusedKind::RateLimited,
        };
        Refused::new(kind, self.decision(answer, part.levels.clone()), max_wait)
    }

    /// The decision that one part of a store's answer amounts to.
    pub(super) fn decision(&self, answer: &Answer, levels: SmallVec<[Level; 3]>) -> Decision {
        Decision {
            labels: self.rules.labels.clone(),
            granted: answer.outcome == Outcome::Granted,
            wait_us: (answer.at != NEVER).then(|| answer.at.saturating_sub(answer.now)),
            paused: matches!(answer.outcome, Outcome::Paused { .. }),
            levels,
        }
    }
}
