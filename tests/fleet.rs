//! Many processes, one quota: what a limit promises holds over all of them, and little of it is left unused.
#![cfg(feature = "redis")]

#[path = "kit/fleet.rs"]
mod fleet;
#[path = "kit/redis_process.rs"]
mod redis_process;

use fleet::{Job, Report};
use redis_process::RedisProcess;

#[test]
fn worker() {
    fleet::work();
}

/// Eight processes of 32 tasks; the slots of all, in order.
fn eight(words: &'static str, calls: u64) -> Vec<u64> {
    let server = RedisProcess::start();
    let job = Job { calls: calls / 8, ..Job::new(&server.url(), &[words]) };
    let reports = fleet::run(&job, 8);
    let mut slots = reports.iter().flat_map(|report: &Report| report.slots.clone()).collect::<Vec<_>>();
    slots.sort_unstable();
    assert_eq!(slots.len() as u64, calls, "{words}: every call went");
    fleet::check(words, &slots).unwrap_or_else(|fault| panic!("{words}: {fault}"));
    let lasted = (slots[slots.len() - 1] - slots[0]) as f64 / 1e6;
    println!("{words}: {} in {lasted:.2} s", slots.len());
    slots
}

#[test]
fn eight_processes_share_a_token_bucket() {
    eight("bucket 2000 1000 50", 4_000);
}

#[test]
fn eight_processes_share_a_plain_rate() {
    eight("rate 2000 1000", 4_000);
}

#[test]
fn eight_processes_share_a_leaky_bucket() {
    eight("leaky 2000 1000 300", 4_000);
}

#[test]
fn eight_processes_share_a_fixed_window() {
    eight("fixed 1000 500", 4_000);
}

#[test]
fn eight_processes_share_a_segmented_window() {
    eight("segments 1000 500 10", 4_000);
}

#[test]
fn eight_processes_share_a_sliding_counter() {
    eight("counter 1000 500", 4_000);
}

#[test]
fn eight_processes_share_a_sliding_log() {
    eight("log 1000 500", 4_000);
}
