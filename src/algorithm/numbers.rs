//! Rules and states as plain numbers: what goes to their twins in Lua, and what comes back.
//!
//! The order of the numbers is that of the tables at the top of each file in `lua/`. Nothing is decided here; a
//! state that was written by a newer version of this crate reads as `None`, never as an unused budget.

use smallvec::SmallVec;

use super::{Mark, Rule, State, gcra, seats, sliding_counter, window};

/// The numbers of a rule, as its twin takes them; -1 where there is none.
pub(crate) type Numbers = SmallVec<[i64; 9]>;

impl Rule {
    /// The numbers that its twin decides by. `wide` is the same limit's rule with the default margin, for states
    /// are kept for its readers, too.
    pub(crate) fn numbers(&self, wide: &Rule) -> Numbers {
        match (self, wide) {
            (Rule::Gcra(rule), Rule::Gcra(wide)) => rule.numbers(wide),
            (Rule::Window(rule), Rule::Window(wide)) => rule.numbers(wide),
            (Rule::SlidingCounter(rule), _) => rule.numbers(),
            (Rule::SlidingLog(rule), _) => rule.numbers(),
            (Rule::Seats(rule), _) => Numbers::from_slice(&[rule.cap as i64]),
            _ => unreachable!("a margin changes no limit's kind"),
        }
    }

    /// The first byte of a value that its twin writes; `s` for seats, which have no value.
    pub(crate) fn letter(&self) -> u8 {
        match self {
            Rule::Gcra(_) => b'g',
            Rule::Window(_) => b'w',
            Rule::SlidingCounter(_) => b'c',
            Rule::SlidingLog(_) => b'l',
            Rule::Seats(_) => b's',
        }
    }

    /// The first instant at which a bucket's state equals a fresh one.
    pub(crate) fn fresh_at(&self, state: &State) -> Option<u64> {
        match (self, state) {
            (Rule::Gcra(rule), State::Gcra(state)) => Some(rule.fresh_at(state)),
            _ => None,
        }
    }

    /// The state of these numbers; a log is never sent whole.
    pub(crate) fn state_of(&self, numbers: &[u64]) -> Option<State> {
        Some(match (self, numbers) {
            (Rule::Gcra(_), &[debt, at, p]) => State::Gcra(gcra::State { debt, at, p }),
            (Rule::Window(_), &[start, tail, arrived, kept, ref counts @ ..])
                if kept == counts.len() as u64 =>
            {
                State::Window(window::State { start, tail, arrived, counts: counts.into() })
            }
            (Rule::SlidingCounter(_), &[start, tail, count, last]) => {
                State::SlidingCounter(sliding_counter::State { start, tail, count, last })
            }
            (Rule::Seats(_), &[in_use]) => State::Seats(seats::State { in_use }),
            _ => return None,
        })
    }
}

impl State {
    /// Its numbers; none of a log, which is never sent whole.
    pub(crate) fn numbers(&self) -> SmallVec<[u64; 4]> {
        match self {
            State::Gcra(state) => [state.debt, state.at, state.p].into_iter().collect(),
            State::Window(state) => {
                let head = [state.start, state.tail, state.arrived, state.counts.len() as u64];
                head.into_iter().chain(state.counts.iter().copied()).collect()
            }
            State::SlidingCounter(state) => [state.start, state.tail, state.count, state.last].into(),
            State::SlidingLog(_) => SmallVec::new(),
            State::Seats(state) => std::iter::once(state.in_use).collect(),
        }
    }
}

impl Mark {
    /// What a correction needs of it: a bucket's debt just before the charge.
    pub(crate) fn debt_before(self) -> u64 {
        self.0
    }
}
