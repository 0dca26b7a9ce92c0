//! Several limiters for one call: all of their permits, or none.
//!
//! In one step where they share a store, in order where something has to wait. Whatever was taken goes back
//! when a later one refuses, or when the caller gives up on the way.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

#[cfg(feature = "redis")]
use super::fleet;
use super::{Ask, Limiter, Permit, Plan, Refused};
use crate::algorithm::{Costs, NEVER};
use crate::clock;
use crate::store::{Outcome, Part, PartAnswer, When};

/// What several limiters are asked for together.
pub(super) struct Chain {
    pub(super) plans: SmallVec<[Arc<Plan>; 4]>,
    pub(super) costs: SmallVec<[Costs; 4]>,
    /// How long each of them may be held; `None` where a leaky bucket holds it in its own time.
    pub(super) max_waits: SmallVec<[Option<Duration>; 4]>,
}

impl Chain {
    /// `None` where one has to be asked by itself, the refusal of one that can never grant.
    fn of(asks: &[(&Limiter, Ask<'_>)]) -> Option<Result<Self, Refused>> {
        let plans = asks.iter().map(|(limiter, _)| limiter.core.current.load_full());
        let mut chain = Self { plans: plans.collect(), costs: SmallVec::new(), max_waits: SmallVec::new() };
        for (plan, (_, ask)) in chain.plans.iter().zip(asks) {
            let max_wait = plan.max_wait_of(ask);
            match plan.check(ask, max_wait) {
                Ok(cost) => chain.costs.push(cost),
                Err(_) if plan.policy.is_observe_only() => return None,
                Err(refused) => return Some(Err(refused)),
            }
            chain.max_waits.push((!plan.rules.holds()).then_some(max_wait));
        }
        Some(Ok(chain))
    }

    /// Whether none of them may be held at all.
    pub(super) fn is_now(&self) -> bool {
        self.max_waits.iter().all(|max_wait| *max_wait == Some(Duration::ZERO))
    }

    /// Whether the one at `index`, which takes so long as far as it is known, may not be held as long.
    pub(super) fn is_hopeless(&self, index: usize, wait_us: u64) -> bool {
        self.max_waits[index].is_some_and(|max_wait| wait_us > clock::micros(max_wait))
    }
}

impl Limiter {
    /// Permits of several limiters at once, or none: decided in one step where they share a store, and in
    /// order where something has to wait. What was taken goes back when a later one refuses, and when a key is
    /// paused while a later one holds the call, which then asks again. Only the last may hold calls for long. A call
    /// that waited for its seat is charged anew under the others' buckets and plain rates, if its turn there comes
    /// within a second, so that calls that it lets go at once keep to them; else, and where the last has a rate of
    /// its own or the others have windows, logs or seats, what was taken stands.
    ///
    /// # Errors
    /// The refusal of the first that refuses.
    pub async fn acquire_all(asks: &[(&Limiter, Ask<'_>)]) -> Result<Vec<Permit>, Refused> {
        let turns = Turns { asks, begun: clock::now_us() };
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
        loop {
            let mut taken = Taken(Vec::with_capacity(asks.len()));
            let mut in_spite = SmallVec::<[bool; 4]>::new();
            let mut last_us = 0;
            for (i, (limiter, ask)) in asks.iter().enumerate() {
                let asked = clock::now_us();
                taken.0.push(limiter.acquire(ask.clone().max_wait(turns.left(i))).await?);
                last_us = clock::now_us().saturating_sub(asked);
                in_spite.push(limiter.is_paused(ask.key));
            }
            if last_us > STALE_US {
                turns.renew(&mut taken).await;
            }
            // Before it goes a call looks at each pause again, but for one in spite of which it was let go: as a probe,
            // or by a store that is away.
            let is_held =
                |i: usize| !taken.0[i].probes() && !in_spite[i] && asks[i].0.is_paused(asks[i].1.key);
            if !(0..asks.len()).any(is_held) {
                return Ok(taken.all());
            }
        }
    }

    /// The answer in one step, where there can be one.
    fn all_now(asks: &[(&Limiter, Ask<'_>)], chain: &Chain) -> Option<Result<Vec<Permit>, Refused>> {
        let Chain { plans, costs, max_waits } = chain;
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
        // The longest wait that is known: that for a seat is not.
        let wait_us = |part: &PartAnswer| {
            let waits = part.levels.iter().map(|level| level.wait_us).filter(|wait_us| *wait_us != NEVER);
            let paused_us = if part.paused { answer.at - answer.now } else { 0 };
            waits.max().unwrap_or(0).max(paused_us)
        };
        let order = |(i, part): &(usize, &PartAnswer)| (part.paused, wait_us(part), usize::MAX - i);
        let hopeless =
            |(i, part): &(usize, &PartAnswer)| chain.is_now() || chain.is_hopeless(*i, wait_us(part));
        let (i, part) = answers.iter().enumerate().filter(hopeless).max_by_key(order)?;
        let known_us = wait_us(part);
        let is_seatless = |part: &PartAnswer| part.levels.iter().any(|level| level.wait_us == NEVER);
        let (i, part) = match answers.iter().position(is_seatless) {
            Some(seatless) if known_us == 0 => (seatless, &answers[seatless]),
            _ => (i, part),
        };
        if answer.at == NEVER && known_us > 0 {
            answer.at = answer.now + known_us;
        }
        Some(Err(plans[i].refuse_answer(&answer, part, max_waits[i].unwrap_or_default())))
    }
}

/// A permit that a call holds for longer before it goes is of another time, for which no jitter margin makes up.
const STALE_US: u64 = 20_000;
/// So long the last permit of a chain is held at most while the others are taken anew.
const HELD: Duration = Duration::from_secs(1);

/// Permits that are waited for one after the other.
struct Turns<'a, 'l, 'k> {
    asks: &'a [(&'l Limiter, Ask<'k>)],
    begun: u64,
}

impl Turns<'_, '_, '_> {
    /// How long one may still wait: their waits run at the same time, so each has what those before it left.
    fn left(&self, i: usize) -> Duration {
        let (limiter, ask) = &self.asks[i];
        let passed = Duration::from_micros(clock::now_us().saturating_sub(self.begun));
        limiter.core.current.load().max_wait_of(ask).saturating_sub(passed)
    }

    /// A seat of the last was waited for: what was charged to buckets of the others meanwhile is charged anew, as far
    /// as their turn comes soon. What is no pause's probe, for of that there is one.
    async fn renew(&self, taken: &mut Taken) {
        let until = Instant::now() + HELD;
        for i in (0..self.asks.len() - 1).filter(|i| self.moves(*i)) {
            let (limiter, ask) = &self.asks[i];
            let left = self.left(i);
            let soon = left.min(until.saturating_duration_since(Instant::now()));
            if taken.0[i].probes() || self.turn_in(i) >= soon {
                continue;
            }
            if let Ok(fresh) = limiter.acquire(ask.clone().max_wait(soon)).await {
                std::mem::replace(&mut taken.0[i], fresh).undo();
            }
        }
    }

    /// About how long those who wait for one need.
    fn turn_in(&self, i: usize) -> Duration {
        let (limiter, ask) = &self.asks[i];
        let unit_us = limiter.core.current.load().rules.unit_us();
        Duration::from_micros(unit_us.saturating_mul(limiter.waiting(ask.key) as u64))
    }

    /// Whether its charge can be made anew when a seat of the last was waited for: that of buckets alone, for windows
    /// and logs would keep the old one beside it, and who has a seat keeps that.
    fn moves(&self, i: usize) -> bool {
        let plan = |i: usize| self.asks[i].0.core.current.load_full();
        !plan(self.asks.len() - 1).rules.is_timed() && plan(i).rules.are_buckets()
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
        self.0.drain(..).for_each(|permit| permit.undo());
    }
}
