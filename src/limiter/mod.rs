//! A policy, a store and a queue: together they turn an ask into a permit.
//!
//! With room and nobody waiting, an ask is answered at once: one step in the store, no allocation, no task.
//! Everything that has to wait is the queue's affair. The limiter knows nothing of HTTP but the signals
//! that it is told of.

mod answers;
mod ask;
mod caller;
mod chain;
mod current;
mod driver;
mod forecast;
mod held;
mod line;
#[cfg(test)]
mod one_hash;
mod peek;
mod permit;
mod place;
mod plan;
mod queue;
mod refused;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

pub use ask::Ask;
pub use peek::Peek;
pub use permit::Permit;
#[cfg(feature = "client")]
pub(crate) use refused::causes;
pub use refused::{Last, Refused, RefusedKind};

use answers::{Answers, Verdict};
use current::Current;
use place::Place;
use plan::Plan;
use queue::{NoPlace, Queue};

use crate::algorithm::{Costs, NEVER, Rules};
use crate::clock::{self, micros};
use crate::decision::Decision;
use crate::limit::Margin;
use crate::policy::{ConfigError, Policy};
use crate::signals::Signals;
use crate::store::{Answer, AnyStore, Part, PartAnswer, PauseAsk, Space, Store, When};

/// The longest that a service's pause is held before one call probes it, again and again.
const MAX_PAUSE_US: u64 = 3_600_000_000;

/// What comes of an ask at once.
enum Start {
    Go(Permit),
    Wait(Place),
}

/// Keeps callers inside the limits of one policy, key by key.
///
/// Cheap to clone; clones share everything. Answers at once while there is room; else callers wait in the
/// order in which they came, each for at most its `max_wait`.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// use forbear::{Limiter, Policy, store::Local};
///
/// let limiter = Limiter::new(Policy::new("mail").limit("2/s").limit("8 at once"), Local::new())?;
/// let permit = limiter.acquire("smtp.example.com").await?;
/// // ... one message is sent ...
/// drop(permit);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Limiter {
    core: Arc<Core>,
    margin: Margin,
}

struct Core {
    current: Current,
    shared: Arc<Shared>,
    space: Space,
}

impl Drop for Core {
    fn drop(&mut self) {
        self.shared.store.leave(self.space);
    }
}

/// What outlives a change of policy.
struct Shared {
    store: Arc<dyn Store>,
    queue: Queue,
    answers: Answers,
    closed: AtomicBool,
}

impl Shared {
    /// Whether it is open, and nobody waits anywhere.
    #[inline]
    fn is_free(&self) -> bool {
        !self.closed.load(Ordering::Relaxed) && self.queue.is_empty()
    }
}

impl Limiter {
    /// A limiter of `policy`, whose state lives in `store`.
    ///
    /// # Errors
    /// The first fault of the policy, with policy and field named.
    pub fn new(policy: impl Into<Policy>, store: impl Into<AnyStore>) -> Result<Self, ConfigError> {
        let policy = policy.into();
        Rules::new(&policy)?;
        let store = store.into().0;
        store.check(&policy)?;
        let space = store.open(policy.name());
        let shared = Arc::new(Shared {
            store,
            queue: Queue::default(),
            answers: Answers::default(),
            closed: AtomicBool::new(false),
        });
        let plan = Plan::new(0, policy, space, shared.clone())?;
        Ok(Self { core: Arc::new(Core { current: Current::new(plan), shared, space }), margin: Margin::None })
    }

    /// Waits for a permit, at most for the ask's or the policy's `max_wait`, whichever is shorter.
    ///
    /// A call that cannot make it is refused at once, with the time at which it could have gone. Dropping
    /// the future gives the place up, and leaves no debt.
    ///
    /// # Errors
    /// [`Refused`] says which limit, why, and when it could go.
    pub async fn acquire<'a>(&self, ask: impl Into<Ask<'a>>) -> Result<Permit, Refused> {
        let place = {
            let ask = ask.into();
            if let Some(permit) = self.grant(&ask, None) {
                return Ok(permit);
            }
            match self.start(&ask)? {
                Start::Go(permit) => return Ok(permit),
                Start::Wait(place) => place,
            }
        };
        // Apart, so that the future of a call that does not wait is small.
        Box::pin(place.wait()).await
    }

    /// A permit now or not at all: never waits, never overtakes those who do, and charges at now only.
    ///
    /// # Errors
    /// [`Refused`] says which limit, and when it could go.
    pub async fn try_acquire<'a>(&self, ask: impl Into<Ask<'a>>) -> Result<Permit, Refused> {
        self.try_at(&ask.into().max_wait(Duration::ZERO), None)
    }

    /// A permit as of an instant that the caller has just read, for loops that read the clock once for many
    /// calls; otherwise like [`try_acquire`](Self::try_acquire). A call that does not fit then is asked about
    /// once more, as of now. The instant must not lie ahead: what comes only by then would be granted now.
    ///
    /// # Errors
    /// [`Refused`] says which limit, and when it could go.
    pub fn try_acquire_at<'a>(&self, ask: impl Into<Ask<'a>>, at: Instant) -> Result<Permit, Refused> {
        self.try_at(&ask.into().max_wait(Duration::ZERO), Some(clock::at_us(at)))
    }

    #[inline]
    fn try_at(&self, ask: &Ask<'_>, at: Option<u64>) -> Result<Permit, Refused> {
        match self.grant(ask, at) {
            Some(permit) => Ok(permit),
            None => self.try_start(ask),
        }
    }

    /// The way of a call that may not go now, or only with more to it than one step.
    #[cold]
    fn try_start(&self, ask: &Ask<'_>) -> Result<Permit, Refused> {
        loop {
            let plan = self.core.current.load();
            let costs = match plan.check(ask, Duration::ZERO) {
                Ok(costs) => costs,
                Err(refused) => return plan.observed(self.margin, &refused).ok_or(refused),
            };
            let Some((answer, part)) = self.ask_now(&plan, ask, &costs) else {
                match Queue::refuse(&plan, self.margin, ask, &costs, Duration::ZERO) {
                    Some(refused) => return Err(refused),
                    None => continue,
                }
            };
            return if plan.lets_through(&answer) {
                Ok(Permit::of(plan.clone(), self.margin, costs, &answer, part))
            } else {
                Err(plan.refuse_answer(&answer, &part, Duration::ZERO))
            };
        }
    }

    /// The way of a call that does not wait: the store grants it in one step, or nothing happened.
    #[inline]
    fn grant(&self, ask: &Ask<'_>, at: Option<u64>) -> Option<Permit> {
        let plan = self.core.current.load();
        if !self.core.shared.is_free() {
            return None;
        }
        let stated;
        let costs = match plan.rules.usual(&ask.costs) {
            Some(usual) => usual,
            None => {
                stated = plan.rules.costs(&ask.costs).ok()?;
                &stated
            }
        };
        Permit::now(&plan, &plan.part(self.margin, ask.key, costs), at)
    }

    /// What the store says about an ask now; `None` if others wait before it.
    fn ask_now(&self, plan: &Plan, ask: &Ask<'_>, costs: &Costs) -> Option<(Answer, PartAnswer)> {
        let part = plan.part(self.margin, ask.key, costs);
        let store = &*plan.shared.store;
        if !plan.policy.is_observe_only() && plan.shared.queue.is_ahead(&part, store) {
            return None;
        }
        let mut answer = store.decide(&[part], When::NOW);
        let part = answer.parts.pop().expect("one part was asked about");
        Some((answer, part))
    }

    /// The way of a call that has to wait, or may not go.
    #[cold]
    fn start(&self, ask: &Ask<'_>) -> Result<Start, Refused> {
        loop {
            let plan = self.core.current.load();
            let max_wait = plan.max_wait_of(ask);
            let costs = match plan.check(ask, max_wait) {
                Ok(costs) => costs,
                Err(refused) => return plan.observed(self.margin, &refused).map(Start::Go).ok_or(refused),
            };
            let holds = plan.rules.holds();
            if let Some((answer, part)) = self.ask_now(&plan, ask, &costs) {
                if plan.lets_through(&answer) {
                    return Ok(Start::Go(Permit::of(plan.clone(), self.margin, costs, &answer, part)));
                }
                let too_long = answer.at != NEVER && answer.at - answer.now > micros(max_wait);
                if (max_wait.is_zero() || too_long) && !holds {
                    return Err(plan.refuse_answer(&answer, &part, max_wait));
                }
            } else if max_wait.is_zero() && !holds {
                match Queue::refuse(&plan, self.margin, ask, &costs, max_wait) {
                    Some(refused) => return Err(refused),
                    None => continue,
                }
            }
            match Queue::enter(&plan, self.margin, ask, costs, max_wait) {
                Ok(place) => return Ok(Start::Wait(place)),
                Err(NoPlace::Refused(refused)) => return Err(refused),
                Err(NoPlace::Outdated) => {}
            }
        }
    }

    /// How a key stands. Changes nothing.
    pub async fn peek(&self, key: &str) -> Peek {
        let plan = self.core.current.load();
        let part = plan.whole(self.margin, key);
        let standing = self.core.shared.store.peek(part);
        let paused_us = standing.paused_until.map(|until| until - standing.now);
        Peek {
            decision: Decision {
                labels: plan.rules.labels.clone(),
                granted: paused_us.is_none(),
                wait_us: Some(paused_us.unwrap_or(0)),
                paused: paused_us.is_some(),
                levels: standing.levels,
            },
            waiting: self.core.shared.queue.waiting(&part, &*self.core.shared.store),
        }
    }

    /// Tells the limiter what a response under `key` said.
    ///
    /// A throttling answer that asks for more than a second, or that follows another one in this process,
    /// pauses the key for everyone: for as long as it asks, else for 0.5 s, doubling with each such pause to
    /// 30 s until a call does well. Any other throttling answer leaves the key open, and nothing saved up.
    pub fn observe(&self, key: &str, signals: &Signals) {
        let verdict = self.core.shared.answers.judge(key, signals, clock::now_us());
        if verdict == Verdict::Nothing {
            return;
        }
        self.change(key, |store, part| match verdict {
            Verdict::Nothing => {}
            Verdict::Well { sent } => store.resume(part, Some(sent)),
            Verdict::Drain => store.drain(part),
            Verdict::Pause { until } => store.pause(part, PauseAsk { until, probe_every: MAX_PAUSE_US }),
        });
    }

    /// Holds a key for `time`, for everyone. Only ever makes a pause longer; [`resume`](Self::resume) ends
    /// it. Saturates: a pause without end is `Duration::MAX`.
    pub fn pause(&self, key: &str, time: Duration) {
        let until = clock::now_us().saturating_add(micros(time));
        self.change(key, |store, part| store.pause(part, PauseAsk { until, probe_every: NEVER }));
    }

    /// Ends a key's pause, whoever asked for it. Its budgets begin empty, as at the end of any pause.
    pub fn resume(&self, key: &str) {
        self.change(key, |store, part| store.resume(part, None));
    }

    /// Changes how a key stands, for everyone.
    fn change(&self, key: &str, then: impl FnOnce(&dyn Store, Part<'_>)) {
        let plan = self.core.current.load();
        let part = plan.whole(self.margin, key);
        let Shared { store, queue, .. } = &*self.core.shared;
        queue.change(&part, &**store, || then(&**store, part));
    }

    /// Changes the limits, at once and for everyone, those who wait included. What was used stays used,
    /// limit by limit of the same name and unit; a new limit begins unused. The policy keeps its name.
    ///
    /// # Errors
    /// The first fault of the new policy; the old one then stays.
    pub fn set_policy(&self, policy: impl Into<Policy>) -> Result<(), ConfigError> {
        let policy = policy.into();
        let name = self.policy().name().to_owned();
        if policy.name() != name {
            let fault = format!("must stay `{name}`: state is kept under it");
            return Err(ConfigError::Field { policy: policy.name().to_owned(), field: "name", fault });
        }
        let shared = &self.core.shared;
        shared.store.check(&policy)?;
        let plan = Arc::new(Plan::new(shared.queue.number(), policy, self.core.space, shared.clone())?);
        shared.queue.replan(&plan, || self.core.current.store(plan.clone()));
        Ok(())
    }

    /// Refuses everyone who waits, and everyone who comes from now on. Permits that are out stay good.
    pub fn close(&self) {
        self.core.shared.closed.store(true, Ordering::SeqCst);
        let plan = self.core.current.load();
        self.core.shared.queue.close(|max_wait| plan.refuse(RefusedKind::Closed, max_wait));
    }

    /// The policy in force.
    pub fn policy(&self) -> Arc<Policy> {
        self.core.current.load().policy.clone()
    }

    /// Callers that wait for a key in this process.
    pub fn waiting(&self, key: &str) -> usize {
        let plan = self.core.current.load();
        self.core.shared.queue.waiting(&plan.whole(self.margin, key), &*self.core.shared.store)
    }
}

/// The client's side.
#[cfg(feature = "client")]
impl Limiter {
    /// A clone that gives the default jitter margin to each limit that states none.
    pub(crate) fn with_margin(&self) -> Self {
        Self { margin: Margin::Default, ..self.clone() }
    }

    /// Whether both are clones of one limiter.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }

    /// Whether a limit of the policy counts `unit`.
    pub(crate) fn counts(&self, unit: &str) -> bool {
        self.core.current.load().rules.counts(unit)
    }

    /// How long a call may be held back.
    pub(crate) fn max_wait(&self) -> Duration {
        self.core.current.load().max_wait()
    }

    /// Charges one request under `key`, whatever the state: for what was already sent.
    pub(crate) fn charge(&self, key: &str) {
        self.change(key, |store, part| {
            let limits = part.rules.labels.limits.iter();
            let costs =
                limits.map(|label| u64::from(&*label.unit == crate::limit::REQUESTS)).collect::<Costs>();
            store.charge(Part { costs: &costs, ..part });
        });
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("policy", &self.policy().name())
            .field("margin", &self.margin)
            .finish_non_exhaustive()
    }
}
