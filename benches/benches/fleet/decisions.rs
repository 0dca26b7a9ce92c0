//! Decisions a second of one process, with so many tasks on one key, and on a thousand keys.

use std::time::{Duration, Instant};

use forbear::store::Redis;
use forbear::{Ask, Limit, Limiter, Policy, Rate};

use crate::Line;
use crate::redis_process::RedisProcess;

const LASTS: Duration = Duration::from_secs(3);

fn a_second(server: &RedisProcess, tasks: usize, keys: usize) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let bucket = Limit::token_bucket(Rate::per_second(10_000_000), 5_000_000);
        let policy = Policy::new(format!("decisions-{tasks}-{keys}")).limit(bucket);
        let limiter =
            Limiter::new(policy, Redis::new(server.url()).expect("a good URL")).expect("a good policy");
        #[allow(clippy::disallowed_methods, reason = "measures real time, which no test pauses")]
        let start = Instant::now();
        let all = (0..tasks).map(|task| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let (mut done, key) = (0_u64, format!("key-{}", task % keys));
                while start.elapsed() < LASTS {
                    _ = limiter.acquire(Ask::new(&key)).await.expect("there is enough");
                    done += 1;
                }
                done
            })
        });
        let mut done = 0;
        for task in all.collect::<Vec<_>>() {
            done += task.await.expect("a task ends");
        }
        done as f64 / start.elapsed().as_secs_f64()
    })
}

pub(crate) fn lines() -> Vec<Line> {
    let server = RedisProcess::start();
    let shapes = [(1, 1), (16, 1), (256, 1), (1_000, 1), (1_000, 1_000)];
    let lines = shapes.map(|(tasks, keys)| {
        let what =
            format!("decisions a second, {tasks} tasks on {keys} {}", if keys == 1 { "key" } else { "keys" });
        Line::told(what, format!("{:.0}", a_second(&server, tasks, keys)))
    });
    Vec::from(lines)
}
