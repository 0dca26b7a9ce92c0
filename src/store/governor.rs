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
    Answer, AnyStore, Charge, Charged, Charges, Grant, Home, Outcome, Part, PartAnswer, Table, Ticket,
};
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
pub struct Governor(Arc<Table>);

/// Takes a cell under a key, or says how long until there may be one.
type Check = dyn Fn(&str) -> Result<(), Duration> + Send + Sync;

/// The cells of a limiter of governor's.
pub(super) struct Cells(Box<Check>);

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
        Self(Arc::new(Table::beside(Cells(Box::new(check)))))
    }
}

impl std::fmt::Debug for Governor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Governor")
    }
}

impl From<Governor> for AnyStore {
    fn from(governor: Governor) -> Self {
        AnyStore(Home::Here(governor.0))
    }
}

impl From<&Governor> for AnyStore {
    fn from(governor: &Governor) -> Self {
        governor.clone().into()
    }
}

impl std::fmt::Debug for Cells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cells")
    }
}

impl Cells {
    /// Whether a policy has no rate beside governor's.
    pub(super) fn check(&self, policy: &Policy) -> Result<(), ConfigError> {
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

    /// Takes a cell, or says how long until there may be one.
    pub(super) fn take(&self, key: &str) -> Result<(), Duration> {
        (self.0)(key)
    }

    /// Takes the cell of a call that the table granted, or gives back what the table took for it.
    pub(super) fn take_now(&self, table: &Table, part: &Part<'_>, grant: &Grant) -> bool {
        let taken = self.take(part.key).is_ok();
        if !taken {
            give_back(table, part, grant.ticket, grant.now, &grant.charges);
        }
        taken
    }

    /// The same for several parts. Of those that governor counts, those before the one that it refuses are lost to it.
    pub(super) fn take_all(&self, table: &Table, parts: &[Part<'_>], mut answer: Answer) -> Answer {
        if answer.outcome != Outcome::Granted {
            return answer;
        }
        let Some(wait) = parts.iter().find_map(|part| self.take(part.key).err()) else { return answer };
        for (part, answered) in parts.iter().zip(&mut answer.parts) {
            let marks = answered.marks.iter().zip(part.costs);
            let charges = marks.map(|(mark, cost)| Charged::new(*cost, *mark)).collect::<Charges>();
            give_back(table, part, answered.ticket, answer.now, &charges);
            *answered = PartAnswer { ticket: answered.ticket, ..PartAnswer::default() };
        }
        (answer.outcome, answer.at) = (Outcome::Refused, clock::now_us() + micros(wait).max(1));
        answer
    }
}

/// Gives back what a table took for a part that governor refused.
fn give_back(table: &Table, part: &Part<'_>, ticket: Ticket, now: u64, charges: &[Charged]) {
    let Part { rules, margin, .. } = *part;
    table.take_back(Charge { ticket, rules, margin, slot: now, charges }, None);
}
