//! The store of one process: a sharded table of keys, each with the states of its policy's limits.
//!
//! A decision takes one lock for one policy, and for a chain the locks of all its keys, in order. A key is
//! forgotten once its state equals that of a fresh one, a few at a time as others are decided, so there is
//! no task and no pause for tidying. A full table never forgets a key that is limited: new keys then share
//! one overflow budget.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::entry::{Entry, Pause, decide};
use super::{
    Answer, AnyStore, Charge, Forecast, Grant, Part, PauseAsk, Space, Standing, Store, Ticket, When, names,
};
use crate::algorithm::{Mark, NEVER, Rules, State, Used};
use crate::clock;
use crate::limit::MAX_EXACT;

/// Shards of the table: enough that threads rarely meet, few enough to be cheap to hold.
const SHARDS: usize = 64;
/// Slots of a shard that a new key looks through for keys to forget, and those while the table is full.
const TIDY: usize = 4;
const TIDY_FULL: usize = 8;

/// The in-process store. Cheap to clone; clones share their state.
///
/// Keys cost memory only while they are limited: one is forgotten once its state equals that of a key never
/// seen.
#[derive(Debug, Clone, Default)]
pub struct Local(pub(super) Arc<Table>);

#[derive(Debug)]
pub(super) struct Table {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    keys: AtomicUsize,
    max_keys: AtomicUsize,
    next_id: AtomicU64,
    /// The next one to be tidied for others.
    next_shard: AtomicUsize,
    spaces: Mutex<HashMap<Box<str>, Space>>,
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

impl Default for Table {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::default(),
            keys: AtomicUsize::new(0),
            max_keys: AtomicUsize::new(usize::MAX),
            next_id: AtomicU64::new(1),
            next_shard: AtomicUsize::new(0),
            spaces: Mutex::default(),
        }
    }
}

impl Local {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// The most keys kept; by default no bound, and 100,000 where a server's layer is the first to use the
    /// store. When as many keys are limited, new keys share one overflow budget for each policy until some
    /// are forgotten; a key that is limited is never given a fresh budget to make room.
    pub fn max_keys(self, keys: usize) -> Self {
        self.0.max_keys.store(keys, Ordering::Relaxed);
        self
    }

    /// The keys kept now, after forgetting those whose state equals that of a fresh one.
    pub fn len(&self) -> usize {
        let now = clock::now_us();
        for shard in &self.0.shards {
            let mut shard = shard.lock();
            let mut gone = 0;
            shard.entries.retain(|entry| {
                let fresh = entry.is_fresh(now);
                gone += usize::from(fresh && entry.key.is_some());
                !fresh
            });
            self.0.keys.fetch_sub(gone, Ordering::Relaxed);
            let len = shard.entries.len();
            shard.entries.shrink_to(len, |entry| entry.ticket.hash);
        }
        self.0.keys.load(Ordering::Relaxed)
    }

    #[cfg(any(test, feature = "redis"))]
    pub(crate) fn table(&self) -> Arc<dyn Store> {
        self.0.clone()
    }

    /// Whether no key is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Local> for AnyStore {
    fn from(local: Local) -> Self {
        AnyStore(super::Home::Here(local.0))
    }
}

impl From<&Local> for AnyStore {
    fn from(local: &Local) -> Self {
        AnyStore(super::Home::Here(local.0.clone()))
    }
}

impl Table {
    /// Where a part's budget is: under its key, or under the key that new keys share while the table is
    /// full.
    #[inline]
    fn home<'a>(&self, part: &Part<'a>) -> Home<'a> {
        let key = Home { space: part.space, key: Some(part.key), hash: self.key_hash(part) };
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

    fn key_hash(&self, part: &Part<'_>) -> u64 {
        self.hasher.hash_one((part.space.0, part.key))
    }

    fn is_full(&self) -> bool {
        self.keys.load(Ordering::Relaxed) >= self.max_keys.load(Ordering::Relaxed)
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
            self.keys.fetch_add(1, Ordering::Relaxed);
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
                self.keys.fetch_sub(usize::from(gone.key.is_some()), Ordering::Relaxed);
            }
        }
    }

    fn by_ticket<R>(&self, ticket: Ticket, then: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        let mut shard = self.lock(ticket.hash);
        shard.entries.find_mut(ticket.hash, |entry| entry.ticket.id == ticket.id).map(|entry| then(entry))
    }

    fn with_entry<R>(&self, part: &Part<'_>, then: impl FnOnce(&mut Entry, u64) -> R) -> R {
        let home = self.home(part);
        let mut shard = self.lock(home.hash);
        let now = clock::now_us();
        then(self.entry(&mut shard, &home, part.rules, now), now)
    }

    /// Reads a key without making it.
    fn read<R>(&self, part: &Part<'_>, then: impl FnOnce(Option<&mut Entry>, u64) -> R) -> R {
        let home = self.home(part);
        let mut shard = self.lock(home.hash);
        let now = clock::now_us();
        let mut found = shard.find(&home);
        if let Some(entry) = &mut found {
            entry.adopt(part.rules, now);
        }
        then(found, now)
    }

    /// [`try_now`](Store::try_now) for a key that is new, or new to the part's rules.
    #[cold]
    fn try_new(&self, part: &Part<'_>, at: Option<u64>, grant: &mut Grant) -> bool {
        let home = self.home(part);
        let mut shard = self.lock(home.hash);
        let now = at.unwrap_or_else(clock::now_us);
        let entry = self.entry(&mut shard, &home, part.rules, now);
        entry.try_now(part, now, at, grant)
    }

    /// Decides over several keys: the entries are taken out of the table for as long as their shards are
    /// locked.
    fn decide_chain(&self, parts: &[Part<'_>], when: When) -> Answer {
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
        let answer = decide(parts, &mut entries, now, when);
        drop(entries);
        for (i, entry) in taken {
            shards[i].entries.insert_unique(entry.ticket.hash, entry, |entry| entry.ticket.hash);
        }
        answer
    }
}

impl Shard {
    #[inline]
    fn find(&mut self, home: &Home<'_>) -> Option<&mut Entry> {
        self.entries.find_mut(home.hash, |entry| entry.is(home.space, home.key)).map(|entry| &mut **entry)
    }
}

impl Store for Table {
    fn open(&self, policy: &str) -> Space {
        let mut spaces = self.spaces.lock();
        let next = Space(spaces.len() as u32);
        let space = *spaces.entry(policy.into()).or_insert(next);
        drop(spaces);
        names::open(policy, std::ptr::from_ref(self).addr());
        space
    }

    fn bound_keys(&self, keys: usize) {
        // Only if nobody stated a bound.
        _ = self.max_keys.compare_exchange(usize::MAX, keys, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn leave(&self, space: Space) {
        let spaces = self.spaces.lock();
        if let Some((name, _)) = spaces.iter().find(|(_, opened)| **opened == space) {
            names::leave(name, std::ptr::from_ref(self).addr());
        }
    }

    fn hash(&self, part: &Part<'_>) -> u64 {
        self.key_hash(part)
    }

    fn try_now(&self, part: &Part<'_>, at: Option<u64>, grant: &mut Grant) -> bool {
        let hash = self.key_hash(part);
        let mut shard = self.lock(hash);
        let now = at.unwrap_or_else(clock::now_us);
        // By the hash alone: what it finds is nearly always the key, and everything else has the long way.
        match shard.entries.find_mut(hash, |entry| entry.ticket.hash == hash) {
            Some(entry) if entry.is(part.space, Some(part.key)) && Arc::ptr_eq(&entry.rules, part.rules) => {
                entry.try_now(part, now, at, grant)
            }
            _ => {
                drop(shard);
                self.try_new(part, at, grant)
            }
        }
    }

    fn decide(&self, parts: &[Part<'_>], when: When) -> Answer {
        let [part] = parts else { return self.decide_chain(parts, when) };
        self.with_entry(part, |entry, now| decide(parts, &mut [entry], now, when))
    }

    fn charge(&self, part: Part<'_>) {
        self.with_entry(&part, |entry, now| {
            entry.refresh(&part, now);
            for ((rule, state), cost) in
                part.rules.of(part.margin).iter().zip(&mut entry.states).zip(part.costs)
            {
                if *cost > 0 && !rule.is_seats() {
                    let at = rule.earliest(state, now, *cost);
                    // Sent already: charged as more used now, not at a slot far ahead.
                    if at <= now {
                        rule.commit(state, now, *cost);
                    } else {
                        let (slot, mark) = (now, Mark::default());
                        rule.settle(state, now, Used { slot, charged: 0, used: *cost, mark });
                    }
                }
            }
        });
    }

    fn take_back(&self, charge: Charge<'_>, before: Option<&[Option<State>]>) {
        self.by_ticket(charge.ticket, |entry| {
            if !Arc::ptr_eq(&entry.rules, charge.rules) {
                return entry.release(&charge);
            }
            let rules = charge.rules.of(charge.margin);
            for (i, (rule, state)) in rules.iter().zip(&mut entry.states).enumerate() {
                let cost = charge.charges[i].cost();
                if cost > 0 {
                    let before = before.and_then(|before| before[i].as_ref());
                    rule.take_back(state, charge.slot, cost, before);
                }
            }
            if let Some(pause) = entry.pause.as_mut().filter(|pause| pause.probed == charge.slot) {
                // The probe was not sent: the next call is it.
                (pause.probed, pause.probe_at) = (0, charge.slot);
            }
            if charge.rules.rides {
                entry.permits -= 1;
            }
        });
    }

    fn free_seats(&self, charge: Charge<'_>) {
        self.by_ticket(charge.ticket, |entry| entry.free_seats(&charge));
    }

    fn release(&self, charge: Charge<'_>) {
        self.by_ticket(charge.ticket, |entry| entry.release(&charge));
    }

    fn settle(&self, charge: Charge<'_>, index: usize, used: u64) {
        self.by_ticket(charge.ticket, |entry| {
            let now = clock::now_us();
            let label = &charge.rules.labels.limits[index];
            // Under rules that came later, only a limit that is still there.
            let rules = entry.rules.clone();
            let same = rules.labels.limits.iter().position(|other| other.is_same(label));
            if let Some(i) = same {
                let charged = &charge.charges[index];
                let (slot, mark) = (charge.slot, charged.mark);
                let booked = Used { slot, charged: charged.replace(used), used, mark };
                rules.of(charge.margin)[i].settle(&mut entry.states[i], now, booked);
            }
        });
    }

    fn pause(&self, part: Part<'_>, ask: PauseAsk) {
        self.with_entry(&part, |entry, now| {
            let pause = entry.pause.get_or_insert_default();
            let until = ask.until.min(MAX_EXACT);
            // Until then an operator holds the key, and nothing probes it.
            let held = if pause.probe_every == NEVER && pause.holds(now).is_some() { pause.until } else { 0 };
            if until > pause.until {
                **pause = Pause {
                    until,
                    probe_at: now.saturating_add(ask.probe_every).max(held),
                    probe_every: ask.probe_every,
                    probed: 0,
                    drained: pause.drained_by(now),
                };
            } else if ask.probe_every == NEVER {
                pause.probe_at = pause.probe_at.max(until);
            }
        });
    }

    fn drain(&self, part: Part<'_>) {
        self.with_entry(&part, |entry, now| {
            entry.drain(&part, now);
        });
    }

    fn resume(&self, part: Part<'_>, answered: Option<u64>) {
        self.read(&part, |entry, now| {
            let Some(entry) = entry else { return };
            let Some(pause) = &mut entry.pause else { return };
            let probed = answered.is_none_or(|sent| pause.probed > 0 && sent >= pause.probed);
            if pause.holds(now).is_some() && probed {
                (pause.until, pause.drained) = (now, now);
                entry.drain(&part, now);
            }
        });
    }

    fn peek(&self, part: Part<'_>) -> Standing {
        self.read(&part, |entry, now| match entry {
            Some(entry) => {
                let paused_until = entry.pause.as_ref().and_then(|pause| pause.holds(now));
                if paused_until.is_none() {
                    entry.refresh(&part, now);
                }
                Standing { now, paused_until, levels: entry.levels(&part, now) }
            }
            None => {
                let states = part.rules.fresh();
                let rules = part.rules.of(part.margin).iter();
                Standing {
                    now,
                    paused_until: None,
                    levels: rules.zip(&states).map(|(rule, state)| rule.level(state, now)).collect(),
                }
            }
        })
    }

    fn forecast(&self, part: Part<'_>) -> Forecast {
        self.read(&part, |entry, now| match entry {
            Some(entry) => {
                let from = entry.pause.as_ref().and_then(|pause| pause.holds(now)).unwrap_or(now);
                Forecast { now, from, states: entry.states_from(&part, from) }
            }
            None => Forecast { now, from: now, states: part.rules.fresh().into_iter().collect() },
        })
    }
}
