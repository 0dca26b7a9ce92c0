//! Several limiters for one call: all of their permits, or none.
//!
//! In one step where they share a store, in order where something has to wait. Whatever was taken goes back
//! when a later one refuses, or when the caller gives up on the way.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

#[cfg(feature = "redis")]
use super::fleet;
use super::{Ask, Limiter, Permit, Plan, Refused, RefusedKind};
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
    /// paused while a later one holds the call, which then asks again. Only the last may hold calls for long. While its
    /// seats do, charges of the others' rates are made anew, so that the calls that it lets go keep to them; where
    /// the last has a rate of its own, or the others have seats, what was taken stands.
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
            let mut turns = Turns::of(asks, begun);
            match turns.all().await {
                Ok(()) => return Ok(turns.done()),
                Err(Miss::Refused(refused)) => return Err(refused),
                Err(Miss::Later(wait)) => {
                    drop(turns);
                    tokio::time::sleep(wait.min(HELD)).await;
                }
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

/// A permit that a call holds for longer before it goes is of another time, for which no jitter margin makes up.
const STALE_US: u64 = 20_000;
/// So long the last permit of a chain is held at most while the others are waited for.
const HELD: Duration = Duration::from_secs(1);

/// Permits that are waited for one after the other: when one does not come, or the caller gives up, all go back.
struct Turns<'a, 'l, 'k> {
    asks: &'a [(&'l Limiter, Ask<'k>)],
    begun: u64,
    taken: SmallVec<[Option<Turn>; 4]>,
}

struct Turn {
    permit: Permit,
    since: u64,
    /// When its key's pause ended then: one that was there let it go as a probe.
    paused_until: u64,
}

/// Why the permits are not there.
enum Miss {
    Refused(Refused),
    /// The others would have to be held for so long, or were overtaken by a pause.
    Later(Duration),
}

impl<'a, 'l, 'k> Turns<'a, 'l, 'k> {
    fn of(asks: &'a [(&'l Limiter, Ask<'k>)], begun: u64) -> Self {
        Self { asks, begun, taken: asks.iter().map(|_| None).collect() }
    }

    /// Takes them all.
    async fn all(&mut self) -> Result<(), Miss> {
        let Some(last) = self.asks.len().checked_sub(1) else { return Ok(()) };
        if self.is_crowded(last) {
            // Who would only wait for a seat takes nothing of the others meanwhile.
            self.take(last, Duration::MAX).await?;
        }
        for i in 0..=last {
            if self.taken[i].is_none() {
                let most = if self.taken[last].is_some() { HELD } else { Duration::MAX };
                self.take(i, most).await?;
            }
        }
        for i in 0..last {
            let now = clock::now_us();
            let is_stale = |turn: &mut Turn| now.saturating_sub(turn.since) > STALE_US;
            if self.moves(i)
                && let Some(stale) = self.taken[i].take_if(is_stale)
            {
                stale.permit.undo();
                self.take(i, HELD).await?;
            }
        }
        // Before it goes a call looks at each pause again.
        let is_later = |(turn, (limiter, ask)): (&Option<Turn>, &(&Limiter, Ask<'_>))| {
            turn.as_ref().is_some_and(|turn| limiter.paused_until(ask.key) > turn.paused_until)
        };
        if self.taken.iter().zip(self.asks).any(is_later) {
            return Err(Miss::Later(Duration::ZERO));
        }
        Ok(())
    }

    /// Takes one, within so long.
    async fn take(&mut self, i: usize, most: Duration) -> Result<(), Miss> {
        let (limiter, ask) = &self.asks[i];
        // Their waits run at the same time: each has what those before it left.
        let passed = Duration::from_micros(clock::now_us().saturating_sub(self.begun));
        let left = limiter.core.current.load().max_wait_of(ask).saturating_sub(passed);
        match limiter.acquire(ask.clone().max_wait(left.min(most))).await {
            Ok(permit) => {
                let (since, paused_until) = (clock::now_us(), limiter.paused_until(ask.key));
                self.taken[i] = Some(Turn { permit, since, paused_until });
                Ok(())
            }
            Err(refused) => {
                let wait = match refused.kind() {
                    RefusedKind::RateLimited => refused.retry_after(),
                    // Then they are waited for in their own queues.
                    RefusedKind::Paused | RefusedKind::NoSeat => Some(Duration::ZERO),
                    _ => None,
                };
                let later = wait.filter(|wait| most < left && *wait < left - most);
                Err(later.map_or(Miss::Refused(refused), Miss::Later))
            }
        }
    }

    /// Whether a charge under it moves on with time while a seat of the last is waited for. A leaky bucket's queue
    /// holds its calls itself, and who has a seat keeps it.
    fn moves(&self, i: usize) -> bool {
        let plan = |i: usize| self.asks[i].0.core.current.load_full();
        let (last, ours) = (plan(self.asks.len() - 1), plan(i));
        !last.rules.is_timed() && !ours.rules.has_seats() && !ours.rules.holds()
    }

    /// Whether others wait for a seat of the last, and nothing else holds the call.
    fn is_crowded(&self, last: usize) -> bool {
        let (limiter, ask) = &self.asks[last];
        let is_paused = |(limiter, ask): &(&Limiter, Ask<'_>)| limiter.paused_until(ask.key) > 0;
        limiter.waiting(ask.key) > 0
            && (0..last).any(|i| self.moves(i))
            && !self.asks[..last].iter().any(is_paused)
    }

    fn done(mut self) -> Vec<Permit> {
        self.taken.drain(..).flatten().map(|turn| turn.permit).collect()
    }
}

impl Drop for Turns<'_, '_, '_> {
    fn drop(&mut self) {
        self.taken.drain(..).flatten().for_each(|turn| turn.permit.undo());
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
