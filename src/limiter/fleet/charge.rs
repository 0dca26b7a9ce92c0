//! What a permit of the fleet has to give back or to correct.
//!
//! Reached from a permit's drop, in or out of a runtime: nothing here waits, and what goes to Redis is sent once.

use std::sync::Arc;

use super::Fleet;
use super::key::Key;
#[cfg(feature = "client")]
use crate::algorithm::Rule;
use crate::limiter::{Permit, Plan};
use crate::store;
use crate::store::redis::wire::Settlement;

/// What a permit of the fleet has to give back.
pub(in crate::limiter) struct Charge {
    pub(super) fleet: Arc<Fleet>,
    pub(super) key: Arc<Key>,
    pub(super) plan: Arc<Plan>,
    /// The permit of this process's own part, if it was given while Redis was away.
    pub(super) part: Option<Permit>,
}

impl Charge {
    /// The seats of a permit are not used any more.
    pub(in crate::limiter) fn free_seats(&self, charge: &store::Charge<'_>) {
        let mut freed = false;
        let mut state = self.key.state.lock();
        let rules = charge.rules.of(charge.margin).iter().zip(&charge.rules.labels.limits);
        for ((_, label), charged) in rules.zip(charge.charges).filter(|((rule, _), _)| rule.is_seats()) {
            let seats = charged.replace(0);
            if seats > 0 {
                state.free(label, seats);
                freed = true;
            }
        }
        drop(state);
        if freed {
            self.fleet.report(&self.key, &self.plan);
        }
    }

    /// The call was answered at that instant.
    #[cfg(feature = "client")]
    pub(in crate::limiter) fn arrived(&self, charge: &store::Charge<'_>, by: u64) {
        match &self.part {
            // It is paced, and needs no margin.
            Some(_) => {}
            None => {
                let costs = charge.charges.iter().enumerate();
                let costs = costs.map(|(i, charged)| if charge.arrives(i) { charged.cost() } else { 0 });
                self.key.state.lock().fates.add(&self.plan, charge.slot, costs, Some(by));
            }
        }
    }

    /// The service refused the call.
    #[cfg(feature = "client")]
    pub(in crate::limiter) fn declined(&self, charge: &store::Charge<'_>) {
        match &self.part {
            Some(_) => {}
            None => {
                let rules = charge.rules.of(charge.margin).iter().zip(charge.charges);
                // It is taken back once.
                let costs = rules.map(|(rule, charged)| match rule {
                    Rule::SlidingLog(_) => charged.replace(0),
                    _ => 0,
                });
                self.key.state.lock().declined.add(&self.plan, charge.slot, costs, None);
            }
        }
    }

    /// Corrects what was charged under the limit at `index` to what was really used.
    pub(in crate::limiter) fn settle(&self, charge: store::Charge<'_>, index: usize, used: u64) {
        if let Some(part) = &self.part {
            return part.settle(&self.plan.rules.labels.limits[index].unit, used);
        }
        let (fleet, key, plan) = (self.fleet.clone(), self.key.clone(), self.plan.clone());
        let (margin, slot) = (charge.margin, charge.slot);
        let (charged, mark) = (charge.charges[index].replace(used), charge.charges[index].mark);
        self.fleet.hub.spawn(async move {
            let names = key.state.lock().names(fleet.hub.prefix(), &fleet.policy, &key, &plan);
            let settlement = Settlement {
                now: None,
                rules: &plan.rules,
                margin,
                names: &names,
                index,
                slot,
                charged,
                used,
                mark,
            };
            _ = fleet.hub.run(&settlement.call()).await;
            key.state.lock().doubt();
        });
    }
}
