//! What two promises of this library cost by themselves, against a server that counts by windows: a client that
//! keeps them, on a network where each answer takes a millisecond.
//!
//! It has as many tasks as the fleet, sends as soon as its belief allows, sends a refused call again when its wait is
//! over, and takes what is left of its belief for used where it is refused. The promises are a margin, by which it
//! takes a window for longer than it is, and that after a row of refusals nobody sends for as long as the server asks.
//! It shares no line with the library, so it says about what is to be had.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::load::{CLIENTS, Load, RETRY_AFTER_US, STEP_US, TASKS};
use super::quota::{Kind, Quota};
use super::server::Gate;

/// From a send to its answer.
const TRIP_US: u64 = 1_000;
/// Which of the promises are kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Promise {
    pub(super) name: &'static str,
    margin_us: u64,
    /// How long refusals must have gone on for all to be held; `None` if nobody ever is.
    row_us: Option<u64>,
}

/// What came of a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) time_over_ideal: f64,
    pub(super) refused_per_success: f64,
}

impl Promise {
    /// As the library has them: an answer says when the call had arrived, and no more than that is left.
    pub(super) const BOTH: Self = Self {
        name: "a margin as long as an answer takes, and a row of 0.1 s holds all",
        margin_us: TRIP_US,
        row_us: Some(100_000),
    };
    const WHOLE_MARGIN: Self = Self {
        name: "a margin of 20 ms whenever answers come, and a row of 0.1 s holds all",
        margin_us: 20_000,
        ..Self::BOTH
    };
    const MARGIN: Self =
        Self { name: "only a margin as long as an answer takes", row_us: None, ..Self::BOTH };
    const NEITHER: Self = Self { name: "neither", margin_us: 0, row_us: None };
    pub(super) const ALL: [Self; 4] = [Self::BOTH, Self::WHOLE_MARGIN, Self::MARGIN, Self::NEITHER];

    pub(super) fn cost(self, server: Kind, load: Load, calls: u32) -> Cost {
        let mut fleet = Fleet::new(self, server, load, calls);
        let mut now = 0;
        while fleet.unsent > 0 || !fleet.tasks.is_empty() || !fleet.sent.is_empty() {
            fleet.hear(now);
            fleet.send(now);
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
    /// Until when nobody sends.
    held_until: Option<u64>,
    /// Of the row of refusals that goes on: when its first was heard, and when the first was sent after that.
    row: Option<(u64, Option<u64>)>,
    /// Each with when it may send, and whether its call was refused.
    tasks: BinaryHeap<Reverse<(u64, usize, bool)>>,
    /// When, by which task, and whether it was admitted; oldest first.
    sent: VecDeque<(u64, usize, bool)>,
    unsent: u32,
    refused: u32,
    /// When the last call was admitted.
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
            belief: Quota::new(server, per_second, burst).with_margin(promise.margin_us),
            held_until: None,
            row: None,
            tasks: busy.map(|task| Reverse((0, task, false))).collect(),
            sent: VecDeque::new(),
            unsent: calls,
            refused: 0,
            last: 0,
        }
    }

    /// Everything that is answered by now.
    fn hear(&mut self, now: u64) {
        while let Some((at, task, admitted)) = self.sent.front().copied()
            && at + TRIP_US <= now
        {
            self.sent.pop_front();
            if admitted {
                self.row = None;
                self.tasks.push(Reverse((now, task, false)));
                continue;
            }
            self.refused += 1;
            self.tasks.push(Reverse((now + RETRY_AFTER_US, task, true)));
            self.belief.refused(now, at, RETRY_AFTER_US);
            let (since, again) = self.row.get_or_insert((now, None));
            if at >= *since {
                let again = *again.get_or_insert(at);
                if self.promise.row_us.is_some_and(|row_us| at >= again + row_us) {
                    self.held_until = Some(now + RETRY_AFTER_US);
                }
            }
        }
    }

    /// Everything that may be sent now.
    fn send(&mut self, now: u64) {
        if let Some(every_us) = self.load.neighbour_every_us() {
            while self.neighbour <= now {
                self.gate.quota.take(now);
                self.neighbour += every_us;
            }
        }
        if let Some(until) = self.held_until {
            if now < until {
                return;
            }
            self.held_until = None;
            self.belief.drain(now);
        }
        while let Some(Reverse((at, task, again))) = self.tasks.peek().copied()
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
            let admitted = self.gate.may_pass(task % CLIENTS, now);
            if admitted {
                self.last = now;
            }
            self.sent.push_back((now, task, admitted));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_margin_costs_what_it_adds_to_each_window() {
        for server in [Kind::FixedWindow, Kind::SlidingLog] {
            for load in Load::ALL.into_iter().filter(|load| load.is_known()) {
                let over = |promise: Promise| {
                    let cost = promise.cost(server, load, 2_000);
                    assert_eq!(cost.refused_per_success, 0.0);
                    cost.time_over_ideal
                };
                let [answer, whole, none] =
                    [Promise::BOTH, Promise::WHOLE_MARGIN, Promise::NEITHER].map(over);
                assert!((answer - none - 0.001).abs() < 5e-4, "{answer} beside {none}");
                assert!((whole - none - 0.02).abs() < 5e-4, "{whole} beside {none}");
            }
        }
    }

    /// A log that takes what it has left for missing until the wait is over is refused a few times in each window, and
    /// at once: too few for a row.
    #[test]
    fn a_wrong_belief_costs_a_log_little_and_no_row_holds_it() {
        for load in Load::ALL.into_iter().filter(|load| !load.is_known()) {
            let [with, without] =
                [Promise::BOTH, Promise::MARGIN].map(|it| it.cost(Kind::SlidingLog, load, 2_000));
            assert!(with.time_over_ideal < 1.02, "{load:?}: {with:?}");
            assert!(with.refused_per_success < 0.1, "{load:?}: {with:?}");
            assert_eq!(with.time_over_ideal, without.time_over_ideal, "{load:?}");
        }
    }
}
