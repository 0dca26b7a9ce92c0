//! What is sent to Redis on behalf of one key: trips that ask for those who wait, reports of seats, slots that go
//! back, and changes of a pause.
//!
//! What takes something may be sent again; what gives something back is sent once.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;

use super::Fleet;
use super::key::{Key, State};
use super::line::{Asked, Slot};
use crate::algorithm::Rule;
use crate::clock;
use crate::limit::Margin;
use crate::limiter::Plan;
use crate::store::redis::hub::Away;
use crate::store::redis::names::Names;
use crate::store::redis::wire::{Change, GiveBack, Reply, Trip, TripPart, Waiter, What};

/// That no other report of a key's seats is under way: to be kept until the answer is heard.
pub(super) type InOrder = Option<OwnedMutexGuard<()>>;

/// Reports of a key's seats whose answer is not heard may not have arrived, whatever became of the task that sent them.
pub(super) struct Unheard<'a>(pub(super) Option<&'a Key>);

impl Unheard<'_> {
    pub(super) fn heard(mut self) {
        self.0 = None;
    }
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.0 {
            key.state.lock().report_lost();
        }
    }
}

/// Whom a trip is for; callers of a line, or such as stand in none.
struct Asking<'a> {
    line: Option<u64>,
    callers: &'a [Waiter<'a>],
    /// They are charged whatever the state.
    forced: bool,
}

impl Key {
    async fn in_order(&self, plan: &Plan, margin: Margin) -> InOrder {
        let has_seats = plan.rules.of(margin).iter().any(Rule::is_seats);
        if has_seats { Some(self.reports.clone().lock_owned().await) } else { None }
    }
}

impl Fleet {
    /// One trip for a line.
    pub(super) async fn trip(
        &self,
        key: &Arc<Key>,
        plan: &Arc<Plan>,
        margin: Margin,
        line: u64,
        asked: &[Asked],
    ) -> Result<(Reply, InOrder), Away> {
        self.catch_up(key, plan, margin).await?;
        let in_order = key.in_order(plan, margin).await;
        let now = clock::now_us();
        let callers = asked
            .iter()
            .map(|asked| Waiter { held_us: asked.patient_until.saturating_sub(now), costs: &asked.costs });
        let callers = callers.collect::<SmallVec<[_; 8]>>();
        let asking = Asking { line: Some(line), callers: &callers, forced: false };
        Ok((self.ask(key, plan, margin, asking).await?, in_order))
    }

    /// Says what could not be said while Redis was away.
    async fn catch_up(&self, key: &Arc<Key>, plan: &Arc<Plan>, margin: Margin) -> Result<(), Away> {
        let to_drain = key.state.lock().to_drain.take();
        if to_drain.is_some() {
            let untold = Untold(Some((key.clone(), What::Drain)));
            self.change_now(key, plan, margin, What::Drain).await?;
            untold.forget();
        }
        let (unsaid, paused) = {
            let mut state = key.state.lock();
            (state.unsaid.take(), state.paused(clock::now_us()))
        };
        let what = match (unsaid, paused) {
            (Some(What::Pause { probe_every_us, .. }), Some(until)) => {
                What::Pause { for_us: until.saturating_sub(clock::now_us()), probe_every_us }
            }
            (Some(What::Resume), None) => What::Resume,
            _ => return Ok(()),
        };
        let untold = Untold(Some((key.clone(), what)));
        self.change_now(key, plan, margin, what).await?;
        untold.forget();
        Ok(())
    }

    /// One trip, in order with other reports of the key's seats.
    async fn ask(
        &self,
        key: &Arc<Key>,
        plan: &Arc<Plan>,
        margin: Margin,
        Asking { line, callers, forced }: Asking<'_>,
    ) -> Result<Reply, Away> {
        // Whether the server is new, and its seats not yet reported, is known once there is a connection.
        self.hub.ready().await?;
        let (names, seen, seats, fates) = {
            let (mut state, now) = (key.state.lock(), clock::now_us());
            let (settling, lease_us) = (self.hub.is_settling(), self.worker.lease_us);
            let seats = state.report(plan, now, settling, lease_us, line);
            let names = state.names(self.hub.prefix(), &self.policy, key, plan);
            (names, state.seen().cloned(), seats, state.fates.take(plan, now))
        };
        let part = TripPart {
            rules: &plan.rules,
            margin,
            names: &names,
            seen: seen.as_ref().filter(|seen| seen.states.len() == plan.rules.of(margin).len()),
            seats: &seats,
            fates: &fates,
        };
        let parts = [part];
        let trip = Trip { now: None, worker: &self.worker, parts: &parts, callers, forced };
        let unheard = Unheard(Some(key));
        let reply = trip.reply(self.hub.run(&trip.call()).await?).map_err(|garbled| {
            tracing::error!(%garbled, "Redis is taken as away");
            Away
        })?;
        unheard.heard();
        Ok(reply)
    }

    /// A trip that asks for nobody: how the key stands; seats are reported.
    pub(super) async fn look(&self, key: &Arc<Key>, plan: &Arc<Plan>, margin: Margin) -> Result<Reply, Away> {
        let in_order = key.in_order(plan, margin).await;
        self.look_in_order(key, plan, margin, in_order).await
    }

    async fn look_in_order(
        &self,
        key: &Arc<Key>,
        plan: &Arc<Plan>,
        margin: Margin,
        in_order: InOrder,
    ) -> Result<Reply, Away> {
        let asking = Asking { line: None, callers: &[], forced: false };
        let reply = self.ask(key, plan, margin, asking).await?;
        let (part, now) = (&reply.parts[0], clock::now_us());
        let mut state = key.state.lock();
        state.heard(plan, part, reply.now, now);
        drop(state);
        drop(in_order);
        self.give_spare(key, plan);
        Ok(reply)
    }

    /// The same in a task of its own: a caller that is not polled holds back nobody's report.
    pub(super) async fn look_apart(
        self: &Arc<Self>,
        key: &Arc<Key>,
        plan: &Arc<Plan>,
        margin: Margin,
    ) -> Result<Reply, Away> {
        let runtime = Handle::try_current().map_err(|_| Away)?;
        let (fleet, key, plan) = (self.clone(), key.clone(), plan.clone());
        runtime.spawn(async move { fleet.look(&key, &plan, margin).await }).await.unwrap_or(Err(Away))
    }

    /// Gives back spare seats that nobody keeps: who waited for one may have left, and somebody elsewhere wait.
    pub(super) fn give_spare(&self, key: &Arc<Key>, plan: &Arc<Plan>) {
        let is_idle = key.state.lock().free_spare(clock::now_us());
        if let Some(fleet) = self.me.upgrade().filter(|_| is_idle) {
            fleet.report(key, plan);
        }
    }

    /// Tells Redis of seats that came back, soon: by the newest plan, or, if no limiter has one any more, by this.
    pub(super) fn report(self: &Arc<Self>, key: &Arc<Key>, plan: &Arc<Plan>) {
        let (fleet, key) = (self.clone(), key.clone());
        let plan = self.keys.lock().plan().unwrap_or_else(|| plan.clone());
        self.hub.spawn(async move {
            // What was to be said meanwhile is said by the first.
            let in_order = key.in_order(&plan, Margin::None).await;
            if key.state.lock().is_unreported() {
                _ = fleet.look_in_order(&key, &plan, Margin::None, in_order).await;
            }
        });
    }

    /// Reports the seats of a key although nothing has changed, so that their lease goes on.
    pub(super) fn renew(&self, key: &Arc<Key>) {
        let Some(plan) = self.keys.lock().plan() else { return };
        let Some(fleet) = self.me.upgrade() else { return };
        let key = key.clone();
        self.hub.spawn(async move { _ = fleet.look(&key, &plan, Margin::None).await });
    }

    /// Slots whose callers were gone when they came: for the next in line, or back.
    pub(super) fn pass_on(self: &Arc<Self>, key: &Arc<Key>, line: u64, slots: Vec<Slot>) {
        if slots.is_empty() {
            return;
        }
        let mut unwanted = Vec::new();
        {
            let mut state = key.state.lock();
            match state.line(line).filter(|line| line.driven && !line.callers.is_empty()) {
                Some(line) => {
                    slots.into_iter().rev().for_each(|slot| line.slots.push_front(slot));
                    line.turn.notify_one();
                }
                None => {
                    slots.iter().for_each(|slot| state.free_slot(slot));
                    unwanted = slots;
                    unwanted.reverse();
                }
            }
        }
        self.give_back(key, unwanted);
    }

    /// Gives slots back that nobody wants, the last booked first; each once. Those after which others have booked
    /// stay charged, and are kept for whoever comes before they are due.
    pub(super) fn give_back(self: &Arc<Self>, key: &Arc<Key>, slots: Vec<Slot>) {
        let Some(last) = slots.first() else { return };
        let plan = last.plan.clone();
        let mut state = key.state.lock();
        let is_passed = state.is_passed(last);
        let (kept, slots): (Vec<_>, Vec<_>) =
            slots.into_iter().partition(|slot| is_passed || slot.was_offered);
        state.keep(kept, clock::now_us());
        let unreported = state.is_unreported();
        drop(state);
        if slots.is_empty() && unreported {
            self.report(key, &plan);
        }
        if slots.is_empty() || self.hub.is_away() {
            return;
        }
        let (fleet, key) = (self.clone(), key.clone());
        self.hub.spawn(async move {
            let mut slots = slots.into_iter();
            while let Some(slot) = slots.next() {
                let names = key.state.lock().names(fleet.hub.prefix(), &fleet.policy, &key, &slot.plan);
                let give_back = GiveBack {
                    rules: &slot.plan.rules,
                    margin: slot.margin,
                    names: &names,
                    slot: slot.at,
                    costs: &slot.costs,
                    before: &slot.before,
                    after: &slot.after,
                };
                match fleet.hub.run(&give_back.call()).await {
                    Ok(reply) if !GiveBack::went(&reply) => {
                        // Then those before it are not the last either.
                        key.state.lock().keep(std::iter::once(slot).chain(slots), clock::now_us());
                        break;
                    }
                    Ok(_) => key.state.lock().doubt(),
                    Err(Away) => return,
                }
            }
            let unreported = key.state.lock().is_unreported();
            if unreported {
                fleet.report(&key, &plan);
            }
        });
    }

    /// Tells what became of calls, by which others book next, where callers wait for the same.
    pub(super) fn tell_fates(&self, key: &Arc<Key>) {
        let (Some(fleet), key) = (self.me.upgrade(), key.clone()) else { return };
        let state = key.state.lock();
        let waits = state.lines.iter().rfind(|line| !line.callers.is_empty() && !state.fates.is_empty());
        let Some((plan, margin)) = waits.map(|line| (line.plan.clone(), line.margin)) else { return };
        drop(state);
        self.hub.spawn(async move {
            // What was to be told meanwhile is told by the first.
            let in_order = key.in_order(&plan, margin).await;
            if !key.state.lock().fates.is_empty() {
                _ = fleet.look_in_order(&key, &plan, margin, in_order).await;
            }
        });
    }

    pub(super) async fn change_now(
        &self,
        key: &Arc<Key>,
        plan: &Arc<Plan>,
        margin: Margin,
        what: What,
    ) -> Result<(), Away> {
        let (what, names, declined) = {
            let mut state = key.state.lock();
            let (what, declined) = match what {
                What::Throttled { .. } => {
                    // All that are known by now go in one.
                    let Some((sent, wait_us)) = state.untold_429.take() else { return Ok(()) };
                    let now = clock::now_us();
                    let sent_ago_us = now.saturating_sub(sent);
                    (What::Throttled { sent_ago_us, wait_us }, state.declined.take(plan, now))
                }
                what => (what, Vec::new()),
            };
            (what, state.names(self.hub.prefix(), &self.policy, key, plan), declined)
        };
        let (worker, rules) = (&self.worker, &plan.rules);
        let change = Change { now: None, worker, rules, margin, names: &names, what, declined: &declined };
        self.hub.run(&change.call()).await.map(|_| ())
    }

    /// Changes how a key stands, here at once and for everyone as soon as Redis hears of it.
    pub(in crate::limiter) fn change(
        self: &Arc<Self>,
        plan: &Arc<Plan>,
        margin: Margin,
        key: &str,
        what: What,
    ) {
        let key = self.key(plan, key);
        match what {
            What::Pause { for_us, probe_every_us } => {
                // Then one call may probe; Redis says which.
                let for_us = for_us.min(probe_every_us);
                key.state.lock().pause(clock::now_us().saturating_add(for_us), None);
                self.share.pause(&key.key, for_us);
            }
            What::Resume => {
                key.state.lock().resume();
                self.share.pause(&key.key, 0);
            }
            What::Throttled { sent_ago_us, wait_us } => {
                let now = clock::now_us();
                let sent = now.saturating_sub(sent_ago_us);
                let mut state = key.state.lock();
                state.throttled(now);
                let untold = state.untold_429.get_or_insert_default();
                *untold = (untold.0.max(sent), untold.1.max(wait_us));
                drop(state);
                self.tell_fates(&key);
                self.share.refused(&key.key, sent, wait_us);
            }
            What::Drain | What::Answered { .. } => {}
        }
        let (fleet, plan) = (self.clone(), plan.clone());
        let untold = Untold(Some((key.clone(), what)));
        self.hub.spawn(async move {
            if fleet.change_now(&key, &plan, margin, what).await.is_ok() {
                untold.forget();
            }
        });
    }

    /// Charges one request under `key`, whatever the state: for what was already sent.
    #[cfg(feature = "client")]
    pub(in crate::limiter) fn charge(
        self: &Arc<Self>,
        plan: &Arc<Plan>,
        margin: Margin,
        key: &str,
        costs: Box<[u64]>,
    ) {
        let key = self.key(plan, key);
        let (fleet, plan) = (self.clone(), plan.clone());
        self.hub.spawn(async move {
            let caller = Waiter { held_us: 0, costs: &costs };
            let _in_order = key.in_order(&plan, margin).await;
            let asking = Asking { line: None, callers: &[caller], forced: true };
            if let Ok(reply) = fleet.ask(&key, &plan, margin, asking).await {
                key.state.lock().heard(&plan, &reply.parts[0], reply.now, clock::now_us());
                fleet.give_spare(&key, &plan);
            }
        });
    }
}

impl State {
    pub(super) fn names(&mut self, prefix: &str, policy: &str, key: &Key, plan: &Plan) -> Arc<Names> {
        match &self.names {
            Some((id, names)) if *id == plan.id => names.clone(),
            _ => {
                let names = Arc::new(Names::new(prefix, policy, &key.key, &plan.rules.labels));
                self.names = Some((plan.id, names.clone()));
                names
            }
        }
    }
}

/// A change of which Redis has not heard: it is told later, whatever became of the task that had to. A newer one that
/// is still to be told stands.
struct Untold(Option<(Arc<Key>, What)>);

impl Untold {
    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Untold {
    fn drop(&mut self) {
        let Some((key, what)) = self.0.take() else { return };
        let mut state = key.state.lock();
        match what {
            What::Pause { .. } | What::Resume => _ = state.unsaid.get_or_insert(what),
            What::Drain | What::Throttled { .. } => _ = state.to_drain.get_or_insert_with(clock::now_us),
            What::Answered { .. } => {}
        }
    }
}
