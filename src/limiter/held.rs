//! What a permit holds, in a box of its own, so that a permit is one word wherever it is moved: into a result,
//! a future, a response's body.
//!
//! A thread keeps the boxes of the last permits that were dropped on it, empty, for the next ones: a call
//! that does not wait takes nothing from the allocator once a permit came back.

use std::cell::RefCell;
use std::sync::Arc;

#[cfg(feature = "redis")]
use super::fleet;
use super::issuer::Issuer;
use crate::algorithm::State;
use crate::decision::Decision;
use crate::limit::Margin;
use crate::store::{Charge, Grant};

/// The most boxes that a thread keeps.
const SPARE: usize = 256;

thread_local! {
    #[allow(clippy::vec_box, reason = "the boxes are what is kept: a permit is one")]
    static SPARES: RefCell<Vec<Box<Held>>> = const { RefCell::new(Vec::new()) };
}

#[derive(Default)]
pub(super) struct Held {
    /// Of a spare one, that of the last permit; `None` before there was any.
    issuer: Option<Arc<Issuer>>,
    /// By the rules with which margin it was charged; `None` if it was not, or all of it was taken back.
    pub(super) charged: Option<Margin>,
    pub(super) grant: Grant,
    /// `None` for the many that were granted at once.
    pub(super) later: Option<Box<Later>>,
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
        SPARES.try_with(|spares| spares.borrow_mut().pop()).ok().flatten().unwrap_or_default()
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

    /// Empties it and keeps it for the next.
    #[inline]
    pub(super) fn spare(mut self: Box<Self>) {
        self.charged = None;
        if let Some(later) = self.later.take() {
            drop(later);
        }
        _ = SPARES.try_with(|spares| {
            let spares = &mut *spares.borrow_mut();
            if spares.len() < SPARE {
                spares.push(self);
            }
        });
    }
}
