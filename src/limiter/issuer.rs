//! What a permit keeps of the limiter that gave it: the rules it was charged by, and the way back.
//!
//! A thread's spare permits keep their issuer too, for the next permit is nearly always of the same one, and
//! then nobody's owners are counted. So an issuer must never keep a limiter or a store alive: what was
//! charged goes back for as long as somebody else has the store.

use std::sync::{Arc, Weak};

use super::Shared;
use super::queue::Queue;
use crate::algorithm::Rules;
use crate::store::Table;
#[cfg(feature = "client")]
use crate::store::Ticket;

pub(super) struct Issuer {
    pub(super) rules: Arc<Rules>,
    shared: Weak<Shared>,
    /// Of its own, for limiters of one store share budgets and go one by one.
    store: Weak<Table>,
}

impl Issuer {
    pub(super) fn new(rules: Arc<Rules>, shared: &Arc<Shared>) -> Self {
        Self { rules, shared: Arc::downgrade(shared), store: Arc::downgrade(&shared.store) }
    }

    /// Does something to the store, and then tells those who wait for its limiter; what of both is still
    /// there.
    #[inline]
    pub(super) fn reach(&self, then: impl FnOnce(&Table), tell: impl FnOnce(&Queue)) {
        if let Some(shared) = self.shared.upgrade() {
            then(&shared.store);
            tell(&shared.queue);
        } else if let Some(store) = self.store.upgrade() {
            then(&store);
        }
    }
}

#[cfg(feature = "client")]
impl Issuer {
    /// Does something to the store by which those who wait may go sooner: what is booked for them is booked again.
    pub(super) fn rebook(&self, ticket: Ticket, then: impl FnOnce(&Table)) {
        if let Some(shared) = self.shared.upgrade() {
            shared.queue.rebook(ticket, || then(&shared.store));
        } else if let Some(store) = self.store.upgrade() {
            then(&store);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Limiter;
    use crate::policy::Policy;
    use crate::store::Local;

    fn at_once(store: &Local) -> Limiter {
        Limiter::new(Policy::new("p").limit("1 at once"), store).expect("the policy is valid")
    }

    #[tokio::test]
    async fn a_spare_permit_keeps_no_store() {
        let store = Local::new();
        let table = std::sync::Arc::downgrade(&store.table());
        let limiter = at_once(&store);
        drop(limiter.acquire("k").await);
        drop((store, limiter));
        assert!(table.upgrade().is_none());
    }

    #[tokio::test]
    async fn a_seat_comes_back_to_a_store_that_outlives_its_limiter() {
        let store = Local::new();
        let (gone, other) = (at_once(&store), at_once(&store));
        let permit = gone.acquire("k").await.expect("a seat is free");
        drop(gone);
        assert!(other.try_acquire("k").await.is_err());
        drop(permit);
        assert!(other.try_acquire("k").await.is_ok());
    }
}
