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

use super::{
    Answer, AnyStore, Charge, Forecast, Grant, Marks, Outcome, Part, PartAnswer, PauseAsk, Space, Standing,
    Store, Ticket, When,
};
use crate::algorithm::{Joint, Mark, NEVER, Rules, State, Used, joint_earliest};
use crate::clock;
use crate::decision::Level;
use crate::limit::MAX_EXACT;

/// Shards of the table: enough that threads rarely meet, few enough to be cheap to hold.
const SHARDS: usize = 64;
/// Slots of a shard that a new key looks through for keys to forget, and those while the table is full.
const TIDY: usize = 4;
const TIDY_FULL: usize = 64;

/// The in-process store. Cheap to clone; clones share their state.
///
/// Keys cost memory only while they are limited: one is forgotten once its state equals that of a key never
/// seen.
#[derive(Debug, Clone, Default)]
pub struct Local(Arc<Table>);

#[derive(Debug)]
struct Table {
    shards: Box<[Mutex<Shard>]>,
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

/// One key of one policy.
#[derive(Debug)]
struct Entry {
    /// `None` for the overflow key.
    key: Option<Box<str>>,
    space: Space,
    hash: u64,
    id: u64,
    /// The rules under which the states were written.
    rules: Arc<Rules>,
    states: SmallVec<[State; 1]>,
    pause: Option<Box<Pause>>,
    /// Permits out on which something rides.
    permits: u32,
}

/// Where a budget is.
struct Home<'a> {
    space: Space,
    /// `None` for the overflow key.
    key: Option<&'a str>,
    hash: u64,
}

impl Home<'_> {
    fn is(&self, entry: &Entry) -> bool {
        entry.space == self.space && entry.key.as_deref() == self.key
    }
}

/// The key's last pause. It outlives its end by one budget, for until then the drain can be told.
#[derive(Debug, Default, Clone, Copy)]
struct Pause {
    until: u64,
    /// When one call may go although the pause is not over, how long after it the next one may, and when
    /// the last one went: 0 if none did.
    probe_at: u64,
    probe_every: u64,
    probed: u64,
    /// The end of the pause before, if it has come: the budgets were empty then.
    drained: u64,
}

impl Pause {
    /// The end of the pause, while it lasts.
    fn holds(&self, now: u64) -> Option<u64> {
        (now < self.until).then_some(self.until)
    }

    /// The last instant, up to `now`, at which the budgets count as used up.
    fn drained_by(&self, now: u64) -> u64 {
        if self.until <= now { self.drained.max(self.until) } else { self.drained }
    }
}

impl Default for Table {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
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

    /// The most keys kept; by default no bound, and 100,000 once a server's layer uses the store. When as many
    /// keys are limited, new keys share one overflow budget for each policy until some are forgotten; a key
    /// that is limited is never given a fresh budget to make room.
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
            shard.entries.shrink_to(len, |entry| entry.hash);
        }
        self.0.keys.load(Ordering::Relaxed)
    }

    /// Whether no key is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Local> for AnyStore {
    fn from(local: Local) -> Self {
        AnyStore(local.0)
    }
}

impl From<&Local> for AnyStore {
    fn from(local: &Local) -> Self {
        AnyStore(local.0.clone())
    }
}

impl Table {
    /// Where a part's budget is: under its key, or under the key that new keys share while the table is
    /// full.
    fn home<'a>(&self, part: &Part<'a>) -> Home<'a> {
        let key = Home { space: part.space, key: Some(part.key), hash: self.key_hash(part) };
        if !self.is_full() {
            return key;
        }
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
        let found = match shard.entries.find_bucket_index(home.hash, |entry| home.is(entry)) {
            Some(found) => found,
            None => {
                self.tidy(shard, now, TIDY);
                let fresh = self.fresh(home, rules);
                shard.entries.insert_unique(home.hash, fresh, |entry| entry.hash).bucket_index()
            }
        };
        let entry = shard.entries.get_bucket_mut(found).expect("it was just found or inserted");
        entry.adopt(rules, now);
        entry
    }

    fn fresh(&self, home: &Home<'_>, rules: &Arc<Rules>) -> Box<Entry> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        if home.key.is_some() {
            self.keys.fetch_add(1, Ordering::Relaxed);
        }
        Box::new(Entry {
            key: home.key.map(Box::from),
            space: home.space,
            hash: home.hash,
            id,
            states: rules.fresh(),
            rules: rules.clone(),
            pause: None,
            permits: 0,
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
        shard.entries.find_mut(ticket.hash, |entry| entry.id == ticket.id).map(|entry| then(entry))
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
            let id = self.entry(shard, home, part.rules, now).id;
            let Ok(found) = shard.entries.find_entry(home.hash, |entry| entry.id == id) else {
                unreachable!("it was just found or inserted");
            };
            taken.push((i, found.remove().0));
        }
        let mut entries =
            taken.iter_mut().map(|(_, entry)| &mut **entry).collect::<SmallVec<[&mut Entry; 4]>>();
        let answer = decide(parts, &mut entries, now, when);
        drop(entries);
        for (i, entry) in taken {
            shards[i].entries.insert_unique(entry.hash, entry, |entry| entry.hash);
        }
        answer
    }
}

impl Shard {
    fn find(&mut self, home: &Home<'_>) -> Option<&mut Entry> {
        self.entries.find_mut(home.hash, |entry| home.is(entry)).map(|entry| &mut **entry)
    }
}

impl Entry {
    fn ticket(&self) -> Ticket {
        Ticket { hash: self.hash, id: self.id, shared: self.key.is_none() }
    }

    fn adopt(&mut self, rules: &Arc<Rules>, now: u64) {
        if !Arc::ptr_eq(&self.rules, rules) {
            self.states = rules.adopt(&self.rules, &self.states, now);
            self.rules = rules.clone();
        }
    }

    fn is_fresh(&self, now: u64) -> bool {
        let rules = self.rules.of(crate::limit::Margin::Default);
        self.permits == 0
            && self.pause.as_ref().is_none_or(|pause| pause.is_over(now, self.rules.budget_us()))
            && rules.iter().zip(&self.states).all(|(rule, state)| rule.is_fresh(state, now))
    }

    /// The states as a reader at `now` must take them.
    fn refresh(&mut self, part: &Part<'_>, now: u64) {
        let drained = match &self.pause {
            Some(pause) if pause.is_over(now, self.rules.budget_us()) => {
                self.pause = None;
                0
            }
            Some(pause) => pause.drained_by(now),
            None => 0,
        };
        for (rule, state) in part.rules.of(part.margin).iter().zip(&mut self.states) {
            rule.read(state, now, drained);
        }
    }

    fn charge(&mut self, part: &Part<'_>, at: u64, marks: &mut Marks) {
        for ((rule, state), cost) in part.rules.of(part.margin).iter().zip(&mut self.states).zip(part.costs) {
            marks.push(if *cost > 0 { rule.commit(state, at, *cost) } else { rule.mark(state, at) });
        }
        if part.rules.rides {
            self.permits += 1;
        }
    }

    /// Empties all that is not booked ahead, as of now.
    fn drain(&mut self, part: &Part<'_>, now: u64) {
        for (rule, state) in part.rules.of(part.margin).iter().zip(&mut self.states) {
            if state.tail() <= now && !rule.is_seats() {
                *state = rule.drained(state, now);
            }
        }
    }

    fn levels(&self, part: &Part<'_>, now: u64) -> SmallVec<[Level; 3]> {
        let rules = part.rules.of(part.margin);
        rules.iter().zip(&self.states).map(|(rule, state)| rule.level(state, now)).collect()
    }

    /// What a caller finds from `from` on.
    fn states_from(&self, part: &Part<'_>, from: u64) -> SmallVec<[State; 3]> {
        let drained = self.pause.as_ref().map_or(0, |pause| pause.drained_by(from));
        let rules = part.rules.of(part.margin);
        let read = rules.iter().zip(&self.states).map(|(rule, state)| {
            let mut state = state.clone();
            rule.read(&mut state, from, drained);
            state
        });
        read.collect()
    }
}

impl Pause {
    /// Whether neither the pause nor its drain can be told any more.
    fn is_over(&self, now: u64, budget_us: u64) -> bool {
        now >= self.until.max(self.drained).saturating_add(budget_us)
    }
}

/// The decision itself, over entries that are locked.
fn decide(parts: &[Part<'_>], entries: &mut [&mut Entry], now: u64, when: When) -> Answer {
    let from = when.from.unwrap_or(now);
    let latest = when.latest.unwrap_or(from);
    if let Some(paused) = paused(parts, entries, now) {
        return paused;
    }
    // From here on the key is open, or the call is its pause's probe.
    for (part, entry) in parts.iter().zip(entries.iter_mut()) {
        entry.refresh(part, now);
    }
    let joint = {
        let asked = parts.iter().zip(entries.iter()).flat_map(|(part, entry)| {
            let rules = part.rules.of(part.margin).iter();
            rules.zip(&entry.states).zip(part.costs).map(|((rule, state), cost)| (rule, state, *cost))
        });
        joint_earliest(asked, from)
    };
    let (at, granted) = match joint {
        Joint::Agreed(at) => (at, at <= latest),
        Joint::NotBefore(at) => (at, false),
    };
    let answers = parts.iter().zip(entries.iter_mut()).map(|(part, entry)| {
        let mut answer = PartAnswer { ticket: entry.ticket(), ..PartAnswer::default() };
        let rules = part.rules.of(part.margin);
        if granted {
            if let Some(pause) = entry.pause.as_mut().filter(|pause| pause.holds(now).is_some()) {
                (pause.probed, pause.probe_at) = (at, at.saturating_add(pause.probe_every));
            }
            if when.from.is_some() {
                answer.before =
                    Some(rules.iter().zip(&entry.states).map(|(rule, state)| rule.before(state)).collect());
            }
            entry.charge(part, at, &mut answer.marks);
        } else {
            answer.levels = entry.levels(part, now);
            for (((rule, state), cost), level) in
                rules.iter().zip(&entry.states).zip(part.costs).zip(&mut answer.levels)
            {
                if *cost > 0 {
                    let fits = rule.earliest(state, from, *cost);
                    level.wait_us = if fits == NEVER { NEVER } else { fits.saturating_sub(now) };
                }
            }
        }
        answer
    });
    let parts = answers.collect();
    Answer { now, at, outcome: if granted { Outcome::Granted } else { Outcome::Refused }, parts }
}

/// The answer of a paused key, or none if the call may be asked about: no key is paused, or it is the probe.
fn paused(parts: &[Part<'_>], entries: &[&mut Entry], now: u64) -> Option<Answer> {
    let holding = |entry: &&mut Entry| entry.pause.as_deref().copied().filter(|pause| now < pause.until);
    let until = entries.iter().filter_map(holding).map(|pause| pause.until).max()?;
    let ask_again = entries.iter().filter_map(holding).map(|pause| pause.probe_at.min(pause.until)).max()?;
    if ask_again <= now {
        return None;
    }
    // From the end of the pause on: budgets last booked before it are used up then.
    let states = parts.iter().zip(entries.iter()).map(|(part, entry)| entry.states_from(part, until));
    let states = states.collect::<SmallVec<[SmallVec<[State; 3]>; 1]>>();
    let asked = parts.iter().zip(&states).flat_map(|(part, states)| {
        let rules = part.rules.of(part.margin).iter();
        let timed = rules.zip(states).zip(part.costs).filter(|((rule, _), _)| !rule.is_seats());
        timed.map(|((rule, state), cost)| (rule, state, *cost))
    });
    let (Joint::Agreed(at) | Joint::NotBefore(at)) = joint_earliest(asked, until);
    let answers = parts.iter().zip(entries.iter()).map(|(part, entry)| {
        let mut levels = entry.levels(part, now);
        for level in &mut levels {
            level.wait_us = at - now;
        }
        PartAnswer { ticket: entry.ticket(), levels, ..PartAnswer::default() }
    });
    Some(Answer { now, at, outcome: Outcome::Paused { ask_again }, parts: answers.collect() })
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

    fn try_now(&self, part: &Part<'_>, grant: &mut Grant) -> bool {
        self.with_entry(part, |entry, now| {
            if entry.pause.as_ref().is_some_and(|pause| pause.holds(now).is_some()) {
                return false;
            }
            entry.refresh(part, now);
            let rules = part.rules.of(part.margin);
            let mut asked = rules.iter().zip(&entry.states).zip(part.costs).filter(|(_, cost)| **cost > 0);
            if !asked.all(|((rule, state), cost)| rule.earliest(state, now, *cost) == now) {
                return false;
            }
            (grant.now, grant.ticket) = (now, entry.ticket());
            entry.charge(part, now, &mut grant.marks);
            true
        })
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
                if charge.costs[i] > 0 {
                    let before = before.and_then(|before| before[i].as_ref());
                    rule.take_back(state, charge.slot, charge.costs[i], before);
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

    fn settle(&self, charge: Charge<'_>, index: usize, used: u64, mark: Mark) {
        self.by_ticket(charge.ticket, |entry| {
            let now = clock::now_us();
            let label = &charge.rules.labels.limits[index];
            // Under rules that came later, only a limit that is still there.
            let rules = entry.rules.clone();
            let same = rules
                .labels
                .limits
                .iter()
                .position(|other| other.name == label.name && other.unit == label.unit);
            if let Some(i) = same {
                let booked = Used { slot: charge.slot, charged: charge.costs[index], used, mark };
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

impl Entry {
    /// Frees the seats that a charge took.
    fn free_seats(&mut self, charge: &Charge<'_>) {
        for (label, cost) in charge.rules.labels.limits.iter().zip(charge.costs) {
            let same = self.rules.labels.limits.iter().position(|other| other.name == label.name);
            if let Some(State::Seats(seats)) = same.and_then(|i| self.states.get_mut(i)) {
                seats.in_use = seats.in_use.saturating_sub(*cost);
            }
        }
    }

    /// Ends a permit.
    fn release(&mut self, charge: &Charge<'_>) {
        self.free_seats(charge);
        if charge.rules.rides {
            self.permits = self.permits.saturating_sub(1);
        }
    }
}

/// The policy names in use in this process. Two limiters of one name that do not share a store let each
/// number through twice, which looks exactly like a limiter that works.
mod names {
    use std::collections::HashMap;
    use std::sync::LazyLock;

    use parking_lot::Mutex;

    #[derive(Default)]
    struct InUse {
        /// The store of each limiter.
        stores: Vec<usize>,
        warned: bool,
    }

    static NAMES: LazyLock<Mutex<HashMap<Box<str>, InUse>>> = LazyLock::new(Mutex::default);

    pub(super) fn open(policy: &str, store: usize) {
        let mut names = NAMES.lock();
        let in_use = names.entry(policy.into()).or_default();
        let apart = in_use.stores.iter().any(|other| *other != store);
        in_use.stores.push(store);
        if apart && !std::mem::replace(&mut in_use.warned, true) {
            drop(names);
            tracing::warn!(
                policy,
                "two limiters of one policy name with stores of their own: each lets its whole budget through"
            );
        }
    }

    pub(super) fn leave(policy: &str, store: usize) {
        let mut names = NAMES.lock();
        let Some(in_use) = names.get_mut(policy) else { return };
        if let Some(i) = in_use.stores.iter().position(|other| *other == store) {
            in_use.stores.swap_remove(i);
        }
        if in_use.stores.is_empty() {
            names.remove(policy);
        }
    }
}
