//! One decision: an `Instant`, governor, throttle-net, and ours with one limit, three, and the time given.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use forbear::Ask;
use forbear::store::Local;
use forbear_benches::contender::{self, KEY};
use tokio::runtime::Runtime;
use tokio::time::Instant;

fn one_limit(c: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let limiter = contender::one_limit(&Local::new());
    let (direct, keyed) = (contender::governor_direct(), contender::governor_keyed());
    let theirs = contender::throttle_net_keyed();
    let key = KEY.to_owned();
    let mut group = c.benchmark_group("decision/one limit");
    group.bench_function("governor, no key", |b| b.iter(|| direct.check()));
    group.bench_function("governor, keyed", |b| b.iter(|| keyed.check_key(black_box(&key))));
    group.bench_function("throttle-net, keyed", |b| b.iter(|| theirs.try_acquire(black_box(&key))));
    group.bench_function("forbear", |b| {
        b.iter_custom(|times| {
            runtime.block_on(async {
                let start = Instant::now();
                for _ in 0..times {
                    _ = black_box(limiter.acquire(black_box(&key)).await);
                }
                start.elapsed()
            })
        });
    });
    let at = Instant::now();
    group.bench_function("forbear, time given", |b| {
        b.iter(|| limiter.try_acquire_at(black_box(&key), black_box(at)));
    });
    group.finish();
}

fn three_limits(c: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let limiter = contender::three_limits(&Local::new());
    let theirs = contender::throttle_net_three();
    let costs = [("requests", 1), ("tokens", 100), ("seats", 1)];
    let mut group = c.benchmark_group("decision/three limits");
    group.bench_function("throttle-net", |b| b.iter(|| theirs.try_acquire_costs(black_box(&costs))));
    group.bench_function("forbear", |b| {
        b.iter_custom(|times| {
            runtime.block_on(async {
                let start = Instant::now();
                for _ in 0..times {
                    _ = black_box(limiter.acquire(Ask::new(black_box(KEY)).cost("tokens", 100)).await);
                }
                start.elapsed()
            })
        });
    });
    group.finish();
}

criterion_group!(benches, one_limit, three_limits);
criterion_main!(benches);
