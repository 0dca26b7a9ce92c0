//! Those who wait: one line for each key and set of limits touched, first come, first served.
//!
//! Each line is driven by one task, which books the first caller's slot, sleeps to it and grants. Callers
//! only wait on their own place, so nothing depends on who is polled or dropped; a line ends with its last
//! caller, and with it the task. The store may be asked under the queue's lock, and never asks back. No waker
//! is woken, copied or dropped under it, no task started, and no permit dropped that is still good.

mod lines;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use lines::Lines;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::caller::{Caller, Waiting};
use super::forecast::Slot;
use super::line::{Line, Wakers};
use super::place::Place;
use super::{Ask, Plan, Refused, RefusedKind};
use crate::algorithm::Costs;
use crate::clock;
use crate::limit::Margin;
use crate::store::{Part, Table, Ticket};

/// The lines of one limiter.
#[derive(Default)]
pub(super) struct Queue {
    lines: Mutex<Lines>,
    /// Callers that wait, in all lines.
    pub(super) waiting: AtomicUsize,
    next: AtomicUsize,
}

/// Why a caller has no place.
pub(super) enum NoPlace {
    Refused(Refused),
    /// The policy has changed since the caller read it: it has to begin again.
    Outdated,
}

impl Queue {
    /// A number that was not given before.
    pub(super) fn number(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether nobody waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }

    /// Works on the lines, and wakes whoever was answered after the lock is let go.
    fn work<R>(&self, then: impl FnOnce(&mut Lines, &mut Wakers) -> R) -> R {
        let mut wakers = Wakers::new();
        let result = then(&mut self.lines.lock(), &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// Whether callers wait who are before a new one. Whose slot has come is granted first, for the line's
    /// task may be late.
    pub(super) fn is_ahead(&self, part: &Part<'_>, store: &Table) -> bool {
        if self.is_empty() {
            return false;
        }
        let (hash, limits, now) = (store.hash(part), touched(part.costs), clock::now_us());
        self.work(|lines, wakers| {
            let due = lines.of(hash, part.key).filter(|line| line.is_due(now)).map(|line| line.id);
            for id in due.collect::<SmallVec<[usize; 2]>>() {
                lines.turn(hash, |line| line.id == id, wakers);
            }
            lines.of(hash, part.key).any(|line| line.limits == limits && line.is_busy())
        })
    }

    /// Callers that wait for a key.
    pub(super) fn waiting(&self, part: &Part<'_>, store: &Table) -> usize {
        self.lines.lock().of(store.hash(part), part.key).map(|line| line.waiting()).sum()
    }

    /// Whether it holds no line at all.
    #[cfg(test)]
    pub(super) fn has_no_line(&self) -> bool {
        self.lines.lock().by_hash.is_empty()
    }

    /// Takes a place at the end of the line, if the caller can make it from there.
    pub(super) fn enter(
        plan: &Arc<Plan>,
        margin: Margin,
        ask: &Ask<'_>,
        costs: Costs,
        max_wait: Duration,
    ) -> Result<Place, NoPlace> {
        let queue = &plan.shared.queue;
        let part = plan.part(margin, ask.key, &costs);
        let hash = plan.shared.store.hash(&part);
        let limits = touched(&costs);
        let stated = ask.costs.iter().map(|(unit, cost)| (Box::from(*unit), *cost)).collect();
        let mut lines = queue.lines.lock();
        let refused = |kind| Err(NoPlace::Refused(plan.refuse(kind, max_wait)));
        if lines.plan != plan.id {
            return Err(NoPlace::Outdated);
        }
        if plan.shared.closed.load(Ordering::SeqCst) {
            return refused(RefusedKind::Closed);
        }
        if Handle::try_current().is_err() {
            return refused(RefusedKind::NoRuntime);
        }
        let waiting = lines.of(hash, ask.key).map(|line| line.waiting()).sum::<usize>();
        let line = queue.line(lines.by_hash.entry(hash).or_default(), plan, ask.key, margin, limits);
        let now = clock::now_us();
        let slot = match line.admit(&costs, now, max_wait, waiting) {
            Ok(slot) => slot,
            Err(refused) => {
                lines.tidy(hash);
                return Err(NoPlace::Refused(refused));
            }
        };
        let seq = queue.number();
        let caller = Caller {
            stated,
            costs,
            arrived: now,
            expected: slot.at,
            deadline: slot.deadline,
            max_wait,
            state: Waiting::InLine,
            waker: None,
        };
        line.insert(seq, caller);
        let driver = line.driver(hash);
        drop(lines);
        if let Some(driver) = driver {
            driver.start();
        }
        let (plan, expected, deadline) = (plan.clone(), slot.at, slot.deadline);
        Ok(Place { plan, hash, seq, arrived: now, expected, deadline })
    }

    /// The line of a key and a set of limits, made if need be.
    fn line<'a>(
        &self,
        here: &'a mut Vec<Line>,
        plan: &Arc<Plan>,
        key: &str,
        margin: Margin,
        limits: u32,
    ) -> &'a mut Line {
        let mine = |line: &Line| &*line.key == key && line.limits == limits && line.margin == margin;
        let at = here.iter().position(mine).unwrap_or_else(|| {
            here.push(Line::new(self.number(), plan, key, margin, limits));
            here.len() - 1
        });
        &mut here[at]
    }

    /// The refusal of one who will not wait behind those who are there; `None` if nobody is any more.
    pub(super) fn refuse(
        plan: &Arc<Plan>,
        margin: Margin,
        ask: &Ask<'_>,
        costs: &Costs,
        max_wait: Duration,
    ) -> Option<Refused> {
        let part = plan.part(margin, ask.key, costs);
        let limits = touched(costs);
        let mut lines = plan.shared.queue.lines.lock();
        let mut here = lines.of(plan.shared.store.hash(&part), ask.key);
        let line = here.find(|line| line.limits == limits && line.plan.id == plan.id && line.is_busy())?;
        let now = clock::now_us();
        let (at, kind) = match line.slot_of(costs, now, max_wait) {
            // Those who wait are kept from going by the seats, whatever their slots will be.
            Ok(Slot { at, .. }) | Err((at, RefusedKind::RateLimited)) if line.seatless => {
                (at, RefusedKind::NoSeat)
            }
            Ok(slot) if slot.at <= now && line.has_seats() => (slot.at, RefusedKind::NoSeat),
            Ok(slot) => (slot.at, RefusedKind::RateLimited),
            Err(refused) => refused,
        };
        Some(line.refusal(at, max_wait, kind))
    }

    /// Works on the line of a caller, which ends if that was its last one.
    pub(super) fn with_line<R>(&self, hash: u64, seq: usize, then: impl FnOnce(&mut Line) -> R) -> Option<R> {
        let mut lines = self.lines.lock();
        let result = then(lines.find(hash, |line| line.has(seq))?);
        lines.tidy(hash);
        Some(result)
    }

    /// A caller gives up its place. Its slot is taken back, if nothing but the first slots of other lines was
    /// booked after it: those are booked again.
    pub(super) fn leave(&self, hash: u64, seq: usize) {
        let mut lines = self.lines.lock();
        let Some(line) = lines.find(hash, |line| line.has(seq)) else { return };
        let key = line.key.clone();
        let booked = line.booked.as_ref().is_some_and(|booked| booked.seq == seq);
        let granted = matches!(line.caller(seq).state, Waiting::Granted(..));
        if booked || granted {
            lines.unbook(hash, &key);
        }
        let now = clock::now_us();
        let line = lines.find(hash, |line| line.has(seq)).expect("it was just found");
        if line.is_first(seq) {
            line.changed(now);
        }
        let mut caller = line.remove(seq).expect("the line was found by it");
        line.doubt();
        let mut ticket = None;
        if let Waiting::Granted(permit, _) = std::mem::replace(&mut caller.state, Waiting::Absent) {
            ticket = Some(permit.ticket());
            permit.take_back();
        }
        line.turn.notify_one();
        if booked || granted {
            lines.of(hash, &key).for_each(|line| line.changed(now));
        }
        lines.tidy(hash);
        drop(lines);
        drop(caller);
        if let Some(ticket) = ticket {
            self.freed(ticket);
        }
    }

    /// A seat came back.
    #[inline]
    pub(super) fn freed(&self, ticket: Ticket) {
        self.each(ticket, |line, now| {
            // Who waits for a slot finds nothing changed, and keeps what a late wake is owed.
            if line.seatless {
                line.changed(now);
            }
        });
    }

    /// Something by which those who wait may go sooner: what is booked for them is booked again.
    #[cfg(feature = "client")]
    pub(super) fn rebook(&self, ticket: Ticket, then: impl FnOnce()) {
        if self.is_empty() {
            return then();
        }
        let mut lines = self.lines.lock();
        lines.unbook_after(ticket.hash, clock::now_us());
        then();
        // Where keys share a budget, others wait for the same.
        let here = |hash: u64| hash == ticket.hash || ticket.is_shared();
        for (_, line) in lines.by_hash.iter_mut().filter(|(hash, _)| here(**hash)) {
            line.iter_mut().for_each(|line| {
                line.turn.notify_one();
                line.doubt();
            });
        }
    }

    /// A charge was corrected.
    pub(super) fn corrected(&self, ticket: Ticket) {
        self.each(ticket, |line, now| {
            line.changed(now);
            line.doubt();
        });
    }

    /// Every line that shares a budget.
    #[inline]
    fn each(&self, ticket: Ticket, then: impl Fn(&mut Line, u64)) {
        if !self.is_empty() {
            self.each_of(ticket, then);
        }
    }

    #[cold]
    fn each_of(&self, ticket: Ticket, then: impl Fn(&mut Line, u64)) {
        let now = clock::now_us();
        let mut lines = self.lines.lock();
        if ticket.is_shared() {
            lines.by_hash.values_mut().flatten().for_each(|line| then(line, now));
        } else {
            lines.by_hash.get_mut(&ticket.hash).into_iter().flatten().for_each(|line| then(line, now));
        }
    }

    /// Changes how a key stands: `then` pauses, drains or resumes it. What was booked ahead is booked again,
    /// and whoever cannot make it any more is told now.
    pub(super) fn change(&self, part: &Part<'_>, store: &Table, then: impl FnOnce()) {
        let hash = store.hash(part);
        self.work(|lines, wakers| {
            lines.unbook(hash, part.key);
            then();
            let (now, from) = (clock::now_us(), store.forecast(*part).from);
            for line in lines.of(hash, part.key) {
                line.forecast = None;
                line.refuse(
                    |caller| caller.deadline < from,
                    |line, max_wait| line.refusal(from, max_wait, RefusedKind::Paused),
                    wakers,
                );
                line.changed(now);
            }
        });
    }

    /// Moves everyone who waits under a new policy; `then` puts it in force.
    pub(super) fn replan(&self, plan: &Arc<Plan>, then: impl FnOnce()) {
        // Whoever is woken first starts the new lines' tasks.
        self.work(|lines, wakers| {
            lines.unbook_all();
            then();
            lines.plan = plan.id;
            for here in lines.by_hash.values_mut() {
                let mut callers = Vec::new();
                for line in &mut *here {
                    // Its task finds no line and ends.
                    line.turn.notify_one();
                    let (key, margin) = (line.key.clone(), line.margin);
                    callers.extend(
                        line.take_all().into_iter().map(|(seq, caller)| (seq, key.clone(), margin, caller)),
                    );
                }
                here.clear();
                callers.sort_unstable_by_key(|(seq, ..)| *seq);
                for (seq, key, margin, mut caller) in callers {
                    caller.replan(plan, margin);
                    wakers.extend(caller.waker.take());
                    let limits = touched(&caller.costs);
                    self.line(here, plan, &key, margin, limits).insert(seq, caller);
                }
            }
            lines.by_hash.retain(|_, here| !here.is_empty());
        });
    }

    /// Refuses everyone who waits.
    pub(super) fn close(&self, refuse: impl Fn(Duration) -> Refused) {
        self.work(|lines, wakers| {
            lines.unbook_all();
            for line in lines.by_hash.values_mut().flatten() {
                line.refuse(|_| true, |_, max_wait| refuse(max_wait), wakers);
                line.turn.notify_one();
            }
        });
    }

    /// One turn of a line's task: grants what is due, and says until when to sleep; `None` when the line needs
    /// no task any more.
    pub(super) fn drive(&self, hash: u64, id: usize) -> Option<u64> {
        self.work(|lines, wakers| {
            let next = lines.turn(hash, |line| line.id == id, wakers);
            if next.is_none() {
                if let Some(line) = lines.find(hash, |line| line.id == id) {
                    line.driven = false;
                }
                lines.tidy(hash);
            }
            next
        })
    }

    /// A turn on behalf of a caller that has waited longer than it thought.
    pub(super) fn look_after(&self, hash: u64, seq: usize) {
        self.work(|lines, wakers| {
            lines.turn(hash, |line| line.has(seq), wakers);
            if let Some(line) = lines.find(hash, |line| line.has(seq)) {
                // The task may be asleep for what was true before.
                line.turn.notify_one();
            }
        });
    }

    /// A line has lost its task: those who have to be woken to start another.
    pub(super) fn undriven(&self, hash: u64, id: usize) -> Wakers {
        let mut lines = self.lines.lock();
        let wakers = lines.find(hash, |line| line.id == id).map(Line::undriven).unwrap_or_default();
        lines.tidy(hash);
        wakers
    }
}

fn touched(costs: &[u64]) -> u32 {
    costs.iter().enumerate().filter(|(_, cost)| **cost > 0).fold(0, |set, (i, _)| set | 1 << i)
}
