//! The side of a limiter whose budgets many processes share: lines that book in batches, seats that are leased,
//! pauses that everyone hears of, and what to do while Redis is away.
//!
//! One trip asks for everyone who waits here for a key, and books their slots ahead; a process has one trip
//! under way for each line. Nothing that gives something back is ever repeated.

pub(super) mod chain;
mod charge;
mod driver;
mod fates;
mod key;
mod known;
mod line;
mod listener;
mod place;
mod replay;
mod seated;
mod seats;
mod share;
mod slots;
mod trips;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

pub(super) use charge::Charge;
use driver::Driver;
use key::Key;
use line::{Caller, Line, Slot, Told};
use place::Place;
use seated::seat_labels;
use share::Share;

use super::current::Current;
use super::{Ask, Peek, Permit, Plan, Refused, RefusedKind};
use crate::algorithm::{Costs, NEVER, Rule};
use crate::clock::{self, micros};
use crate::decision::Decision;
use crate::limit::Margin;
use crate::store::redis::OnOutage;
use crate::store::redis::hub::{Away, Hub, Listener};
use crate::store::redis::names::Names;
use crate::store::redis::wire::Worker;
use crate::store::{Answer, Outcome, PartAnswer};

/// A key of which nothing was heard for so long is forgotten; until then what is known of it can heal what Redis
/// loses. Where there are many, sooner.
const FORGET_US: u64 = 10_000_000;
const FORGET_SOON_US: u64 = 1_000_000;
const MANY: usize = 50_000;

/// A fleet, as one limiter sees it.
pub(super) struct Fleet {
    hub: Arc<Hub>,
    /// This limiter among those of the process: seats are counted for each.
    worker: Worker,
    me: Weak<Fleet>,
    policy: Box<str>,
    keys: Mutex<Keys>,
    next: AtomicU64,
    share: Share,
}

struct Keys {
    by_key: HashMap<Box<str>, Arc<Key>>,
    /// By what stands between the braces of their names in Redis.
    by_tag: HashMap<Box<str>, Arc<Key>>,
    /// The plans in force so far, the newest last, while limiters or permits have them: they lead to this fleet, so they
    /// are not kept here.
    plans: Vec<Weak<Plan>>,
    /// So many are forgotten as soon as may be.
    tidy_at: usize,
}

impl Default for Keys {
    fn default() -> Self {
        Self { by_key: HashMap::new(), by_tag: HashMap::new(), plans: Vec::new(), tidy_at: MANY }
    }
}

impl Keys {
    /// The newest plan that anybody has.
    fn plan(&self) -> Option<Arc<Plan>> {
        self.plans.iter().rev().find_map(Weak::upgrade)
    }

    fn add(&mut self, plan: &Arc<Plan>) {
        self.plans.retain(|known| known.strong_count() > 0);
        self.plans.push(Arc::downgrade(plan));
        self.plans.sort_by_key(|known| known.upgrade().map(|plan| plan.id));
    }

    /// Forgets keys of which nothing was heard for so long: their budgets are in Redis.
    fn tidy(&mut self, now: u64, idle_us: u64) {
        self.by_key.retain(|_, key| Arc::strong_count(key) > 2 || !key.state.lock().is_idle(now, idle_us));
        let Keys { by_key, by_tag, .. } = self;
        by_tag.retain(|_, key| by_key.contains_key(&key.key));
    }
}

impl Fleet {
    pub(super) fn new(hub: Arc<Hub>, policy: &str) -> Arc<Self> {
        let worker = hub.join();
        let fleet = Arc::new_cyclic(|me| Self {
            hub,
            worker,
            me: me.clone(),
            policy: policy.into(),
            keys: Mutex::default(),
            next: AtomicU64::new(0),
            share: Share::default(),
        });
        let listener: Arc<dyn Listener> = fleet.clone();
        fleet.hub.listen(Arc::downgrade(&listener));
        fleet
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn key(&self, plan: &Arc<Plan>, key: &str) -> Arc<Key> {
        let mut keys = self.keys.lock();
        if let Some(found) = keys.by_key.get(key) {
            return found.clone();
        }
        if keys.by_key.len() >= keys.tidy_at {
            // Strangers may choose the keys, and a heartbeat may be long in coming.
            keys.tidy(clock::now_us(), FORGET_SOON_US);
            keys.tidy_at = MANY.max(2 * keys.by_key.len());
        }
        let made = Arc::new(Key::new(key));
        let names = Names::new(self.hub.prefix(), &self.policy, key, &plan.rules.labels);
        keys.by_tag.insert(names.tag().into(), made.clone());
        made.state.lock().names = Some((plan.id, Arc::new(names)));
        keys.by_key.insert(key.into(), made.clone());
        if keys.plans.iter().all(|known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(plan))) {
            keys.add(plan);
        }
        made
    }

    /// Waits for a permit.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        current: &Current,
        margin: Margin,
        ask: &Ask<'_>,
    ) -> Result<Permit, Refused> {
        let begun = clock::now_us();
        let mut was_lost = false;
        loop {
            let plan = current.load_full();
            let whole = plan.max_wait_of(ask);
            let costs = match plan.check(ask, whole) {
                Ok(costs) => costs,
                Err(refused) => return plan.observed(margin, &refused).ok_or(refused),
            };
            if Handle::try_current().is_err() {
                return Err(plan.refuse(RefusedKind::NoRuntime, whole));
            }
            let left = whole.saturating_sub(Duration::from_micros(clock::now_us().saturating_sub(begun)));
            if !plan.policy.is_observe_only() {
                self.share.linger(ask).await;
            }
            let told = match self.hub.is_away() {
                true => Told::Away,
                false => match self.enter(current, &plan, margin, ask, costs.clone(), begun) {
                    Ok(place) => place.wait().await,
                    Err(told) => told,
                },
            };
            match told {
                Told::Go(slot) => {
                    let key = self.key(&slot.plan, ask.key);
                    let mut state = key.state.lock();
                    if state.paused(clock::now_us()).is_none() || plan.policy.is_observe_only() {
                        drop(state);
                        return Ok(self.permit(ask.key, *slot, &costs, begun));
                    }
                    // Paused since: the slot lapses.
                    state.free_slot(&slot);
                    drop(state);
                    self.give_back(&key, vec![*slot]);
                }
                Told::Refused(refused) => {
                    return if plan.policy.is_observe_only() {
                        Ok(Permit::let_through(&plan, margin, costs, Some(refused.decision().clone())))
                    } else {
                        Err(refused)
                    };
                }
                Told::Again | Told::Come => {}
                // One that alone was lost is asked about once more; then this process decides, for Redis cannot.
                Told::Away if self.shares() && !self.hub.is_away() && !was_lost => was_lost = true,
                Told::Away => match self.without(&plan, margin, ask, costs, left).await {
                    Some(result) => return result,
                    None => continue,
                },
            }
        }
    }

    #[cfg(feature = "client")]
    pub(super) fn is_away(&self) -> bool {
        self.hub.is_away()
    }

    fn shares(&self) -> bool {
        matches!(self.hub.on_outage(), OnOutage::LocalShare { .. })
    }

    /// What a call gets while Redis is away; `None` when it is back.
    async fn without(
        self: &Arc<Self>,
        plan: &Arc<Plan>,
        margin: Margin,
        ask: &Ask<'_>,
        costs: Costs,
        left: Duration,
    ) -> Option<Result<Permit, Refused>> {
        if plan.policy.is_observe_only() {
            return Some(Ok(Permit::let_through(plan, margin, costs, None)));
        }
        match self.hub.on_outage() {
            OnOutage::Open => Some(Ok(Permit::let_through(plan, margin, costs, None))),
            OnOutage::Closed => Some(Err(plan.refuse(RefusedKind::StoreAway, left))),
            OnOutage::LocalShare { workers } => {
                let permit = self.share.acquire(self, plan, margin, ask, left, workers).await?;
                Some(permit.map(|permit| self.counted(plan, margin, ask.key, costs, permit)))
            }
        }
    }

    /// A permit that was given while Redis was away, whose seats are reported once it is back.
    fn counted(
        self: &Arc<Self>,
        plan: &Arc<Plan>,
        margin: Margin,
        key: &str,
        costs: Costs,
        part: Permit,
    ) -> Permit {
        if seat_labels(plan).next().is_none() {
            return part;
        }
        let key = self.key(plan, key);
        for (i, label) in seat_labels(plan) {
            key.state.lock().hold(label, costs[i]);
        }
        let decision = part.decision();
        let charge = Charge { fleet: self.clone(), key, plan: plan.clone(), part: Some(part) };
        Permit::counted(plan, margin, costs, decision).of_fleet(charge)
    }

    /// Takes a place in line, if the caller can make it as far as is known.
    fn enter(
        self: &Arc<Self>,
        current: &Current,
        plan: &Arc<Plan>,
        margin: Margin,
        ask: &Ask<'_>,
        costs: Costs,
        arrived: u64,
    ) -> Result<Place, Told> {
        let max_wait = plan.max_wait_of(ask);
        let key = self.key(plan, ask.key);
        let limits = touched(&costs);
        // A leaky bucket holds a call in its own time, as far as its queue reaches.
        let observed = plan.policy.is_observe_only();
        let hold_us = if observed { 0 } else { hold_us(plan, margin, &costs) };
        let patience_us = if observed { 0 } else { micros(max_wait) };
        let patient_until = arrived.saturating_add(patience_us);
        let deadline = patient_until.saturating_add(hold_us);
        let (answer, answered) = oneshot::channel();
        let mut state = key.state.lock();
        let now = clock::now_us();
        if let Some((at, kind)) = state.hopeless(plan, margin, &costs, deadline, now) {
            return Err(Told::Refused(state.refusal(plan, margin, &costs, at, max_wait, kind)));
        }
        if !Arc::ptr_eq(plan, &current.load()) || plan.shared.closed.load(Ordering::SeqCst) {
            return Err(Told::Again);
        }
        if state.waiting() >= plan.policy.waiting_bound() && deadline > now {
            let at = state.stands(plan, margin, &costs, now).unwrap_or(now);
            let refused = state.refusal(plan, margin, &costs, at, max_wait, RefusedKind::QueueFull);
            return Err(Told::Refused(refused));
        }
        let mine =
            |line: &Line| line.limits == limits && line.margin == margin && Arc::ptr_eq(&line.plan, plan);
        let i = state.lines.iter().position(mine).unwrap_or_else(|| {
            let drained_until = state.drained_until(plan, margin, limits).unwrap_or(0);
            state.lines.push(Line::new(self.number(), plan, margin, limits, drained_until));
            state.lines.len() - 1
        });
        let line = &mut state.lines[i];
        let (id, seq) = (line.id, self.number());
        if line.unbooked().next().is_none() {
            // Whoever lacked a seat is gone.
            (line.seatless, line.lacks) = (false, None);
        }
        let ahead = line.slots.back().map(|slot| slot.due).filter(|due| *due > now);
        if deadline <= now && !line.callers.is_empty() && (line.seatless || ahead.is_some()) {
            // Others wait before one that may not wait at all.
            let (at, kind) = match ahead {
                _ if line.seatless => (NEVER, RefusedKind::NoSeat),
                ahead => (ahead.unwrap_or(now), RefusedKind::RateLimited),
            };
            return Err(Told::Refused(state.refusal(plan, margin, &costs, at, max_wait, kind)));
        }
        if deadline < line.quiet_until || (deadline <= now && line.callers.is_empty()) {
            // What was known is too old to refuse by.
            (line.quiet_until, line.seatless) = (0, false);
        }
        line.callers.insert(seq, Caller { costs, patient_until, deadline, max_wait, booked: false, answer });
        line.turn.notify_one();
        let turn = line.turn.clone();
        let driver = (!std::mem::replace(&mut line.driven, true))
            .then(|| Driver::new(self.clone(), key.clone(), id, turn));
        state.offer_left(i, now);
        drop(state);
        if let Some(driver) = driver {
            tokio::spawn(driver.run());
        }
        Ok(Place { fleet: self.clone(), key, line: id, seq, deadline, answer: answered })
    }

    /// The permit of a slot that has come. What it covers beyond the call's costs is settled.
    fn permit(self: &Arc<Self>, key: &str, slot: Slot, costs: &Costs, begun: u64) -> Permit {
        let waited_us = clock::now_us().saturating_sub(begun);
        let key = self.key(&slot.plan, key);
        let charge = Charge { fleet: self.clone(), key, plan: slot.plan.clone(), part: None };
        let plan = slot.plan.clone();
        let answer = Answer { now: slot.now, at: slot.at, outcome: Outcome::Granted, parts: SmallVec::new() };
        let part = PartAnswer {
            marks: slot.marks.iter().copied().collect(),
            probes: slot.probes,
            ..PartAnswer::default()
        };
        let seats = plan.rules.of(slot.margin).iter().map(Rule::is_seats);
        let seats = seats.collect::<SmallVec<[bool; 3]>>();
        let permit = Permit::of(&plan, slot.margin, slot.costs.clone(), &answer, part);
        let permit = permit.waited_us(waited_us).of_fleet(charge);
        for (i, label) in plan.rules.labels.limits.iter().enumerate() {
            if slot.costs[i] > costs[i] && !seats[i] {
                permit.settle(&label.unit, costs[i]);
            }
        }
        permit
    }

    /// How a key stands: as Redis says, or, while it is away, as it last said.
    pub(super) async fn peek(self: &Arc<Self>, plan: &Arc<Plan>, margin: Margin, key: &str) -> Peek {
        let waiting = self.waiting(key);
        let key = self.key(plan, key);
        let rules = plan.rules.of(margin);
        let (paused_us, levels) = match self.look_apart(&key, plan, margin).await {
            Ok(reply) => {
                let part = &reply.parts[0];
                let paused = part.pause.until.checked_sub(reply.now).filter(|left| *left > 0);
                (paused, replay::levels(rules, &part.states, reply.now))
            }
            Err(Away) => {
                let (state, now) = (key.state.lock(), clock::now_us());
                (state.paused(now).map(|until| until - now), state.standing(rules, now))
            }
        };
        let labels = plan.rules.labels.clone();
        Peek { decision: Decision::standing(labels, paused_us, levels), waiting }
    }

    /// Whether a key is paused, as far as this process knows.
    pub(super) fn is_paused(&self, key: &str) -> bool {
        let found = self.keys.lock().by_key.get(key).cloned();
        found.is_some_and(|key| key.state.lock().paused(clock::now_us()).is_some())
    }

    /// Callers of this process that wait for a key.
    pub(super) fn waiting(&self, key: &str) -> usize {
        let found = self.keys.lock().by_key.get(key).cloned();
        let waiting = found.map_or(0, |key| key.state.lock().waiting());
        waiting + self.share.waiting(key)
    }

    /// Everyone who waits asks again, under the plan that is in force then; or is refused, if it is closed.
    pub(super) fn ask_again(self: &Arc<Self>, plan: &Arc<Plan>) {
        let mut all = self.keys.lock();
        all.add(plan);
        let keys = all.by_key.values().cloned().collect::<Vec<_>>();
        drop(all);
        for key in keys {
            let mut answers = key::Answers::default();
            let mut unwanted = Vec::new();
            let mut state = key.state.lock();
            for id in state.lines.iter().map(|line| line.id).collect::<SmallVec<[u64; 4]>>() {
                state.tell_all(id, || Told::Again, &mut answers);
                let line = state.line(id).expect("it was just listed");
                unwanted.extend(line.take_slots());
                line.turn.notify_one();
            }
            unwanted.iter().for_each(|slot| state.free_slot(slot));
            drop(state);
            self.give_back(&key, unwanted);
            for slot in answers.give() {
                self.pass_on(&key, 0, vec![slot]);
            }
        }
        self.share.renew();
    }
}

/// How long the limits themselves hold a call, at most.
fn hold_us(plan: &Plan, margin: Margin, costs: &[u64]) -> u64 {
    let touched = plan.rules.of(margin).iter().zip(costs).filter(|(_, cost)| **cost > 0);
    touched.filter_map(|(rule, _)| rule.hold_us()).max().unwrap_or(0)
}

fn touched(costs: &[u64]) -> u32 {
    costs.iter().enumerate().filter(|(_, cost)| **cost > 0).fold(0, |set, (i, _)| set | 1 << i)
}
