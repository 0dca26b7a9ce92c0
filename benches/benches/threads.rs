//! One, two, four and eight threads, on one key and on a key each. The time is wall time a decision: all
//! decisions together over the time from the first to the last.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use forbear::store::Local;
use forbear_benches::contender;
use forbear_benches::threads::{at_once, wall_ns};

fn threads(c: &mut Criterion) {
    let limiter = contender::one_limit(&Local::new());
    let theirs = contender::governor_keyed();
    let keys = (0..8).map(contender::key).collect::<Vec<_>>();
    for (what, spread) in [("one key", 0), ("a key each", 1)] {
        let mut group = c.benchmark_group(format!("threads/{what}"));
        for threads in [1, 2, 4, 8] {
            let wall = |times: u64, once: &(dyn Fn(usize) + Sync)| {
                let times = times.div_ceil(threads as u64);
                Duration::from_nanos(wall_ns(threads, times, once) as u64)
            };
            group.bench_function(BenchmarkId::new("governor", threads), |b| {
                b.iter_custom(|times| wall(times, &|i| _ = theirs.check_key(&keys[i * spread])));
            });
            group.bench_function(BenchmarkId::new("forbear", threads), |b| {
                b.iter_custom(|times| wall(times, &|i| drop(at_once(limiter.acquire(&keys[i * spread])))));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, threads);
criterion_main!(benches);
