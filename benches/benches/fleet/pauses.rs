//! One worker's 429 stops all of them.

use std::time::Duration;

use crate::Line;
use crate::fleet_http::{HttpWorker, RATE, Service};
use crate::redis_process::RedisProcess;

const PAUSE: Duration = Duration::from_secs(3);

pub(crate) fn lines() -> Vec<Line> {
    let (redis, service) = (RedisProcess::start(), Service::start());
    let mut workers = (0..8).map(|_| HttpWorker::start(&redis.url(), &service.url)).collect::<Vec<_>>();
    workers.iter_mut().for_each(|worker| worker.give(250));
    while service.came().len() < 400 {
        std::thread::sleep(Duration::from_millis(1));
    }
    service.refuse_next(PAUSE.as_secs());
    std::thread::sleep(PAUSE + Duration::from_secs(3));
    let told = service.told_at()[0];
    let came = service.came();
    let since = came.iter().filter(|at| **at > told).map(|at| *at - told).collect::<Vec<_>>();
    let during = since.iter().filter(|at| **at > Duration::from_millis(50) && **at < PAUSE);
    let during = during.count() as f64;
    let last_before = since.iter().filter(|at| **at < PAUSE).max().copied().unwrap_or_default();
    let first_after = since.iter().filter(|at| **at >= PAUSE).min().copied().unwrap_or_default();
    let within = |from: f64, to: f64| {
        let from_to = (PAUSE + Duration::from_secs_f64(from))..(PAUSE + Duration::from_secs_f64(to));
        since.iter().filter(|at| from_to.contains(at)).count() as f64
    };
    vec![
        Line::at_most("429 with Retry-After: 3: sent from 50 ms after it to its end", during, 0.0),
        Line::told("the same: the last that was sent, ms after it", format!("{}", last_before.as_millis())),
        Line::told("the same: the first after it, ms", format!("{}", first_after.as_millis())),
        Line::at_most(
            "the same: sent in the first 0.5 s after it, of the rate",
            within(0.0, 0.5) / RATE * 2.0,
            1.1,
        ),
        Line::at_least(
            "the same: sent from 0.5 to 2.5 s after it, of the rate",
            within(0.5, 2.5) / RATE / 2.0,
            0.97,
        ),
        Line::at_most("the same: 429s after it", service.refused() as f64, 0.0),
    ]
}
