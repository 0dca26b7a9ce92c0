//! Those who wait: one line for each key and set of limits touched, first come, first served.
//!
//! Each line is driven by one task, which books the first caller's slot, sleeps to it and grants. Callers
//! only wait on their own place, so nothing depends on who is polled or dropped; a line ends with its last
//! caller, and with it the task. Slots are counted from the slot before and never from the wake, for timers
//! wake late. A seat that is granted to a caller who does not come for it goes to the next one. No store is
//! asked for more than the first of a line, so whoever gives up leaves no debt.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::{Ask, Permit, Plan, Refused, RefusedKind};
use crate::algorithm::{AHEAD_US, Costs, Joint, NEVER, joint_earliest};
use crate::clock::{self, micros};
use crate::decision::Decision;
use crate::limit::Margin;
use crate::store::{Forecast, Outcome, Part, Store, When};

/// How far a late wake is made good: slots that came due in that time are granted together.
const CATCH_UP_US: u64 = 20_000;
/// How long a granted seat waits for its caller while others wait for a seat.
const UNCLAIMED_US: u64 = 100_000;

/// The lines of one limiter.
#[derive(Default)]
pub(super) struct Queue {
    /// By the store's hash of the key.
    lines: Mutex<HashMap<u64, Vec<Line>>>,
    /// Callers that wait, in all lines.
    waiting: AtomicUsize,
    next: AtomicUsize,
}

/// The callers that wait under one key for one set of limits.
struct Line {
    id: usize,
    key: Arc<str>,
    margin: Margin,
    /// The limits that they touch, a bit each.
    limits: u32,
    plan: Arc<Plan>,
    /// In the order in which they came; with those who were answered and have not come for it yet.
    callers: BTreeMap<usize, Caller>,
    /// The first caller's slot, charged ahead.
    booked: Option<(usize, Permit)>,
    /// The last slot granted.
    granted: u64,
    /// What the next to come will find; `None` when it has to be made anew.
    forecast: Option<Forecast>,
    /// Something has made the forecast worse than what is true.
    stale: bool,
    /// A seat is missing.
    seatless: bool,
    driven: bool,
    turn: Arc<Notify>,
}

struct Caller {
    stated: SmallVec<[(Box<str>, u64); 2]>,
    costs: Costs,
    arrived: u64,
    /// The last instant at which it may go.
    deadline: u64,
    max_wait: Duration,
    state: Waiting,
    waker: Option<Waker>,
}

enum Waiting {
    InLine,
    /// Granted at that instant.
    Granted(Permit, u64),
    Refused(Refused),
    /// Did not come for the seat that it was granted; in line again when it does.
    Absent,
}

impl Caller {
    fn waits(&self) -> bool {
        matches!(self.state, Waiting::InLine | Waiting::Absent)
    }
}

/// Woken after the lock is let go: wakers are foreign code.
type Wakers = SmallVec<[Waker; 4]>;

impl Queue {
    /// Whether nobody waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }

    /// Whether callers wait who are before a new one.
    pub(super) fn is_ahead(&self, part: &Part<'_>, store: &dyn Store) -> bool {
        !self.is_empty() && {
            let lines = self.lines.lock();
            let limits = touched(part.costs);
            find(&lines, store.hash(part), part.key).any(|line| line.limits == limits && line.waiting() > 0)
        }
    }

    /// Callers that wait for a key.
    pub(super) fn waiting(&self, part: &Part<'_>, store: &dyn Store) -> usize {
        let lines = self.lines.lock();
        find(&lines, store.hash(part), part.key).map(Line::waiting).sum()
    }

    /// Takes a place at the end of the line, if the caller can make it from there.
    pub(super) fn enter(
        plan: &Arc<Plan>,
        margin: Margin,
        ask: &Ask<'_>,
        costs: Costs,
        max_wait: Duration,
    ) -> Result<Place, Refused> {
        let queue = &plan.shared.queue;
        let part = plan.part(margin, ask.key, &costs);
        let hash = plan.shared.store.hash(&part);
        let limits = touched(&costs);
        let mut lines = queue.lines.lock();
        let waiting = find(&lines, hash, ask.key).map(Line::waiting).sum::<usize>();
        let here = lines.entry(hash).or_default();
        let found = here
            .iter()
            .position(|line| &*line.key == ask.key && line.limits == limits && line.margin == margin);
        let at = found.unwrap_or_else(|| {
            here.push(Line::new(queue.next.fetch_add(1, Ordering::Relaxed), plan, ask.key, margin, limits));
            here.len() - 1
        });
        let line = &mut here[at];
        let now = clock::now_us();
        let deadline = line.admit(&costs, now, max_wait, waiting >= plan.policy.waiting_bound());
        let deadline = match deadline.and_then(|deadline| {
            if line.driven || Handle::try_current().is_ok() {
                Ok(deadline)
            } else {
                Err(plan.refuse(RefusedKind::NoRuntime, max_wait))
            }
        }) {
            Ok(deadline) => deadline,
            Err(refused) => {
                if line.callers.is_empty() {
                    here.swap_remove(at);
                }
                if here.is_empty() {
                    lines.remove(&hash);
                }
                return Err(refused);
            }
        };
        let seq = queue.next.fetch_add(1, Ordering::Relaxed);
        let stated = ask.costs.iter().map(|(unit, cost)| (Box::from(*unit), *cost)).collect();
        line.callers.insert(
            seq,
            Caller { stated, costs, arrived: now, deadline, max_wait, state: Waiting::InLine, waker: None },
        );
        queue.waiting.fetch_add(1, Ordering::SeqCst);
        line.drive(hash);
        Ok(Place { plan: plan.clone(), hash, seq, max_wait, deadline })
    }

    /// A seat came back, or a charge was corrected, somewhere under this hash.
    pub(super) fn moved(&self, hash: u64) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            for line in self.lines.lock().get_mut(&hash).into_iter().flatten() {
                line.stale = true;
                line.turn.notify_one();
            }
        }
    }

    /// A key was paused, drained or resumed: whoever cannot make it any more is told now.
    pub(super) fn changed(&self, part: &Part<'_>, store: &dyn Store) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let from = store.forecast(*part).from;
        let (mut wakers, mut gone) = (Wakers::new(), Vec::new());
        let mut lines = self.lines.lock();
        for line in
            lines.get_mut(&store.hash(part)).into_iter().flatten().filter(|line| &*line.key == part.key)
        {
            line.forecast = None;
            gone.extend(line.booked.take_if(|(_, permit)| permit.slot() < from).map(|(_, permit)| permit));
            let late = line.callers.iter().filter(|(_, caller)| caller.waits() && caller.deadline < from);
            let late = late.map(|(seq, _)| *seq).collect::<Vec<_>>();
            for seq in late {
                let refused = line.refusal(from, line.callers[&seq].max_wait, RefusedKind::Paused);
                self.answer(line, seq, Waiting::Refused(refused), &mut wakers);
            }
            line.turn.notify_one();
        }
        drop(lines);
        gone.into_iter().for_each(Permit::take_back);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Moves everyone who waits under a new policy.
    pub(super) fn replan(&self, plan: &Arc<Plan>) {
        let (mut wakers, mut gone) = (Wakers::new(), Vec::new());
        let mut lines = self.lines.lock();
        for (_, here) in lines.iter_mut() {
            let mut callers = Vec::new();
            for line in &mut *here {
                gone.extend(line.booked.take().map(|(_, permit)| permit));
                line.turn.notify_one();
                let (key, margin) = (line.key.clone(), line.margin);
                callers.extend(
                    std::mem::take(&mut line.callers)
                        .into_iter()
                        .map(|(seq, caller)| (seq, key.clone(), margin, caller)),
                );
            }
            here.clear();
            callers.sort_by_key(|(seq, ..)| *seq);
            for (seq, key, margin, mut caller) in callers {
                if caller.waits() {
                    let stated = caller.stated.iter().map(|(unit, cost)| (&**unit, *cost));
                    let counted =
                        stated.filter(|(unit, _)| plan.rules.counts(unit)).collect::<SmallVec<[_; 3]>>();
                    match plan.rules.costs(&counted) {
                        Ok(costs) => caller.costs = costs,
                        Err(fault) => {
                            caller.state = Waiting::Refused(plan.refuse_cost(fault, caller.max_wait));
                            self.waiting.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                }
                wakers.extend(caller.waker.take());
                let limits = touched(&caller.costs);
                let same =
                    |line: &&mut Line| line.key == key && line.limits == limits && line.margin == margin;
                match here.iter_mut().find(same) {
                    Some(line) => _ = line.callers.insert(seq, caller),
                    None => {
                        let mut line =
                            Line::new(self.next.fetch_add(1, Ordering::Relaxed), plan, &key, margin, limits);
                        line.callers.insert(seq, caller);
                        here.push(line);
                    }
                }
            }
        }
        drop(lines);
        gone.into_iter().for_each(Permit::take_back);
        // Whoever is woken first starts the new lines' tasks.
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Refuses everyone who waits.
    pub(super) fn close(&self, refuse: impl Fn(Duration) -> Refused) {
        let (mut wakers, mut gone) = (Wakers::new(), Vec::new());
        let mut lines = self.lines.lock();
        for line in lines.values_mut().flatten() {
            gone.extend(line.booked.take().map(|(_, permit)| permit));
            for seq in line
                .callers
                .iter()
                .filter(|(_, caller)| caller.waits())
                .map(|(seq, _)| *seq)
                .collect::<Vec<_>>()
            {
                let refused = refuse(line.callers[&seq].max_wait);
                self.answer(line, seq, Waiting::Refused(refused), &mut wakers);
            }
            line.turn.notify_one();
        }
        drop(lines);
        gone.into_iter().for_each(Permit::take_back);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Answers a caller that waits.
    fn answer(&self, line: &mut Line, seq: usize, state: Waiting, wakers: &mut Wakers) {
        let caller = line.callers.get_mut(&seq).expect("a caller is only answered while it waits");
        caller.state = state;
        wakers.extend(caller.waker.take());
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// One turn of a line's task: grants what is due, and says until when to sleep; `None` when the line has
    /// ended.
    fn turn(&self, hash: u64, id: usize) -> Option<u64> {
        let (mut wakers, mut gone) = (Wakers::new(), Vec::new());
        let next = self.turn_locked(self.lines.lock(), hash, id, &mut wakers, &mut gone);
        gone.into_iter().for_each(Permit::take_back);
        wakers.into_iter().for_each(Waker::wake);
        next
    }

    fn turn_locked(
        &self,
        mut lines: MutexGuard<'_, HashMap<u64, Vec<Line>>>,
        hash: u64,
        id: usize,
        wakers: &mut Wakers,
        gone: &mut Vec<Permit>,
    ) -> Option<u64> {
        let here = lines.get_mut(&hash)?;
        let at = here.iter().position(|line| line.id == id)?;
        let line = &mut here[at];
        let store = line.plan.shared.store.clone();
        line.seatless = false;
        let mut now = clock::now_us();
        let next = loop {
            if let Some((seq, permit)) = line.booked.take_if(|(_, permit)| permit.slot() <= now) {
                line.granted = permit.slot();
                let waited = now.saturating_sub(line.callers[&seq].arrived);
                self.answer(line, seq, Waiting::Granted(permit.waited_us(waited), now), wakers);
                continue;
            }
            if let Some((_, permit)) = &line.booked {
                break Some(permit.slot());
            }
            let Some((seq, caller)) = line.first() else {
                // Whoever was granted and has not come yet needs no task.
                line.driven = false;
                break None;
            };
            let from = line.granted.max(caller.arrived).max(now.saturating_sub(CATCH_UP_US));
            let (deadline, max_wait) = (caller.deadline, caller.max_wait);
            let (plan, key, costs) = (line.plan.clone(), line.key.clone(), caller.costs.clone());
            let part = plan.part(line.margin, &key, &costs);
            let latest = deadline.min(now + AHEAD_US).max(from);
            let mut answer = store.decide(&[part], When { from: Some(from), latest: Some(latest) });
            let answered = answer.parts.pop().expect("one part was asked about");
            now = now.max(answer.now);
            match answer.outcome {
                Outcome::Granted => {
                    line.booked =
                        Some((seq, Permit::of(plan.clone(), line.margin, costs, &answer, answered)));
                }
                _ if answer.at != NEVER && answer.at > deadline => {
                    let refused = plan.refuse_answer(&answer, &answered, max_wait);
                    self.answer(line, seq, Waiting::Refused(refused), wakers);
                    line.stale = true;
                }
                Outcome::Paused { ask_again } => break Some(ask_again),
                Outcome::Refused if answer.at == NEVER => {
                    line.seatless = true;
                    break Some(NEVER);
                }
                Outcome::Refused => break Some((answer.at - AHEAD_US.min(answer.at)).max(now + 1_000)),
            }
        };
        let next = next.map(|next| self.claim(here, at, now, next, gone));
        if next.is_none() && here[at].callers.is_empty() {
            here.swap_remove(at);
            if here.is_empty() {
                lines.remove(&hash);
            }
        }
        next
    }

    /// Takes back seats that nobody came for while others wait for one, and says when to look again.
    fn claim(&self, here: &mut [Line], at: usize, now: u64, next: u64, gone: &mut Vec<Permit>) -> u64 {
        if !here[at].seatless {
            return next;
        }
        let key = here[at].key.clone();
        let mut look_again = next;
        for line in here.iter_mut().filter(|line| line.key == key) {
            for caller in line.callers.values_mut() {
                match &caller.state {
                    Waiting::Granted(_, since) if since + UNCLAIMED_US <= now => {
                        if let Waiting::Granted(permit, _) =
                            std::mem::replace(&mut caller.state, Waiting::Absent)
                        {
                            gone.push(permit);
                            self.waiting.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    Waiting::Granted(_, since) => look_again = look_again.min(since + UNCLAIMED_US),
                    _ => {}
                }
            }
        }
        if gone.is_empty() { look_again } else { now }
    }
}

fn find<'a>(lines: &'a HashMap<u64, Vec<Line>>, hash: u64, key: &'a str) -> impl Iterator<Item = &'a Line> {
    lines.get(&hash).into_iter().flatten().filter(move |line| &*line.key == key)
}

fn touched(costs: &[u64]) -> u32 {
    costs.iter().enumerate().filter(|(_, cost)| **cost > 0).fold(0, |set, (i, _)| set | 1 << i)
}

impl Line {
    fn new(id: usize, plan: &Arc<Plan>, key: &str, margin: Margin, limits: u32) -> Self {
        Self {
            id,
            key: key.into(),
            margin,
            limits,
            plan: plan.clone(),
            callers: BTreeMap::new(),
            booked: None,
            granted: 0,
            forecast: None,
            stale: false,
            seatless: false,
            driven: false,
            turn: Arc::default(),
        }
    }

    fn waiting(&self) -> usize {
        self.callers.values().filter(|caller| caller.waits()).count()
    }

    /// The first who waits and is there.
    fn first(&self) -> Option<(usize, &Caller)> {
        self.callers
            .iter()
            .find(|(_, caller)| matches!(caller.state, Waiting::InLine))
            .map(|(seq, caller)| (*seq, caller))
    }

    /// Until when a caller that comes now may wait, if it can make it behind those who are there.
    fn admit(&mut self, costs: &Costs, now: u64, max_wait: Duration, full: bool) -> Result<u64, Refused> {
        let admitted = self.slot_of(costs, now, max_wait);
        let admitted = match admitted {
            Err(_) if self.stale => {
                self.forecast = None;
                self.slot_of(costs, now, max_wait)
            }
            admitted => admitted,
        };
        match admitted {
            Ok(Slot { at, .. }) if full => Err(self.refusal(at, max_wait, RefusedKind::QueueFull)),
            Ok(Slot { at, deadline }) => {
                self.charge_forecast(costs, at);
                Ok(deadline)
            }
            Err((at, kind)) => Err(self.refusal(at, max_wait, kind)),
        }
    }

    fn slot_of(&mut self, costs: &Costs, now: u64, max_wait: Duration) -> Result<Slot, (u64, RefusedKind)> {
        if self.forecast.is_none() {
            self.make_forecast(now);
        }
        let rules = self.plan.rules.of(self.margin);
        let forecast = self.forecast.as_ref().expect("it was just made");
        let from = forecast.from.max(now);
        let timed =
            || rules.iter().zip(&forecast.states).zip(costs).filter(|((rule, _), _)| !rule.is_seats());
        let asked = timed().map(|((rule, state), cost)| (rule, state, *cost));
        let (Joint::Agreed(at) | Joint::NotBefore(at)) = joint_earliest(asked, from);
        // A leaky bucket holds a call in its own time, as far as its queue reaches.
        let mut held = now;
        for ((rule, state), cost) in timed().filter(|(_, cost)| **cost > 0) {
            if let Some(hold) = rule.hold_us() {
                let slot = rule.earliest(state, from, *cost);
                if slot > from + hold {
                    return Err((slot - hold, RefusedKind::QueueFull));
                }
                held = held.max(slot);
            }
        }
        let deadline = held.saturating_add(micros(max_wait));
        // Timers wake late, and a held call is not refused for that.
        let slack = if held > now { AHEAD_US } else { 0 };
        let paused = forecast.from > now;
        match at <= deadline {
            true if max_wait.is_zero() && held == now && at > now => Err((at, RefusedKind::RateLimited)),
            true => Ok(Slot { at, deadline: deadline + slack }),
            false if paused => Err((at, RefusedKind::Paused)),
            false => Err((at, RefusedKind::RateLimited)),
        }
    }

    /// The states that the next to come will find: those of the store, and all who wait charged in order.
    fn make_forecast(&mut self, now: u64) {
        let part = self.plan.whole(self.margin, &self.key);
        self.forecast = Some(self.plan.shared.store.forecast(part));
        self.stale = false;
        let booked = self.booked.as_ref().map(|(seq, _)| *seq);
        let ahead = self.callers.iter().filter(|(seq, caller)| caller.waits() && Some(**seq) != booked);
        let ahead = ahead.map(|(_, caller)| caller.costs.clone()).collect::<Vec<_>>();
        for costs in ahead {
            let rules = self.plan.rules.of(self.margin);
            let forecast = self.forecast.as_ref().expect("it was just made");
            let asked =
                rules.iter().zip(&forecast.states).zip(&costs).filter(|((rule, _), _)| !rule.is_seats());
            let asked = asked.map(|((rule, state), cost)| (rule, state, *cost));
            let (Joint::Agreed(at) | Joint::NotBefore(at)) = joint_earliest(asked, forecast.from.max(now));
            self.charge_forecast(&costs, at);
        }
    }

    fn charge_forecast(&mut self, costs: &Costs, at: u64) {
        let rules = self.plan.rules.of(self.margin);
        let forecast = self.forecast.as_mut().expect("a forecast is charged after it was asked");
        for ((rule, state), cost) in rules.iter().zip(&mut forecast.states).zip(costs) {
            if *cost > 0 && !rule.is_seats() {
                rule.commit(state, at, *cost);
            }
        }
    }

    /// The refusal of one who could go at `at`.
    fn refusal(&self, at: u64, max_wait: Duration, kind: RefusedKind) -> Refused {
        let now = clock::now_us();
        let standing = self.plan.shared.store.peek(self.plan.whole(self.margin, &self.key));
        let rules = self.plan.rules.of(self.margin);
        let mut levels = standing.levels;
        for (i, level) in levels.iter_mut().enumerate() {
            // The limit that the wait is for is the one that holds longest for those who wait already.
            let timed = self.forecast.as_ref().filter(|_| !rules[i].is_seats());
            let fits = timed.map_or(now, |forecast| rules[i].earliest(&forecast.states[i], now, 1));
            level.wait_us = fits.saturating_sub(now);
        }
        let decision = Decision {
            labels: self.plan.rules.labels.clone(),
            granted: false,
            wait_us: Some(at.saturating_sub(now)),
            paused: kind == RefusedKind::Paused,
            levels,
        };
        Refused::new(kind, decision, max_wait)
    }

    /// Starts the line's task, if it has none and there is a runtime to run it.
    fn drive(&mut self, hash: u64) {
        if self.driven {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            self.driven = true;
            let driver = Driver { plan: self.plan.clone(), hash, id: self.id, turn: self.turn.clone() };
            runtime.spawn(driver.run());
        }
    }
}

/// Where a caller in line would go, and until when it may.
struct Slot {
    at: u64,
    deadline: u64,
}

/// A line's task.
struct Driver {
    plan: Arc<Plan>,
    hash: u64,
    id: usize,
    turn: Arc<Notify>,
}

impl Driver {
    async fn run(self) {
        while let Some(until) = self.plan.shared.queue.turn(self.hash, self.id) {
            // Whichever comes first; a turn too many does no harm.
            _ = tokio::time::timeout_at(clock::instant(until), self.turn.notified()).await;
        }
    }
}

impl Drop for Driver {
    /// Its runtime may end before its line does: whoever is woken then starts another.
    fn drop(&mut self) {
        let queue = &self.plan.shared.queue;
        let mut wakers = Wakers::new();
        let mut lines = queue.lines.lock();
        let line = lines.get_mut(&self.hash).and_then(|here| here.iter_mut().find(|line| line.id == self.id));
        if let Some(line) = line.filter(|line| line.driven) {
            line.driven = false;
            wakers.extend(line.callers.values_mut().filter_map(|caller| caller.waker.take()));
        }
        drop(lines);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A caller's place in line. Dropping it gives the place up.
pub(super) struct Place {
    plan: Arc<Plan>,
    hash: u64,
    seq: usize,
    max_wait: Duration,
    deadline: u64,
}

impl Place {
    /// Waits for the answer.
    pub(super) async fn wait(self) -> Result<Permit, Refused> {
        let mut timer = std::pin::pin!(tokio::time::sleep_until(clock::instant(self.deadline)));
        let mut timed_out = false;
        std::future::poll_fn(|context| {
            if let Poll::Ready(answer) = self.poll(context) {
                return Poll::Ready(answer);
            }
            // A call whose slot is charged goes, however late the wake.
            if !timed_out && timer.as_mut().poll(context).is_ready() {
                timed_out = true;
                if !self.is_booked() {
                    return Poll::Ready(Err(self.too_late()));
                }
            }
            Poll::Pending
        })
        .await
    }

    fn with_caller<R>(&self, then: impl FnOnce(&Queue, &mut Line) -> R) -> Option<R> {
        let queue = &self.plan.shared.queue;
        let mut lines = queue.lines.lock();
        let here = lines.get_mut(&self.hash)?;
        here.iter_mut().find(|line| line.callers.contains_key(&self.seq)).map(|line| then(queue, line))
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Result<Permit, Refused>> {
        let answer = self.with_caller(|queue, line| {
            line.drive(self.hash);
            let turn = line.turn.clone();
            let caller = line.callers.get_mut(&self.seq).expect("the line was found by it");
            match std::mem::replace(&mut caller.state, Waiting::InLine) {
                Waiting::Granted(permit, _) => {
                    line.callers.remove(&self.seq);
                    queue.settle_line(line);
                    Some(Ok(permit))
                }
                Waiting::Refused(refused) => {
                    line.callers.remove(&self.seq);
                    queue.settle_line(line);
                    Some(Err(refused))
                }
                state => {
                    if matches!(state, Waiting::Absent) {
                        turn.notify_one();
                    }
                    match &mut caller.waker {
                        Some(waker) => waker.clone_from(context.waker()),
                        none => *none = Some(context.waker().clone()),
                    }
                    None
                }
            }
        });
        match answer.expect("a caller stays in line until it was answered or gave up") {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        }
    }

    fn is_booked(&self) -> bool {
        self.with_caller(|_, line| line.booked.as_ref().is_some_and(|(seq, _)| *seq == self.seq))
            .unwrap_or(false)
    }

    /// The refusal of one whose time is over.
    fn too_late(&self) -> Refused {
        self.with_caller(|_, line| {
            let now = clock::now_us();
            if line.seatless {
                let mut levels = line.plan.shared.store.peek(line.plan.whole(line.margin, &line.key)).levels;
                for (level, rule) in levels.iter_mut().zip(line.plan.rules.of(line.margin)) {
                    level.wait_us = if rule.is_seats() && level.remaining == 0 { NEVER } else { 0 };
                }
                let labels = line.plan.rules.labels.clone();
                let decision = Decision { labels, granted: false, wait_us: None, paused: false, levels };
                return Refused::new(RefusedKind::NoSeat, decision, self.max_wait);
            }
            line.forecast = None;
            line.make_forecast(now);
            let at = line.forecast.as_ref().map_or(now, |forecast| forecast.from);
            line.refusal(at, self.max_wait, RefusedKind::RateLimited)
        })
        .unwrap_or_else(|| self.plan.refuse(RefusedKind::NoSeat, self.max_wait))
    }

    /// Gives the place up at once, with the refusal that it amounts to.
    pub(super) fn leave(self) -> Refused {
        self.too_late()
    }
}

impl Queue {
    /// Lets a line's task end with its last caller.
    fn settle_line(&self, line: &Line) {
        if line.callers.is_empty() {
            line.turn.notify_one();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let gone = self.with_caller(|queue, line| {
            let Some(caller) = line.callers.remove(&self.seq) else { return (None, None) };
            if caller.waits() {
                queue.waiting.fetch_sub(1, Ordering::SeqCst);
                line.stale = true;
            }
            let booked = line.booked.take_if(|(seq, _)| *seq == self.seq).map(|(_, permit)| permit);
            line.turn.notify_one();
            (booked, Some(caller))
        });
        if let Some((booked, caller)) = gone {
            if let Some(permit) = booked {
                permit.take_back();
                self.plan.shared.queue.moved(self.hash);
            }
            drop(caller);
        }
    }
}
