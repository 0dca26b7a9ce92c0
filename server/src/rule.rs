//! One policy of a layer with the key that it limits by, and the counts of what it did.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forbear::{Ask, ConfigError, Limiter, Policy};
use http::request::Parts;

use crate::key::Key;

/// Requests to which a rule did not apply before the first to which it did, at which this is worth a line.
const SUSPICIOUS: u64 = 1_000;

/// One policy and its key.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) limiter: Limiter,
    pub(crate) key: Key,
    pub(crate) counts: Counts,
}

/// What a rule did, counted.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) passed: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) observed: AtomicU64,
    not_applied: AtomicU64,
    warned: AtomicBool,
}

/// What one policy of a layer has done since the layer was built.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Name of the policy.
    pub policy: String,
    /// Requests that it let through.
    pub passed: u64,
    /// Requests that it refused. A rising count says that callers are over their budgets, or, for seats and
    /// queues, that the server is at capacity.
    pub refused: u64,
    /// Requests that it let through only because it just observes; they are in `passed`, too.
    pub observed: u64,
    /// Requests that had no key for it.
    pub not_applied: u64,
}

impl Rule {
    /// The policy's name.
    pub(crate) fn name(&self) -> String {
        self.limiter.policy().name().to_owned()
    }

    pub(crate) fn tally(&self) -> Tally {
        let Counts { passed, refused, observed, not_applied, .. } = &self.counts;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Tally {
            policy: self.name(),
            passed: read(passed),
            refused: read(refused),
            observed: read(observed),
            not_applied: read(not_applied),
        }
    }

    /// Counts a request that has no key for the rule.
    pub(crate) fn skip(&self) {
        let skipped = add(&self.counts.not_applied) + 1;
        let applied =
            [&self.counts.passed, &self.counts.refused].iter().any(|count| count.load(Ordering::Relaxed) > 0);
        if skipped >= SUSPICIOUS && !applied && !self.counts.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                policy = self.limiter.policy().name(),
                key = self.key.class(),
                requests = skipped,
                "no request so far had a key for this policy, so it limits nobody; is the layer that provides \
                 the key inside of the limit layer? it has to be outside"
            );
        }
    }
}

pub(crate) fn add(count: &AtomicU64) -> u64 {
    count.fetch_add(1, Ordering::Relaxed)
}

/// What a request costs in one unit.
pub(crate) struct Cost {
    pub(crate) unit: String,
    pub(crate) of: Box<dyn Fn(&Parts) -> u64 + Send + Sync>,
}

/// The costs of one request, each computed when a policy first counts it.
pub(crate) struct Costs<'a> {
    costs: &'a [Cost],
    head: &'a Parts,
    known: Vec<Option<u64>>,
}

impl<'a> Costs<'a> {
    pub(crate) fn new(costs: &'a [Cost], head: &'a Parts) -> Self {
        Self { costs, head, known: vec![None; costs.len()] }
    }

    /// The question to a policy's limiter: each unit that it counts, and how long the request may be held.
    pub(crate) fn ask<'k>(&mut self, policy: &Policy, key: &'k str) -> Ask<'k>
    where
        'a: 'k,
    {
        let max_wait = policy.stated_max_wait().unwrap_or_default();
        let mut ask = Ask::new(key).max_wait(max_wait);
        for (cost, known) in self.costs.iter().zip(&mut self.known) {
            if policy.limits().iter().any(|limit| limit.counts() == cost.unit) {
                ask = ask.cost(&cost.unit, *known.get_or_insert_with(|| (cost.of)(self.head)));
            }
        }
        ask
    }
}

/// Whether a request costs 1 in a unit in which it states no cost.
pub(crate) fn costs_one(unit: &str) -> bool {
    matches!(unit, "requests" | "seats")
}

/// The first fault of a policy that a layer would have to find out with each request.
pub(crate) fn check(policy: &Policy, key: &Key, costs: &[Cost]) -> Result<(), ConfigError> {
    let fault =
        |field, fault: String| Err(ConfigError::Field { policy: policy.name().to_owned(), field, fault });
    if let Some(of_key) = key.fault() {
        return fault("key", of_key.to_owned());
    }
    let wire = |text: &str| text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if !wire(policy.name()) {
        return fault("name", "must be printable ASCII: it stands in headers".to_owned());
    }
    for limit in policy.limits() {
        let (name, unit) = (limit.name(), limit.counts());
        if !wire(&name) || !wire(unit) {
            let text =
                format!("contain `{name}`, whose name or unit is not printable ASCII: they stand in headers");
            return fault("limits", text);
        }
        if !costs_one(unit) && costs.iter().all(|cost| cost.unit != unit) {
            return fault("cost", format!("in `{unit}` is counted by a limit, and no `.cost` states it"));
        }
    }
    Ok(())
}
