//! Several limiters for one call: all of their permits, or none.
//!
//! In one step where they share a store, in order where something has to wait. Whatever was taken goes back
//! when a later one refuses, or when the caller gives up on the way.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

#[cfg(feature = "redis")]
use super::fleet;
use super::{Ask, Limiter, Permit, Plan, Refused};
use crate::algorithm::Costs;
use crate::clock;
use crate::store::{Outcome, Part, PartAnswer, When};

/// What several limiters are asked for together.
pub(super) struct Chain {
    pub(super) plans: SmallVec<[Arc<Plan>; 4]>,
    pub(super) costs: SmallVec<[Costs; 4]>,
    pub(super) may_wait: bool,
}

impl Chain {
    /// `None` where one has to be asked by itself, the refusal of one that can never grant.
    fn of(asks: &[(&Limiter, Ask<'_>)]) -> Option<Result<Self, Refused>> {
        let plans = asks.iter().map(|(limiter, _)| limiter.core.current.load_full());
        let mut chain = Self { plans: plans.collect(), costs: SmallVec::new(), may_wait: false };
        for (plan, (_, ask)) in chain.plans.iter().zip(asks) {
            let max_wait = plan.max_wait_of(ask);
            match plan.check(ask, max_wait) {
                Ok(cost) => chain.costs.push(cost),
                Err(_) if plan.policy.is_observe_only() => return None,
                Err(refused) => return Some(Err(refused)),
            }
            chain.may_wait |= !max_wait.is_zero() || plan.rules.holds();
        }
        Some(Ok(chain))
    }
}

impl Limiter {
    /// Permits of several limiters at once, or none: decided in one step where they share a store, and in
    /// order where something has to wait. What was taken goes back when a later one refuses, and when a key is
    /// paused while a later one holds the call, which then asks again. Only the last may hold calls for long: the
    /// others' charges stand while it does, and those calls go as it lets them, not as the others' rates would.
    ///
    /// # Errors
    /// The refusal of the first that refuses.
    pub async fn acquire_all(asks: &[(&Limiter, Ask<'_>)]) -> Result<Vec<Permit>, Refused> {
        let chain = match Chain::of(asks) {
            Some(Ok(chain)) => Some(chain),
            Some(Err(refused)) => return Err(refused),
            None => None,
        };
        if let Some(chain) = chain {
            #[cfg(feature = "redis")]
            let now = if chain.plans.iter().any(|plan| plan.shared.fleet.is_some()) {
                Box::pin(fleet::chain::all_now(asks, chain)).await
            } else {
                Self::all_now(asks, &chain)
            };
            #[cfg(not(feature = "redis"))]
            let now = Self::all_now(asks, &chain);
            if let Some(result) = now {
                return result;
            }
        }
        let begun = clock::now_us();
        loop {
            let mut taken = Taken(Vec::with_capacity(asks.len()));
            let mut pauses = SmallVec::<[u64; 4]>::new();
            for (limiter, ask) in asks {
                // Their waits run at the same time: each has what those before it left.
                let passed = Duration::from_micros(clock::now_us().saturating_sub(begun));
                let left = limiter.core.current.load().max_wait_of(ask).saturating_sub(passed);
                taken.0.push(limiter.acquire(ask.clone().max_wait(left)).await?);
                pauses.push(limiter.paused_until(ask.key));
            }
            // Before it goes a call looks at each pause again. One that was there before lets it go as a probe.
            let is_later = |((limiter, ask), before): (&(&Limiter, Ask<'_>), &u64)| {
                limiter.paused_until(ask.key) > *before
            };
            if !asks.iter().zip(&pauses).any(is_later) {
                return Ok(taken.all());
            }
        }
    }

    /// The answer in one step, where there can be one.
    fn all_now(asks: &[(&Limiter, Ask<'_>)], chain: &Chain) -> Option<Result<Vec<Permit>, Refused>> {
        let Chain { plans, costs, may_wait } = chain;
        let parts = plans
            .iter()
            .zip(asks)
            .zip(costs)
            .map(|((plan, (limiter, ask)), costs)| plan.part(limiter.margin, ask.key, costs));
        let parts = parts.collect::<SmallVec<[Part<'_>; 4]>>();
        let store = &asks.first()?.0.core.shared.store;
        let one_store = plans.iter().all(|plan| Arc::ptr_eq(store, &plan.shared.store));
        // Two parts of one budget cannot be asked about side by side.
        let apart = parts
            .iter()
            .enumerate()
            .all(|(i, part)| parts[..i].iter().all(|other| other.space != part.space));
        let observed = plans.iter().any(|plan| plan.policy.is_observe_only());
        let waiters = parts
            .iter()
            .zip(asks)
            .any(|(part, (limiter, _))| limiter.core.shared.queue.is_ahead(part, store));
        if !one_store || !apart || observed || waiters {
            return None;
        }
        let mut answer = store.decide(&parts, When::NOW);
        let answers = std::mem::take(&mut answer.parts);
        if answer.outcome == Outcome::Granted {
            let permits = plans.iter().zip(asks).zip(costs.iter().zip(answers)).map(
                |((plan, (limiter, _)), (costs, part))| {
                    Permit::of(plan, limiter.margin, costs.clone(), &answer, part)
                },
            );
            return Some(Ok(permits.collect()));
        }
        if *may_wait {
            return None;
        }
        let longest = |part: &PartAnswer| part.levels.iter().map(|level| level.wait_us).max();
        let (i, part) = answers.iter().enumerate().max_by_key(|(i, part)| (longest(part), usize::MAX - i))?;
        Some(Err(plans[i].refuse_answer(&answer, part, Duration::ZERO)))
    }
}

/// Permits of a chain that is not complete: when one refuses, or the caller gives up, all go back.
pub(super) struct Taken(pub(super) Vec<Permit>);

impl Taken {
    /// The permits of a chain that is complete.
    pub(super) fn all(mut self) -> Vec<Permit> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Permit::undo);
    }
}
