//! One decision while a thousand, or a million, other keys are kept, and while callers wait. The keys that
//! are asked for are always the same 64, so that the figure is that of the table and not of the caches.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use forbear::store::Local;
use forbear_benches::contender;
use forbear_benches::threads::at_once;
use forbear_benches::waiters::with_waiting;

fn kept(c: &mut Criterion) {
    let mut group = c.benchmark_group("keys/kept");
    let asked = (0..64).map(contender::key).collect::<Vec<_>>();
    for keys in [64, 1_000, 1_000_000] {
        let limiter = contender::one_slow_limit(&Local::new());
        for key in (0..keys).map(contender::key) {
            drop(at_once(limiter.acquire(&key)));
        }
        let mut next = asked.iter().cycle();
        group.bench_function(BenchmarkId::new("forbear", keys), |b| {
            b.iter(|| drop(at_once(limiter.acquire(black_box(next.next().expect("it has no end"))))));
        });
    }
    group.finish();
}

fn waiting(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let mut group = c.benchmark_group("keys/waiting");
    for callers in [10, 10_000] {
        let (limiter, waiters) = runtime.block_on(with_waiting(callers));
        let _inside = runtime.enter();
        group.bench_function(BenchmarkId::new("forbear, another key", callers), |b| {
            b.iter(|| drop(at_once(limiter.acquire(black_box("a free key")))));
        });
        drop(waiters);
    }
    group.finish();
}

criterion_group!(benches, kept, waiting);
criterion_main!(benches);
