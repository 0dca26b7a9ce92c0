//! What a permit holds, in a box of its own, so that a permit is one word wherever it is moved: into a result,
//! a future, a response's body.
//!
//! A thread keeps the boxes of the last permits that were dropped on it, empty, for the next ones: a call
//! that does not wait takes nothing from the allocator once a permit came back.

use std::cell::Cell;
use std::mem::{self, ManuallyDrop};
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

/// A box, or none, that is never dropped where it is: not to look for one is what makes moving it cheap.
type Spare = ManuallyDrop<Option<Box<Held>>>;

thread_local! {
    static SPARES: Spares =
        const { Spares { newest: Cell::new(ManuallyDrop::new(None)), room: Cell::new(0) } };
    /// Apart, so that only the first box of a thread asks whether the thread is ending.
    static KEEPER: Keeper = const { Keeper };
}

/// Empty boxes, each with the one that came before it.
struct Spares {
    newest: Cell<Spare>,
    /// For how many more there is room: none before the thread's first and after its end.
    room: Cell<u32>,
}

impl Spares {
    #[inline]
    fn take(&self) -> Option<Box<Held>> {
        let mut held = ManuallyDrop::into_inner(self.newest.take())?;
        self.newest.set(mem::take(&mut held.before));
        self.room.set(self.room.get() + 1);
        Some(held)
    }

    #[inline(always)]
    fn keep(&self, mut held: Box<Held>) {
        let room = self.room.get();
        if room == 0 {
            return self.keep_first(held);
        }
        held.before = self.newest.take();
        self.newest.set(ManuallyDrop::new(Some(held)));
        self.room.set(room - 1);
    }

    /// Keeps the first of a thread, if that is what it is.
    #[cold]
    #[inline(never)]
    fn keep_first(&self, held: Box<Held>) {
        let newest = self.newest.take();
        if newest.is_none() && KEEPER.try_with(|_| ()).is_ok() {
            self.newest.set(ManuallyDrop::new(Some(held)));
            self.room.set(MAX_SPARES - 1);
        } else {
            self.newest.set(newest);
        }
    }
}

/// Drops a thread's spares when it ends.
struct Keeper;

impl Drop for Keeper {
    fn drop(&mut self) {
        _ = SPARES.try_with(|spares| {
            while spares.take().is_some() {}
            spares.room.set(0);
        });
    }
}

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
    before: Spare,
}

/// What there is to know of a permit that was not granted at once.
#[derive(Default)]
pub(super) struct Later {
    /// The slot, mostly after the decision; before it where a late wake was made good.
    pub(super) slot: u64,
    pub(super) waited_us: u64,
    /// The states before a booking ahead.
    pub(super) before: Option<Box<[Option<State>]>>,
    /// Whether it is the probe of a pause.
    pub(super) probes: bool,
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
        SPARES.try_with(Spares::take).ok().flatten().unwrap_or_default()
    }

    #[inline]
    pub(super) fn set_issuer(&mut self, issuer: &Arc<Issuer>) {
        match &self.issuer {
            Some(last) if Arc::ptr_eq(last, issuer) => {}
            _ => self.issuer = Some(issuer.clone()),
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

    /// What there is to know beside the grant, made where there was nothing yet.
    pub(super) fn later(&mut self) -> &mut Later {
        let slot = self.grant.now;
        self.later.get_or_insert_with(|| Box::new(Later { slot, ..Later::default() }))
    }

    #[inline]
    pub(super) fn slot(&self) -> u64 {
        self.later.as_ref().map_or(self.grant.now, |later| later.slot)
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
    pub(super) fn spare(self: Box<Self>) {
        if self.rides || self.later.is_some() {
            return self.end();
        }
        _ = SPARES.try_with(|spares| spares.keep(self));
    }

    /// The same where there is something to empty.
    #[inline(never)]
    fn end(mut self: Box<Self>) {
        if mem::take(&mut self.rides)
            && let Some(margin) = self.charged
        {
            self.give_back(margin);
        }
        self.later = None;
        _ = SPARES.try_with(|spares| spares.keep(self));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::thread;

    use tokio::time::Instant;

    use super::super::{Limiter, Permit};
    use super::*;
    use crate::policy::Policy;
    use crate::store::Local;

    thread_local! {
        static LEFT: RefCell<Vec<Permit>> = const { RefCell::new(Vec::new()) };
    }

    #[test]
    fn a_thread_keeps_so_many_spares_and_none_beyond_its_end() {
        let limiter = Limiter::new(Policy::new("spares").limit("1000000/s burst 1000000"), Local::new());
        let limiter = limiter.expect("the policy is valid");
        let issuer = limiter.core.current.load().issuer.clone();
        let permit = || limiter.try_acquire_at("k", Instant::now()).expect("there is room");
        let owners = Arc::strong_count(&issuer);
        // Only who joins a thread knows that it dropped what was its own.
        let run = |then: &(dyn Fn() + Sync)| {
            thread::scope(|scope| scope.spawn(then).join().expect("it does not panic"));
        };
        run(&|| {
            for _ in 0..2 {
                drop((0..MAX_SPARES + 10).map(|_| permit()).collect::<Vec<_>>());
                assert_eq!(Arc::strong_count(&issuer), owners + MAX_SPARES as usize);
            }
        });
        // Permits that are dropped while the thread ends, after its spares and before them.
        run(&|| {
            LEFT.with_borrow_mut(|left| left.push(permit()));
            drop(permit());
        });
        run(&|| {
            drop(permit());
            LEFT.with_borrow_mut(|left| left.extend([permit(), permit()]));
        });
        assert_eq!(Arc::strong_count(&issuer), owners);
    }
}
