//! Several limiters of one Redis for one call: all of their budgets in one trip, or none.
//!
//! Only for what can go now. Where something has to wait, or where the keys may lie on several servers, they are
//! asked in order.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::key::Key;
use super::line::Slot;
use super::slots::Booking;
use super::trips::Unheard;
use super::{Fleet, touched};
use crate::algorithm::{Costs, NEVER, Rule};
use crate::clock;
use crate::limit::Margin;
use crate::limiter::chain::{Chain, Taken};
use crate::limiter::{Ask, Limiter, Permit, Refused, RefusedKind};
use crate::store::redis::wire::{Ended, ReplyPart, Slot as Booked, Trip, TripPart, Waiter};

/// The answer in one trip, where there can be one. The trip has a task of its own: a caller who is gone when the
/// answer comes gives back what was granted, and one who is not polled holds back nobody's report.
pub(in crate::limiter) async fn all_now(
    asks: &[(&Limiter, Ask<'_>)],
    chain: Chain,
) -> Option<Result<Vec<Permit>, Refused>> {
    let together = Together::of(asks, chain)?;
    if let Some(refused) = together.hopeless() {
        return Some(Err(refused));
    }
    if !together.are_open() {
        return None;
    }
    let decided = Handle::try_current().ok()?.spawn(together.decide());
    Some(decided.await.ok()??.map(Taken::all))
}

/// Limiters that one trip can decide over.
struct Together {
    chain: Chain,
    margins: SmallVec<[Margin; 4]>,
    fleets: SmallVec<[Arc<Fleet>; 4]>,
    keys: SmallVec<[Arc<Key>; 4]>,
    /// The one that has seats: a trip reports those of one limiter.
    reporter: Option<usize>,
    begun: u64,
}

impl Together {
    fn of(asks: &[(&Limiter, Ask<'_>)], chain: Chain) -> Option<Self> {
        let begun = clock::now_us();
        let fleets = chain.plans.iter().map(|plan| plan.shared.fleet.clone());
        let fleets = fleets.collect::<Option<SmallVec<[Arc<Fleet>; 4]>>>()?;
        let hub = &fleets.first()?.hub;
        let apart = |i: usize, fleet: &Fleet| fleets[..i].iter().all(|other| other.policy != fleet.policy);
        let together =
            fleets.iter().enumerate().all(|(i, fleet)| Arc::ptr_eq(hub, &fleet.hub) && apart(i, fleet));
        let observed = chain.plans.iter().any(|plan| plan.policy.is_observe_only());
        // A leaky bucket would hold the call for longer than this answers.
        let holds = chain.plans.iter().any(|plan| plan.rules.holds());
        let lingering = fleets.iter().any(|fleet| fleet.share.is_lingering());
        if holds || !together || !hub.is_one_server() || observed || lingering || hub.is_away() {
            return None;
        }
        let keys = fleets.iter().zip(&chain.plans).zip(asks);
        let keys = keys.map(|((fleet, plan), (_, ask))| fleet.key(plan, ask.key));
        let keys = keys.collect::<SmallVec<[Arc<Key>; 4]>>();
        if keys.iter().any(|key| key.state.lock().waiting() > 0) {
            return None;
        }
        let margins = asks.iter().map(|(limiter, _)| limiter.margin).collect();
        let mut together = Self { chain, margins, fleets, keys, reporter: None, begun };
        let mut seated = (0..together.keys.len()).filter(|i| together.rules(*i).iter().any(Rule::is_seats));
        let (reporter, other) = (seated.next(), seated.next());
        together.reporter = reporter;
        // Two of them are asked in order.
        other.is_none().then_some(together)
    }

    /// The refusal of a call that may not wait, by what is known here: nothing is charged for it.
    fn hopeless(&self) -> Option<Refused> {
        let Self { chain, margins, keys, begun, .. } = self;
        let now = clock::now_us();
        (0..keys.len()).filter(|_| chain.is_now()).find_map(|i| {
            let (plan, margin, costs) = (&chain.plans[i], margins[i], &chain.costs[i]);
            let state = keys[i].state.lock();
            let (at, kind) = state.hopeless(plan, margin, costs, *begun, now)?;
            Some(state.refusal(plan, margin, costs, at, Duration::ZERO, kind))
        })
    }

    /// Whether Redis knows whatever is known here that keeps a call from going.
    fn are_open(&self) -> bool {
        let Self { chain, margins, keys, .. } = self;
        let now = clock::now_us();
        let is_open = |i: usize| {
            let state = keys[i].state.lock();
            state.is_open(&chain.plans[i], margins[i], &chain.costs[i], now)
        };
        (0..keys.len()).all(is_open)
    }

    fn rules(&self, i: usize) -> &[Rule] {
        self.chain.plans[i].rules.of(self.margins[i])
    }

    /// What the trip gave those who do not wait any more.
    fn give_spare(&self) {
        if let Some(i) = self.reporter {
            self.fleets[i].give_spare(&self.keys[i], &self.chain.plans[i]);
        }
    }

    /// `None` where something has to wait, or Redis does not answer.
    async fn decide(self) -> Option<Result<Taken, Refused>> {
        let Self { chain, margins, fleets, keys, .. } = &self;
        let hub = &fleets[0].hub;
        let _in_order = match self.reporter {
            Some(i) => Some(keys[i].reports.lock().await),
            None => None,
        };
        hub.ready().await.ok()?;
        let standing = (0..fleets.len()).map(|i| {
            let mut state = keys[i].state.lock();
            let (settling, lease_us) = (hub.is_settling(), fleets[i].worker.lease_us);
            let now = clock::now_us();
            let seats = state.report(&chain.plans[i], now, settling, lease_us, None);
            let names = state.names(hub.prefix(), &fleets[i].policy, &keys[i], &chain.plans[i]);
            (names, state.seen().cloned(), seats, state.fates.take(&chain.plans[i], now))
        });
        let standing = standing.collect::<SmallVec<[_; 4]>>();
        let parts = standing.iter().enumerate().map(|(i, (names, seen, seats, fates))| TripPart {
            rules: &chain.plans[i].rules,
            margin: margins[i],
            names,
            seen: seen.as_ref().filter(|seen| seen.states.len() == self.rules(i).len()),
            seats,
            fates,
        });
        let parts = parts.collect::<SmallVec<[TripPart<'_>; 4]>>();
        let costs = chain.costs.iter().flatten().copied().collect::<Costs>();
        let callers = [Waiter { held_us: 0, costs: &costs }];
        let worker = &fleets[self.reporter.unwrap_or(0)].worker;
        let trip = Trip { now: None, worker, parts: &parts, callers: &callers, forced: false };
        let unheard = Unheard(self.reporter.map(|i| &*keys[i]));
        let reply = trip.reply(hub.run(&trip.call()).await.ok()?).ok()?;
        unheard.heard();
        let received = clock::now_us();
        let each = reply.parts.into_iter().enumerate();
        if let Some(Booked::At(at)) = reply.slots.first() {
            let slots = each.map(|(i, part)| {
                let (plan, margin) = (&chain.plans[i], margins[i]);
                let probes = part.pause.until > reply.now;
                let (due, asked) = (received, self.begun);
                let booking = Booking { plan, margin, now: reply.now, at: *at, due, asked, probes };
                keys[i].state.lock().book_now(booking, chain.costs[i].clone(), part)
            });
            let slots = slots.collect::<SmallVec<[Slot; 4]>>();
            self.give_spare();
            let lapses = |(i, slot): (usize, &Slot)| keys[i].state.lock().lapses(slot);
            let have_lapsed = slots.iter().enumerate().any(lapses);
            let slots = slots.into_iter().enumerate();
            if have_lapsed || !self.are_open() {
                // Paused or drained since.
                for (i, slot) in slots {
                    keys[i].state.lock().free_slot(&slot);
                    fleets[i].give_back(&keys[i], vec![slot]);
                }
                return None;
            }
            let permit =
                |(i, slot): (usize, Slot)| fleets[i].permit(&keys[i].key, slot, &chain.costs[i], self.begun);
            return Some(Ok(Taken(slots.map(permit).collect())));
        }
        let (at, kind) = match (reply.slots.first().copied(), reply.ended) {
            (Some(Booked::TooLate(at)), _) | (None, Ended::Ahead(at)) => (at, RefusedKind::RateLimited),
            (_, Ended::Seatless(_)) => (NEVER, RefusedKind::NoSeat),
            (_, Ended::Paused { until, .. }) => (until, RefusedKind::Paused),
            _ => (reply.now, RefusedKind::RateLimited),
        };
        let at = if at == NEVER { NEVER } else { received + at.saturating_sub(reply.now) };
        let refused = each.map(|(i, part): (usize, ReplyPart)| {
            let (plan, margin, costs) = (&chain.plans[i], margins[i], &chain.costs[i]);
            let mut state = keys[i].state.lock();
            state.heard(plan, &part, reply.now, received);
            let states = part.states.clone();
            state.know(plan, (reply.now, received), part, states, (touched(costs), reply.now));
            state.refusal(plan, margin, costs, at, chain.max_waits[i].unwrap_or_default(), kind)
        });
        let longest = |refused: &Refused| refused.decision().limits().map(|limit| limit.wait()).max();
        let refused = refused.collect::<SmallVec<[Refused; 4]>>();
        self.give_spare();
        let own_us = |refused: &Refused| longest(refused).map_or(0, clock::micros);
        let is_hopeless =
            refused.iter().enumerate().any(|(i, refused)| chain.is_hopeless(i, own_us(refused)));
        let refused = refused.into_iter().rev().max_by_key(longest)?;
        (chain.is_now() || is_hopeless).then_some(Err(refused))
    }
}
