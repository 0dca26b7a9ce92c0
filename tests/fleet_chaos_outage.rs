//! Redis away: what each way of going on lets through, and how the fleet comes back to one schedule.
#![cfg(feature = "redis")]

#[path = "kit/fleet.rs"]
mod fleet;
#[path = "kit/redis_process.rs"]
mod redis_process;

use std::thread::sleep;
use std::time::Duration;

use fleet::{Job, Report, count_in, machine_us, slots_of};
use forbear::store::OnOutage;
use redis_process::RedisProcess;

#[test]
fn worker() {
    fleet::work();
}

const SECOND: u64 = 1_000_000;

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Calls that a server would have refused which keeps to a bucket of `burst`, by when they went; those it refuses
/// cost nothing.
fn refused_by(rate: u64, burst: f64, went: &[u64]) -> usize {
    let (mut level, mut at, mut refused) = (0.0_f64, went[0], 0);
    for now in went {
        level = (level - (now - at) as f64 * rate as f64 / 1e6).max(0.0);
        at = *now;
        if level + 1.0 > burst {
            refused += 1;
        } else {
            level += 1.0;
        }
    }
    refused
}

/// Calls of eight workers by when they went, with Redis away for three seconds.
struct Outage {
    reports: Vec<Report>,
    went: Vec<u64>,
    away: u64,
    back: u64,
}

fn outage(limit: &'static str, on_outage: OnOutage) -> Outage {
    let mut server = RedisProcess::start();
    let url = server.url();
    let job = Job { tasks: 8, calls: 1_000_000, lasts: secs(14), on_outage, ..Job::new(&url, &[limit]) };
    let workers = fleet::start(&job, 8);
    // Until everyone has seen all others.
    sleep(secs(5));
    let away = machine_us();
    server.kill();
    sleep(secs(3));
    server.restart();
    let back = machine_us();
    let reports = fleet::reports(workers);
    let slots = slots_of(&reports);
    fleet::check(limit, &slots).unwrap_or_else(|fault| panic!("{limit}: {fault}"));
    let went = fleet::went(&reports);
    Outage { reports, went, away, back }
}

#[test]
fn eight_workers_keep_to_their_shares_and_return_without_a_wave() {
    let outage = outage("bucket 320 1000 16", OnOutage::default());
    let Outage { went, away, back, .. } = &outage;
    // Each may have a whole call ahead of it at the edges of a span.
    let shares = count_in(went, away + SECOND..*back) as f64;
    let ideal = (back - away - SECOND) as f64 * 320.0 / 1e6;
    assert!(shares <= ideal + 8.0, "{shares} of {ideal}");
    assert!(shares >= 0.8 * ideal, "{shares} of {ideal}");
    // Timers wake late on a busy machine, so a tenth of a second more than the burst.
    let refused = refused_by(320, 16.0 + 32.0, went);
    assert!(refused == 0, "{refused} of {}", went.len());
    let later = count_in(&slots_of(&outage.reports), back + 3 * SECOND..back + 4 * SECOND);
    assert!(later >= 280, "{later} of 320 in a second of Redis's time");
}
