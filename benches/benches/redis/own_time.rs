//! Redis's own time per decision, as it counts it: `INFO commandstats`, reset before each turn.
//!
//! Our scripts and the plain one that stands beside them run in turns on connections of the same kind: one at a time,
//! and sixteen keys at once, whose calls Redis finds together. In batches 64 callers of one key wait at once, so
//! that one trip asks for all of them.

use std::time::Duration;

use forbear::store::Redis;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::contenders::{self, KEY, Who};
use crate::server::Server;
use crate::table::{Figure, Line};

/// Turns of each.
const TURNS: usize = 15;
/// Decisions of a turn, and trips of a turn in batches.
const ALONE: u64 = 320;
const BATCHES: u64 = 24;
const BATCH: u64 = 64;
/// Keys that are asked for at once.
const AT_ONCE: u64 = 16;

#[derive(Clone, Copy, PartialEq)]
enum How {
    OneAtATime,
    KeysAtOnce,
    InBatches,
}

/// Microseconds of Redis's time per decision: each turn's, and the calls that these took.
struct Measured {
    us: Vec<f64>,
    calls: f64,
}

impl Measured {
    fn quartile(&mut self) -> f64 {
        self.us.sort_by(f64::total_cmp);
        self.us[self.us.len() / 4]
    }
}

impl Who {
    /// Whether a decision is one call and no more: seats are reported when they are free again.
    fn is_one_call(&self) -> bool {
        match self {
            Who::Ours(ours) | Who::Paused(ours) => !matches!(ours.policy, "seats" | "three"),
            Who::Counter(..) => true,
        }
    }

    async fn prepare(&mut self) {
        self.decide(KEY).await;
        if let Who::Paused(ours) = self {
            ours.limiter.pause(KEY, Duration::from_millis(1));
            sleep(Duration::from_millis(10)).await;
            self.decide(KEY).await;
        }
        sleep(Duration::from_millis(2)).await;
    }

    async fn run(&mut self, how: How) -> u64 {
        let decisions = match how {
            How::OneAtATime => {
                for _ in 0..ALONE {
                    self.decide(KEY).await;
                }
                ALONE
            }
            How::KeysAtOnce => {
                for _ in 0..ALONE / AT_ONCE {
                    let keys = (0..AT_ONCE as usize).map(forbear_benches::contender::key);
                    self.all(keys).await;
                }
                ALONE
            }
            How::InBatches => {
                for _ in 0..BATCHES {
                    self.all(std::iter::repeat_n(KEY.to_owned(), BATCH as usize)).await;
                }
                BATCHES * BATCH
            }
        };
        if !self.is_one_call() {
            // Until the last seat was reported.
            sleep(Duration::from_millis(5)).await;
        }
        decisions
    }

    async fn all(&self, keys: impl Iterator<Item = String>) {
        let mut set = JoinSet::new();
        for key in keys {
            let mut each = self.clone();
            set.spawn(async move { each.decide(&key).await });
        }
        while set.join_next().await.is_some() {}
    }
}

fn measure(server: &mut Server, runtime: &Runtime, how: How, all: &mut [Who]) -> Vec<Measured> {
    let mut measured: Vec<_> = all.iter().map(|_| Measured { us: Vec::new(), calls: 0.0 }).collect();
    for _ in 0..TURNS {
        for (who, measured) in all.iter_mut().zip(&mut measured) {
            // A heartbeat is a script too: a turn that one falls into is run again.
            let us = (0..50).find_map(|_| {
                runtime.block_on(who.prepare());
                server.reset();
                let decisions = runtime.block_on(who.run(how));
                let cost = server.scripts();
                let trips = if how == How::InBatches { BATCHES } else { decisions };
                measured.calls = cost.calls as f64 / decisions as f64;
                let is_clean = !who.is_one_call() || cost.calls == trips;
                is_clean.then_some(cost.us as f64 / decisions as f64)
            });
            measured.us.push(us.expect("some turn has nothing but its own calls"));
        }
    }
    measured
}

pub(crate) fn lines(server: &mut Server, runtime: &Runtime) -> Vec<Line> {
    let url = server.url();
    let (ours, counter) = runtime.block_on(async {
        let store = Redis::new(&url).expect("the address is valid");
        (contenders::all(&store), Who::counter(&url).await)
    });
    let paused = Who::Paused(ours[0].clone());
    let mut lines = Vec::new();
    let mut alone = vec![counter.clone(), paused];
    alone.extend(ours.into_iter().map(Who::Ours));
    let mut few = alone[..3].to_vec();
    let mut batches = alone.clone();

    let name = |who: &Who| match who {
        Who::Ours(ours) => ours.what.to_owned(),
        Who::Paused(ours) => format!("{} with its pause", ours.what),
        Who::Counter(..) => unreachable!("it stands beside the others"),
    };
    let mut line = |who: &Who, end: &str, measured: &mut Measured, counter: f64, most: Option<f64>| {
        let calls = match who.is_one_call() {
            true => String::new(),
            false => format!(", {:.2} scripts", measured.calls),
        };
        let us = measured.quartile();
        let line = Line::new(format!("Redis's own time, {}{end}{calls}", name(who)), Figure(us, "µs"))
            .beside("INCRBY and PEXPIRE", Figure(counter, "µs"), us / counter);
        let is_bucket =
            matches!(who, Who::Paused(_)) || matches!(who, Who::Ours(ours) if ours.policy == "bucket");
        lines.push(match most.filter(|_| is_bucket) {
            Some(most) => line.at_most(most),
            None => line,
        });
    };
    let mut measured = measure(server, runtime, How::OneAtATime, &mut alone);
    let counter = measured[0].quartile();
    for (who, measured) in alone.iter().zip(&mut measured).skip(1) {
        line(who, "", measured, counter, Some(3.5));
    }
    let mut measured_at_once = measure(server, runtime, How::KeysAtOnce, &mut few);
    let counter_at_once = measured_at_once[0].quartile();
    for (who, measured) in few.iter().zip(&mut measured_at_once).skip(1) {
        line(who, ", 16 keys at once", measured, counter_at_once, Some(3.5));
    }
    // One script of the plain kind counts one caller.
    let mut measured_one = measure(server, runtime, How::OneAtATime, &mut batches[..1]);
    let counter = counter.min(measured_one[0].quartile());
    let mut measured = measure(server, runtime, How::InBatches, &mut batches[1..]);
    for (who, measured) in batches[1..].iter().zip(&mut measured) {
        line(who, ", a caller of 64", measured, counter, Some(0.25));
    }
    lines
}
