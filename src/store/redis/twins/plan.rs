//! Policies at random, of limits of all kinds, and the names of a walk's keys under them.
//!
//! A policy can be changed into others of the same names, for workers of one fleet that were not given their new
//! numbers at the same time.

use std::time::Duration;

use fastrand::Rng;

use crate::algorithm::Rules;
use crate::limit::{Limit, Rate};
use crate::policy::Policy;
use crate::store::redis::names::Names;

/// Keys of a walk.
pub(super) const KEYS: usize = 2;

fn some_limit(rng: &mut Rng) -> Limit {
    let units = rng.choice([1, 2, 3, 5, 7, 10, 51, 120, 10_007]).unwrap();
    let periods = [7, 1_000, 999_983, 1_000_000, 7_000_000, 60_000_000];
    let rate = Rate::new(units, Duration::from_micros(rng.choice(periods).unwrap()));
    match rng.u8(0..8) {
        0 => Limit::rate(rate),
        1 => Limit::token_bucket(rate, rng.u64(1..=2 * units)),
        2 => Limit::leaky_bucket(rate, rng.u64(0..10)),
        3 => Limit::fixed_window(rate),
        4 => Limit::sliding_window(rate, rng.u32(1..=7)),
        5 => Limit::sliding_counter(rate),
        6 => Limit::sliding_log(rate),
        _ => Limit::concurrency(rng.u32(1..=6)),
    }
}

/// One policy under which a key is asked, as some worker has it.
pub(super) struct Plan {
    pub(super) rules: Rules,
    pub(super) limits: Vec<Limit>,
    pub(super) names: Vec<Names>,
}

impl Plan {
    /// Of one to three limits, whose numbers no reduction refuses.
    pub(super) fn some(rng: &mut Rng, prefix: &str) -> Self {
        loop {
            let limits = (0..rng.usize(1..=3)).map(|_| some_limit(rng)).collect::<Vec<_>>();
            if let Some(plan) = Self::new(prefix, &limits) {
                return plan;
            }
        }
    }

    pub(super) fn new(prefix: &str, limits: &[Limit]) -> Option<Self> {
        let named = limits.iter().enumerate().map(|(i, limit)| limit.clone().named(&format!("l{i}")));
        let policy = named.fold(Policy::new(prefix), |policy, limit| policy.limit(limit));
        let rules = Rules::new(&policy).ok()?;
        let names = (0..KEYS).map(|key| Names::new("forbear", prefix, &format!("key {key}"), &rules.labels));
        Some(Self { limits: limits.to_vec(), names: names.collect(), rules })
    }

    /// Other numbers or other kinds of limits, of the same names.
    pub(super) fn changed(&self, rng: &mut Rng, prefix: &str) -> Option<Self> {
        let limits = self.limits.iter().map(|limit| match rng.u8(0..4) {
            0 => some_limit(rng),
            1 => limit.clone().share(rng.choice([0.5, 0.95, 0.1]).unwrap()),
            2 => limit.clone().jitter_margin(Duration::from_micros(rng.u64(0..200_000))),
            _ => limit.clone(),
        });
        Self::new(prefix, &limits.collect::<Vec<_>>())
    }
}
