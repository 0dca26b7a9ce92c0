//! The limits of one policy, reduced once: for asks with the default jitter margin and for asks without.
//!
//! Both sets read and write the same states, so that clones of a limiter with and without a margin share
//! their budgets. Also turns what a caller states, costs by unit, into costs by limit.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Rule, State};
use crate::decision::{Label, Labels};
use crate::limit::{Margin, REQUESTS, SEATS};
use crate::policy::{ConfigError, Policy};

/// Costs by limit, in the policy's order.
pub(crate) type Costs = SmallVec<[u64; 3]>;

/// The limits of one policy, ready to decide.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) labels: Arc<Labels>,
    bare: Box<[Rule]>,
    with_margin: Box<[Rule]>,
    /// What a call costs that states nothing, or the first unit that has to be stated.
    usual: Result<Costs, usize>,
    /// Whether something of a permit has to come back: a seat, or a settlement in a unit that is estimated.
    pub(crate) rides: bool,
    holds: bool,
}

/// Why costs cannot be charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CostFault<'a> {
    /// No limit counts this unit.
    Unknown(&'a str),
    /// The limit at this index counts a unit whose cost was not stated.
    Missing(usize),
    /// The cost is above what the limit at this index can ever hold.
    NeverFits(usize),
}

impl Rules {
    pub(crate) fn new(policy: &Policy) -> Result<Self, ConfigError> {
        policy.check()?;
        let reduce = |margin| {
            let rules = policy
                .limits()
                .iter()
                .map(|limit| Rule::new(limit, margin).map_err(|fault| policy.fault(limit, fault)));
            let mut rules = rules.collect::<Result<Box<[Rule]>, _>>()?;
            let hold_us = rules.iter().filter_map(Rule::hold_us).max().unwrap_or(0);
            rules.iter_mut().for_each(|rule| rule.held_beside(hold_us));
            Ok(rules)
        };
        let (bare, with_margin) = (reduce(Margin::None)?, reduce(Margin::Default)?);
        let limits = policy.limits().iter().zip(&bare).map(|(limit, rule)| {
            let kind = limit.checked().expect("the rule was reduced from it");
            let (quota, window_us) = match kind.rate() {
                Some(rate) => (rate.units(), Some(rate.period_us())),
                None => (rule.most(), None),
            };
            Label { name: limit.name().into(), unit: limit.counts().into(), quota, window_us }
        });
        let labels = Arc::new(Labels { policy: policy.name().into(), limits: limits.collect() });
        let usual_cost = |i: usize| match &*labels.limits[i].unit {
            REQUESTS | SEATS => Ok(1),
            _ => Err(i),
        };
        let usual = (0..labels.limits.len()).map(usual_cost).collect();
        let estimated = labels.limits.iter().any(|label| !matches!(&*label.unit, REQUESTS | SEATS));
        let rides = estimated || bare.iter().any(Rule::is_seats);
        let holds = bare.iter().any(|rule| rule.hold_us().is_some());
        Ok(Self { labels, bare, with_margin, usual, rides, holds })
    }

    #[inline]
    pub(crate) fn of(&self, margin: Margin) -> &[Rule] {
        match margin {
            Margin::None => &self.bare,
            Margin::Default => &self.with_margin,
        }
    }

    pub(crate) fn fresh(&self) -> SmallVec<[State; 1]> {
        self.bare.iter().map(Rule::fresh).collect()
    }

    /// Whether a limit itself holds calls: a leaky bucket.
    pub(crate) fn holds(&self) -> bool {
        self.holds
    }

    /// Whether a limit of the policy counts `unit`.
    pub(crate) fn counts(&self, unit: &str) -> bool {
        self.labels.limits.iter().any(|label| &*label.unit == unit)
    }

    /// The longest time from a used-up budget to an unused one.
    pub(crate) fn budget_us(&self) -> u64 {
        self.with_margin.iter().map(Rule::budget_us).max().unwrap_or(0)
    }

    /// Costs by limit where nothing was stated, and nothing has to be.
    #[inline]
    pub(crate) fn usual(&self, stated: &[(&str, u64)]) -> Option<&[u64]> {
        if stated.is_empty() { self.usual.as_deref().ok() } else { None }
    }

    /// Costs by limit for what was stated by unit.
    #[inline]
    pub(crate) fn costs<'a>(&self, stated: &[(&'a str, u64)]) -> Result<Costs, CostFault<'a>> {
        if stated.is_empty() {
            return match &self.usual {
                Ok(usual) => Ok(Costs::from_slice(usual)),
                Err(unit) => Err(CostFault::Missing(*unit)),
            };
        }
        if let Some((unit, _)) = stated.iter().find(|(unit, _)| {
            !matches!(*unit, REQUESTS | SEATS) && !self.counts(unit) && !self.labels.limits.is_empty()
        }) {
            return Err(CostFault::Unknown(unit));
        }
        let mut costs = Costs::new();
        for (i, label) in self.labels.limits.iter().enumerate() {
            let stated = stated.iter().find(|(unit, _)| *unit == &*label.unit).map(|(_, cost)| *cost);
            let cost = match (stated, &*label.unit) {
                (Some(cost), _) => cost,
                (None, REQUESTS | SEATS) => 1,
                (None, _) => return Err(CostFault::Missing(i)),
            };
            if cost > self.bare[i].most() {
                return Err(CostFault::NeverFits(i));
            }
            costs.push(cost);
        }
        Ok(costs)
    }

    /// The states of a key that `old` ruled until now, limit by limit of the same name: what was used stays
    /// used, and limits that are new begin unused.
    pub(crate) fn adopt(&self, old: &Rules, states: &[State], now: u64) -> SmallVec<[State; 1]> {
        let adopt = |(label, rule): (&Label, &Rule)| {
            let same = old.labels.limits.iter().position(|former| former.is_same(label));
            same.map_or_else(|| rule.fresh(), |i| rule.adopt(&old.bare[i], states[i].clone(), now))
        };
        self.labels.limits.iter().zip(&self.bare).map(adopt).collect()
    }
}
