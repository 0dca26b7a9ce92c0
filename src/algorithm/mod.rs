//! What a limit is: pure arithmetic on a small state. No clock, no I/O, no lock.
//!
//! Every rule answers two questions. [`Rule::earliest`]: the first instant, not before `now`, at which
//! `cost` more units fit. [`Rule::commit`]: charge them at that instant or any later one. Several limits
//! together are asked in a loop until they agree on one instant, and charged at it.
//!
//! The rules of the house, for this text and its twin in Lua:
//! 1. Integers only, microseconds, every value below 2^53.
//! 2. Waits round up, credit rounds down, no remainder is thrown away.
//! 3. Time never runs backwards: a limit's state is what it was at its tail, the last instant booked, and
//!    nothing is answered before it. A tail further ahead than a booking can explain means that a clock was
//!    set back: the budget counts as used up now; nothing is earned, nothing locks.
//! 4. A refusal writes nothing.
//! 5. A missing state is an unused budget, so forgetting is tidying and never changes a decision.
//! 6. A cost that can never fit is an error of its own, found before anything is asked.
//! 7. A bucket does not earn while it is full.
//! 8. Windows open with the first request. Other numbers that meet the same state keep what was used.

mod gcra;
mod joint;
#[cfg(feature = "redis")]
mod numbers;
mod rule;
mod rules;
mod seats;
mod sliding_counter;
mod sliding_log;
mod state;
mod window;

use gcra::Gcra;
pub(crate) use joint::{Joint, joint_earliest};
pub(crate) use rule::Rule;
pub(crate) use rules::{CostFault, Costs, Rules};
use seats::Seats;
use sliding_counter::SlidingCounter;
use sliding_log::SlidingLog;
pub(crate) use state::{Mark, State, Used};
use window::Window;

/// An instant that never comes: what no passing of time makes fit.
pub(crate) const NEVER: u64 = u64::MAX;
/// Nothing is booked further ahead, a leaky bucket's queue apart. Less than a window of a second, so that what became
/// of the calls of one is known before the next is booked.
pub(crate) const AHEAD_US: u64 = 900_000;

#[cfg(all(test, feature = "governor"))]
mod oracle;
#[cfg(test)]
mod properties;
#[cfg(test)]
pub(crate) mod worked_examples;
