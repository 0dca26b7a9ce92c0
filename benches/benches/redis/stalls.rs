//! The longest that one call, or Redis's own tidying, holds everyone up when ten thousand entries of a log expire.
//!
//! By the server's own clock: the slow log with a threshold of 0 holds every script that ran, and the latency
//! monitor every event of a millisecond or more, the deletion of expired keys among them.

use std::time::{Duration, Instant};

use forbear::store::Redis;
use forbear::{Limit, Rate};
use forbear_benches::contender::key;
use forbear_benches::stopwatch::now;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::contenders::Ours;
use crate::memory::ENTRIES;
use crate::server::Server;
use crate::table::{Figure, Line};

/// Long enough that all entries are made in less.
const WINDOW: Duration = Duration::from_secs(15);
/// So long before the first entry leaves some logs get one more, and outlive the others.
const BEFORE: Duration = Duration::from_secs(1);
/// An entry is kept so much longer than the window, for readers with a margin.
const AFTER: Duration = Duration::from_millis(500);
/// Logs of which one entry stays: the machine holds up a call of one or the other.
const OUTLIVING: usize = 3;

const MOST_US: u64 = 1_000;

pub(crate) fn lines(server: &mut Server, runtime: &Runtime) -> Vec<Line> {
    let store = Redis::new(server.url()).expect("the address is valid");
    let log = Limit::sliding_log(Rate::new(ENTRIES + 1, WINDOW));
    let ours = Ours::new("sliding log", "stalls", &[log], &store);
    let [expiring, drained] = [OUTLIVING, OUTLIVING + 1].map(key);
    let (begun, ended) = runtime.block_on(fill(&ours, OUTLIVING + 2));

    runtime.block_on(async {
        // A script that Redis does not know yet is read first, which is no stall of a log.
        ours.limiter.pause("another", Duration::from_millis(1));
        sleep(Duration::from_millis(20)).await;
    });
    server.watch();
    runtime.block_on(async {
        ours.limiter.pause(&drained, Duration::from_millis(1));
        sleep(Duration::from_millis(20)).await;
        // Refused, for a drained log is full.
        drop(ours.limiter.try_acquire(&*drained).await);
    });
    let drain_us = server.longest().longest_us;

    runtime.block_on(async {
        until(begun + WINDOW - BEFORE).await;
        for key in (0..OUTLIVING).map(key) {
            drop(ours.decide(&key).await);
        }
        until(ended + WINDOW - BEFORE / 2).await;
    });
    // The last log vanishes by itself, the others get a call.
    server.watch();
    runtime.block_on(until(ended + WINDOW + AFTER));
    let vanishing = server.longest();
    let mut dropping = Vec::new();
    for key in (0..OUTLIVING).map(key) {
        server.watch();
        drop(runtime.block_on(ours.decide(&key)));
        dropping.push(server.longest().longest_us);
    }
    dropping.sort_unstable();
    server.watch();
    drop(runtime.block_on(ours.decide(&expiring)));
    let next_us = server.longest().longest_us;

    let events = match &*vanishing.events {
        [] => "no event of 1 ms".to_owned(),
        events => events.join(", "),
    };
    let us = |us: u64| Figure(us as f64, "µs");
    let bound = |line: Line, met| line.bound("1,000 µs", met);
    let dropped_us = dropping[OUTLIVING / 2];
    vec![
        bound(
            Line::new("longest stall, a call that drops 10,000 entries", us(dropped_us)),
            dropped_us <= MOST_US,
        ),
        bound(Line::new("longest stall, a log of 10,000 that expires", events), vanishing.events.is_empty()),
        bound(Line::new("longest stall, the first call after that", us(next_us)), next_us <= MOST_US),
        bound(Line::new("longest stall, a pause drains a log of 10,000", us(drain_us)), drain_us <= MOST_US),
    ]
}

async fn until(at: Instant) {
    sleep(at.saturating_duration_since(now())).await;
}

/// Ten thousand entries for each key, one by one, for those of one instant are one: when that began and ended.
async fn fill(ours: &Ours, keys: usize) -> (Instant, Instant) {
    let begun = now();
    let mut set = JoinSet::new();
    for key in (0..keys).map(key) {
        let ours = ours.clone();
        set.spawn(async move {
            for _ in 0..ENTRIES {
                drop(ours.decide(&key).await);
            }
        });
    }
    set.join_all().await;
    assert!(begun.elapsed() < WINDOW - 2 * BEFORE, "the machine was too slow to make the entries in time");
    (begun, now())
}
