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
#[cfg(feature = "redis")]
mod fleet;
mod forecast;
mod held;
mod issuer;
mod line;
#[cfg(test)]
mod one_hash;
mod peek;
mod permit;
mod place;
mod plan;
mod queue;
mod refused;
mod standing;

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

use answers::Answers;
use current::Current;
#[cfg(feature = "redis")]
use fleet::Fleet;
use place::Place;
use plan::Plan;
use queue::{NoPlace, Queue};

use crate::algorithm::{Costs, NEVER, Rules};
use crate::clock::{self, micros};
use crate::limit::Margin;
use crate::policy::{ConfigError, Policy};
#[cfg(feature = "redis")]
use crate::store::Local;
use crate::store::{Answer, AnyStore, Home, PartAnswer, Space, Table, When};

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
    store: Arc<Table>,
    queue: Queue,
    answers: Answers,
    closed: AtomicBool,
    /// The processes that share the budgets, if they do; then nobody ever stands in the queue.
    #[cfg(feature = "redis")]
    fleet: Option<Arc<Fleet>>,
}

impl Shared {
    fn new(store: Arc<Table>) -> Self {
        Self {
            store,
            queue: Queue::default(),
            answers: Answers::default(),
            closed: AtomicBool::new(false),
            #[cfg(feature = "redis")]
            fleet: None,
        }
    }

    /// Whether what the store here grants is all there is to ask: it is open, nobody waits anywhere, and no fleet
    /// shares its budgets.
    #[inline]
    fn is_free(&self) -> bool {
        #[cfg(feature = "redis")]
        if self.fleet.is_some() {
            return false;
        }
        !self.closed.load(Ordering::Relaxed) && self.queue.is_empty()
    }
}

impl Limiter {
    /// A limiter of `policy`, whose state lives in `store`.
    ///
    /// # Errors
    /// The first fault of the policy or of the store's settings, with what it is named, or a policy that the store
    /// cannot keep.
    pub fn new(policy: impl Into<Policy>, store: impl Into<AnyStore>) -> Result<Self, ConfigError> {
        let policy = policy.into();
        Rules::new(&policy)?;
        let (store, space) = match store.into().0 {
            Home::Here(store) => {
                store.check(&policy)?;
                let space = store.open(policy.name());
                (Shared::new(store), space)
            }
            #[cfg(feature = "redis")]
            Home::Fleet(redis) => {
                if let Some(fault) = redis.hub().fault() {
                    return Err(fault);
                }
                let mut shared = Shared::new(Local::new().table());
                shared.fleet = Some(Fleet::new(redis.hub().clone(), policy.name()));
                (shared, Space(0))
            }
        };
        let shared = Arc::new(store);
        let plan = Plan::new(0, policy, space, shared.clone())?;
        Ok(Self { core: Arc::new(Core { current: Current::new(plan), shared, space }), margin: Margin::None })
    }

    /// Waits for a permit, at most for the ask's or the policy's `max_wait`, whichever is shorter.
    ///
    /// A call that cannot make it is refused at once, with the time at which it could have gone. Dropping
    /// the future gives the place up, and leaves no debt; in a fleet only a slot after which others have booked may
    /// stay charged.
    ///
    /// # Errors
    /// [`Refused`] says which limit, why, and when it could go.
    pub async fn acquire<'a>(&self, ask: impl Into<Ask<'a>>) -> Result<Permit, Refused> {
        let place = {
            let ask = ask.into();
            if let Some(permit) = self.grant(&ask, None) {
                return Ok(permit);
            }
            #[cfg(feature = "redis")]
            if let Some(fleet) = &self.core.shared.fleet {
                return Box::pin(fleet.acquire(&self.core.current, self.margin, &ask)).await;
            }
            match self.start(&ask)? {
                Start::Go(permit) => return Ok(permit),
                Start::Wait(place) => place,
            }
        };
        // Apart, so that the future of a call that does not wait is small.
        Box::pin(place.wait()).await
    }

    /// A permit now or not at all: never waits its turn, never overtakes those who do, and charges at now only.
    /// Where the budgets live in Redis it takes one trip, within the store's time budget.
    ///
    /// # Errors
    /// [`Refused`] says which limit, and when it could go.
    pub async fn try_acquire<'a>(&self, ask: impl Into<Ask<'a>>) -> Result<Permit, Refused> {
        let ask = ask.into().max_wait(Duration::ZERO);
        #[cfg(feature = "redis")]
        if let Some(fleet) = &self.core.shared.fleet {
            return Box::pin(fleet.acquire(&self.core.current, self.margin, &ask)).await;
        }
        self.try_at(&ask, None)
    }

    /// A permit as of an instant that the caller has just read, for loops that read the clock once for many
    /// calls; otherwise like [`try_acquire`](Self::try_acquire). A call that does not fit then is asked about
    /// once more, as of now. The instant must not lie ahead: what comes only by then would be granted now.
    ///
    /// # Errors
    /// [`Refused`] says which limit, and when it could go. A limiter whose budgets live in Redis always refuses:
    /// it cannot answer without waiting.
    pub fn try_acquire_at<'a>(&self, ask: impl Into<Ask<'a>>, at: Instant) -> Result<Permit, Refused> {
        let ask = ask.into();
        #[cfg(feature = "redis")]
        if self.core.shared.fleet.is_some() {
            return Err(self.core.current.load().refuse(RefusedKind::StoreAway, Duration::ZERO));
        }
        self.try_at(&ask, Some(clock::given_us(at)))
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
            return if plan.lets_through(&answer, &part) {
                Ok(Permit::of(&plan, self.margin, costs, &answer, part))
            } else {
                Err(plan.refuse_answer(&answer, &part, Duration::ZERO))
            };
        }
    }

    /// The way of a call that does not wait: the store grants it in one step, or nothing happened.
    #[inline(always)]
    pub(crate) fn grant(&self, ask: &Ask<'_>, at: Option<u64>) -> Option<Permit> {
        let core = &*self.core;
        if !core.shared.is_free() {
            return None;
        }
        match core.current.only() {
            Some(plan) => plan.grant(self.margin, ask, at),
            None => self.grant_by_last(ask, at),
        }
    }

    /// [`grant`](Self::grant) under a policy that was changed.
    #[cold]
    #[inline(never)]
    fn grant_by_last(&self, ask: &Ask<'_>, at: Option<u64>) -> Option<Permit> {
        self.core.current.load().grant(self.margin, ask, at)
    }

    /// What the store says about an ask now; `None` if others wait before it.
    fn ask_now(&self, plan: &Plan, ask: &Ask<'_>, costs: &Costs) -> Option<(Answer, PartAnswer)> {
        let part = plan.part(self.margin, ask.key, costs);
        let store = &plan.shared.store;
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
                if plan.lets_through(&answer, &part) {
                    return Ok(Start::Go(Permit::of(&plan, self.margin, costs, &answer, part)));
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

    /// Changes the limits at once, for this limiter and its clones, those who wait included. What was used stays
    /// used, limit by limit of the same name and unit; a new limit begins unused. The policy keeps its name. Where
    /// processes share the budgets in Redis each has to be told; until then each decides by its own.
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
        #[cfg(feature = "redis")]
        if let Some(fleet) = &shared.fleet {
            fleet.ask_again(&plan);
        }
        Ok(())
    }

    /// Refuses everyone who waits, and everyone who comes from now on. Permits that are out stay good.
    pub fn close(&self) {
        self.core.shared.closed.store(true, Ordering::SeqCst);
        let plan = self.core.current.load();
        self.core.shared.queue.close(|max_wait| plan.refuse(RefusedKind::Closed, max_wait));
        #[cfg(feature = "redis")]
        if let Some(fleet) = &self.core.shared.fleet {
            fleet.ask_again(&plan);
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> Arc<Policy> {
        self.core.current.load().policy.clone()
    }

    /// Callers that wait for a key in this process.
    pub fn waiting(&self, key: &str) -> usize {
        #[cfg(feature = "redis")]
        if let Some(fleet) = &self.core.shared.fleet {
            return fleet.waiting(key);
        }
        let plan = self.core.current.load();
        self.core.shared.queue.waiting(&plan.whole(self.margin, key), &self.core.shared.store)
    }
}

/// The client's side.
#[cfg(feature = "client")]
impl Limiter {
    /// A clone that gives the default jitter margin to each limit that states none.
    pub(crate) fn with_margin(&self) -> Self {
        Self { margin: Margin::Default, ..self.clone() }
    }

    /// What tells it and its clones from all other limiters that live.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.core).addr()
    }

    /// Whether a limit of the policy counts `unit`.
    pub(crate) fn counts(&self, unit: &str) -> bool {
        self.core.current.load().rules.counts(unit)
    }

    /// Whether all who wait for a key stand in one queue, in whichever process.
    pub(crate) fn is_in_order(&self) -> bool {
        #[cfg(feature = "redis")]
        if let Some(fleet) = &self.core.shared.fleet {
            return !fleet.is_away() && self.core.current.load().rules.is_timed();
        }
        false
    }

    /// Whether it lets everything through.
    pub(crate) fn only_observes(&self) -> bool {
        self.core.current.load().policy.is_observe_only()
    }

    /// How long a call may be held back, here and elsewhere; a policy that only observes has no say in that.
    pub(crate) fn max_wait(&self) -> Option<Duration> {
        let plan = self.core.current.load();
        if plan.policy.is_observe_only() { None } else { Some(plan.max_wait()) }
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
