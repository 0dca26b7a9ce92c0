//! Callers that give up, and callers that come late.

use std::time::Duration;

use crate::Line;
use crate::fleet;
use crate::fleet_load::{self, Load, Worker};
use crate::redis_process::RedisProcess;

/// Half of the callers give up after 50 ms, at one and a half times the load: the part of the limit that is used.
fn impatient(workers: usize) -> [Line; 2] {
    const WORDS: &str = "bucket 200 1000 20";
    let server = RedisProcess::start();
    let load = Load {
        give_up: Some((5, Duration::from_millis(50))),
        arrive: Some(300 / workers as u64),
        lasts: Duration::from_secs(15),
        ..Load::new(&server.url(), WORDS)
    };
    let reports = fleet_load::run(&load, workers);
    let slots = fleet_load::slots_of(&reports);
    // Without the beginning, which has a burst, and the end, at which everyone leaves.
    let (from, until) = (slots[0] + 2_000_000, slots[0] + 14_000_000);
    let inside = slots.iter().filter(|slot| (from..until).contains(slot)).count();
    let used = inside as f64 / 2_400.0;
    [
        Line::at_least(
            format!("{workers} processes, half give up after 50 ms, load 1.5: part used"),
            used,
            0.92,
        ),
        Line::holds("the same: spans with too many", fleet::check(WORDS, &slots)),
    ]
}

/// The longest wait of one caller beside others that take all there is.
fn late_joiner(words: &'static str, processes: usize, limiters: u64, tasks: u64) -> Duration {
    let server = RedisProcess::start();
    let load = Load { lasts: Duration::from_secs(12), limiters, tasks, ..Load::new(&server.url(), words) };
    let crowd = (0..processes).map(|_| Worker::start(&load)).collect::<Vec<_>>();
    std::thread::sleep(Duration::from_secs(2));
    let lasts = Duration::from_secs(9);
    let one = Load { tasks: 1, limiters: 1, hold: Duration::from_millis(150), lasts, ..load };
    let report = Worker::start(&one).report();
    drop(crowd);
    Duration::from_micros(report.waits.into_iter().max().unwrap_or(u64::MAX))
}

pub(crate) fn lines() -> Vec<Line> {
    Vec::from(impatient(8))
}

pub(crate) fn joiners() -> Vec<Line> {
    let few = late_joiner("bucket 200 1000 20", 7, 1, 32).as_secs_f64();
    let many = late_joiner("bucket 1000 1000 50", 7, 9, 32).as_secs_f64();
    vec![
        Line::at_most("longest wait beside 7 processes at 200/s, s", few, 0.6),
        Line::at_most("longest wait beside 63 limiters at 1,000/s, s", many, 1.2),
    ]
}
