//! Worked examples: what each limit answers, as tables that read like a story.
//!
//! A row is a time in milliseconds, what happens, and how it goes: `Granted(left)`, `Until(at, left)` for a
//! refusal, `Left(left)` for the rest.

mod alone;
mod cases;
mod new_numbers;
mod side_by_side;
mod together;

use std::cell::RefCell;
use std::time::Duration;

use super::{Joint, Mark, Rule, State, Used, joint_earliest};
use crate::limit::{Limit, Margin, Rate};
use Step::{Answered, Ask, Book, Declined, Drain, Numbers, Refused, Settle, TakeBack};
use Told::{Granted, Left, Until};

/// Where the stories begin: milliseconds count from here.
pub(crate) const START: u64 = 1 << 50;

/// What happens.
#[derive(Debug, Clone)]
pub(crate) enum Step {
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
    /// The service refuses a call, which may come again after so many milliseconds.
    Refused(u64),
    /// The same, and it is the last call.
    Declined(u64),
    /// The last call is answered.
    Answered,
    /// New numbers, or another algorithm, under the same name.
    Numbers(Limit),
}

/// How it goes, and what is left: of the limit that has least.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Told {
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
        if let Drain | Refused(_) | Declined(_) = step {
            self.drained = now;
        }
        for (rule, state) in self.rules.iter().zip(&mut self.states) {
            match step {
                Refused(wait_ms) => rule.refused(state, now, now, wait_ms * 1_000),
                Declined(wait_ms) => {
                    rule.declined(state, now, self.last.slot, self.last.cost);
                    rule.refused(state, now, self.last.slot, wait_ms * 1_000);
                }
                _ => {}
            }
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
            Answered => {
                for (rule, state) in self.rules.iter().zip(&mut self.states) {
                    rule.arrived(state, self.last.slot, self.last.cost, now);
                }
                Left(self.left(now))
            }
            Drain | Refused(_) | Declined(_) => Left(self.left(now)),
            Numbers(limit) => {
                let new = rule(limit);
                self.states[0] = new.adopt(&self.rules[0], self.states[0].clone(), now);
                self.rules[0] = new;
                Left(self.left(now))
            }
        }
    }
}

/// A table: milliseconds from the start, what happens, how it goes.
pub(crate) type Row = (f64, Step, Told);

type Player = Box<dyn Fn(&[Limit], &[Row])>;

thread_local! {
    /// Who plays the tables instead: a store.
    static ELSEWHERE: RefCell<Option<Player>> = const { RefCell::new(None) };
}

/// Plays every table elsewhere.
#[cfg(feature = "redis")]
pub(crate) fn play_all(elsewhere: impl Fn(&[Limit], &[Row]) + 'static) {
    ELSEWHERE.set(Some(Box::new(elsewhere)));
    for table in TABLES {
        table();
    }
    ELSEWHERE.set(None);
}

#[cfg(feature = "redis")]
const TABLES: &[fn()] = &[
    alone::a_token_bucket_repays_at_its_rate_and_never_earns_while_full,
    alone::a_token_bucket_keeps_what_the_rate_yields_in_the_margin,
    alone::a_burst_of_one_is_spaced_wider_by_at_most_a_tenth,
    alone::the_plain_rate_is_paced_and_takes_a_dear_call_when_nothing_is_owed,
    alone::the_plain_rate_spreads_its_margin_over_the_period,
    alone::a_leaky_bucket_books_one_slot_after_the_other,
    alone::a_fixed_window_opens_with_the_first_call,
    alone::a_fixed_window_is_quiet_around_its_end_with_a_margin,
    alone::a_fixed_window_opens_again_as_soon_as_the_services_own_must_have,
    alone::a_fixed_window_that_was_refused_opens_again_when_it_would_have,
    alone::a_sliding_window_forgets_a_segment_at_a_time,
    alone::a_sliding_window_looks_at_one_segment_more_with_a_margin,
    alone::a_sliding_counter_weighs_the_last_window,
    alone::a_sliding_counter_keeps_its_share_in_the_margin,
    alone::a_sliding_counter_stays_exact_after_a_correction_far_above_it,
    alone::a_sliding_log_remembers_each_call,
    alone::a_sliding_log_keeps_its_calls_through_a_drain_and_is_drained_anew,
    alone::a_sliding_log_drained_twice_gives_nothing_back_after_a_correction_above_it,
    alone::a_sliding_log_takes_what_it_has_left_for_gone_until_a_refused_call_may_come_again,
    alone::a_sliding_log_keeps_what_has_come_free_since_a_refused_call_was_sent,
    alone::a_sliding_log_has_nothing_left_after_a_429_that_took_longer_than_its_window,
    alone::a_sliding_log_lasts_longer_by_its_margin,
    alone::a_sliding_log_counts_a_call_from_when_it_had_arrived,
    new_numbers::a_larger_burst_is_what_it_was_and_the_difference,
    new_numbers::a_slower_rate_takes_the_units_over_and_repays_them_in_its_own_time,
    new_numbers::much_smaller_numbers_lock_nobody_out,
    new_numbers::another_algorithm_begins_with_the_units_in_use,
    new_numbers::a_window_of_another_length_keeps_its_count,
    new_numbers::a_log_with_a_longer_window_still_counts_what_it_remembers,
    together::a_call_waits_for_the_limit_that_opens_last,
    together::the_quiet_band_of_a_window_moves_a_call_that_another_limit_held_into_it,
    together::two_quiet_bands_are_waited_out_one_after_the_other,
    together::a_bucket_beside_a_leaky_one_is_booked_as_far_ahead_as_that_holds,
    cases::b026_a_cost_that_never_fits_is_a_fault_of_its_own_and_takes_nothing,
    cases::b107_a_booking_taken_back_comes_back_whole_and_never_under_a_later_one,
];

/// Plays a table under limits that hold together.
fn play(limits: &[Limit], rows: &[Row]) {
    let elsewhere = ELSEWHERE.with_borrow(|elsewhere| elsewhere.as_ref().map(|play| play(limits, rows)));
    if elsewhere.is_some() {
        return;
    }
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
