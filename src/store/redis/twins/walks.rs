//! Random walks that a Redis and the model answer alike, in every field.
//!
//! A walk is a seed. Out of it come policies of one to three limits of all kinds, with other numbers and other kinds
//! that meet the same states; keys; trips over one or two of them; corrections, hand-backs, pauses and losses; and a
//! clock that stands, jumps, and is set back.

mod keys;

use std::time::Instant;

use fastrand::Rng;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redis::Value;

use super::model::Model;
use super::plan::{KEYS, Plan};
use super::*;
use crate::algorithm::{Mark, NEVER};
use crate::limit::Margin;

const STEPS: usize = 30;

/// What was charged in a trip, and what corrections need of it.
struct Booking {
    plan: usize,
    key: usize,
    margin: Margin,
    slot: u64,
    costs: Vec<u64>,
    marks: Vec<Mark>,
    before: Vec<Snapshot>,
    after: Vec<Snapshot>,
}

/// What the one process knows of its seats under one limit.
#[derive(Default, Clone)]
struct Chairs {
    name: String,
    report: SeatReport,
}

struct Walk<'a> {
    twin: &'a Twin,
    model: Model,
    rng: Rng,
    now: u64,
    worker: Worker,
    plans: Vec<Plan>,
    bookings: Vec<Booking>,
    seen: Vec<(usize, usize, ReplyPart)>,
    chairs: Vec<Chairs>,
    /// Deletes keys that equal fresh ones, in Redis only.
    tidies: bool,
    /// What happened, where someone wants to read it.
    told: Option<Vec<String>>,
}

fn note(told: &mut Option<Vec<String>>, line: impl FnOnce() -> String) {
    if let Some(told) = told {
        told.push(line());
    }
}

impl<'a> Walk<'a> {
    fn new(twin: &'a Twin, seed: u64, tidies: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut plans = vec![Plan::some(&mut rng, "walk")];
        while !tidies && plans.len() < 3 {
            let changed = plans[0].changed(&mut rng, "walk");
            plans.extend(changed);
        }
        twin.ask("FLUSHALL SYNC");
        Self {
            twin,
            model: Model::default(),
            rng,
            now: START,
            worker: worker("walker"),
            plans,
            bookings: Vec::new(),
            seen: Vec::new(),
            chairs: Vec::new(),
            tidies,
            told: None,
        }
    }

    fn plan(&mut self) -> usize {
        if self.rng.u8(0..4) > 0 { 0 } else { self.rng.usize(0..self.plans.len()) }
    }

    fn margin(&mut self) -> Margin {
        if self.rng.u8(0..3) == 0 { Margin::None } else { Margin::Default }
    }

    fn time_passes(&mut self) {
        let rate = self.plans[0].limits.iter().filter_map(|limit| limit.kind.rate()).next();
        let period_us = rate.map_or(1_000_000, |rate| rate.period().as_micros() as u64);
        let step = match self.rng.u8(0..16) {
            0..=4 => 0,
            5 => 1,
            6..=8 => self.rng.u64(0..=period_us / 2),
            9 | 10 => self.rng.u64(0..=2 * period_us),
            11 => period_us,
            12 => self.rng.u64(0..=1_100_000),
            13 => 366 * 86_400_000_000 * u64::from(self.rng.u8(0..8) == 0),
            14 if !self.tidies => {
                let back = self.rng.choice([1, period_us / 2, 500_000, 1_000_001, 3_600_000_000]).unwrap();
                self.now = self.now.saturating_sub(back).max(START / 2);
                0
            }
            _ => self.rng.u64(0..=20 * period_us),
        };
        self.now += step;
    }

    fn reports(&self, plan: usize, key: usize) -> Vec<SeatReport> {
        let plan = &self.plans[plan];
        let seats = plan.rules.of(Margin::None).iter().zip(&plan.names[key].limits);
        let seats = seats.filter(|(rule, _)| rule.is_seats()).map(|(_, name)| name);
        let report = |name: &String| self.chairs.iter().find(|chairs| chairs.name == *name);
        seats
            .map(|name| {
                let report = report(name).map(|chairs| chairs.report).unwrap_or_default();
                let (may_take, waits) = (report.turn % 7 != 6, report.turn % 5 == 4);
                SeatReport { turn: report.turn + 1, may_take, waits, ..report }
            })
            .collect()
    }

    /// What became of some of the last calls of a key, and now and then of one that never was.
    fn fates(&mut self, plan: usize, key: usize) -> Vec<Fate> {
        let (now, rng) = (self.now, &mut self.rng);
        let of_key = self.bookings.iter().rev().filter(|booking| (booking.plan, booking.key) == (plan, key));
        let mut fates = Vec::new();
        for booking in of_key.take(4).filter(|booking| booking.slot <= now) {
            if rng.bool() {
                let ago_us = rng.choice([0, 1, 1_000, (now - booking.slot) / 2, now - booking.slot]).unwrap();
                let answered_ago_us = Some(ago_us).filter(|_| rng.u8(0..4) > 0);
                let slot = booking.slot + u64::from(rng.u8(0..20) == 0);
                fates.push(Fate { slot, answered_ago_us, costs: booking.costs.iter().copied().collect() });
            }
        }
        fates
    }

    fn cost(&mut self, most: u64) -> u64 {
        match self.rng.u8(0..10) {
            0 => 0,
            1 => most,
            2 | 3 => self.rng.u64(1..=most),
            _ => 1,
        }
    }

    fn trip(&mut self) -> Result<(), TestCaseError> {
        let (plan, margin) = (self.plan(), self.margin());
        let key = self.rng.usize(0..KEYS);
        // Sometimes both keys in one trip, as policies in a chain are.
        let keys = if self.rng.u8(0..6) == 0 { vec![key, 1 - key] } else { vec![key] };
        let forced = self.rng.u8(0..12) == 0;
        let run = self.rng.choice([0, 1, 1, 1, 2, 5, 64]).unwrap();
        let mut costs = Vec::new();
        for _ in 0..self.rng.usize(1..=3) {
            let most =
                keys.iter().flat_map(|_| self.plans[plan].rules.of(margin).iter().map(|rule| rule.most()));
            let most = most.collect::<Vec<_>>();
            costs.push(most.into_iter().map(|most| self.cost(most)).collect::<Vec<_>>());
        }
        let held = [0, 0, 1_000, 100_000, 900_000, 3_000_000, u64::MAX];
        let callers = (0..run).map(|_| {
            let costs = &costs[if self.rng.u8(0..3) == 0 { self.rng.usize(0..costs.len()) } else { 0 }];
            Waiter { held_us: self.rng.choice(held).unwrap(), costs }
        });
        let callers = callers.collect::<Vec<_>>();
        let reports = keys.iter().map(|key| self.reports(plan, *key)).collect::<Vec<_>>();
        let fates = keys.iter().map(|key| self.fates(plan, *key)).collect::<Vec<_>>();
        let remembers = self.rng.bool();
        let parts = keys.iter().zip(reports.iter().zip(&fates)).map(|(&key, (seats, fates))| {
            let seen = self.seen.iter().rev().filter(|_| remembers);
            let seen = seen.filter(|(of_plan, of_key, _)| (*of_plan, *of_key) == (plan, key));
            TripPart {
                rules: &self.plans[plan].rules,
                margin,
                names: &self.plans[plan].names[key],
                seen: seen.map(|(.., seen)| seen).next(),
                seats,
                fates,
            }
        });
        let parts = parts.collect::<Vec<_>>();
        let trip =
            Trip { now: Some(self.now), worker: &self.worker, parts: &parts, callers: &callers, forced };
        let told = self.twin.trip(&trip);
        let expected = self.model.trip(&trip);
        note(&mut self.told, || {
            format!("{} trip of {run}, forced {forced}, after {fates:?}: {expected:?}", self.now)
        });
        if self.tidies {
            prop_assert_eq!((&told.slots, told.ended), (&expected.slots, expected.ended));
        } else {
            prop_assert_eq!(&told, &expected);
        }
        let mut booked = Vec::new();
        if !forced {
            booked = self.booked(plan, margin, &keys, &callers, &expected);
        }
        let mut took = vec![0; callers.first().map_or(0, |caller| caller.costs.len())];
        for (caller, slot) in callers.iter().zip(&expected.slots).filter(|_| !forced) {
            if let Slot::At(_) = slot {
                took.iter_mut().zip(caller.costs).for_each(|(took, cost)| *took += cost);
            }
        }
        let mut answers = Vec::new();
        for (part, (read, key)) in expected.parts.iter().zip(keys.iter().enumerate()) {
            let rules = self.plans[plan].rules.of(margin);
            let mut seats = part.seats.iter().zip(&reports[read]);
            for (i, _) in rules.iter().enumerate().filter(|(_, rule)| rule.is_seats()) {
                let (answer, report) = seats.next().expect("an answer for each");
                let took = took.get(read * rules.len() + i).copied().unwrap_or(0);
                answers.push((self.plans[plan].names[*key].limits[i].clone(), *answer, *report, took));
            }
            let seen = if self.tidies { Vec::new() } else { vec![(plan, *key, part.clone())] };
            self.seen.extend(seen);
        }
        self.bookings.append(&mut booked);
        answers.into_iter().for_each(|(name, answer, report, took)| self.sit(name, answer, report, took));
        Ok(())
    }

    /// Seats were granted; some calls end.
    fn sit(&mut self, name: String, answer: SeatAnswer, report: SeatReport, took: u64) {
        let new = answer.granted - report.seen;
        let mut report = SeatReport { epoch: answer.epoch, seen: answer.granted, ..report };
        report.in_use += new;
        report.spare = (report.spare + new).saturating_sub(took);
        if self.rng.bool() {
            report.in_use -= self.rng.u64(0..=report.in_use - report.spare);
        }
        if self.rng.u8(0..3) == 0 {
            report.in_use -= std::mem::take(&mut report.spare);
        }
        self.chairs.retain(|chairs| chairs.name != name);
        self.chairs.push(Chairs { name, report });
    }

    /// What was charged, caller by caller, made anew from the states that the trip found.
    fn booked(
        &self,
        plan: usize,
        margin: Margin,
        keys: &[usize],
        callers: &[Waiter<'_>],
        reply: &Reply,
    ) -> Vec<Booking> {
        let rules = self.plans[plan].rules.of(margin);
        let mut booked = Vec::new();
        for (p, key) in keys.iter().enumerate() {
            let mut states = reply.parts[p].states.clone();
            for (caller, slot) in callers.iter().zip(&reply.slots) {
                let Slot::At(slot) = *slot else { continue };
                let costs = &caller.costs[p * rules.len()..][..rules.len()];
                let before = states.to_vec();
                let mut marks = vec![Mark::default(); rules.len()];
                for (i, rule) in
                    rules.iter().enumerate().filter(|(i, rule)| costs[*i] > 0 && !rule.is_seats())
                {
                    if let Snapshot::Whole(state) = &mut states[i] {
                        marks[i] = rule.commit(state, slot, costs[i]);
                    }
                }
                let (after, costs) = (states.to_vec(), costs.to_vec());
                booked.push(Booking { plan, key: *key, margin, slot, costs, marks, before, after });
            }
        }
        booked
    }

    fn settle(&mut self) -> Result<(), TestCaseError> {
        let Some(booking) = self.bookings.len().checked_sub(1) else { return Ok(()) };
        let chosen = booking - self.rng.usize(0..=booking.min(3));
        // A correction upon a correction reaches a state that is kept for its permit, though it equals a fresh one.
        let once = if self.tidies { Some(self.bookings.remove(chosen)) } else { None };
        let booking = once.as_ref().unwrap_or_else(|| &self.bookings[chosen]);
        let plan = &self.plans[booking.plan];
        let index = self.rng.usize(0..booking.costs.len());
        if plan.rules.of(booking.margin)[index].is_seats() {
            return Ok(());
        }
        let charged = booking.costs[index];
        if self.tidies && charged == 0 {
            // Nothing was charged that would keep the state for it.
            return Ok(());
        }
        let used = match self.rng.u8(0..20) {
            0..=3 => 0,
            4..=7 => charged,
            8..=11 => self.rng.u64(0..=charged),
            // What a service reports is anybody's number.
            12 => charged + self.rng.choice([1 << 40, 1 << 50, 1 << 53, u64::MAX / 2]).unwrap(),
            _ => charged + self.rng.u64(0..=10),
        };
        let settlement = Settlement {
            now: Some(self.now),
            rules: &plan.rules,
            margin: booking.margin,
            names: &plan.names[booking.key],
            index,
            slot: booking.slot,
            charged,
            used,
            mark: booking.marks[index],
        };
        let expected = self.model.settle(&settlement);
        let now = self.now;
        note(&mut self.told, || format!("{now} settle {index} from {charged} to {used}: {expected}"));
        let told = self.twin.run(&settlement.call());
        prop_assert!(told == Value::Int(expected) || self.tidies, "{:?}, not {}", told, expected);
        Ok(())
    }

    fn give_back(&mut self) -> Result<(), TestCaseError> {
        let Some(newest) = self.bookings.len().checked_sub(1) else { return Ok(()) };
        let booking = self.bookings.remove(newest - self.rng.usize(0..=newest.min(2)));
        if self.tidies && booking.slot < self.now {
            // It may equal a fresh one already although what was before it does not, for a reader with a margin.
            return Ok(());
        }
        let plan = &self.plans[booking.plan];
        let given = GiveBack {
            rules: &plan.rules,
            margin: booking.margin,
            names: &plan.names[booking.key],
            slot: booking.slot,
            costs: &booking.costs,
            before: &booking.before,
            after: &booking.after,
        };
        let expected = self.model.give_back(&given);
        note(&mut self.told, || format!("{} give back {}: {expected}", self.now, booking.slot));
        let told = self.twin.run(&given.call());
        prop_assert!(told == Value::Int(expected) || self.tidies, "{:?}, not {}", told, expected);
        Ok(())
    }

    fn change(&mut self) -> Result<(), TestCaseError> {
        let (plan, margin, key) = (self.plan(), self.margin(), self.rng.usize(0..KEYS));
        let what = match self.rng.u8(0..7) {
            0 | 1 => What::Pause {
                for_us: self.rng.choice([0, 1, 1_000, 500_000, 3_000_000, 7_200_000_000]).unwrap(),
                probe_every_us: self.rng.choice([NEVER, 1_000, 100_000, 3_600_000_000]).unwrap(),
            },
            2 => What::Drain,
            3 => What::Throttled {
                sent_ago_us: self.rng.choice([0, 1, 100_000]).unwrap(),
                wait_us: self.rng.choice([0, 1, 200_000, 1_000_000]).unwrap(),
            },
            4 => What::Resume,
            _ => What::Answered { sent_ago_us: self.rng.choice([0, 1, 100_000]).unwrap() },
        };
        let throttled = matches!(what, What::Throttled { .. });
        let declined = if throttled { self.fates(plan, key) } else { Vec::new() };
        let plan = &self.plans[plan];
        let (rules, names, declined) = (&plan.rules, &plan.names[key], &*declined);
        let change =
            Change { now: Some(self.now), worker: &self.worker, rules, margin, names, what, declined };
        let expected = self.model.change(&change);
        note(&mut self.told, || format!("{} {what:?}, refused {declined:?}: {expected}", self.now));
        prop_assert_eq!(self.twin.run(&change.call()), Value::Int(expected));
        Ok(())
    }

    fn walk(&mut self) -> Result<(), TestCaseError> {
        #[expect(clippy::disallowed_methods, reason = "how long Redis's own clock ran meanwhile")]
        let since = Instant::now();
        for _ in 0..STEPS {
            self.time_passes();
            match self.rng.u8(0..20) {
                0 | 1 => self.settle()?,
                2 | 3 => self.give_back()?,
                4 | 5 if !self.tidies || self.rng.u8(0..4) == 0 => self.change()?,
                6 if !self.tidies => self.lose(),
                _ => self.trip()?,
            }
            if self.tidies {
                self.lose();
            }
        }
        if !self.tidies {
            self.expiries(since)?;
        }
        Ok(())
    }
}

fn all(tidies: bool, usual: u32) {
    let twin = Twin::new();
    let walked = TestRunner::new(walks(usual)).run(&any::<u64>(), |seed| {
        Walk::new(&twin, seed, tidies).walk().map_err(|_| {
            // Once more, to tell how it came to that.
            let mut walk = Walk::new(&twin, seed, tidies);
            walk.told = Some(Vec::new());
            let fault = walk.walk().expect_err("a seed walks the same way twice");
            let limits = walk.plans.iter().map(|plan| format!("{:?}\n", plan.rules)).collect::<String>();
            let told = walk.told.unwrap_or_default().join("\n");
            TestCaseError::fail(format!("seed {seed}\n{limits}{told}\n{fault}"))
        })
    });
    if let Err(fault) = walked {
        panic!("{fault}");
    }
}

#[test]
fn every_walk_is_answered_alike_in_every_field() {
    all(false, 10_000);
}

#[test]
fn a_key_that_equals_a_fresh_one_can_be_deleted_and_nothing_changes() {
    all(true, 3_000);
}
