//! What a call that does not wait takes from the allocator: nothing. One test, for the count is the whole
//! process's.

use std::alloc::System;

use forbear::store::Local;
use forbear::{Ask, Permit};
use forbear_benches::contender::{self, KEY};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tokio::time::Instant;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Allocations of a hundred calls, after one that makes the key. The least of a few rounds, for the test's
/// harness has a thread of its own that allocates now and then.
async fn allocations(call: impl AsyncFn() -> Permit) -> usize {
    drop(call().await);
    let mut least = usize::MAX;
    for _ in 0..5 {
        let region = Region::new(ALLOCATOR);
        for _ in 0..100 {
            drop(call().await);
        }
        let change = region.change();
        least = least.min(change.allocations + change.reallocations);
    }
    least
}

#[test]
fn a_call_that_does_not_wait_allocates_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let store = Local::new();
    let (one, all) = (contender::one_limit(&store), contender::three_limits(&store));
    let tokens = || Ask::new(KEY).cost("tokens", 100);
    runtime.block_on(async {
        assert_eq!(allocations(async || one.acquire(KEY).await.expect("room")).await, 0, "acquire");
        assert_eq!(allocations(async || one.try_acquire(KEY).await.expect("room")).await, 0, "try_acquire");
        let at = Instant::now();
        let given = async || one.try_acquire_at(KEY, at).expect("room");
        assert_eq!(allocations(given).await, 0, "the time given");
        let three = async || all.acquire(tokens()).await.expect("room");
        assert_eq!(allocations(three).await, 0, "requests, tokens and a seat");
    });
}
