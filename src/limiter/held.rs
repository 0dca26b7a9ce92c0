//! What a permit holds, in a box of its own, so that a permit is one word wherever it is moved: into a result,
//! a future, a response's body.
//!
//! A thread keeps the boxes of the last permits that were dropped on it, empty, for the next ones: a call
//! that does not wait takes nothing from the allocator once a permit came back.

use std::cell::Cell;
use std::mem;
use std::sync::Arc;

#[cfg(feature = "redis")]
use super::fleet;
use super::issuer::Issuer;
use crate::algorithm::State;
use crate::decision::Decision;
use crate::limit::Margin;
use crate::store::{Charge, Grant};

/// The most boxes that a thread keeps.
const MAX_SPARES: u32 = 256;

thread_local! {
    static SPARES: Spares = const { Spares { newest: Cell::new(None), len: Cell::new(0) } };
}

/// Empty boxes, each with the one that came before it.
struct Spares {
    newest: Cell<Option<Box<Held>>>,
    len: Cell<u32>,
}

impl Spares {
    #[inline]
    fn take(&self) -> Option<Box<Held>> {
        let mut held = self.newest.take()?;
        self.fill(held.before.take());
        self.len.set(self.len.get() - 1);
        Some(held)
    }

    #[inline(always)]
    fn keep(&self, mut held: Box<Held>) {
        let len = self.len.get();
        if len == MAX_SPARES {
            return discard(held);
        }
        mem::forget(mem::replace(&mut held.before, self.newest.take()));
        self.fill(Some(held));
        self.len.set(len + 1);
    }

    /// Sets the newest, of which there is none: not to look for one to drop is what makes this cheap.
    #[inline]
    fn fill(&self, newest: Option<Box<Held>>) {
        mem::forget(self.newest.replace(newest));
    }
}

#[cold]
fn discard(_: Box<Held>) {}

#[derive(Default)]
pub(super) struct Held {
    /// Of a spare one, that of the last permit; `None` before there was any.
    issuer: Option<Arc<Issuer>>,
    /// By the rules with which margin it was charged; `None` if it was not, or all of it was taken back.
    pub(super) charged: Option<Margin>,
    /// Whether something of it has to come back.
    pub(super) rides: bool,
    pub(super) grant: Grant,
    /// `None` for the many that were granted at once.
    pub(super) later: Option<Box<Later>>,
    /// Of a spare one, the one that became spare before it.
    before: Option<Box<Held>>,
}

/// What there is to know of a permit that was not granted at once.
#[derive(Default)]
pub(super) struct Later {
    /// From the decision to the slot.
    pub(super) ahead_us: u64,
    pub(super) waited_us: u64,
    /// The states before a booking ahead.
    pub(super) before: Option<Box<[Option<State>]>>,
    /// What a policy that only observes would have answered.
    pub(super) observed: Option<Decision>,
    /// Where it was charged, if that is not in this process.
    #[cfg(feature = "redis")]
    pub(super) fleet: Option<fleet::Charge>,
}

impl Held {
    /// An empty one: a spare one if there is.
    #[inline]
    pub(super) fn new() -> Box<Self> {
        // A thread that ends has no spares any more.
        SPARES.try_with(Spares::take).ok().flatten().unwrap_or_default()
    }

    #[inline]
    pub(super) fn set_issuer(&mut self, issuer: &Arc<Issuer>) {
        if !self.issuer.as_ref().is_some_and(|last| Arc::ptr_eq(last, issuer)) {
            self.issuer = Some(issuer.clone());
        }
    }

    #[inline]
    pub(super) fn issuer(&self) -> &Issuer {
        self.issuer.as_ref().expect("a permit has its issuer for as long as it lives")
    }

    #[cfg(feature = "redis")]
    pub(super) fn fleet(&self) -> Option<&fleet::Charge> {
        self.later.as_ref()?.fleet.as_ref()
    }

    #[inline]
    pub(super) fn slot(&self) -> u64 {
        self.grant.now + self.later.as_ref().map_or(0, |later| later.ahead_us)
    }

    #[inline]
    pub(super) fn charge(&self, margin: Margin) -> Charge<'_> {
        Charge {
            ticket: self.grant.ticket,
            rules: &self.issuer().rules,
            margin,
            slot: self.slot(),
            charges: &self.grant.charges,
        }
    }

    fn give_back(&self, margin: Margin) {
        #[cfg(feature = "redis")]
        if let Some(fleet) = self.fleet() {
            return fleet.free_seats(&self.charge(margin));
        }
        let ticket = self.grant.ticket;
        self.issuer().reach(|store| store.release(self.charge(margin)), |queue| queue.freed(ticket));
    }

    /// Empties it and keeps it for the next.
    #[inline(always)]
    pub(super) fn spare(mut self: Box<Self>) {
        if self.rides || self.later.is_some() {
            self.end();
        }
        // A thread that ends keeps none.
        _ = SPARES.try_with(|spares| spares.keep(self));
    }

    #[inline(never)]
    fn end(&mut self) {
        if mem::take(&mut self.rides)
            && let Some(margin) = self.charged
        {
            self.give_back(margin);
        }
        self.later = None;
    }
}
