//! This process's part of every limit, for while Redis is away: a limiter of its own, whose budgets begin empty,
//! each at a random phase, after what was booked before.
//!
//! When Redis is back the part stays one more limit for a second, so that a fleet does not return as one.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::Fleet;
use crate::clock;
use crate::limit::Margin;
use crate::limiter::{Ask, Core, Current, Limiter, Permit, Plan, Refused, RefusedKind, Shared};
use crate::store::redis::hub::Workers;
use crate::store::{Local, Space};

/// How long the part stays after the return.
const LINGER_US: u64 = 1_000_000;
/// The latest phase at which a part begins.
const LATEST_US: u64 = 1_000_000;

pub(super) struct Share {
    /// Whether Redis is there.
    up: watch::Sender<bool>,
    part: Mutex<Option<Arc<Part>>>,
    /// That the policy has changed.
    changed: Notify,
    /// When it was back last.
    back_at: AtomicU64,
}

struct Part {
    limiter: Limiter,
    plan: usize,
    made_at: u64,
    begun: Mutex<HashSet<Box<str>>>,
}

impl Default for Share {
    fn default() -> Self {
        Self {
            up: watch::Sender::new(true),
            part: Mutex::default(),
            changed: Notify::new(),
            back_at: AtomicU64::new(0),
        }
    }
}

/// A limiter in this process of one worker's part of every limit.
fn limiter_of(plan: &Plan, workers: Workers) -> Limiter {
    let shared = Arc::new(Shared::new(Local::new().table()));
    let current = Current::new(plan.part_of(workers.count, workers.rank, shared.clone()));
    Limiter { core: Arc::new(Core { current, shared, space: Space(0) }), margin: Margin::None }
}

impl Share {
    /// A permit under this process's part; `None` when Redis came back first.
    pub(super) async fn acquire(
        &self,
        fleet: &Fleet,
        plan: &Arc<Plan>,
        margin: Margin,
        ask: &Ask<'_>,
        left: Duration,
        workers: Option<u32>,
    ) -> Option<Result<Permit, Refused>> {
        let mut up = self.up.subscribe();
        let seen = fleet.hub.workers();
        let workers = match (workers, seen) {
            (Some(count), seen) => Workers { count, rank: seen.map_or(0, |seen| seen.rank % count.max(1)) },
            (None, Some(seen)) => seen,
            (None, None) => return Some(Err(plan.refuse(RefusedKind::StoreAway, left))),
        };
        let mut changed = std::pin::pin!(self.changed.notified());
        changed.as_mut().enable();
        let part = self.part(plan, workers);
        self.begin(&part, fleet, plan, ask.key, workers);
        let ask = ask.clone().max_wait(left);
        let limiter = Limiter { margin, ..part.limiter.clone() };
        if !fleet.hub.is_away() {
            return Some(limiter.acquire(ask).await);
        }
        tokio::select! {
            biased;
            result = limiter.acquire(ask) => Some(result),
            _ = up.wait_for(|up| *up) => None,
            () = changed => None,
        }
    }

    fn part(&self, plan: &Arc<Plan>, workers: Workers) -> Arc<Part> {
        let mut part = self.part.lock();
        let back_at = self.back_at.load(Ordering::Relaxed);
        match &*part {
            // A new outage begins with a new part.
            Some(part) if part.plan == plan.id && part.made_at >= back_at => part.clone(),
            _ => {
                let limiter = limiter_of(plan, workers);
                let (plan, made_at) = (plan.id, clock::now_us());
                let made = Arc::new(Part { limiter, plan, made_at, begun: Mutex::default() });
                part.insert(made).clone()
            }
        }
    }

    /// A key's part begins empty, when its turn comes.
    fn begin(&self, part: &Part, fleet: &Fleet, plan: &Arc<Plan>, key: &str, workers: Workers) {
        if !part.begun.lock().insert(key.into()) {
            return;
        }
        let shared = fleet.key(plan, key);
        let mut state = shared.state.lock();
        state.to_drain = Some(clock::now_us());
        let now = clock::now_us();
        let booked = state.booked_until(now);
        let phase_us = plan.rules.unit_us().saturating_mul(u64::from(workers.count)).min(LATEST_US);
        let until = booked + fastrand::u64(0..=phase_us);
        let until = until.max(state.paused(now).unwrap_or(0));
        drop(state);
        // A server answers rather than not: it goes on at once.
        if plan.rules.is_timed() && !fleet.hub.is_open_with_cap() {
            part.limiter.pause(key, Duration::from_micros(until - now));
        }
    }

    pub(super) fn is_lingering(&self) -> bool {
        clock::now_us() < self.lingers_until()
    }

    fn lingers_until(&self) -> u64 {
        self.back_at.load(Ordering::Relaxed) + LINGER_US
    }

    /// Just after the return the part is one more limit.
    pub(super) async fn linger(&self, ask: &Ask<'_>) {
        if !self.is_lingering() {
            return;
        }
        let until = self.lingers_until();
        let part = self.part.lock().clone();
        let Some(part) = part.filter(|part| part.begun.lock().contains(ask.key)) else { return };

        // Whatever it answers: this only paces.
        _ = tokio::time::timeout_at(clock::instant(until), part.limiter.acquire(ask.clone())).await;
    }

    /// The key is held, or not any more, whoever said so.
    pub(super) fn pause(&self, key: &str, for_us: u64) {
        let part = self.part.lock().clone();
        if let Some(part) = part {
            match for_us {
                0 => part.limiter.resume(key),
                _ => part.limiter.pause(key, Duration::from_micros(for_us)),
            }
        }
    }

    /// The service refused a call: nothing of this process's part stays saved up.
    pub(super) fn refused(&self, key: &str, sent: u64, wait_us: u64) {
        let part = self.part.lock().clone();
        if let Some(part) = part {
            part.limiter.change(key, |store, part| store.refused(part, sent, wait_us));
        }
    }

    /// The policy has changed, or is closed: who waits here asks again.
    pub(super) fn renew(&self) {
        let part = self.part.lock().take();
        drop(part);
        self.changed.notify_waiters();
    }

    pub(super) fn waiting(&self, key: &str) -> usize {
        self.part.lock().as_ref().map_or(0, |part| part.limiter.waiting(key))
    }

    /// Redis went away, or came back.
    pub(super) fn turned(&self, up: bool) {
        if up {
            self.back_at.store(clock::now_us(), Ordering::Relaxed);
        }
        self.up.send_replace(up);
    }
}
