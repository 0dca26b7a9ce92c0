//! The store of one process: what is decided and changed under a key. Every method is one atomic step.
//!
//! Everything that a decision reads and writes is touched in one step: all limits of a policy, or of a whole
//! chain of policies, or nothing; a refusal writes nothing. A decision takes one lock for one policy, and for a
//! chain the locks of all its keys, in order.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::entry::{Entry, Pause, decide};
#[cfg(feature = "governor")]
use super::governor::Cells;
use super::keys::Keys;
use super::{Answer, Charge, Forecast, Grant, Part, PauseAsk, Space, Standing, When, names};
use crate::algorithm::{AHEAD_US, Mark, NEVER, State, Used};
use crate::clock;
use crate::limit::MAX_EXACT;
use crate::policy::{ConfigError, Policy};

#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(super) keys: Keys,
    spaces: Mutex<HashMap<Box<str>, Space>>,
    /// Those of a limiter of governor's, which has to agree to each call.
    #[cfg(feature = "governor")]
    cells: Option<Cells>,
}

impl Table {
    /// One of whose calls governor has to agree to each.
    #[cfg(feature = "governor")]
    pub(super) fn beside(cells: Cells) -> Self {
        Self { cells: Some(cells), ..Self::default() }
    }

    /// One to which all keys look alike.
    #[cfg(test)]
    pub(crate) fn of_one_hash() -> Self {
        Self { keys: Keys::all_alike(), ..Self::default() }
    }

    /// The space of the policies of this name.
    pub(crate) fn open(&self, policy: &str) -> Space {
        let mut spaces = self.spaces.lock();
        let next = Space(spaces.len() as u32);
        let space = *spaces.entry(policy.into()).or_insert(next);
        drop(spaces);
        names::open(policy, std::ptr::from_ref(self).addr());
        space
    }

    /// Gives a space back: the limiter that opened it is gone.
    pub(crate) fn leave(&self, space: Space) {
        let spaces = self.spaces.lock();
        if let Some((name, _)) = spaces.iter().find(|(_, opened)| **opened == space) {
            names::leave(name, std::ptr::from_ref(self).addr());
        }
    }

    /// Bounds the keys kept, where no bound was stated.
    pub(crate) fn bound_keys(&self, keys: usize) {
        self.keys.bound(keys);
    }

    /// A number that is the same for the same key, and nearly always another for another key.
    pub(crate) fn hash(&self, part: &Part<'_>) -> u64 {
        self.keys.hash(part)
    }

    /// Whether it can decide over these limits.
    pub(crate) fn check(&self, _policy: &Policy) -> Result<(), ConfigError> {
        #[cfg(feature = "governor")]
        if let Some(cells) = &self.cells {
            return cells.check(_policy);
        }
        Ok(())
    }

    /// How far ahead of now it books a slot.
    pub(crate) fn ahead_us(&self) -> u64 {
        #[cfg(feature = "governor")]
        if self.cells.is_some() {
            return 0;
        }
        AHEAD_US
    }

    /// Grants one part at now, fills in `grant` and says so, or writes nothing: the way of every call
    /// that does not wait. Now is the instant given, or else the clock's. `None` for a key that is new, or new to the
    /// part's rules: [`try_new`](Self::try_new) knows.
    #[inline(always)]
    pub(crate) fn try_known(&self, part: &Part<'_>, at: Option<u64>, grant: &mut Grant) -> Option<bool> {
        let granted = self.keys.if_known(part, at, |entry, now| entry.try_now(part, now, at, grant))?;
        Some(granted && self.agrees(part, grant))
    }

    /// [`try_known`](Self::try_known) for any key.
    #[cold]
    #[inline(never)]
    pub(crate) fn try_new(&self, part: &Part<'_>, at: Option<u64>, grant: &mut Grant) -> bool {
        let try_now = |entry: &mut Entry, now| entry.try_now(part, at.unwrap_or(now), at, grant);
        self.keys.with_entry(part, try_now) && self.agrees(part, grant)
    }

    /// Whether governor agrees to what was granted, where it has to; else all is taken back.
    #[inline(always)]
    fn agrees(&self, _part: &Part<'_>, _grant: &Grant) -> bool {
        #[cfg(feature = "governor")]
        if let Some(cells) = &self.cells {
            return cells.take_now(self, _part, _grant);
        }
        true
    }

    /// Decides over all parts: charges all at one instant, or writes nothing.
    pub(crate) fn decide(&self, parts: &[Part<'_>], when: When) -> Answer {
        #[cfg(feature = "governor")]
        if let Some(cells) = &self.cells {
            return cells.take_all(self, parts, self.decide_here(parts, When::NOW));
        }
        self.decide_here(parts, when)
    }

    /// Charges whatever the state: for what was already sent.
    #[cfg_attr(not(feature = "client"), allow(dead_code, reason = "only the client's side asks for it"))]
    pub(crate) fn charge(&self, part: Part<'_>) {
        #[cfg(feature = "governor")]
        if let Some(cells) = &self.cells {
            // As much of it as governor takes.
            _ = cells.take(part.key);
        }
        self.keys.with_entry(&part, |entry, now| {
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

    /// Takes a booking back if it is still the last one, and its seats and its turn as a probe in any case.
    pub(crate) fn take_back(&self, charge: Charge<'_>, before: Option<&[Option<State>]>) {
        self.keys.by_ticket(charge.ticket, |entry| {
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
            entry.unprobe(charge.slot);
            if charge.rules.rides {
                entry.permits -= 1;
            }
        });
    }

    /// Gives back its turn as the probe of a pause alone.
    pub(crate) fn unprobe(&self, charge: Charge<'_>) {
        self.keys.by_ticket(charge.ticket, |entry| entry.unprobe(charge.slot));
    }

    /// Gives back the seats of a permit that stays: they cost 0 from then on.
    #[cfg_attr(not(feature = "client"), allow(dead_code, reason = "only the client's side asks for it"))]
    pub(crate) fn free_seats(&self, charge: Charge<'_>) {
        self.keys.by_ticket(charge.ticket, |entry| entry.free_seats(&charge));
    }

    /// Gives back what rides on a permit that goes: its seats, and that its key has to be kept for it.
    pub(crate) fn release(&self, charge: Charge<'_>) {
        self.keys.by_ticket(charge.ticket, |entry| entry.release(&charge));
    }

    /// A call was answered at that instant: it had arrived by then.
    #[cfg_attr(not(feature = "client"), allow(dead_code, reason = "only the client's side hears answers"))]
    pub(crate) fn arrived(&self, charge: Charge<'_>, by: u64) {
        self.keys.by_ticket(charge.ticket, |entry| {
            if Arc::ptr_eq(&entry.rules, charge.rules) {
                let rules = charge.rules.of(charge.margin).iter().zip(&mut entry.states).enumerate();
                for ((i, (rule, state)), charged) in rules.zip(charge.charges) {
                    if charge.arrives(i) {
                        rule.arrived(state, charge.slot, charged.cost(), by);
                    }
                }
            }
        });
    }

    /// The service refused the call: where it counts by a log, it counts none of it.
    #[cfg_attr(not(feature = "client"), allow(dead_code, reason = "only the client's side hears answers"))]
    pub(crate) fn declined(&self, charge: Charge<'_>) {
        self.keys.by_ticket(charge.ticket, |entry| {
            if Arc::ptr_eq(&entry.rules, charge.rules) {
                let now = clock::now_us();
                let rules = charge.rules.of(charge.margin).iter().zip(&mut entry.states);
                for ((rule, state), charged) in rules.zip(charge.charges) {
                    if rule.declined(state, now, charge.slot, charged.cost()) {
                        charged.replace(0);
                    }
                }
            }
        });
    }

    /// Corrects the charge under the limit at `index` to what was really used. In one step with the state, so
    /// that of two corrections the second starts from the first.
    pub(crate) fn settle(&self, charge: Charge<'_>, index: usize, used: u64) {
        self.keys.by_ticket(charge.ticket, |entry| {
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

    /// Holds a key, or holds it longer; never shorter.
    pub(crate) fn pause(&self, part: Part<'_>, ask: PauseAsk) {
        self.keys.with_entry(&part, |entry, now| {
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

    /// The service refused a call that was `sent` then, and asks for a wait of at most a second: nothing stays saved up.
    pub(crate) fn refused(&self, part: Part<'_>, sent: u64, wait_us: u64) {
        self.keys.with_entry(&part, |entry, now| entry.refused(&part, now, sent, wait_us));
    }

    /// Ends a pause; for a call that was `answered` well, sent at that instant, only if it is the pause's probe.
    pub(crate) fn resume(&self, part: Part<'_>, answered: Option<u64>) {
        self.keys.read(&part, |entry, now| {
            let Some(entry) = entry else { return };
            let Some(pause) = &mut entry.pause else { return };
            let probed = answered.is_none_or(|sent| pause.probed > 0 && sent >= pause.probed);
            if pause.holds(now).is_some() && probed {
                (pause.until, pause.drained) = (now, now);
                entry.drain(&part, now);
            }
        });
    }

    pub(crate) fn is_paused(&self, part: Part<'_>) -> bool {
        self.keys.read(&part, |entry, now| {
            entry.is_some_and(|entry| entry.pause.as_ref().is_some_and(|pause| pause.holds(now).is_some()))
        })
    }

    /// How a key stands.
    pub(crate) fn peek(&self, part: Part<'_>) -> Standing {
        self.keys.read(&part, |entry, now| match entry {
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

    /// What waiting callers will find.
    pub(crate) fn forecast(&self, part: Part<'_>) -> Forecast {
        self.keys.read(&part, |entry, now| match entry {
            Some(entry) => {
                let from = entry.pause.as_ref().and_then(|pause| pause.holds(now)).unwrap_or(now);
                Forecast { now, from, states: entry.states_from(&part, from) }
            }
            None => Forecast { now, from: now, states: part.rules.fresh().into_iter().collect() },
        })
    }

    fn decide_here(&self, parts: &[Part<'_>], when: When) -> Answer {
        match parts {
            [part] => self.keys.with_entry(part, |entry, now| decide(parts, &mut [entry], now, when)),
            _ => self.keys.with_entries(parts, |entries, now| decide(parts, entries, now, when)),
        }
    }
}
