//! The layers of a client around a transport that answers at once.

use criterion::{Criterion, criterion_group, criterion_main};
use forbear::store::Local;
use forbear_benches::{contender, stub};
use reqwest_middleware::ClientWithMiddleware;
use tokio::time::Instant;

fn stacks(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let store = Local::new();
    let stacks: [(&str, ClientWithMiddleware); 5] = [
        ("no layers", stub::bare()),
        ("reqwest-retry, reqwest-ratelimit", stub::peers()),
        ("the least with our promises", stub::least(contender::one_limit(&store))),
        ("forbear", stub::ours(contender::one_limit(&store))),
        ("forbear, with seats", stub::ours(contender::one_limit_and_seats(&store))),
    ];
    let mut group = c.benchmark_group("client");
    for (name, client) in &stacks {
        group.bench_function(*name, |b| {
            b.iter_custom(|times| {
                runtime.block_on(async {
                    let start = Instant::now();
                    for _ in 0..times {
                        stub::call(client).await;
                    }
                    start.elapsed()
                })
            });
        });
    }
    group.finish();
}

criterion_group!(benches, stacks);
criterion_main!(benches);
