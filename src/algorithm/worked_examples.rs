//! Worked examples: what each limit answers, as tables that read like a story.
//!
//! A row is a time in milliseconds, what happens, and how it goes: `Granted(left)`, `Until(at, left)` for a
//! refusal, `Left(left)` for the rest.

mod alone;
mod cases;
mod new_numbers;
mod side_by_side;
mod together;

use std::time::Duration;

use super::{Joint, Mark, Rule, State, Used, joint_earliest};
use crate::limit::{Limit, Margin, Rate};
use Step::{Ask, Book, Drain, Numbers, Settle, TakeBack};
use Told::{Granted, Left, Until};

/// Where the stories begin: milliseconds count from here.
const START: u64 = 1 << 50;

/// What happens.
#[derive(Debug, Clone)]
enum Step {
    /// A call of that cost asks to go now.
    Ask(u64),
    /// A call takes the first slot, now or later.
    Book(u64),
    /// The last booking is given back.
    TakeBack,
    /// The last call has used so many units.
    Settle(u64),
    /// The service says that the budget is used up.
    Drain,
    /// New numbers, or another algorithm, under the same name.
    Numbers(Limit),
}

/// How it goes, and what is left: of the limit that has least.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Told {
    Granted(u64),
    /// The time at which it would go, or goes if it is booked.
    Until(f64, u64),
    Left(u64),
}

/// Limits in the middle of a story.
struct Story {
    rules: Vec<Rule>,
    states: Vec<State>,
    drained: u64,
    last: Last,
}

#[derive(Default)]
struct Last {
    slot: u64,
    cost: u64,
    marks: Vec<Mark>,
    before: Vec<Option<State>>,
}

fn rule(limit: &Limit) -> Rule {
    Rule::new(limit, Margin::None).expect("the examples have no fault")
}

impl Story {
    fn of(limits: &[Limit]) -> Self {
        let mut rules = limits.iter().map(rule).collect::<Vec<_>>();
        let hold_us = rules.iter().filter_map(Rule::hold_us).max().unwrap_or(0);
        rules.iter_mut().for_each(|rule| rule.held_beside(hold_us));
        let states = rules.iter().map(Rule::fresh).collect();
        Self { rules, states, drained: 0, last: Last::default() }
    }

    fn earliest(&self, now: u64, cost: u64) -> u64 {
        let parts = self.rules.iter().zip(&self.states).map(|(rule, state)| (rule, state, cost));
        match joint_earliest(parts, now) {
            Joint::Agreed(at) => at,
            Joint::NotBefore(at) => panic!("no agreement up to {at}"),
        }
    }

    fn left(&self, now: u64) -> u64 {
        let levels = self.rules.iter().zip(&self.states).map(|(rule, state)| rule.level(state, now));
        levels.map(|level| level.remaining).min().expect("there is a limit")
    }

    fn commit(&mut self, at: u64, cost: u64) {
        let parts = || self.rules.iter().zip(&self.states);
        let before = parts().map(|(rule, state)| rule.before(state)).collect();
        let parts = self.rules.iter().zip(&mut self.states);
        let marks = parts.map(|(rule, state)| rule.commit(state, at, cost)).collect();
        self.last = Last { slot: at, cost, marks, before };
    }

    fn step(&mut self, now: u64, step: &Step) -> Told {
        if let Drain = step {
            self.drained = now;
        }
        for (rule, state) in self.rules.iter().zip(&mut self.states) {
            rule.read(state, now, self.drained);
        }
        let ms = |at: u64| (at as f64 - START as f64) / 1_000.0;
        match step {
            Ask(cost) | Book(cost) => {
                let at = self.earliest(now, *cost);
                let goes = at == now || matches!(step, Book(_));
                if goes {
                    self.commit(at, *cost);
                }
                if at == now { Granted(self.left(now)) } else { Until(ms(at), self.left(now)) }
            }
            TakeBack => {
                let Last { slot, cost, before, .. } = &self.last;
                for (i, (rule, state)) in self.rules.iter().zip(&mut self.states).enumerate() {
                    rule.take_back(state, *slot, *cost, before[i].as_ref());
                }
                Left(self.left(now))
            }
            Settle(used) => {
                let (slot, charged) = (self.last.slot, self.last.cost);
                for (i, (rule, state)) in self.rules.iter().zip(&mut self.states).enumerate() {
                    let mark = self.last.marks[i];
                    rule.settle(state, now, Used { slot, charged, used: *used, mark });
                }
                self.last.cost = *used;
                Left(self.left(now))
            }
            Drain => Left(self.left(now)),
            Numbers(limit) => {
                let new = rule(limit);
                self.states[0] = new.adopt(&self.rules[0], self.states[0].clone(), now);
                self.rules[0] = new;
                Left(self.left(now))
            }
        }
    }
}

/// Plays a table under limits that hold together.
fn play(limits: &[Limit], rows: &[(f64, Step, Told)]) {
    let mut story = Story::of(limits);
    for (i, (ms, step, told)) in rows.iter().enumerate() {
        let now = (START as f64 + ms * 1_000.0) as u64;
        assert_eq!(story.step(now, step), *told, "row {}: {step:?} at {ms} ms", i + 1);
    }
}

fn ten_a_second() -> Rate {
    Rate::per_second(10)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
