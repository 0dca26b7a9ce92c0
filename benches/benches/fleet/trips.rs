//! How often Redis is asked. A trip is a run of the script that decides, the only one that reads several keys in
//! one command: heartbeats and hand-backs are not counted.

use std::time::Duration;

use crate::Line;
use crate::fleet_load::{self, Load, Report};
use crate::redis_process::RedisProcess;

const SECOND: Duration = Duration::from_secs(1);

/// What the workers of a load did, and the trips that it took.
fn counted(words: &'static str, workers: usize, load: impl FnOnce(Load) -> Load) -> (Vec<Report>, u64) {
    let server = RedisProcess::start();
    let reports = fleet_load::run(&load(Load::new(&server.url(), words)), workers);
    (reports, server.calls("mget"))
}

fn per_call(words: &'static str, workers: usize, tasks: u64, seconds: u32) -> f64 {
    let load = |load| Load { tasks, lasts: seconds * SECOND, ..load };
    let (reports, trips) = counted(words, workers, load);
    trips as f64 / reports.iter().map(|report| report.slots.len()).sum::<usize>() as f64
}

/// Twenty processes for one call in ten seconds: trips a second, and the part of the limit that was used.
fn scarce(tasks: u64, give_up: Option<Duration>) -> (f64, f64) {
    const LASTS: u64 = 120;
    let load = |load| Load {
        tasks,
        lasts: Duration::from_secs(LASTS),
        give_up: give_up.map(|after| (8, after)),
        ..load
    };
    let (reports, trips) = counted("bucket 1 10000 1", 20, load);
    let slots = fleet_load::slots_of(&reports);
    let lasted = (slots[slots.len() - 1] - slots[0]) as f64 / 1e7;
    (trips as f64 / LASTS as f64, (slots.len() - 1) as f64 / lasted)
}

/// One caller whose slot is ten seconds away: trips from when it asks until it goes.
fn far() -> f64 {
    let load = |load| Load { tasks: 1, calls: 2, ..load };
    let (_, trips) = counted("bucket 1 10000 1", 1, load);
    // One for the first call, which goes at once, and one that learns where the second's slot is.
    trips as f64 - 2.0
}

pub(crate) fn lines() -> Vec<Line> {
    // Two minutes that cost nothing run beside each other.
    let scarce = |tasks, give_up| std::thread::spawn(move || scarce(tasks, give_up));
    let five = Some(Duration::from_secs(5));
    let scarce = [("", 1, None), (", 80 % give up after 5 s", 1, five), (", the same of two", 2, five)]
        .map(|(who, tasks, give_up)| (who, scarce(tasks, give_up)));
    let far = std::thread::spawn(far);
    let mut lines = Vec::new();
    for (words, rate) in
        [("bucket 50 1000 10", 50), ("bucket 200 1000 20", 200), ("bucket 1000 1000 50", 1_000)]
    {
        for workers in [1, 2, 8] {
            let what = format!("trips a call, {rate}/s, {workers} x 32 tasks");
            lines.push(Line::at_most(what, per_call(words, workers, 32, 6), 1.05));
        }
        let what = format!("trips a call, {rate}/s, 8 x 1 tasks");
        lines.push(Line::at_most(what, per_call(words, 8, 1, 6), 1.05));
    }
    let one = per_call("bucket 1000 1000 50", 1, 256, 6);
    lines.push(Line::at_most("trips a call, 1,000/s, 1 x 256 tasks", one, 0.03));
    let joined = "a measuring thread ends";
    lines.push(Line::at_most("more trips of a caller 10 s from its slot", far.join().expect(joined), 1.0));
    for (who, run) in scarce {
        let (trips, used) = run.join().expect(joined);
        lines.push(Line::at_most(format!("20 processes, 1 per 10 s{who}: trips a second"), trips, 3.0));
        lines.push(Line::at_least(format!("20 processes, 1 per 10 s{who}: part used"), used, 0.95));
    }
    lines
}
