//! A limiter of the `governor` crate as a store: for programs that have one, and share it with callers that
//! do not go through here.
//!
//! It decides at now and never ahead, so it is asked again when it says that a call could go; and it knows
//! neither seats nor pauses, which are kept in this process. It must never stand beside another rate: what
//! governor granted cannot be taken back when another limit refuses.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::RateLimitingMiddleware;
use governor::state::DirectStateStore;
use governor::state::direct::NotKeyed;
use governor::state::keyed::KeyedStateStore;
use governor::{NotUntil, RateLimiter};

use super::{
    Answer, AnyStore, Charge, Charged, Charges, Forecast, Grant, Local, Outcome, Part, PartAnswer, PauseAsk,
    Space, Standing, Store, Ticket, When,
};
use crate::algorithm::State;
use crate::clock::{self, micros};
use crate::limit::Kind;
use crate::policy::{ConfigError, Policy};

/// A store over a limiter of the `governor` crate that the program already has.
///
/// Each call is one cell, whatever its cost. The policy has no limits but seats, which are kept in this
/// process like pauses; any other is a [`ConfigError`], for governor's own quota is the rate. Nothing is
/// booked ahead: a call that waits asks again when governor says that it could go, and may be refused again
/// if someone else was faster. What governor granted is not given back, by [`settle`](crate::Permit::settle)
/// or otherwise, and is not used up by a service's 429; the pause that the service asked for holds.
///
/// To use the numbers without the limiter, make a [`Limit`](crate::Limit) of a [`governor::Quota`].
///
/// ```
/// # use std::{num::NonZeroU32, sync::Arc};
/// use forbear::{Limiter, Policy, store::Governor};
/// use governor::{Quota, RateLimiter};
///
/// let ten = Quota::per_second(NonZeroU32::new(10).unwrap());
/// let theirs = Arc::new(RateLimiter::<String, _, _>::keyed(ten));
/// let limiter = Limiter::new(Policy::new("mail").limit("8 at once"), Governor::new(theirs))?;
/// # Ok::<(), forbear::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Governor(Arc<Cells>);

/// Takes a cell under a key, or says how long until there may be one.
type Check = dyn Fn(&str) -> Result<(), Duration> + Send + Sync;

struct Cells {
    check: Box<Check>,
    /// Seats and pauses.
    local: Local,
}

impl Governor {
    /// Over a limiter with keys: any whose keys can be made of a `&str`.
    pub fn new<K, S, C, M>(limiter: Arc<RateLimiter<K, S, C, M>>) -> Self
    where
        K: for<'a> From<&'a str> + Clone + Eq + Hash + Send + Sync + 'static,
        S: KeyedStateStore<K> + Send + Sync + 'static,
        C: Clock + Send + Sync + 'static,
        C::Instant: Send + Sync,
        M: RateLimitingMiddleware<C::Instant, NegativeOutcome = NotUntil<C::Instant>> + Send + Sync + 'static,
    {
        Self::of(move |key| {
            let checked = limiter.check_key(&K::from(key));
            checked.map(drop).map_err(|until| until.wait_time_from(limiter.clock().now()))
        })
    }

    /// Over a limiter without keys: all keys share it.
    pub fn direct<S, C, M>(limiter: Arc<RateLimiter<NotKeyed, S, C, M>>) -> Self
    where
        S: DirectStateStore + Send + Sync + 'static,
        C: Clock + Send + Sync + 'static,
        C::Instant: Send + Sync,
        M: RateLimitingMiddleware<C::Instant, NegativeOutcome = NotUntil<C::Instant>> + Send + Sync + 'static,
    {
        Self::of(move |_| {
            let checked = limiter.check();
            checked.map(drop).map_err(|until| until.wait_time_from(limiter.clock().now()))
        })
    }

    fn of(check: impl Fn(&str) -> Result<(), Duration> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Cells { check: Box::new(check), local: Local::new() }))
    }
}

impl std::fmt::Debug for Governor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Governor")
    }
}

impl From<Governor> for AnyStore {
    fn from(governor: Governor) -> Self {
        AnyStore(super::Home::Here(governor.0))
    }
}

impl From<&Governor> for AnyStore {
    fn from(governor: &Governor) -> Self {
        governor.clone().into()
    }
}

impl Cells {
    /// Gives back what the local store took for a part that governor refused.
    fn take_back(&self, part: &Part<'_>, ticket: Ticket, now: u64, charges: &[Charged]) {
        let Part { rules, margin, .. } = *part;
        self.local.0.take_back(Charge { ticket, rules, margin, slot: now, charges }, None);
    }
}

impl Store for Cells {
    fn check(&self, policy: &Policy) -> Result<(), ConfigError> {
        match policy.limits().iter().find(|limit| !matches!(limit.kind, Kind::Concurrency(_))) {
            None => Ok(()),
            Some(limit) => Err(ConfigError::Field {
                policy: policy.name().to_owned(),
                field: "store",
                fault: format!(
                    "is governor's, whose quota is the rate, so `{}` cannot stand beside it",
                    limit.name()
                ),
            }),
        }
    }

    fn ahead_us(&self) -> u64 {
        0
    }

    fn try_now(&self, part: &Part<'_>, at: Option<u64>, grant: &mut Grant) -> bool {
        if !self.local.0.try_now(part, at, grant) {
            return false;
        }
        let granted = (self.check)(part.key).is_ok();
        if !granted {
            self.take_back(part, grant.ticket, grant.now, &grant.charges);
        }
        granted
    }

    /// Of several parts that governor counts, those before the one that it refuses are lost to it.
    fn decide(&self, parts: &[Part<'_>], _: When) -> Answer {
        let mut answer = self.local.0.decide(parts, When::NOW);
        if answer.outcome != Outcome::Granted {
            return answer;
        }
        let Some(wait) = parts.iter().find_map(|part| (self.check)(part.key).err()) else { return answer };
        for (part, answered) in parts.iter().zip(&mut answer.parts) {
            let marks = answered.marks.iter().zip(part.costs);
            let charges = marks.map(|(mark, cost)| Charged::new(*cost, *mark)).collect::<Charges>();
            self.take_back(part, answered.ticket, answer.now, &charges);
            *answered = PartAnswer { ticket: answered.ticket, ..PartAnswer::default() };
        }
        (answer.outcome, answer.at) = (Outcome::Refused, clock::now_us() + micros(wait).max(1));
        answer
    }

    fn charge(&self, part: Part<'_>) {
        // Sent already: as much of it as governor takes.
        _ = (self.check)(part.key);
        self.local.0.charge(part);
    }

    fn open(&self, policy: &str) -> Space {
        self.local.0.open(policy)
    }

    fn hash(&self, part: &Part<'_>) -> u64 {
        self.local.0.hash(part)
    }

    fn leave(&self, space: Space) {
        self.local.0.leave(space);
    }

    fn bound_keys(&self, keys: usize) {
        self.local.0.bound_keys(keys);
    }

    fn take_back(&self, charge: Charge<'_>, before: Option<&[Option<State>]>) {
        self.local.0.take_back(charge, before);
    }

    fn free_seats(&self, charge: Charge<'_>) {
        self.local.0.free_seats(charge);
    }

    fn release(&self, charge: Charge<'_>) {
        self.local.0.release(charge);
    }

    fn settle(&self, charge: Charge<'_>, index: usize, used: u64) {
        self.local.0.settle(charge, index, used);
    }

    fn pause(&self, part: Part<'_>, pause: PauseAsk) {
        self.local.0.pause(part, pause);
    }

    fn drain(&self, part: Part<'_>) {
        self.local.0.drain(part);
    }

    fn resume(&self, part: Part<'_>, answered: Option<u64>) {
        self.local.0.resume(part, answered);
    }

    fn peek(&self, part: Part<'_>) -> Standing {
        self.local.0.peek(part)
    }

    fn forecast(&self, part: Part<'_>) -> Forecast {
        self.local.0.forecast(part)
    }
}
