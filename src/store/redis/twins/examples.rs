//! The worked examples of `algorithm`, told by Redis.
//!
//! A row asks as a worker would: a trip, a settlement, a hand-back, a drain. What is left is read in a trip of its own,
//! so that new numbers, too, meet the state where they would.

use super::*;
use crate::algorithm::worked_examples::{Row, START, Step, Told, play_all};
use crate::algorithm::{Mark, NEVER, Rule, Rules};
use crate::limit::{Limit, Margin};
use crate::policy::Policy;
use crate::store::redis::names::Names;

struct Story<'a> {
    twin: &'a Twin,
    worker: Worker,
    rules: Rules,
    names: Names,
    slot: u64,
    cost: u64,
    marks: Vec<Mark>,
    before: Vec<Snapshot>,
    after: Vec<Snapshot>,
}

fn rules(limits: &[Limit]) -> Rules {
    let named = limits.iter().enumerate().map(|(i, limit)| limit.clone().named(&format!("l{i}")));
    let named = named.map(|limit| limit.unit("units"));
    Rules::new(&named.fold(Policy::new("story"), |policy, limit| policy.limit(limit))).expect("no fault")
}

impl Story<'_> {
    fn rule(&self) -> &[Rule] {
        self.rules.of(Margin::None)
    }

    fn trip(&self, now: u64, callers: &[Waiter<'_>], fates: &[Fate]) -> Reply {
        let (rules, margin, names) = (&self.rules, Margin::None, &self.names);
        let parts = [TripPart { rules, margin, names, seen: None, seats: &[], fates }];
        self.twin.trip(&Trip { now: Some(now), worker: &self.worker, parts: &parts, callers, forced: false })
    }

    /// What became of the last call.
    fn fate(&self, answered_ago_us: Option<u64>) -> Fate {
        let costs = self.rule().iter().map(|_| self.cost).collect();
        Fate { slot: self.slot, answered_ago_us, costs }
    }

    fn left(&self, now: u64) -> u64 {
        let read = self.trip(now, &[], &[]);
        let states = self.rule().iter().zip(&read.parts[0].states);
        let left = states.map(|(rule, state)| match state {
            Snapshot::Whole(state) => rule.level(state, now).remaining,
            Snapshot::Log { used, .. } => rule.most().saturating_sub(*used),
        });
        left.min().expect("there is a limit")
    }

    /// A call of that cost; when it goes or could go.
    fn call(&mut self, now: u64, cost: u64, may_wait: bool) -> u64 {
        let costs = vec![cost; self.rule().len()];
        let is_leaky = self.rule().iter().any(|rule| rule.hold_us().is_some());
        if is_leaky && !may_wait {
            // It would be held in the bucket: only ask.
            let read = self.trip(now, &[], &[]);
            let states = self.rule().iter().zip(&read.parts[0].states);
            let fits = states.map(|(rule, state)| match state {
                Snapshot::Whole(state) => rule.earliest(state, now, cost),
                Snapshot::Log { .. } => now,
            });
            let at = fits.max().expect("there is a limit");
            if at > now {
                return at;
            }
        }
        let held_us = if may_wait { NEVER } else { 0 };
        let reply = self.trip(now, &[Waiter { held_us, costs: &costs }], &[]);
        let at = match (reply.slots.first(), reply.ended) {
            (Some(&Slot::At(at)), _) => at,
            (Some(&Slot::TooLate(at)), _) | (None, Ended::Ahead(at)) => return at,
            other => panic!("{other:?}"),
        };
        let mut states = reply.parts[0].states.clone();
        (self.slot, self.cost, self.before) = (at, cost, states.to_vec());
        self.marks = vec![Mark::default(); states.len()];
        for (i, state) in states.iter_mut().enumerate() {
            if let Snapshot::Whole(state) = state {
                self.marks[i] = self.rules.of(Margin::None)[i].commit(state, at, cost);
            }
        }
        self.after = states.to_vec();
        at
    }

    fn step(&mut self, now: u64, step: &Step) -> Told {
        let ms = |at: u64| (at as f64 - START as f64) / 1_000.0;
        let (margin, names) = (Margin::None, &self.names);
        match step {
            Step::Ask(cost) | Step::Book(cost) => {
                let at = self.call(now, *cost, matches!(step, Step::Book(_)));
                let left = self.left(now);
                return if at == now { Told::Granted(left) } else { Told::Until(ms(at), left) };
            }
            Step::TakeBack => {
                let costs = vec![self.cost; self.rule().len()];
                let (rules, slot, before, after) = (&self.rules, self.slot, &self.before, &self.after);
                self.twin.run(&GiveBack { rules, margin, names, slot, costs: &costs, before, after }.call());
            }
            Step::Settle(used) => {
                for index in 0..self.rule().len() {
                    let settlement = Settlement {
                        now: Some(now),
                        rules: &self.rules,
                        margin,
                        names,
                        index,
                        slot: self.slot,
                        charged: self.cost,
                        used: *used,
                        mark: self.marks[index],
                    };
                    self.twin.run(&settlement.call());
                }
                self.cost = *used;
            }
            Step::Drain | Step::Refused(_) | Step::Declined(_) => {
                let what = match step {
                    Step::Refused(wait_ms) | Step::Declined(wait_ms) => {
                        What::Throttled { sent_ago_us: 0, wait_us: wait_ms * 1_000 }
                    }
                    _ => What::Drain,
                };
                let (worker, rules) = (&self.worker, &self.rules);
                let declined = [self.fate(None)];
                let declined = if matches!(step, Step::Declined(_)) { &declined[..] } else { &[] };
                let change = Change { now: Some(now), worker, rules, margin, names, what, declined };
                self.twin.run(&change.call());
            }
            Step::Answered => {
                self.trip(now, &[], &[self.fate(Some(0))]);
            }
            Step::Numbers(limit) => self.rules = rules(std::slice::from_ref(limit)),
        }
        Told::Left(self.left(now))
    }
}

#[test]
fn every_table_comes_out_the_same() {
    let twin = Twin::new();
    play_all(move |limits: &[Limit], rows: &[Row]| {
        twin.ask("FLUSHALL SYNC");
        let rules = rules(limits);
        let names = Names::new("forbear", "story", "key", &rules.labels);
        let (marks, before, after) = (Vec::new(), Vec::new(), Vec::new());
        let worker = worker("teller");
        let mut story = Story { twin: &twin, worker, rules, names, slot: 0, cost: 0, marks, before, after };
        for (i, (ms, step, told)) in rows.iter().enumerate() {
            let now = (START as f64 + ms * 1_000.0) as u64;
            assert_eq!(story.step(now, step), *told, "row {}: {step:?} at {ms} ms under {limits:?}", i + 1);
        }
    });
}
