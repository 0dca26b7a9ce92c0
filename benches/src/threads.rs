//! Several threads that ask at once.

use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Poll, Waker};

use crate::stopwatch::now;

/// Runs `times` calls of `once` on each of `threads` threads, and gives the wall time in nanoseconds from
/// the first start to the last end. `once` is told its thread.
pub fn wall_ns(threads: usize, times: u64, once: impl Fn(usize) + Sync) -> f64 {
    let gate = Barrier::new(threads);
    std::thread::scope(|scope| {
        let workers = (0..threads).map(|thread| {
            let (gate, once) = (&gate, &once);
            scope.spawn(move || {
                gate.wait();
                let start = now();
                for _ in 0..times {
                    once(thread);
                }
                (start, now())
            })
        });
        let workers = workers.collect::<Vec<_>>();
        let spans = workers.into_iter().map(|worker| worker.join().expect("no call panics"));
        let (starts, ends) = spans.unzip::<_, _, Vec<_>, Vec<_>>();
        let span = starts.into_iter().min().zip(ends.into_iter().max());
        span.map_or(0.0, |(start, end)| (end - start).as_nanos() as f64)
    })
}

/// The output of a future that does not wait.
pub fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("there is room for every call of a bench"),
    }
}
