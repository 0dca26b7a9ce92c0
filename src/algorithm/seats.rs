//! Seats: how many calls are under way at once.
//!
//! The only rule that time does not free: a seat comes back when its permit is dropped. So `earliest`
//! answers now or [`NEVER`], and whoever waits is told when a seat was given back. Twin of
//! `lua/seats.lua`.

use super::NEVER;
use crate::decision::Level;

/// The numbers of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seats {
    pub(crate) cap: u64,
}

/// Seats taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct State {
    pub(crate) in_use: u64,
}

impl Seats {
    #[inline]
    pub(crate) fn earliest(&self, state: &State, now: u64, cost: u64) -> u64 {
        if state.in_use + cost <= self.cap { now } else { NEVER }
    }

    #[inline]
    pub(crate) fn left(&self, state: &State) -> u64 {
        self.cap.saturating_sub(state.in_use)
    }

    pub(crate) fn level(&self, state: &State) -> Level {
        Level { most: self.cap, remaining: self.left(state), reset_us: 0, wait_us: 0 }
    }
}
