//! Bytes of a key by `MEMORY USAGE`, with its name and all that it holds.

use forbear::store::Redis;
use forbear::{Limit, Rate};
use tokio::runtime::Runtime;

use crate::contenders::{self, KEY, Ours};
use crate::server::Server;
use crate::table::{Figure, Line};

/// Entries of the sliding log that has a bound.
pub(crate) const ENTRIES: u64 = 10_000;

pub(crate) fn lines(server: &mut Server, runtime: &Runtime) -> Vec<Line> {
    let store = Redis::new(server.url()).expect("the address is valid");
    let minute = Rate::per_minute(600);
    let limits = [
        ("token bucket", "b-bucket", Limit::token_bucket(minute, 100), Some(120)),
        ("plain rate", "b-plain", Limit::rate(minute), None),
        ("leaky bucket", "b-leaky", Limit::leaky_bucket(minute, 100), None),
        ("fixed window", "b-window", Limit::fixed_window(minute), None),
        ("sliding window of 10", "b-segments", Limit::sliding_window(minute, 10), None),
        ("sliding counter", "b-counter", Limit::sliding_counter(minute), None),
        ("sliding log of 100", "b-log-100", Limit::sliding_log(Rate::per_minute(100)), None),
        ("sliding log of 10,000", "b-log", Limit::sliding_log(Rate::per_hour(ENTRIES)), Some(110_000)),
        ("seats, one worker that holds some", "b-seats", Limit::concurrency(1_000), None),
    ];
    let mut lines = Vec::new();
    for (what, policy, limit, most) in limits {
        let ours = Ours::new(what, policy, &[limit], &store);
        let calls = match policy {
            "b-log" => ENTRIES,
            "b-log-100" => 100,
            _ => 10,
        };
        // The permits stay: seats that are not held take no memory.
        let permits = runtime.block_on(async {
            let mut permits = Vec::new();
            for _ in 0..calls {
                permits.push(ours.decide(KEY).await);
            }
            permits
        });
        let bytes = keys(server, policy).iter().map(|key| server.bytes_of(key)).sum::<u64>() as f64;
        drop(permits);
        lines.push(line(what, bytes, most));
    }
    let paused = Ours::new("a pause", "b-pause", &[contenders::bucket()], &store);
    runtime.block_on(async {
        drop(paused.decide(KEY).await);
        paused.limiter.pause(KEY, std::time::Duration::from_secs(60));
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    });
    let pause = keys(server, "b-pause").into_iter().find(|key| key.ends_with(":p"));
    let bytes = pause.map_or(0, |key| server.bytes_of(&key)) as f64;
    lines.push(line("a key's pause", bytes, None));
    lines
}

fn keys(server: &mut Server, policy: &str) -> Vec<String> {
    server.keys_with(&format!("{policy}."))
}

fn line(what: &str, bytes: f64, most: Option<u64>) -> Line {
    let line = Line::new(format!("bytes in Redis, {what}"), Figure(bytes, "B"));
    match most {
        Some(most) => line
            .beside("", "", bytes / most as f64)
            .bound(Figure(most as f64, "B").to_string(), bytes > 0.0 && bytes <= most as f64),
        None => line,
    }
}
