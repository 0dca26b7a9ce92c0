//! The run: the limiter that runs in production, under a load, on whatever clock the runtime has.
//!
//! Nothing of the limiter is replaced. In virtual time the runtime's clock is paused, and jumps to the next
//! timer whenever nothing is left to do; so an hour passes in a second, and every decision is the one that
//! the hour would have brought.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use forbear::store::{AnyStore, Local};
use forbear::{Ask, Limiter, Permit, Policy, Refused, RefusedKind};
use indicatif::ProgressBar;
use tokio::task::LocalSet;
use tokio::time::Instant;

use super::load_file::Load;
use super::outcome::Outcome;

/// Which clock a run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Clock {
    Virtual,
    Real,
}

/// What is run.
pub(crate) struct Job {
    pub(crate) policy: Policy,
    pub(crate) load: Load,
}

/// What is written down during a run, in microseconds since its start.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// When each permit was given, in that order, and how long it was waited for.
    pub(crate) admitted: Vec<(u64, u64)>,
    /// By what had to be waited for: how often, how long in all, how long at most.
    pub(crate) waits: BTreeMap<String, (u64, u64, u64)>,
    pub(crate) refused: BTreeMap<String, u64>,
    pub(crate) under_way: u64,
    pub(crate) most_at_once: u64,
    pub(crate) end: u64,
    made: u64,
}

/// What all calls of a run share.
struct Shared {
    limiter: Limiter,
    load: Load,
    keys: Vec<String>,
    start: Instant,
    rng: RefCell<Rng>,
    record: RefCell<Record>,
    progress: ProgressBar,
}

impl Job {
    /// Runs it. Clock, randomness and store are arguments: of the runtime, of the load, and here.
    pub(crate) fn run(self, clock: Clock, progress: ProgressBar) -> Result<Outcome> {
        #[allow(clippy::disallowed_methods, reason = "how long the run takes for whoever waits for it")]
        let began = std::time::Instant::now();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(clock == Clock::Virtual);
        let Job { policy, load } = self;
        let (record, limits) = LocalSet::new().block_on(&runtime.build()?, async move {
            let shared = Rc::new(Shared::new(&policy, Local::new().into(), load, progress)?);
            shared.clone().work().await;
            let peek = shared.limiter.peek(&shared.keys[0]).await;
            let limits =
                peek.limits().map(|it| (it.name().to_owned(), it.unit().to_owned(), it.quota(), it.period()));
            let limits = limits.collect::<Vec<_>>();
            anyhow::Ok((shared.record.take(), limits))
        })?;
        Ok(Outcome::new(clock, began.elapsed(), record, &limits))
    }
}

impl Shared {
    fn new(policy: &Policy, store: AnyStore, load: Load, progress: ProgressBar) -> Result<Self> {
        Ok(Self {
            limiter: Limiter::new(policy, store)?,
            keys: (0..load.keys.max(1)).map(|i| format!("service-{i}")).collect(),
            start: Instant::now(),
            rng: RefCell::new(Rng::with_seed(load.seed)),
            record: RefCell::default(),
            load,
            progress,
        })
    }

    async fn work(self: Rc<Self>) {
        for pause in self.load.pause.clone() {
            let shared = self.clone();
            tokio::task::spawn_local(async move {
                tokio::time::sleep_until(shared.start + pause.at.0).await;
                shared.keys.iter().for_each(|key| shared.limiter.pause(key, pause.lasts.0));
            });
        }
        let mut calls = tokio::task::JoinSet::new();
        match self.load.arrivals {
            None => {
                for _ in 0..self.load.workers.max(1) {
                    let shared = self.clone();
                    calls.spawn_local(async move { while shared.call().await {} });
                }
            }
            Some(rate) => {
                let gap = rate.period().as_secs_f64() / rate.units() as f64;
                let mut at = Duration::ZERO;
                for _ in 0..self.load.calls {
                    tokio::time::sleep_until(self.start + at).await;
                    let shared = self.clone();
                    calls.spawn_local(async move { _ = shared.call().await });
                    while calls.try_join_next().is_some() {}
                    // Who come at random, one by one, come at exponential distances.
                    let drawn = -(1.0 - self.rng.borrow_mut().f64()).ln();
                    at += Duration::from_secs_f64(gap * drawn);
                }
            }
        }
        while calls.join_next().await.is_some() {}
        self.record.borrow_mut().end = self.now();
        self.progress.finish_and_clear();
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Makes one call; `false` if all have been made.
    async fn call(&self) -> bool {
        let number = {
            let record = &mut *self.record.borrow_mut();
            if record.made == self.load.calls {
                return false;
            }
            record.made += 1;
            record.made
        };
        if number % 1_000 == 0 {
            self.progress.set_position(number);
        }
        let (ask, takes) = {
            let rng = &mut *self.rng.borrow_mut();
            let ask = Ask::new(&self.keys[number as usize % self.keys.len()]);
            let priced = self.load.cost.iter();
            let ask = priced.fold(ask, |ask, (unit, cost)| ask.cost(unit, cost.0.draw(rng)));
            (ask, Duration::from_micros(self.load.takes.0.draw(rng)))
        };
        let permit = self.acquire(ask).await;
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        if permit.is_some() {
            self.record.borrow_mut().under_way -= 1;
        }
        true
    }

    /// A permit, or none for a call that is refused; both are written down.
    async fn acquire(&self, ask: Ask<'_>) -> Option<Permit> {
        let asked = self.now();
        // What a call would have to wait for is what refuses one that does not wait.
        let (result, cause) = match self.limiter.try_acquire(ask.clone()).await {
            Ok(permit) => (Ok(permit), None),
            Err(refused) => (self.limiter.acquire(ask).await, Some(cause(&refused))),
        };
        let (now, record) = (self.now(), &mut *self.record.borrow_mut());
        match result {
            Ok(permit) => {
                let waited = now - asked;
                record.admitted.push((now, waited));
                if let Some(cause) = cause.filter(|_| waited > 0) {
                    let cause = last_seat(&permit, &cause).unwrap_or(cause);
                    let (calls, total, longest) = record.waits.entry(cause).or_default();
                    (*calls, *total, *longest) = (*calls + 1, *total + waited, waited.max(*longest));
                }
                record.under_way += 1;
                record.most_at_once = record.most_at_once.max(record.under_way);
                Some(permit)
            }
            Err(refused) => {
                *record.refused.entry(cause_of_refusal(&refused)).or_default() += 1;
                None
            }
        }
    }
}

/// What a call waits for: the limit, or a pause.
fn cause(refused: &Refused) -> String {
    match (refused.kind(), refused.limit()) {
        (RefusedKind::Paused, _) => "a pause".to_owned(),
        (_, Some(limit)) => limit.to_owned(),
        (kind, None) => format!("{kind:?}"),
    }
}

/// The seats' name, if it was a seat that a call waited for at the end: it took the last one, and the limit
/// that it had to wait for when it came has units left by now.
fn last_seat(permit: &Permit, cause: &str) -> Option<String> {
    let decision = permit.decision();
    let seats = decision.limits().find(|limit| limit.period().is_none() && limit.remaining() == 0)?;
    let has_units = decision.limits().any(|limit| limit.name() == cause && limit.remaining() > 0);
    has_units.then(|| seats.name().to_owned())
}

/// Why a call was refused, in words.
fn cause_of_refusal(refused: &Refused) -> String {
    match refused.kind() {
        RefusedKind::QueueFull => "the queue is full".to_owned(),
        RefusedKind::NeverFits => format!("never fits: {}", cause(refused)),
        _ => format!("max_wait: {}", cause(refused)),
    }
}
