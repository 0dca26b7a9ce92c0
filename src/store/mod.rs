//! Where state lives and is decided, atomically. A store decides; it never sleeps.
//!
//! Everything that a decision reads and writes is touched in one step: all limits of a policy, or of a whole
//! chain of policies, or nothing. Time is read inside that step, so that two callers cannot be decided in
//! the wrong order.

mod entry;
#[cfg(feature = "governor")]
mod governor;
mod keys;
mod local;
mod names;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

#[cfg(feature = "governor")]
pub use governor::Governor;
pub use local::Local;
#[cfg(feature = "redis")]
pub use redis::{Existing, Health, OnOutage, Redis};
pub(crate) use table::Table;

use crate::algorithm::{Mark, Rules, State};
use crate::decision::Level;
use crate::limit::Margin;

/// A store of any kind; every store of this module turns into one.
#[derive(Clone)]
pub struct AnyStore(pub(crate) Home);

/// Where a store's state lives.
#[derive(Clone)]
pub(crate) enum Home {
    /// In this process.
    Here(Arc<Table>),
    /// In a Redis that a fleet shares.
    #[cfg(feature = "redis")]
    Fleet(Redis),
}

impl std::fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AnyStore")
    }
}

impl AnyStore {
    /// Keeps at most `keys` keys in a local store that states no [`Local::max_keys`] itself: for a side on
    /// which strangers choose the keys. Other stores forget keys by themselves; one in Redis then goes on within the whole
    /// limits while Redis is away, unless something else is stated.
    pub fn bound_keys(&self, keys: usize) {
        match &self.0 {
            Home::Here(store) => store.bound_keys(keys),
            #[cfg(feature = "redis")]
            Home::Fleet(redis) => redis.hub().serve(),
        }
    }
}

/// One policy's budget under one key, and what a call costs of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) space: Space,
    pub(crate) rules: &'a Arc<Rules>,
    pub(crate) margin: Margin,
    pub(crate) key: &'a str,
    /// By limit, in the policy's order.
    pub(crate) costs: &'a [u64],
}

/// Where a policy's keys live in a store: policies of one name share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Space(pub(crate) u32);

impl Space {
    /// What tells the hashes of one key in several spaces apart, in the high bits and the low ones: cheaper than to
    /// hash the space as well, which has to wait for the hash of the key.
    #[inline]
    fn salt(self) -> u64 {
        u64::from(self.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// From when a call may be booked, and how far ahead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct When {
    /// The first instant that may be charged; by default the store's now.
    pub(crate) from: Option<u64>,
    /// The last instant that may be charged; by default `from`.
    pub(crate) latest: Option<u64>,
}

impl When {
    /// Now or not at all.
    pub(crate) const NOW: When = When { from: None, latest: None };
}

/// What was decided over all parts together.
#[derive(Debug)]
pub(crate) struct Answer {
    /// When the decision was made, on the store's clock.
    pub(crate) now: u64,
    /// Granted: the slot. Refused: the earliest instant at which it could go; `NEVER` for a missing seat.
    pub(crate) at: u64,
    pub(crate) outcome: Outcome,
    /// Part by part.
    pub(crate) parts: SmallVec<[PartAnswer; 1]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Charged at the slot.
    Granted,
    /// Nothing was written.
    Refused,
    /// Nothing was written; a key is paused until that instant, or until a probe may go, if that is sooner.
    Paused { ask_again: u64 },
}

/// What one limit was charged, and what is kept of that.
///
/// Corrected in place by the store, in the step in which it corrects its state; so a permit needs no lock.
#[derive(Debug, Default)]
pub(crate) struct Charged {
    cost: AtomicU64,
    pub(crate) mark: Mark,
}

impl Charged {
    #[inline]
    pub(crate) fn new(cost: u64, mark: Mark) -> Self {
        Self { cost: AtomicU64::new(cost), mark }
    }

    /// The cost as corrected last.
    pub(crate) fn cost(&self) -> u64 {
        self.cost.load(Ordering::Relaxed)
    }

    /// Corrects the cost and gives the one before. Only under the lock of its state, so not in one step.
    pub(crate) fn replace(&self, cost: u64) -> u64 {
        let before = self.cost();
        self.cost.store(cost, Ordering::Relaxed);
        before
    }
}

/// By limit, in the policy's order. A spare permit keeps its place, so that one in the permit itself would save nothing,
/// and to ask each time which of both it is costs more.
pub(crate) type Charges = Vec<Charged>;

/// A grant at now. Filled in where it is kept, inside a permit, over what a former one left there.
#[derive(Debug, Default)]
pub(crate) struct Grant {
    pub(crate) now: u64,
    pub(crate) ticket: Ticket,
    pub(crate) charges: Charges,
}

impl Grant {
    /// The charge of the only limit.
    #[inline(always)]
    fn fill(&mut self, charged: Charged) {
        match &mut *self.charges {
            [only] => *only = charged,
            _ => self.charges_of(1)[0] = charged,
        }
    }

    /// The charges of so many limits, to be filled in. Most permits of a thread count as many as the one before,
    /// and to overwrite costs a fraction of what it costs to push.
    #[inline(always)]
    fn charges_of(&mut self, limits: usize) -> &mut [Charged] {
        if self.charges.len() != limits {
            self.resize(limits);
        }
        &mut self.charges
    }

    #[cold]
    fn resize(&mut self, limits: usize) {
        self.charges.resize_with(limits, Charged::default);
    }
}

/// One part of an answer.
#[derive(Debug, Default)]
pub(crate) struct PartAnswer {
    pub(crate) ticket: Ticket,
    /// Refused: how each limit stands.
    pub(crate) levels: SmallVec<[Level; 3]>,
    /// Granted: how each limit stood, and what later corrections need.
    pub(crate) marks: SmallVec<[Mark; 3]>,
    /// Granted to one who waited: the states before, for taking the booking back.
    pub(crate) before: Option<Box<[Option<State>]>>,
    /// Granted in a pause, as its probe.
    pub(crate) probes: bool,
    /// Refused because its own key is paused.
    pub(crate) paused: bool,
}

/// Finds a key's budget again without its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Ticket {
    pub(crate) hash: u64,
    pub(crate) id: u64,
}

impl Ticket {
    /// Marks the id of a budget that keys share: the table was full.
    pub(crate) const SHARED: u64 = 1 << 63;

    pub(crate) fn is_shared(self) -> bool {
        self.id & Self::SHARED != 0
    }
}

/// A charge to correct.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Charge<'a> {
    pub(crate) ticket: Ticket,
    pub(crate) rules: &'a Arc<Rules>,
    pub(crate) margin: Margin,
    pub(crate) slot: u64,
    /// By limit, in the policy's order.
    pub(crate) charges: &'a [Charged],
}

impl Charge<'_> {
    /// Whether the answer to the call says when what was charged under the limit at `index` had arrived. Not under a log
    /// in a unit that is estimated: its entry is corrected later.
    pub(crate) fn arrives(&self, index: usize) -> bool {
        let is_log = matches!(self.rules.of(self.margin)[index], crate::algorithm::Rule::SlidingLog(_));
        !is_log || &*self.rules.labels.limits[index].unit == crate::limit::REQUESTS
    }
}

/// A pause of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PauseAsk {
    /// The instant until which the key is held.
    pub(crate) until: u64,
    /// After how long, again and again, one call may go although the pause is not over; `NEVER` for an
    /// operator's pause.
    pub(crate) probe_every: u64,
}

/// How a key stands.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) now: u64,
    pub(crate) paused_until: Option<u64>,
    pub(crate) levels: SmallVec<[Level; 3]>,
}

/// The states of a key as callers that wait will find them.
#[derive(Debug)]
pub(crate) struct Forecast {
    /// When the store was looked at, on its clock.
    pub(crate) now: u64,
    /// The first instant at which anything can go: now, or the end of a pause.
    pub(crate) from: u64,
    pub(crate) states: SmallVec<[State; 3]>,
}
