//! One key of the in-process store: its states, its pause, and the decision over them.
//!
//! Everything here happens under the lock of the entry's shard, at an instant that was read under it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Answer, Charge, Charged, Grant, Outcome, Part, PartAnswer, Space, Ticket, When};
use crate::algorithm::{Joint, Mark, NEVER, Rule, Rules, State, joint_earliest};
use crate::decision::{Label, Level};

/// One key of one policy.
#[derive(Debug)]
pub(super) struct Entry {
    /// `None` for the overflow key.
    pub(super) key: Option<Box<str>>,
    pub(super) space: Space,
    pub(super) ticket: Ticket,
    /// The rules under which the states were written.
    pub(super) rules: Arc<Rules>,
    pub(super) states: SmallVec<[State; 1]>,
    pub(super) pause: Option<Box<Pause>>,
    /// Permits out on which something rides.
    pub(super) permits: u32,
    pub(super) gone: Option<Box<GoneSeats>>,
}

/// Seats that are out under limits that the policy has no more, by the limit's name and unit. Should one come
/// back, they count.
#[derive(Debug, Default)]
pub(super) struct GoneSeats(Vec<(Label, u64)>);

/// The key's last pause. It outlives its end by one budget, for until then the drain can be told.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Pause {
    pub(super) until: u64,
    /// When one call may go although the pause is not over, how long after it the next one may, and when
    /// the last one went: 0 if none did.
    pub(super) probe_at: u64,
    pub(super) probe_every: u64,
    pub(super) probed: u64,
    /// The end of the pause before, if it has come: the budgets were empty then.
    pub(super) drained: u64,
}

impl Pause {
    /// The end of the pause, while it lasts.
    pub(super) fn holds(&self, now: u64) -> Option<u64> {
        (now < self.until).then_some(self.until)
    }

    /// The last instant, up to `now`, at which the budgets count as used up.
    pub(super) fn drained_by(&self, now: u64) -> u64 {
        if self.until <= now { self.drained.max(self.until) } else { self.drained }
    }

    /// Whether neither the pause nor its drain can be told any more.
    pub(super) fn is_over(&self, now: u64, budget_us: u64) -> bool {
        now >= self.until.max(self.drained).saturating_add(budget_us)
    }
}

impl Entry {
    /// Whether it is this key's; the overflow key's is `None`.
    #[inline]
    pub(super) fn is(&self, space: Space, key: Option<&str>) -> bool {
        self.space == space && self.key.as_deref() == key
    }

    pub(super) fn adopt(&mut self, rules: &Arc<Rules>, now: u64) {
        if Arc::ptr_eq(&self.rules, rules) {
            return;
        }
        let states = rules.adopt(&self.rules, &self.states, now);
        let old = std::mem::replace(&mut self.rules, rules.clone());
        let former = std::mem::replace(&mut self.states, states);
        for (label, state) in old.labels.limits.iter().zip(former) {
            if let State::Seats(seats) = state
                && seats.in_use > 0
                && self.seats_of(label).is_none()
            {
                self.gone.get_or_insert_default().0.push((label.clone(), seats.in_use));
            }
        }
        let Some(gone) = &mut self.gone else { return };
        for (label, state) in rules.labels.limits.iter().zip(&mut self.states) {
            if let State::Seats(seats) = state
                && let Some(i) = gone.0.iter().position(|(former, _)| former.is_same(label))
            {
                seats.in_use += gone.0.swap_remove(i).1;
            }
        }
        self.gone.take_if(|gone| gone.0.is_empty());
    }

    /// The seats that are in use under the limit of this name and unit, if the policy has it as one of seats.
    fn seats_of(&mut self, label: &Label) -> Option<&mut u64> {
        let i = self.rules.labels.limits.iter().position(|other| other.is_same(label))?;
        match &mut self.states[i] {
            State::Seats(seats) => Some(&mut seats.in_use),
            _ => None,
        }
    }

    /// Whether something was booked after `at`, an instant that was given. To a stamp from long before the last
    /// booking that would be a clock that was set back, and the budget would count as used up then, and as
    /// saved up by now.
    fn is_booked_after(&self, at: Option<u64>) -> bool {
        at.is_some_and(|at| self.states.iter().any(|state| state.tail() > at))
    }

    pub(super) fn is_fresh(&self, now: u64) -> bool {
        let rules = self.rules.of(crate::limit::Margin::Default);
        self.permits == 0
            && self.pause.as_ref().is_none_or(|pause| pause.is_over(now, self.rules.budget_us()))
            && rules.iter().zip(&self.states).all(|(rule, state)| rule.is_fresh(state, now))
    }

    /// The last instant, up to `now`, at which the budgets count as used up; forgets a pause that is over.
    fn drained_by(&mut self, now: u64) -> u64 {
        match &self.pause {
            Some(pause) if pause.is_over(now, self.rules.budget_us()) => {
                self.pause = None;
                0
            }
            Some(pause) => pause.drained_by(now),
            None => 0,
        }
    }

    /// The states as a reader at `now` must take them.
    pub(super) fn refresh(&mut self, part: &Part<'_>, now: u64) {
        let drained = self.drained_by(now);
        for (rule, state) in part.rules.of(part.margin).iter().zip(&mut self.states) {
            rule.read(state, now, drained);
        }
    }

    /// Charges what a part asks for at `at`, and tells each limit's mark.
    fn charge(&mut self, part: &Part<'_>, at: u64, mut told: impl FnMut(Mark)) {
        for ((rule, state), cost) in part.rules.of(part.margin).iter().zip(&mut self.states).zip(part.costs) {
            told(rule.commit_or_mark(state, at, *cost));
        }
        if part.rules.rides {
            self.permits += 1;
        }
    }

    /// Charges what a part asks for at `now` and fills in its grant, or nothing; `at` is now where it was given.
    #[inline(always)]
    pub(super) fn try_now(&mut self, part: &Part<'_>, now: u64, at: Option<u64>, grant: &mut Grant) -> bool {
        (grant.now, grant.ticket) = (now, self.ticket);
        // One bucket and no pause, as in most calls: the same as the other way, without its branches.
        let rules = part.rules.of(part.margin);
        if let ([Rule::Gcra(rule)], [State::Gcra(state)], &[cost]) = (rules, &mut *self.states, part.costs)
            && cost > 0
            && self.pause.is_none()
            && let Some(mark) = rule.offer(state, now, cost)
        {
            rule.take(state, now, mark);
            grant.fill(Charged::new(cost, mark));
            self.permits += u32::from(part.rules.rides);
            return true;
        }
        !self.is_booked_after(at) && self.try_all(rules, part.costs, now, grant)
    }

    #[inline(never)]
    fn try_all(&mut self, rules: &[Rule], costs: &[u64], now: u64, grant: &mut Grant) -> bool {
        let drained = match &self.pause {
            None => 0,
            Some(pause) if pause.holds(now).is_some() => return false,
            Some(_) => self.drained_by(now),
        };
        let charges = grant.charges_of(costs.len());
        let states = &mut *self.states;
        for (((rule, state), cost), charged) in rules.iter().zip(&mut *states).zip(costs).zip(&mut *charges) {
            let Some(offered) = rule.offer(state, now, drained, *cost) else { return false };
            *charged = Charged::new(*cost, offered);
        }
        for ((rule, state), charged) in rules.iter().zip(states).zip(charges) {
            charged.mark = rule.take(state, now, charged.cost(), charged.mark);
        }
        self.permits += u32::from(self.rules.rides);
        true
    }

    /// Empties all that is not booked ahead, as of now.
    pub(super) fn drain(&mut self, part: &Part<'_>, now: u64) {
        for (rule, state) in part.rules.of(part.margin).iter().zip(&mut self.states) {
            if state.tail() <= now && !rule.is_seats() {
                *state = rule.drained(state, now);
            }
        }
    }

    /// A call that was `sent` then was refused, to come again after `wait_us`.
    pub(super) fn refused(&mut self, part: &Part<'_>, now: u64, sent: u64, wait_us: u64) {
        for (rule, state) in part.rules.of(part.margin).iter().zip(&mut self.states) {
            rule.refused(state, now, sent, wait_us);
        }
    }

    pub(super) fn levels(&self, part: &Part<'_>, now: u64) -> SmallVec<[Level; 3]> {
        let rules = part.rules.of(part.margin);
        rules.iter().zip(&self.states).map(|(rule, state)| rule.level(state, now)).collect()
    }

    /// What a caller finds from `from` on.
    pub(super) fn states_from(&self, part: &Part<'_>, from: u64) -> SmallVec<[State; 3]> {
        let drained = self.pause.as_ref().map_or(0, |pause| pause.drained_by(from));
        let rules = part.rules.of(part.margin);
        let read = rules.iter().zip(&self.states).map(|(rule, state)| {
            let mut state = state.clone();
            rule.read(&mut state, from, drained);
            state
        });
        read.collect()
    }

    /// Frees the seats that a charge took.
    pub(super) fn free_seats(&mut self, charge: &Charge<'_>) {
        if !Arc::ptr_eq(&self.rules, charge.rules) || self.gone.is_some() {
            return self.free_former_seats(charge);
        }
        for (state, charged) in self.states.iter_mut().zip(charge.charges) {
            if let State::Seats(seats) = state {
                seats.in_use = seats.in_use.saturating_sub(charged.replace(0));
            }
        }
    }

    /// The same under rules that may have changed meanwhile.
    #[cold]
    fn free_former_seats(&mut self, charge: &Charge<'_>) {
        let rules = charge.rules.of(charge.margin).iter().enumerate();
        for (i, _) in rules.filter(|(_, rule)| rule.is_seats()) {
            let cost = charge.charges[i].replace(0);
            let label = &charge.rules.labels.limits[i];
            let gone = self.gone.as_mut();
            let gone = gone.and_then(|gone| gone.0.iter_mut().find(|(former, _)| former.is_same(label)));
            let in_use = match gone {
                Some((_, in_use)) => Some(in_use),
                None => self.seats_of(label),
            };
            if let Some(in_use) = in_use {
                *in_use = in_use.saturating_sub(cost);
            }
        }
    }

    /// The probe of that instant was not sent: the next call is it.
    pub(super) fn unprobe(&mut self, slot: u64) {
        if let Some(pause) = self.pause.as_mut().filter(|pause| pause.probed == slot) {
            (pause.probed, pause.probe_at) = (0, slot);
        }
    }

    /// Ends a permit.
    pub(super) fn release(&mut self, charge: &Charge<'_>) {
        self.free_seats(charge);
        if charge.rules.rides {
            self.permits = self.permits.saturating_sub(1);
        }
    }
}

/// The decision itself, over entries that are locked.
pub(super) fn decide(parts: &[Part<'_>], entries: &mut [&mut Entry], now: u64, when: When) -> Answer {
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
        let mut answer = PartAnswer { ticket: entry.ticket, ..PartAnswer::default() };
        let rules = part.rules.of(part.margin);
        if granted {
            if let Some(pause) = entry.pause.as_mut().filter(|pause| pause.holds(now).is_some()) {
                (pause.probed, pause.probe_at) = (at, at.saturating_add(pause.probe_every));
                answer.probes = true;
            }
            if when.from.is_some() {
                answer.before =
                    Some(rules.iter().zip(&entry.states).map(|(rule, state)| rule.before(state)).collect());
            }
            entry.charge(part, at, |mark| answer.marks.push(mark));
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
        let paused = holding(entry).is_some();
        for level in levels.iter_mut().filter(|_| paused) {
            // Whatever the budget holds, nothing may go.
            (level.wait_us, level.remaining) = (at - now, 0);
        }
        PartAnswer { ticket: entry.ticket, levels, paused, ..PartAnswer::default() }
    });
    Some(Answer { now, at, outcome: Outcome::Paused { ask_again }, parts: answers.collect() })
}
