//! The plan in force, read by every call and replaced hardly ever.
//!
//! Most policies never change, so the first plan is read without an atomic step; only once there was
//! another is it looked up in a cell. Nothing is kept of the plans between the first and the last.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, Guard};

use super::Plan;

pub(super) struct Current {
    first: Arc<Plan>,
    last: OnceLock<ArcSwap<Plan>>,
}

/// A plan that was in force when it was read.
pub(super) enum Loaded<'a> {
    First(&'a Arc<Plan>),
    Last(Guard<Arc<Plan>>),
}

impl Current {
    pub(super) fn new(plan: Plan) -> Self {
        Self { first: Arc::new(plan), last: OnceLock::new() }
    }

    #[inline(always)]
    pub(super) fn load(&self) -> Loaded<'_> {
        match self.last.get() {
            None => Loaded::First(&self.first),
            Some(last) => load_last(last),
        }
    }

    /// The first plan, if there never was another: cheaper to tell than which of two a reference is.
    #[inline(always)]
    pub(super) fn only(&self) -> Option<&Plan> {
        self.last.get().is_none().then_some(&self.first)
    }

    pub(super) fn load_full(&self) -> Arc<Plan> {
        Arc::clone(&self.load())
    }

    pub(super) fn store(&self, plan: Arc<Plan>) {
        self.last.get_or_init(|| ArcSwap::new(plan.clone())).store(plan);
    }
}

#[cold]
fn load_last(last: &ArcSwap<Plan>) -> Loaded<'_> {
    Loaded::Last(last.load())
}

impl Deref for Loaded<'_> {
    type Target = Arc<Plan>;

    #[inline]
    fn deref(&self) -> &Arc<Plan> {
        match self {
            Loaded::First(plan) => plan,
            Loaded::Last(plan) => plan,
        }
    }
}
