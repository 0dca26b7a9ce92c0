//! What the bench targets share: the contenders with the same numbers, and a stopwatch that runs them in
//! turns.
//!
//! Every figure is a ratio to a peer that was measured in the same run, a few milliseconds before or after:
//! machines differ, and one machine differs from minute to minute. Nothing of this crate is published, and
//! no other crate depends on it.

pub mod contender;
pub mod floor;
pub mod least;
pub mod memory;
pub mod stopwatch;
pub mod stub;
pub mod threads;
pub mod waiters;
