//! The limits of one policy, reduced once: for asks with the default jitter margin and for asks without.
//!
//! Both sets read and write the same states, so that clones of a limiter with and without a margin share
//! their budgets. Also turns what a caller states, costs by unit, into costs by limit.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Rule, State};
use crate::decision::{Label, Labels};
use crate::limit::{Margin, REQUESTS, SEATS};
use crate::policy::{ConfigError, MAX_LIMITS, Policy};

/// Costs by limit, in the policy's order.
pub(crate) type Costs = SmallVec<[u64; 3]>;

/// The cost of a call under a limit whose unit has to be stated: more than can be stated.
const UNSTATED: u64 = u64::MAX;

/// The limits of one policy, ready to decide.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) labels: Arc<Labels>,
    bare: Box<[Rule]>,
    with_margin: Box<[Rule]>,
    /// What a call costs by limit where nothing is stated, or [`UNSTATED`].
    unstated: Box<[u64]>,
    /// The most that a call can cost by limit.
    most: Costs,
    /// Whether a limit counts a unit whose cost has to be stated.
    estimated: bool,
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
        let unstated = labels.limits.iter().map(|label| match &*label.unit {
            REQUESTS | SEATS => 1,
            _ => UNSTATED,
        });
        let unstated = unstated.collect::<Box<[u64]>>();
        let estimated = unstated.contains(&UNSTATED);
        let most = bare.iter().map(Rule::most).collect();
        let rides = estimated || bare.iter().any(Rule::is_seats);
        let holds = bare.iter().any(|rule| rule.hold_us().is_some());
        Ok(Self { labels, bare, with_margin, unstated, most, estimated, rides, holds })
    }

    /// One worker's part of every limit.
    #[cfg(feature = "redis")]
    pub(crate) fn part_of(&self, workers: u32, rank: u32) -> Self {
        let labels = &self.labels.limits;
        let parts = |rules: &[Rule]| {
            labels
                .iter()
                .zip(rules)
                .map(|(label, rule)| rule.part_of(label, workers, rank))
                .collect::<Box<[Rule]>>()
        };
        Self {
            labels: self.labels.clone(),
            most: parts(&self.bare).iter().map(Rule::most).collect(),
            bare: parts(&self.bare),
            with_margin: parts(&self.with_margin),
            unstated: self.unstated.clone(),
            estimated: self.estimated,
            rides: self.rides,
            holds: self.holds,
        }
    }

    /// Whether time frees anything of it: not seats alone.
    pub(crate) fn is_timed(&self) -> bool {
        self.bare.iter().any(|rule| !rule.is_seats())
    }

    /// Whether all of it are buckets or plain rates, and none of them leaky.
    pub(crate) fn are_buckets(&self) -> bool {
        !self.holds && self.bare.iter().all(|rule| matches!(rule, Rule::Gcra(_)))
    }

    /// The longest that a limit takes to free one unit.
    pub(crate) fn unit_us(&self) -> u64 {
        let labels = self.labels.limits.iter();
        let units = labels.filter_map(|label| Some(label.window_us?.div_ceil(label.quota.max(1))));
        units.max().unwrap_or(0)
    }

    #[inline]
    pub(crate) fn of(&self, margin: Margin) -> &[Rule] {
        match margin {
            Margin::None => &self.bare,
            Margin::Default => &self.with_margin,
        }
    }

    /// Whether any of them counts by what the service has seen.
    #[cfg(feature = "client")]
    #[inline]
    pub(crate) fn are_told_of_answers(&self, margin: Margin) -> bool {
        self.of(margin).iter().any(|rule| rule.arrivals_us() > 0 || matches!(rule, Rule::SlidingLog(_)))
    }

    /// For how long after its slot the answer to a call is of use to a limit: it had arrived by then.
    #[cfg(feature = "client")]
    pub(crate) fn arrivals_us(&self, margin: Margin) -> u64 {
        self.of(margin).iter().map(Rule::arrivals_us).max().unwrap_or(0)
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
        (stated.is_empty() && !self.estimated).then_some(&*self.unstated)
    }

    /// Costs by limit for what was stated by unit.
    pub(crate) fn costs<'a>(&self, stated: &[(&'a str, u64)]) -> Result<Costs, CostFault<'a>> {
        self.costs_in(&mut [0; MAX_LIMITS], stated).map(Costs::from_slice)
    }

    /// The same in a place of the caller's.
    #[inline]
    pub(crate) fn costs_in<'c, 'a>(
        &self,
        place: &'c mut [u64; MAX_LIMITS],
        stated: &[(&'a str, u64)],
    ) -> Result<&'c [u64], CostFault<'a>> {
        let limits = &*self.labels.limits;
        let costs = &mut place[..self.unstated.len()];
        costs.iter_mut().zip(&self.unstated).for_each(|(cost, unstated)| *cost = *unstated);
        for (unit, stated) in stated {
            let mut is_counted = false;
            for (label, cost) in limits.iter().zip(&mut *costs) {
                if *unit == &*label.unit {
                    (*cost, is_counted) = ((*stated).min(UNSTATED - 1), true);
                }
            }
            if !is_counted && !matches!(*unit, REQUESTS | SEATS) && !limits.is_empty() {
                return Err(CostFault::Unknown(unit));
            }
        }
        if let Some(i) = self.most.iter().zip(&*costs).position(|(most, cost)| cost > most) {
            return Err(if costs[i] == UNSTATED { CostFault::Missing(i) } else { CostFault::NeverFits(i) });
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
