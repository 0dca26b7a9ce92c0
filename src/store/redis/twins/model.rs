//! What the scripts do, written plainly in Rust on the algorithms of this crate.
//!
//! The other half of each twin: keeps keys in maps, decides with `Rule`, and knows nothing of Lua. Of seats it knows
//! one process, which loses nothing; the fleet's seats have a walk of their own.

mod decide;
mod heal;
mod seats;

use std::collections::HashMap;
use std::rc::Rc;

use decide::{decide, forced};
use heal::{heal, heal_pause, is_taken_for_another};
use seats::Seats;
use smallvec::SmallVec;

use crate::algorithm::{NEVER, Rule, State, Used};
use crate::limit::{MAX_EXACT, Margin};
use crate::store::redis::names::Names;
use crate::store::redis::wire::*;

/// How long keys are kept longer when a test passes the clock.
pub(super) const LATE_MS: u64 = 3_600_000;

/// What a key holds.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) rules: [Rule; 2],
    pub(super) state: State,
    version: u64,
    pub(super) expiry: Rc<Expiry>,
}

/// When a key was last told how long to live, and the state that it had then.
#[derive(Debug)]
pub(super) struct Expiry {
    now: u64,
    rules: [Rule; 2],
    state: State,
}

impl Expiry {
    /// For how long, in milliseconds.
    pub(super) fn px(&self) -> u64 {
        let fresh_at = fresh_at([&self.rules[0], &self.rules[1]], &self.state);
        fresh_at.saturating_sub(self.now).div_ceil(1_000).max(1) + LATE_MS
    }
}

#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) limits: HashMap<String, Kept>,
    pub(super) pauses: HashMap<String, (Paused, u64)>,
    seats: HashMap<String, Seats>,
}

/// One limit while a trip lasts.
struct Open<'a> {
    /// The rule, and that of a reader with the default margin.
    rules: [&'a Rule; 2],
    name: &'a str,
    state: State,
    version: u64,
    dirty: bool,
    report: SeatReport,
    /// Seats that the stopped caller misses, and whether callers found all they wanted.
    need: u64,
    satisfied: bool,
}

impl Open<'_> {
    fn rule(&self) -> &Rule {
        self.rules[0]
    }
}

/// The first instant at which nobody can tell the state from a fresh one.
fn fresh_at(rules: [&Rule; 2], state: &State) -> u64 {
    let is_fresh = |at| rules.iter().all(|rule| rule.is_fresh(state, at));
    if is_fresh(0) {
        return 0;
    }
    let (mut low, mut high) = (0, 1_u64 << 53);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if is_fresh(middle) { high = middle } else { low = middle }
    }
    high
}

fn next_version(version: u64, now: u64) -> u64 {
    if version == 0 {
        now % (1 << 24) * 65_536 + 1
    } else {
        version / 65_536 * 65_536 + (version + 1) % 65_536
    }
}

/// Whether a state of `old` is read by `new` as it is.
fn is_same(new: &Rule, old: &Rule) -> bool {
    let (numbers, of_old) = (new.numbers(new), old.numbers(old));
    let same = |i: usize| numbers[i] == of_old[i];
    new.letter() == old.letter() && (new.letter() != b'w' || (same(1) && same(2) && same(4)))
}

fn holds(pause: &Paused, now: u64) -> bool {
    now < pause.until
}

fn drained_by(pause: &Paused, now: u64, budget_us: u64) -> u64 {
    match pause {
        pause if now >= pause.until.max(pause.drained) + budget_us => 0,
        pause if pause.until <= now => pause.drained.max(pause.until),
        pause => pause.drained,
    }
}

fn pause_px(pause: &Paused, now: u64, budget_us: u64) -> u64 {
    (pause.until.max(pause.drained) + budget_us).saturating_sub(now).div_ceil(1_000)
}

fn snapshot(rule: &Rule, state: &State, now: u64) -> Snapshot {
    match state {
        State::SlidingLog(_) => Snapshot::Log { used: rule.used(state, now), tail: state.tail() },
        state => Snapshot::Whole(state.clone()),
    }
}

impl Model {
    fn pause(&self, names: &Names) -> Paused {
        self.pauses.get(&names.pause).map(|(pause, _)| *pause).unwrap_or_default()
    }

    fn keep_pause(&mut self, names: &Names, pause: Paused, px: u64) {
        self.pauses.insert(names.pause.clone(), (pause, px));
    }

    fn find<'a>(&self, rules: [&'a Rule; 2], name: &'a str, now: u64) -> Open<'a> {
        let rule = rules[0];
        let mut open = Open {
            rules,
            name,
            state: rule.fresh(),
            version: 0,
            dirty: false,
            report: SeatReport::default(),
            need: 0,
            satisfied: false,
        };
        if let Some(kept) = self.limits.get(name) {
            let old = &kept.rules[0];
            open.state = rule.adopt(old, kept.state.clone(), now);
            open.dirty =
                if is_same(rule, old) { open.state != kept.state } else { open.state != rule.fresh() };
            open.version = kept.version;
        }
        open
    }

    fn save(&mut self, open: &Open<'_>, now: u64) {
        let expiry = Expiry { now, rules: open.rules.map(Clone::clone), state: open.state.clone() };
        self.keep(open, now, Rc::new(expiry));
    }

    fn keep(&mut self, open: &Open<'_>, now: u64, expiry: Rc<Expiry>) {
        let kept = Kept {
            rules: open.rules.map(Clone::clone),
            state: open.state.clone(),
            version: next_version(open.version, now),
            expiry,
        };
        self.limits.insert(open.name.to_owned(), kept);
    }

    /// One trip.
    pub(super) fn trip(&mut self, trip: &Trip<'_>) -> Reply {
        let now = trip.now.expect("the walks pass the clock");
        let mut open = Vec::new();
        let mut parts = Vec::new();
        let (mut pauses, mut dirty_pauses) = (Vec::new(), Vec::new());
        for part in trip.parts {
            let budget_us = part.rules.budget_us();
            let mut pause = self.pause(part.names);
            let mut dirty = false;
            if let Some(seen) = part.seen {
                dirty = heal_pause(&mut pause, &seen.pause, now, budget_us);
            }
            let mut read = ReplyPart {
                pause,
                states: SmallVec::new(),
                seats: SmallVec::new(),
                versions: SmallVec::new(),
                numbers: part.fingerprint(),
            };
            let drained = drained_by(&pause, now, budget_us);
            let seen = part.seen.filter(|seen| {
                seen.numbers == part.fingerprint() && seen.pause.generation >= pause.generation
            });
            let mut reports = part.seats.iter().copied();
            let wides = part.rules.of(Margin::Default);
            for (i, (rule, wide)) in part.rules.of(part.margin).iter().zip(wides).enumerate() {
                let name = &part.names.limits[i];
                let mut limit = self.find([rule, wide], name, now);
                if rule.is_seats() {
                    limit.report = reports.next().unwrap_or_default();
                    limit.state = rule.state_of(&[self.report(name, &limit.report, trip)]).unwrap();
                } else {
                    if let Some(seen) = seen.filter(|seen| seen.versions[i] > 0) {
                        heal(&mut limit, &seen.states[i], seen.versions[i], now);
                    }
                    limit.dirty |= is_taken_for_another(rule, &limit.state, now, drained);
                    rule.read(&mut limit.state, now, drained);
                    for fate in part.fates {
                        let (state, slot, units) = (&mut limit.state, fate.slot, fate.costs[i]);
                        limit.dirty |= match fate.answered_ago_us {
                            Some(ago_us) => rule.arrived(state, slot, units, now.saturating_sub(ago_us)),
                            None => rule.uncharge(state, slot, units),
                        };
                    }
                }
                read.versions.push(limit.version);
                read.states.push(snapshot(rule, &limit.state, now));
                open.push(limit);
            }
            parts.push(read);
            pauses.push(pause);
            dirty_pauses.push(dirty);
        }
        let (slots, ended) = if trip.forced {
            (forced(&mut open, trip.callers, now), Ended::All)
        } else {
            let paused = decide(&mut open, &mut pauses, trip.callers, now);
            for (i, dirty) in dirty_pauses.iter_mut().enumerate() {
                *dirty |= pauses[i] != parts[i].pause;
            }
            paused
        };
        for (i, part) in trip.parts.iter().enumerate().filter(|(i, _)| dirty_pauses[*i]) {
            let px = pause_px(&pauses[i], now, part.rules.budget_us()).max(LATE_MS);
            self.keep_pause(part.names, pauses[i], px);
        }
        for limit in open.iter().filter(|limit| limit.dirty && !limit.rule().is_seats()) {
            self.save(limit, now);
        }
        let mut limits = open.into_iter();
        for (read, part) in parts.iter_mut().zip(trip.parts) {
            for limit in limits.by_ref().take(part.rules.of(part.margin).len()) {
                if limit.rule().is_seats() {
                    read.seats.push(self.close(limit, trip, matches!(ended, Ended::Paused { .. })));
                }
            }
        }
        Reply { now, parts: parts.into_iter().collect(), slots, ended }
    }

    pub(super) fn settle(&mut self, settlement: &Settlement<'_>) -> i64 {
        let now = settlement.now.expect("the walks pass the clock");
        let [rule, wide] =
            [settlement.margin, Margin::Default].map(|margin| &settlement.rules.of(margin)[settlement.index]);
        let name = &settlement.names.limits[settlement.index];
        let kept = self.limits.get(name).cloned();
        if kept.as_ref().is_some_and(|kept| !is_same(rule, &kept.rules[0])) {
            return 0;
        }
        let mut open = self.find([rule, wide], name, now);
        if let Some(kept) = &kept {
            open.state = kept.state.clone();
        }
        let Settlement { slot, charged, used, mark, .. } = *settlement;
        if used == charged {
            return 0;
        }
        let before = open.state.clone();
        rule.settle(&mut open.state, now, Used { slot, charged, used, mark });
        if matches!(rule, Rule::SlidingLog(_)) && used < charged && open.state == before {
            return 0;
        }
        match kept {
            Some(kept) if used < charged => self.keep(&open, now, kept.expiry),
            _ => self.save(&open, now),
        }
        1
    }

    pub(super) fn give_back(&mut self, given: &GiveBack<'_>) -> i64 {
        let mut pause = self.pause(given.names);
        if self.pauses.contains_key(&given.names.pause) && pause.probed == given.slot {
            (pause.probed, pause.probe_at) = (0, given.slot);
            let px = self.pauses[&given.names.pause].1;
            self.keep_pause(given.names, pause, px);
        }
        let mut uncharged = 0;
        let rules = given.rules.of(given.margin).iter().zip(given.rules.of(Margin::Default));
        for (i, (rule, wide)) in rules.enumerate() {
            let (name, cost) = (&given.names.limits[i], given.costs[i]);
            let Some(kept) = self.limits.get(name).filter(|_| cost > 0 && !rule.is_seats()) else { continue };
            if kept.rules[0].letter() != rule.letter() {
                continue;
            }
            let (expiry, mut state, version) = (kept.expiry.clone(), kept.state.clone(), kept.version);
            let last = match (&given.after[i], &given.before[i]) {
                (Snapshot::Whole(after), Snapshot::Whole(before)) => {
                    let last = state == *after;
                    if last {
                        state = before.clone();
                    }
                    last
                }
                _ => {
                    let before = state.clone();
                    rule.take_back(&mut state, given.slot, cost, None);
                    state != before
                }
            };
            if last {
                let mut open = self.find([rule, wide], name, 0);
                (open.state, open.version) = (state, version);
                self.keep(&open, 0, expiry);
                uncharged += 1;
            }
        }
        uncharged
    }

    pub(super) fn change(&mut self, change: &Change<'_>) -> i64 {
        let now = change.now.expect("the walks pass the clock");
        let budget_us = change.rules.budget_us();
        let mut pause = self.pause(change.names);
        if now >= pause.until.max(pause.drained) + budget_us {
            pause = Paused { generation: pause.generation, ..Paused::default() };
        }
        let at_least = |pause: &Paused, ms: u64| pause_px(pause, now, budget_us).max(ms);
        match change.what {
            What::Pause { for_us, probe_every_us } => {
                let until = now.saturating_add(for_us).min(MAX_EXACT);
                let operators = pause.probe_every == NEVER && holds(&pause, now);
                let held = if operators { pause.until } else { 0 };
                if until > pause.until {
                    let drained = drained_by(&pause, now, budget_us);
                    let probe_at = now.saturating_add(probe_every_us).max(held);
                    let generation = pause.generation;
                    pause = Paused {
                        until,
                        probe_at,
                        probe_every: probe_every_us,
                        probed: 0,
                        drained,
                        generation,
                    };
                } else if probe_every_us == NEVER && until > pause.probe_at {
                    pause.probe_at = until;
                } else {
                    return 0;
                }
                if for_us == 0 {
                    pause.drained = pause.drained.max(now);
                    self.drain(change, now);
                }
                let px = at_least(&pause, LATE_MS);
                self.keep_pause(change.names, pause, px);
            }
            What::Drain | What::Throttled { .. } => {
                pause.drained = pause.drained.max(now);
                self.drain(change, now);
                let px = at_least(&pause, LATE_MS);
                self.keep_pause(change.names, pause, px);
            }
            What::Resume | What::Answered { .. } => {
                let (probed, is_operator) = match change.what {
                    What::Answered { sent_ago_us } => {
                        (pause.probed > 0 && now.saturating_sub(sent_ago_us) >= pause.probed, false)
                    }
                    _ => (true, true),
                };
                let ends = holds(&pause, now) && probed;
                if !ends && !is_operator {
                    return 0;
                }
                if ends {
                    pause.until = now;
                    pause.drained = pause.drained.max(now);
                    self.drain(change, now);
                }
                pause.generation = now.max(pause.generation + 1);
                let kept = self.pauses.get(&change.names.pause).map_or(0, |(_, px)| *px);
                let remembered = (budget_us + 3_600_000_000).div_ceil(1_000) + LATE_MS;
                let px = at_least(&pause, kept.max(remembered));
                self.keep_pause(change.names, pause, px);
            }
        }
        1
    }

    fn drain(&mut self, change: &Change<'_>, now: u64) {
        let rules = change.rules.of(change.margin).iter().zip(change.rules.of(Margin::Default));
        for (i, (rule, wide)) in rules.enumerate().filter(|(_, (rule, _))| !rule.is_seats()) {
            let mut open = self.find([rule, wide], &change.names.limits[i], now);
            let mut sent = None;
            for call in change.declined {
                let (slot, units) = (call.slot, call.costs[i]);
                open.dirty |= rule.declined(&mut open.state, now, slot, units);
                sent = sent.max((units > 0).then_some(slot));
            }
            if let (Rule::SlidingLog(_) | Rule::Window(_), What::Throttled { sent_ago_us, wait_us }) =
                (rule, change.what)
            {
                let sent = sent.unwrap_or(now.saturating_sub(sent_ago_us));
                rule.refused(&mut open.state, now, sent, wait_us);
                open.dirty = true;
            } else if open.state.tail() == now {
                open.state = rule.drained(&open.state, now);
                open.dirty = true;
            }
            if open.dirty {
                self.save(&open, now);
            }
        }
    }
}
