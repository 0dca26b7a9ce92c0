//! A line's task: asks Redis for those who wait, sleeps to each slot, and gives it away.
//!
//! While a trip is under way callers gather, and the next trip asks for all of them. There is one trip at a time,
//! and the next one leaves when the last slot of it is about to be due; so trips fall as load rises. The task
//! ends when its line is empty. If its runtime ends before, whoever waits asks again and starts another.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::Notify;

use super::Fleet;
use super::key::{Answers, Key};
use super::line::{Asked, Told};
use super::trips::InOrder;
use crate::algorithm::NEVER;
use crate::clock;
use crate::limiter::Plan;
use crate::store::redis::hub::Away;
use crate::store::redis::wire::Reply;

/// A trip leaves so much sooner than it takes, for timers wake late.
const EARLY_US: u64 = 2_000;

pub(super) struct Driver {
    fleet: Arc<Fleet>,
    key: Arc<Key>,
    line: u64,
    turn: Arc<Notify>,
    ended: bool,
}

type Answer = Result<(Reply, InOrder), Away>;
type Trip = Pin<Box<dyn Future<Output = (Arc<Plan>, Vec<Asked>, Answer)> + Send>>;

impl Driver {
    pub(super) fn new(fleet: Arc<Fleet>, key: Arc<Key>, line: u64, turn: Arc<Notify>) -> Self {
        Self { fleet, key, line, turn, ended: false }
    }

    pub(super) async fn run(mut self) {
        // Those who come in the same turn of the runtime go in the first trip.
        tokio::task::yield_now().await;
        let mut trip: Option<Trip> = None;
        let mut took_us = 0;
        let mut left = clock::now_us();
        loop {
            let lead_us = took_us + took_us / 2 + EARLY_US;
            let Some(until) = self.turn(&mut trip, &mut left, lead_us) else { break };
            let turn = self.turn.clone();
            tokio::select! {
                (plan, asked, reply) = async { trip.as_mut().expect("guarded").await }, if trip.is_some() => {
                    trip = None;
                    let received = clock::now_us();
                    let trip_us = received.saturating_sub(left);
                    took_us = if took_us == 0 { trip_us } else { (3 * took_us + trip_us) / 4 };
                    self.arrived(&plan, asked, reply, received);
                }
                () = turn.notified() => {}
                () = tokio::time::sleep_until(clock::instant(until)), if until != NEVER => {}
            }
        }
        self.ended = true;
    }

    /// Gives away what is due, and sends for more. Until when there is nothing else to do; `None` when the line
    /// is empty.
    fn turn(&self, trip: &mut Option<Trip>, left: &mut u64, lead_us: u64) -> Option<u64> {
        let now = clock::now_us();
        let mut answers = Answers::default();
        let mut state = self.key.state.lock();
        let unwanted = state.grant_due(self.line, now, &mut answers);
        let line = state.line(self.line)?;
        let plan = line.plan.clone();
        let mut next = Some(line.next_wake(lead_us, trip.is_some()));
        if trip.is_none() {
            let asked = line.to_ask(now, lead_us);
            if !asked.is_empty() {
                *left = now;
                let (fleet, key, plan, margin, id) =
                    (self.fleet.clone(), self.key.clone(), plan.clone(), line.margin, line.id);
                *trip = Some(Box::pin(async move {
                    let reply = fleet.trip(&key, &plan, margin, id, &asked).await;
                    (plan, asked, reply)
                }));
                next = Some(line.next_wake(lead_us, true));
            } else if line.is_empty() {
                line.driven = false;
                next = None;
            }
        }
        state.free_spare(now);
        if next.is_none() {
            state.tidy();
        }
        let report = trip.is_none() && state.is_unreported();
        drop(state);
        self.fleet.give_back(&self.key, unwanted);
        self.fleet.pass_on(&self.key, self.line, answers.give());
        if report {
            self.fleet.report(&self.key, &plan);
        }
        next
    }

    fn arrived(&self, plan: &Arc<Plan>, asked: Vec<Asked>, reply: Answer, received: u64) {
        let mut answers = Answers::default();
        match reply {
            Ok((reply, _in_order)) => {
                let mut state = self.key.state.lock();
                state.answered(self.line, plan, asked, reply, received, &mut answers);
            }
            Err(Away) => {
                self.key.state.lock().tell_unbooked(self.line, || Told::Away, &mut answers);
            }
        }
        self.fleet.pass_on(&self.key, self.line, answers.give());
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut answers = Answers::default();
        let mut state = self.key.state.lock();
        state.tell_all(self.line, || Told::Again, &mut answers);
        let unwanted = state.line(self.line).map_or_else(Vec::new, |line| {
            line.driven = false;
            line.take_slots()
        });
        unwanted.iter().for_each(|slot| state.free_slot(slot));
        drop(state);
        self.fleet.give_back(&self.key, unwanted);
        self.fleet.pass_on(&self.key, self.line, answers.give());
    }
}
