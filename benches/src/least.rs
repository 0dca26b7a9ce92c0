//! The least that a decision with our promises can cost, written as cheaply as we can and for the bench alone.
//!
//! Exact buckets in ticks, several limits charged together or not at all, numbers with and without a margin, a
//! pause, waiters before a new caller, one lock in which the clock is read, and a permit that outlives its
//! caller, keeps what a correction needs and gives seats back. It leaves out what our own way has beside that:
//! other algorithms, keys that are forgotten, policies and stores that change, numbers that change under a
//! state, units by name, a store that spare permits do not keep alive, and a future. A seat is a unit of a
//! bucket that time never repays.

use std::cell::Cell;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The most limits of one decision.
const LIMITS: usize = 3;

/// The numbers of a bucket: ticks of a unit, ticks that a microsecond repays, and the debt up to which a call goes.
#[derive(Debug, Clone, Copy)]
pub struct Numbers {
    /// Ticks of a unit.
    pub unit: u64,
    /// Ticks that a microsecond repays; none of a seat.
    pub repaid: u64,
    /// Ticks that may be owed.
    pub cap: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Debt {
    ticks: u64,
    at: u64,
}

#[derive(Debug)]
struct Entry {
    hash: u64,
    key: Box<str>,
    debts: Box<[Debt]>,
    paused_until: Option<Box<u64>>,
}

/// A store and its only policy.
#[derive(Debug)]
pub struct Least {
    entries: Mutex<HashTable<Box<Entry>>>,
    hasher: RandomState,
    waiting: AtomicUsize,
    origin: Instant,
    /// Without a margin, and with it.
    limits: [Box<[Numbers]>; 2],
    has_seats: bool,
}

#[derive(Debug, Default)]
struct Charged {
    store: Option<Arc<Least>>,
    hash: u64,
    at: u64,
    /// What each limit was charged, and its debt before.
    charges: [(u64, u64); LIMITS],
}

thread_local! {
    static SPARE: Cell<Option<Box<Charged>>> = const { Cell::new(None) };
}

/// What a caller holds.
#[derive(Debug)]
pub struct Pass(Option<Box<Charged>>);

impl Least {
    /// A store with one key.
    pub fn with(key: &str, limits: &[Numbers]) -> Arc<Self> {
        let hasher = RandomState::default();
        let hash = hasher.hash_one(key);
        let debts = limits.iter().map(|_| Debt::default()).collect();
        let mut entries = HashTable::new();
        let entry = Box::new(Entry { hash, key: key.into(), debts, paused_until: None });
        entries.insert_unique(hash, entry, |entry| entry.hash);
        Arc::new(Self {
            entries: Mutex::new(entries),
            hasher,
            waiting: AtomicUsize::new(0),
            origin: Instant::now(),
            limits: [limits.into(), limits.into()],
            has_seats: limits.iter().any(|limit| limit.repaid == 0),
        })
    }

    /// An instant as the store counts.
    pub fn us(&self, instant: Instant) -> u64 {
        let after = instant.saturating_duration_since(self.origin);
        after.as_secs() * 1_000_000 + u64::from(after.subsec_micros())
    }

    /// Charges every limit its cost at once, or none: at the instant given, or else now.
    #[inline]
    pub fn ask(self: &Arc<Self>, key: &str, margin: usize, costs: &[u64], at: Option<u64>) -> Option<Pass> {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return None;
        }
        let mut charged = SPARE.take().unwrap_or_default();
        let hash = self.hasher.hash_one(key);
        let mut entries = self.entries.lock();
        let now = at.unwrap_or_else(|| self.us(Instant::now()));
        let entry = entries.find_mut(hash, |entry| entry.hash == hash && *entry.key == *key)?;
        if entry.paused_until.as_ref().is_some_and(|until| **until > now) {
            return None;
        }
        let limits = &self.limits[margin];
        for (((limit, debt), cost), charge) in
            limits.iter().zip(&entry.debts).zip(costs).zip(&mut charged.charges)
        {
            let repaid = limit.repaid.saturating_mul(now.checked_sub(debt.at)?);
            let owed = debt.ticks.saturating_sub(repaid);
            if owed > limit.cap.saturating_sub(cost * limit.unit) {
                return None;
            }
            *charge = (*cost, owed);
        }
        for ((limit, debt), (cost, owed)) in limits.iter().zip(&mut entry.debts).zip(&charged.charges) {
            *debt = Debt { ticks: owed + cost * limit.unit, at: now };
        }
        drop(entries);
        (charged.hash, charged.at) = (hash, now);
        if !charged.store.as_ref().is_some_and(|store| Arc::ptr_eq(store, self)) {
            charged.store = Some(self.clone());
        }
        Some(Pass(Some(charged)))
    }

    #[inline]
    fn release(&self, charged: &Charged) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.find_mut(charged.hash, |entry| entry.hash == charged.hash) {
            let seats = self.limits[0].iter().zip(&mut entry.debts).zip(&charged.charges);
            for ((_, debt), (cost, _)) in seats.filter(|((limit, _), _)| limit.repaid == 0) {
                debt.ticks -= cost;
            }
        }
    }
}

impl Drop for Pass {
    #[inline]
    fn drop(&mut self) {
        let Some(charged) = self.0.take() else { return };
        if let Some(store) = charged.store.as_ref().filter(|store| store.has_seats) {
            store.release(&charged);
        }
        SPARE.set(Some(charged));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "k";

    #[test]
    fn decides_exactly_and_gives_seats_back() {
        let bucket = Numbers { unit: 10, repaid: 1, cap: 20 };
        let seats = Numbers { unit: 1, repaid: 0, cap: 2 };
        let least = Least::with(KEY, &[bucket, seats]);
        let first = least.ask(KEY, 0, &[1, 1], Some(0)).expect("both have room");
        let _second = least.ask(KEY, 0, &[1, 1], Some(0)).expect("both have room");
        assert!(least.ask(KEY, 0, &[1, 1], Some(10)).is_none(), "a unit is repaid, but no seat is free");
        drop(first);
        assert!(least.ask(KEY, 0, &[1, 1], Some(9)).is_none(), "the unit is not repaid yet");
        assert!(least.ask(KEY, 0, &[1, 1], Some(10)).is_some());
    }
}
