//! What became of calls of a key, until the next trip takes it along: when they had arrived, or that they do not count.
//!
//! News, never a debt: what gets lost only leaves a limit its whole margin, or its charge.

use crate::algorithm::Costs;
use crate::limiter::Plan;
use crate::store::redis::wire::Fate;

/// Slots of which so much is kept.
const MOST: usize = 64;

/// The calls of which something has become since the last trip.
#[derive(Default)]
pub(super) struct Fates(Vec<Known>);

struct Known {
    /// The plan whose limits the costs are of.
    plan: usize,
    slot: u64,
    costs: Costs,
    /// When the last answer came, by the clock of this process; `None` of calls that do not count.
    answered: Option<u64>,
}

impl Fates {
    pub(super) fn add(
        &mut self,
        plan: &Plan,
        slot: u64,
        costs: impl Iterator<Item = u64>,
        answered: Option<u64>,
    ) {
        let is_same = |known: &Known| {
            known.slot == slot && known.plan == plan.id && known.answered.is_some() == answered.is_some()
        };
        if let Some(i) = self.0.iter().rposition(is_same) {
            let known = &mut self.0[i];
            known.costs.iter_mut().zip(costs).for_each(|(known, cost)| *known += cost);
            known.answered = known.answered.max(answered);
        } else {
            if self.0.len() == MOST {
                self.0.remove(0);
            }
            self.0.push(Known { plan: plan.id, slot, costs: costs.collect(), answered });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All that is known, as of now; it is told once.
    pub(super) fn take(&mut self, plan: &Plan, now: u64) -> Vec<Fate> {
        let known = std::mem::take(&mut self.0).into_iter().filter(|known| known.plan == plan.id);
        let fate = |Known { slot, costs, answered, .. }| {
            let answered_ago_us = answered.map(|answered| now.saturating_sub(answered));
            Fate { slot, answered_ago_us, costs }
        };
        known.map(fate).collect()
    }
}
