//! What two promises of this library cost by themselves, against a server that counts by windows: a client that
//! keeps them, on a network without delay.
//!
//! It has as many tasks as the fleet, sends as soon as its belief allows, and never sends a refused call before
//! its wait is over. The promises are a margin, by which it takes a window for longer than it is, and that after two
//! refusals in a row nobody sends for as long as the server asks, and then evenly. It shares no line with the
//! library, so it says what is to be had at all.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::load::{CLIENTS, Load, RETRY_AFTER_US, STEP_US, TASKS};
use super::quota::{Kind, Quota};
use super::server::Gate;

/// Which of the promises are kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Promise {
    pub(super) name: &'static str,
    margin_us: u64,
    holds: bool,
}

/// What came of a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) time_over_ideal: f64,
    pub(super) refused_per_success: f64,
}

impl Promise {
    /// What this library promises.
    pub(super) const BOTH: Self =
        Self { name: "a margin of 20 ms, and a row of 429s holds all", margin_us: 20_000, holds: true };
    pub(super) const ALL: [Self; 4] = [
        Self::BOTH,
        Self { name: "only that a row holds all", margin_us: 0, ..Self::BOTH },
        Self { name: "only the margin", holds: false, ..Self::BOTH },
        Self { name: "neither", margin_us: 0, holds: false },
    ];

    pub(super) fn cost(self, server: Kind, load: Load, calls: u32) -> Cost {
        let mut fleet = Fleet::new(self, server, load, calls);
        let mut now = 0;
        while fleet.unsent > 0 || !fleet.tasks.is_empty() {
            fleet.send_all(now);
            now += STEP_US;
        }
        Cost {
            time_over_ideal: fleet.last as f64 / load.ideal_us(server, calls) as f64,
            refused_per_success: f64::from(fleet.refused) / f64::from(calls),
        }
    }
}

struct Fleet {
    promise: Promise,
    load: Load,
    gate: Gate,
    /// When somebody else sends next.
    neighbour: u64,
    /// What the clients take for left.
    belief: Quota,
    held_until: u64,
    /// Whether the last answer was a refusal.
    is_row: bool,
    /// Each with when it may send, and whether its call was refused.
    tasks: BinaryHeap<Reverse<(u64, usize, bool)>>,
    unsent: u32,
    refused: u32,
    /// When the last call did well.
    last: u64,
}

impl Fleet {
    fn new(promise: Promise, server: Kind, load: Load, calls: u32) -> Self {
        let (per_second, burst) = load.belief();
        let busy = (0..CLIENTS * TASKS).filter(|task| load.calls_of(task % CLIENTS, calls) > 0);
        Self {
            promise,
            load,
            gate: Gate::new(server, load),
            neighbour: 0,
            belief: Quota::new(server, per_second, burst).margin_us(promise.margin_us),
            held_until: 0,
            is_row: false,
            tasks: busy.map(|task| Reverse((0, task, false))).collect(),
            unsent: calls,
            refused: 0,
            last: 0,
        }
    }

    /// Everything that may be sent at an instant.
    fn send_all(&mut self, now: u64) {
        if let Some(every_us) = self.load.neighbour_every_us() {
            while self.neighbour <= now {
                self.gate.quota.take(now);
                self.neighbour += every_us;
            }
        }
        while now >= self.held_until
            && let Some(Reverse((at, task, again))) = self.tasks.peek().copied()
            && at <= now
        {
            if !again && self.unsent == 0 {
                self.tasks.pop();
                continue;
            }
            if !self.belief.admit(now) {
                return;
            }
            self.tasks.pop();
            self.unsent -= u32::from(!again);
            if self.gate.may_pass(task % CLIENTS, now) {
                (self.is_row, self.last) = (false, now);
                self.tasks.push(Reverse((now, task, false)));
            } else {
                self.refused += 1;
                self.tasks.push(Reverse((now + RETRY_AFTER_US, task, true)));
                if self.is_row && self.promise.holds {
                    self.held_until = now + RETRY_AFTER_US;
                    self.belief = Quota::empty(self.load.belief().0, 1, self.held_until);
                }
                self.is_row = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(promise: usize, server: Kind, load: Load) -> Cost {
        Promise::ALL[promise].cost(server, load, 2_000)
    }

    #[test]
    fn the_margin_costs_what_it_adds_to_each_window() {
        for server in [Kind::FixedWindow, Kind::SlidingLog] {
            for load in Load::ALL.into_iter().filter(|load| load.is_known()) {
                let [with, without] = [0, 1].map(|promise| cost(promise, server, load));
                assert_eq!((with.refused_per_success, without.refused_per_success), (0.0, 0.0));
                assert!((with.time_over_ideal - 1.02).abs() < 1e-3, "{with:?}");
                assert!((without.time_over_ideal - 1.0).abs() < 1e-3, "{without:?}");
            }
        }
    }

    #[test]
    fn holding_all_after_a_row_costs_half_as_much_again_and_saves_nearly_all_429s() {
        // Half a second to send what goes, evenly at twice the rate, and the second that the server asks.
        let [with, without] = [0, 2].map(|promise| cost(promise, Kind::SlidingLog, Load::TwiceTheLimit));
        assert!((with.time_over_ideal - 1.5).abs() < 0.01, "{with:?}");
        assert!(without.time_over_ideal < 1.02, "{without:?}");
        assert!(with.refused_per_success < 0.02 && without.refused_per_success > 0.5, "{with:?} {without:?}");
    }
}
