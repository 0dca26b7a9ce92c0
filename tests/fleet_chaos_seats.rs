//! Seats that a whole fleet shares, over processes that are killed, stopped and forgotten.
#![cfg(feature = "redis")]

#[path = "kit/fleet.rs"]
mod fleet;
#[path = "kit/redis_process.rs"]
mod redis_process;

use std::thread::sleep;
use std::time::Duration;

use fleet::{Job, Report, Worker, machine_us, most_at_once};
use redis_process::RedisProcess;

#[test]
fn worker() {
    fleet::work();
}

const SECOND: u64 = 1_000_000;

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A worker that holds each seat for so long.
fn job(server: &RedisProcess, limit: &'static str, tasks: u64, hold: Duration, lasts: Duration) -> Job {
    Job { tasks, calls: 1_000_000, hold, lasts, ..Job::new(&server.url(), &[limit]) }
}

/// The part of a report that lies in a span.
fn part(report: &Report, span: std::ops::Range<u64>) -> Report {
    let cut = |(from, to): &(u64, u64)| ((*from).max(span.start), (*to).min(span.end));
    let held = report.held.iter().map(cut).filter(|(from, to)| from < to).collect();
    Report { held, ..Report::default() }
}

fn parts(reports: &[Report], span: std::ops::Range<u64>) -> Vec<Report> {
    reports.iter().map(|report| part(report, span.clone())).collect()
}

/// The seconds that all calls held a seat within a span.
fn used(reports: &[Report], span: std::ops::Range<u64>) -> f64 {
    let held = parts(reports, span);
    let each = held.iter().flat_map(|report| &report.held).map(|(from, to)| to - from);
    each.sum::<u64>() as f64 / SECOND as f64
}

#[test]
fn eight_seats_over_four_processes_are_all_used_and_never_more() {
    let server = RedisProcess::start();
    let start = machine_us();
    let reports = fleet::run(&job(&server, "seats 8", 4, secs(2), secs(11)), 4);
    assert_eq!(most_at_once(&reports), 8);
    // When all workers are there.
    let span = start + 4 * SECOND..start + 10 * SECOND;
    let used = used(&reports, span) / 48.0;
    println!("{used:.4} of the seats were used");
    assert!(used > 0.9, "{used:.3} of the seats were used");
    assert!(reports.iter().all(|report| report.held.len() > 2), "by all processes");
}

#[test]
fn a_call_that_lasts_longer_than_the_lease_keeps_its_seat() {
    let server = RedisProcess::start();
    let long = Worker::start(&job(&server, "seats 2", 2, secs(14), secs(6)));
    sleep(secs(4));
    let short = Worker::start(&job(&server, "seats 2", 2, Duration::from_millis(100), secs(16)));
    let reports = fleet::reports(vec![long, short]);
    assert_eq!(reports[0].held.len(), 2);
    assert_eq!(most_at_once(&reports), 2);
    assert!(reports[1].held.len() > 2, "they came back");
}

#[test]
fn b049_a_killed_workers_seats_come_back_within_the_lease() {
    let server = RedisProcess::start();
    let victim = Worker::start(&job(&server, "seats 8", 4, secs(60), secs(60)));
    let lone = Job { policy: "lone", ..job(&server, "seats 1", 1, secs(60), secs(60)) };
    let holder = Worker::start(&lone);
    sleep(secs(1));
    // Of the first somebody always asks; the second has nobody but itself to look.
    let busy = Worker::start(&job(&server, "seats 8", 6, Duration::from_millis(500), secs(15)));
    let waiter = Worker::start(&Job { hold: Duration::ZERO, calls: 1, lasts: secs(20), ..lone });
    sleep(secs(4));
    let killed = machine_us();
    victim.signal("KILL");
    holder.signal("KILL");
    let reports = fleet::reports(vec![busy]);
    assert_eq!(most_at_once(&parts(&reports, 0..killed + 6 * SECOND)), 4, "the others are not free yet");
    let later = parts(&reports, killed + 10 * SECOND + SECOND / 2..u64::MAX);
    assert_eq!(most_at_once(&later), 6, "all tasks of the one that is left");
    let waiter = waiter.report();
    assert_eq!(waiter.held.len(), 1);
    let waited = waiter.held[0].0.saturating_sub(killed);
    assert!((6 * SECOND..10 * SECOND + SECOND / 2).contains(&waited), "{waited} us after the kill");
}

#[test]
fn all_state_lost_while_eight_run_never_brings_more() {
    let server = RedisProcess::start();
    let workers = fleet::start(&job(&server, "seats 8", 4, Duration::from_millis(1_500), secs(18)), 4);
    sleep(secs(5));
    for _ in 0..3 {
        server.cli(&["FLUSHALL"]);
        sleep(secs(2));
    }
    let flushed = machine_us();
    let reports = fleet::reports(workers);
    assert_eq!(most_at_once(&reports), 8);
    // Until everyone has beaten, and has reported.
    let used = used(&reports, flushed + 5 * SECOND..flushed + 6 * SECOND) / 8.0;
    assert!(used > 0.6, "{used:.3} of the seats are used again");
}

#[test]
fn b128_a_worker_that_is_stopped_beyond_its_lease_exceeds_the_cap_by_its_own_running_calls_only() {
    let server = RedisProcess::start();
    let hold = Duration::from_millis(1_000);
    let mut workers = fleet::start(&job(&server, "seats 8", 4, hold, secs(22)), 3);
    let stopped = workers.remove(0);
    sleep(secs(5));
    let from = machine_us();
    stopped.signal("STOP");
    sleep(secs(12));
    let to = machine_us();
    stopped.signal("CONT");
    let mut reports = fleet::reports(vec![stopped]);
    reports.extend(fleet::reports(workers));
    assert_eq!(most_at_once(&parts(&reports, 0..from)), 8);
    assert_eq!(most_at_once(&parts(&reports[1..], to - SECOND..to)), 8, "its lease is over");
    let running = reports[0].held.iter().filter(|(began, ended)| *began < to && *ended >= to).count();
    let most = most_at_once(&reports);
    assert!(most <= 8 + running, "{most} with {running} that were running");
    reports[0].held.retain(|(began, ended)| *ended < from || *began > to);
    assert_eq!(most_at_once(&reports), 8, "those apart, never more");
    assert!(reports[0].held.iter().any(|(began, _)| *began > to), "it takes part again");
}
