//! What a permit holds, in a box of its own, so that a permit is one word wherever it is moved: into a result,
//! a future, a response's body.
//!
//! A thread keeps the boxes of the last permits that were dropped on it, empty, for the next ones: a call
//! that does not wait takes nothing from the allocator once a permit came back.

use std::cell::RefCell;
use std::sync::Arc;

use super::Plan;
use crate::algorithm::State;
use crate::decision::Decision;
use crate::limit::Margin;
use crate::store::{Charge, Charges, Grant};

/// The most boxes that a thread keeps.
const SPARE: usize = 256;

thread_local! {
    #[allow(clippy::vec_box, reason = "it is the boxes that are kept")]
    static SPARES: RefCell<Vec<Box<Held>>> = const { RefCell::new(Vec::new()) };
}

#[derive(Default)]
pub(super) struct Held {
    /// `None` while it is spare.
    plan: Option<Arc<Plan>>,
    /// By the rules with which margin it was charged; `None` if it was not, or all of it was taken back.
    pub(super) charged: Option<Margin>,
    pub(super) grant: Grant,
    pub(super) charges: Charges,
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
}

impl Held {
    /// An empty one: a spare one if there is.
    #[inline]
    pub(super) fn new() -> Box<Self> {
        // A thread that ends has no spares any more.
        let spare = SPARES.try_with(|spares| spares.borrow_mut().pop());
        spare.ok().flatten().unwrap_or_default()
    }

    pub(super) fn set_plan(&mut self, plan: Arc<Plan>) {
        self.plan = Some(plan);
    }

    pub(super) fn plan(&self) -> &Arc<Plan> {
        self.plan.as_ref().expect("a permit has its plan for as long as it lives")
    }

    pub(super) fn slot(&self) -> u64 {
        self.grant.now + self.later.as_ref().map_or(0, |later| later.ahead_us)
    }

    pub(super) fn charge(&self, margin: Margin) -> Charge<'_> {
        Charge {
            ticket: self.grant.ticket,
            rules: &self.plan().rules,
            margin,
            slot: self.slot(),
            charges: &self.charges,
        }
    }

    /// Empties it and keeps it for the next.
    #[inline]
    pub(super) fn spare(mut self: Box<Self>) {
        (self.plan, self.charged, self.later) = (None, None, None);
        self.charges.clear();
        _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARE {
                spares.push(self);
            }
        });
    }
}
