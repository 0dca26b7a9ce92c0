//! Eight processes of 32 tasks on one key: no span of slots holds more than was promised, and little is left
//! unused.

use crate::fleet;
use crate::fleet_load::{self, Load};
use crate::redis_process::RedisProcess;
use crate::{Line, tireless};

const CALLS: u64 = 20_000;

const LIMITS: [(&str, &str); 7] = [
    ("token bucket", "bucket 2000 1000 50"),
    ("plain rate", "rate 2000 1000"),
    ("leaky bucket", "leaky 2000 1000 400"),
    ("fixed window", "fixed 1000 500"),
    ("segmented window", "segments 1000 500 10"),
    ("sliding counter", "counter 1000 500"),
    ("sliding log", "log 1000 500"),
];

pub(crate) fn lines() -> Vec<Line> {
    let lines = LIMITS.iter().flat_map(|(name, words)| {
        let server = RedisProcess::start();
        let reports = fleet_load::run(&Load { calls: CALLS / 8, ..Load::new(&server.url(), words) }, 8);
        let slots = fleet_load::slots_of(&reports);
        let lasted = slots[slots.len() - 1] - slots[0];
        let part = slots.len() as f64 / tireless::granted(words, lasted) as f64;
        [
            Line::holds(
                format!("{name}, {} decisions: spans with too many", slots.len()),
                fleet::check(words, &slots),
            ),
            Line::at_least(format!("{name}: part of a tireless caller's"), part, 0.99),
        ]
    });
    lines.collect()
}
