//! What `lua/book.lua` decides of callers, once it has found and read every state.
//!
//! In the order of that script: those that were sent already are charged whatever the state; the others go in turn,
//! until one has to wait for something that this trip cannot give.

use super::{Open, holds};
use crate::algorithm::{Joint, NEVER, Rule, State, Used, joint_earliest};
use crate::store::redis::wire::*;

/// What was sent already.
pub(super) fn forced(open: &mut [Open<'_>], callers: &[Waiter<'_>], now: u64) -> Vec<Slot> {
    for caller in callers {
        for (limit, cost) in open.iter_mut().zip(caller.costs) {
            let rule = limit.rules[0];
            if *cost == 0 || rule.is_seats() {
                continue;
            }
            if rule.earliest(&limit.state, now, *cost) <= now {
                rule.commit(&mut limit.state, now, *cost);
            } else {
                let used = Used { slot: now, charged: 0, used: *cost, mark: Default::default() };
                rule.settle(&mut limit.state, now, used);
            }
            limit.dirty = true;
        }
    }
    vec![Slot::At(now); callers.len()]
}

/// Callers in order, until one cannot be answered now.
pub(super) fn decide(
    open: &mut [Open<'_>],
    pauses: &mut [Paused],
    callers: &[Waiter<'_>],
    now: u64,
) -> (Vec<Slot>, Ended) {
    let holding =
        |pauses: &[Paused]| pauses.iter().filter(|pause| holds(pause, now)).copied().collect::<Vec<_>>();
    let paused = |held: &[Paused]| Ended::Paused {
        until: held.iter().map(|pause| pause.until).max().unwrap(),
        ask_again: held.iter().map(|pause| pause.probe_at.min(pause.until)).max().unwrap(),
    };
    let held = holding(pauses);
    let asks_now = |held: &[Paused]| held.iter().all(|pause| pause.probe_at.min(pause.until) <= now);
    let mut slots = Vec::new();
    if callers.is_empty() {
        return (slots, Ended::All);
    }
    if !asks_now(&held) {
        return (slots, paused(&held));
    }
    let touched = |limit: usize| callers.iter().any(|caller| caller.costs[limit] > 0);
    let timed = open.iter().enumerate().filter(|(i, limit)| touched(*i) && !limit.rule().is_seats());
    let timed = timed.map(|(_, limit)| limit).collect::<Vec<_>>();
    let stood = timed.iter().map(|limit| limit.state.tail()).fold(now, u64::max);
    let ahead_us = timed.iter().map(|limit| limit.rule().ahead_us()).min().unwrap_or(NEVER);
    let is_leaky = timed.iter().any(|limit| limit.rule().hold_us().is_some());
    let span = (400_000_i64 - (stood - now) as i64).div_euclid(2).clamp(10_000, 100_000) as u64;
    for (i, limit) in open.iter_mut().enumerate() {
        limit.satisfied = touched(i);
    }
    let mut granted = 0;
    for caller in callers {
        if granted > 0 && !held.is_empty() {
            return (slots, paused(&holding(pauses)));
        }
        let costs = || caller.costs.iter().copied();
        for (i, (limit, cost)) in open.iter_mut().zip(costs()).enumerate() {
            if let (Rule::Seats(rule), State::Seats(state)) = (limit.rules[0], &limit.state) {
                let spare = limit.report.spare;
                let free = if limit.report.may_take { rule.cap.saturating_sub(state.in_use) } else { 0 };
                if cost > spare + free {
                    let can_wait = is_leaky || caller.held_us > 0;
                    limit.need = if can_wait { cost } else { 0 };
                    limit.satisfied = false;
                    return (slots, Ended::Seatless(i));
                }
            }
        }
        let asked = open.iter().zip(costs()).filter(|(limit, cost)| *cost > 0 && !limit.rule().is_seats());
        let (mut leaky_us, mut full_until) = (0, 0);
        for (limit, cost) in asked.clone() {
            if let Some(hold_us) = limit.rule().hold_us() {
                let slot_us = limit.rule().earliest(&limit.state, now, cost) - now;
                leaky_us = leaky_us.max(slot_us);
                if slot_us > hold_us {
                    full_until = full_until.max(now + slot_us - hold_us);
                }
            }
        }
        let joint = joint_earliest(asked.map(|(limit, cost)| (limit.rule(), &limit.state, cost)), now);
        let (Joint::Agreed(at) | Joint::NotBefore(at)) = joint;
        if full_until > 0 {
            slots.push(Slot::TooLate(full_until));
        } else if at - now > caller.held_us.saturating_add(leaky_us) {
            slots.push(Slot::TooLate(at));
        } else if joint != Joint::Agreed(at) || at - now > ahead_us {
            return (slots, Ended::Ahead(at));
        } else if granted > 0 && at > stood + span && !is_leaky {
            return (slots, Ended::Span);
        } else {
            for (limit, cost) in open.iter_mut().zip(costs()).filter(|(_, cost)| *cost > 0) {
                let rule = limit.rules[0];
                if rule.is_seats() {
                    let spare = limit.report.spare.min(cost);
                    limit.report.spare -= spare;
                    rule.commit(&mut limit.state, at, cost - spare);
                } else {
                    rule.commit(&mut limit.state, at, cost);
                }
                limit.dirty = true;
            }
            for pause in pauses.iter_mut().filter(|pause| holds(pause, now)) {
                (pause.probed, pause.probe_at) = (at, at.saturating_add(pause.probe_every));
            }
            granted += 1;
            slots.push(Slot::At(at));
        }
    }
    (slots, Ended::All)
}
