//! Where the keys of one process are: a sharded table, and what becomes of keys that are not limited any more.
//!
//! A key is forgotten once its state equals that of a fresh one, a few at a time as others are made, so there is
//! no task and no pause for tidying. A full table never forgets a key that is limited: new keys then share one
//! overflow budget. Entries are only ever touched under the lock of their shard, at an instant read under it.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::entry::Entry;
use super::{Part, Space, Ticket};
use crate::algorithm::Rules;
use crate::clock;

/// Shards of the table: enough that threads rarely meet, few enough to be cheap to hold.
const SHARDS: usize = 64;
/// Slots of a shard that a new key looks through for keys to forget, and those while the table is full.
const TIDY: usize = 4;
const TIDY_FULL: usize = 8;

#[derive(Debug)]
pub(super) struct Keys {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    len: AtomicUsize,
    most: AtomicUsize,
    next_id: AtomicU64,
    /// The next one to be tidied for others.
    next_shard: AtomicUsize,
    /// All keys look alike, for tests.
    #[cfg(test)]
    are_alike: bool,
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashTable<Box<Entry>>,
    /// Where tidying goes on.
    hand: usize,
}

/// Where a budget is.
struct Home<'a> {
    space: Space,
    /// `None` for the overflow key.
    key: Option<&'a str>,
    hash: u64,
}

impl Default for Keys {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::default(),
            len: AtomicUsize::new(0),
            most: AtomicUsize::new(usize::MAX),
            next_id: AtomicU64::new(1),
            next_shard: AtomicUsize::new(0),
            #[cfg(test)]
            are_alike: false,
        }
    }
}

impl Keys {
    /// Keys that share a hash.
    #[cfg(test)]
    pub(super) fn all_alike() -> Self {
        Self { are_alike: true, ..Self::default() }
    }

    /// Bounds them, where no bound was stated.
    pub(super) fn bound(&self, keys: usize) {
        _ = self.most.compare_exchange(usize::MAX, keys, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Bounds them, whatever was stated before.
    pub(super) fn keep_at_most(&self, keys: usize) {
        self.most.store(keys, Ordering::Relaxed);
    }

    /// How many are kept now, after forgetting those whose state equals that of a fresh one.
    pub(super) fn len(&self) -> usize {
        let now = clock::now_us();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let mut gone = 0;
            shard.entries.retain(|entry| {
                let fresh = entry.is_fresh(now);
                gone += usize::from(fresh && entry.key.is_some());
                !fresh
            });
            self.len.fetch_sub(gone, Ordering::Relaxed);
            let len = shard.entries.len();
            shard.entries.shrink_to(len, |entry| entry.ticket.hash);
        }
        self.len.load(Ordering::Relaxed)
    }

    /// A number that is the same for the same key, and nearly always another for another key.
    #[inline]
    pub(super) fn hash(&self, part: &Part<'_>) -> u64 {
        #[cfg(test)]
        if self.are_alike {
            return 7;
        }
        let mut hasher = self.hasher.build_hasher();
        hasher.write(part.key.as_bytes());
        hasher.finish() ^ part.space.salt()
    }

    /// Where a part's budget is: under its key, or under the key that new keys share while the table is
    /// full.
    #[inline]
    fn home<'a>(&self, part: &Part<'a>) -> Home<'a> {
        let key = Home { space: part.space, key: Some(part.key), hash: self.hash(part) };
        if self.is_full() { self.home_while_full(part, key) } else { key }
    }

    #[cold]
    fn home_while_full<'a>(&self, part: &Part<'a>, key: Home<'a>) -> Home<'a> {
        let mut shard = self.lock(key.hash);
        if shard.find(&key).is_some() {
            return key;
        }
        let now = clock::now_us();
        self.tidy(&mut shard, now, TIDY_FULL);
        drop(shard);
        if self.is_full() {
            // Room that is in any other shard is room as well.
            let next = self.next_shard.fetch_add(1, Ordering::Relaxed) % SHARDS;
            self.tidy(&mut self.shards[next].lock(), now, TIDY_FULL);
        }
        if self.is_full() {
            Home { space: part.space, key: None, hash: self.hasher.hash_one(part.space.0) }
        } else {
            key
        }
    }

    fn is_full(&self) -> bool {
        self.len.load(Ordering::Relaxed) >= self.most.load(Ordering::Relaxed)
    }

    fn shard(&self, hash: u64) -> usize {
        // The table inside a shard uses the top and the bottom bits.
        (hash >> 32) as usize % SHARDS
    }

    fn lock(&self, hash: u64) -> MutexGuard<'_, Shard> {
        self.shards[self.shard(hash)].lock()
    }

    /// The entry of a key, made if need be, with its states under the part's rules.
    fn entry<'s>(
        &self,
        shard: &'s mut Shard,
        home: &Home<'_>,
        rules: &Arc<Rules>,
        now: u64,
    ) -> &'s mut Entry {
        let found = match shard.entries.find_bucket_index(home.hash, |entry| entry.is(home.space, home.key)) {
            Some(found) => found,
            None => {
                self.tidy(shard, now, TIDY);
                let fresh = self.fresh(home, rules);
                shard.entries.insert_unique(home.hash, fresh, |entry| entry.ticket.hash).bucket_index()
            }
        };
        let entry = shard.entries.get_bucket_mut(found).expect("it was just found or inserted");
        entry.adopt(rules, now);
        entry
    }

    fn fresh(&self, home: &Home<'_>, rules: &Arc<Rules>) -> Box<Entry> {
        let shared = if home.key.is_none() { Ticket::SHARED } else { 0 };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) | shared;
        if home.key.is_some() {
            self.len.fetch_add(1, Ordering::Relaxed);
        }
        Box::new(Entry {
            key: home.key.map(Box::from),
            space: home.space,
            ticket: Ticket { hash: home.hash, id },
            states: rules.fresh(),
            rules: rules.clone(),
            pause: None,
            permits: 0,
            gone: None,
        })
    }

    /// Forgets up to `slots` slots' worth of keys that equal fresh ones.
    fn tidy(&self, shard: &mut Shard, now: u64, slots: usize) {
        let buckets = shard.entries.num_buckets();
        for _ in 0..slots.min(buckets) {
            shard.hand = (shard.hand + 1) % buckets;
            if let Ok(found) = shard.entries.get_bucket_entry(shard.hand)
                && found.get().is_fresh(now)
            {
                let (gone, _) = found.remove();
                self.len.fetch_sub(usize::from(gone.key.is_some()), Ordering::Relaxed);
            }
        }
    }

    /// Does something to the entry of this ticket, if it is still there.
    pub(super) fn by_ticket<R>(&self, ticket: Ticket, then: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        let mut shard = self.lock(ticket.hash);
        shard.entries.find_mut(ticket.hash, |entry| entry.ticket.id == ticket.id).map(|entry| then(entry))
    }

    /// Does something to a key at now, and makes it if need be.
    pub(super) fn with_entry<R>(&self, part: &Part<'_>, then: impl FnOnce(&mut Entry, u64) -> R) -> R {
        let home = self.home(part);
        let mut shard = self.lock(home.hash);
        let now = clock::now_us();
        then(self.entry(&mut shard, &home, part.rules, now), now)
    }

    /// The same without making it.
    pub(super) fn read<R>(&self, part: &Part<'_>, then: impl FnOnce(Option<&mut Entry>, u64) -> R) -> R {
        let home = self.home(part);
        let mut shard = self.lock(home.hash);
        let now = clock::now_us();
        let mut found = shard.find(&home);
        if let Some(entry) = &mut found {
            entry.adopt(part.rules, now);
        }
        then(found, now)
    }

    /// Does something to a key that is there under these very rules, as nearly all are: at the instant given, or else
    /// now. `None` if it is not.
    #[inline(always)]
    pub(super) fn if_known<R>(
        &self,
        part: &Part<'_>,
        at: Option<u64>,
        then: impl FnOnce(&mut Entry, u64) -> R,
    ) -> Option<R> {
        let hash = self.hash(part);
        let mut shard = self.lock(hash);
        let now = at.unwrap_or_else(clock::now_us);
        // By the hash alone: what it finds is nearly always the key. Rules are of one space.
        let found = shard.entries.find_mut(hash, |entry| entry.ticket.hash == hash);
        let is_it =
            |entry: &Entry| Arc::ptr_eq(&entry.rules, part.rules) && entry.key.as_deref() == Some(part.key);
        found.filter(|entry| is_it(entry)).map(|entry| then(entry, now))
    }

    /// Does something to several keys in one step: the entries are taken out of the table for as long as their
    /// shards are locked.
    pub(super) fn with_entries<R>(
        &self,
        parts: &[Part<'_>],
        then: impl FnOnce(&mut [&mut Entry], u64) -> R,
    ) -> R {
        let homes = parts.iter().map(|part| self.home(part)).collect::<SmallVec<[Home<'_>; 4]>>();
        let mut order = homes.iter().map(|home| self.shard(home.hash)).collect::<SmallVec<[usize; 4]>>();
        order.sort_unstable();
        order.dedup();
        let mut shards = order.iter().map(|i| self.shards[*i].lock()).collect::<SmallVec<[_; 4]>>();
        let now = clock::now_us();
        let mut taken = SmallVec::<[(usize, Box<Entry>); 4]>::new();
        for (part, home) in parts.iter().zip(&homes) {
            let i = order.binary_search(&self.shard(home.hash)).expect("its shard is locked");
            let shard = &mut *shards[i];
            let id = self.entry(shard, home, part.rules, now).ticket.id;
            let Ok(found) = shard.entries.find_entry(home.hash, |entry| entry.ticket.id == id) else {
                unreachable!("it was just found or inserted");
            };
            taken.push((i, found.remove().0));
        }
        let mut entries =
            taken.iter_mut().map(|(_, entry)| &mut **entry).collect::<SmallVec<[&mut Entry; 4]>>();
        let result = then(&mut entries, now);
        drop(entries);
        for (i, entry) in taken {
            shards[i].entries.insert_unique(entry.ticket.hash, entry, |entry| entry.ticket.hash);
        }
        result
    }
}

impl Shard {
    #[inline]
    fn find(&mut self, home: &Home<'_>) -> Option<&mut Entry> {
        self.entries.find_mut(home.hash, |entry| entry.is(home.space, home.key)).map(|entry| &mut **entry)
    }
}
