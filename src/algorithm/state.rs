//! What is kept of a limit under one key, and of a charge for the day that it is corrected.

use super::{gcra, seats, sliding_counter, sliding_log, window};

/// The state of one limit under one key. The default of each kind is an unused budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Gcra(gcra::State),
    Window(window::State),
    SlidingCounter(sliding_counter::State),
    SlidingLog(Box<sliding_log::State>),
    Seats(seats::State),
}

impl State {
    /// The last instant booked; 0 if none was.
    #[inline]
    pub(crate) fn tail(&self) -> u64 {
        match self {
            State::Gcra(state) => state.at,
            State::Window(state) => state.tail,
            State::SlidingCounter(state) => state.tail,
            State::SlidingLog(state) => state.tail(),
            State::Seats(_) => 0,
        }
    }
}

/// What is kept of a charge beside its slot: a bucket's debt just before and after it; for the others what was
/// left just after it, and when all of it is there again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Mark(pub(super) u64, pub(super) u64);

#[cfg(feature = "redis")]
impl Mark {
    /// What was left of a limit that is no bucket, and when all of it is there again.
    pub(crate) fn left(remaining: u64, reset_at: u64) -> Self {
        Self(remaining, reset_at)
    }
}

/// A charge, and what was really used of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    pub(crate) slot: u64,
    pub(crate) charged: u64,
    pub(crate) used: u64,
    pub(crate) mark: Mark,
}
