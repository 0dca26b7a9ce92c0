//! Several limiters for one call: all of their permits, or none.
//!
//! In one step where they share a store, in order where something has to wait. Whatever was taken goes back
//! when a later one refuses, or when the caller gives up on the way.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::{Ask, Limiter, Permit, Plan, Refused};
use crate::algorithm::Costs;
use crate::clock;
use crate::store::{Outcome, Part, PartAnswer, When};

impl Limiter {
    /// Permits of several limiters at once, or none: decided in one step where they share a store, and in
    /// order where something has to wait. What was taken goes back when a later one refuses. Only the last
    /// may hold calls for long: the others' charges stand while it does.
    ///
    /// # Errors
    /// The refusal of the first that refuses.
    pub async fn acquire_all(asks: &[(&Limiter, Ask<'_>)]) -> Result<Vec<Permit>, Refused> {
        if let Some(result) = Self::all_now(asks) {
            return result;
        }
        let begun = clock::now_us();
        let mut taken = Taken(Vec::with_capacity(asks.len()));
        for (limiter, ask) in asks {
            // Their waits run at the same time: each has what those before it left.
            let passed = Duration::from_micros(clock::now_us().saturating_sub(begun));
            let left = limiter.core.current.load().max_wait_of(ask).saturating_sub(passed);
            taken.0.push(limiter.acquire(ask.clone().max_wait(left)).await?);
        }
        Ok(std::mem::take(&mut taken.0))
    }

    /// The answer in one step, where there can be one.
    fn all_now(asks: &[(&Limiter, Ask<'_>)]) -> Option<Result<Vec<Permit>, Refused>> {
        let plans = asks
            .iter()
            .map(|(limiter, _)| limiter.core.current.load_full())
            .collect::<SmallVec<[Arc<Plan>; 4]>>();
        let mut costs = SmallVec::<[Costs; 4]>::new();
        let mut may_wait = false;
        for (plan, (_, ask)) in plans.iter().zip(asks) {
            let max_wait = plan.max_wait_of(ask);
            match plan.check(ask, max_wait) {
                Ok(cost) => costs.push(cost),
                Err(_) if plan.policy.is_observe_only() => return None,
                Err(refused) => return Some(Err(refused)),
            }
            may_wait |= !max_wait.is_zero() || plan.rules.holds();
        }
        let parts = plans
            .iter()
            .zip(asks)
            .zip(&costs)
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
            .any(|(part, (limiter, _))| limiter.core.shared.queue.is_ahead(part, &**store));
        if !one_store || !apart || observed || waiters {
            return None;
        }
        let mut answer = store.decide(&parts, When::NOW);
        let answers = std::mem::take(&mut answer.parts);
        if answer.outcome == Outcome::Granted {
            let permits = plans.iter().zip(asks).zip(costs.iter().zip(answers)).map(
                |((plan, (limiter, _)), (costs, part))| {
                    Permit::of(plan.clone(), limiter.margin, costs.clone(), &answer, part)
                },
            );
            return Some(Ok(permits.collect()));
        }
        if may_wait {
            return None;
        }
        let longest = |part: &PartAnswer| part.levels.iter().map(|level| level.wait_us).max();
        let (i, part) = answers.iter().enumerate().max_by_key(|(i, part)| (longest(part), usize::MAX - i))?;
        Some(Err(plans[i].refuse_answer(&answer, part, Duration::ZERO)))
    }
}

/// Permits of a chain that is not complete: when one refuses, or the caller gives up, all go back.
struct Taken(Vec<Permit>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Permit::undo);
    }
}
