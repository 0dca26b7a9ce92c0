//! What an operator can watch: refusals by limit and kind, and what was granted.
#![cfg(feature = "metrics")]

mod kit;

use std::time::Duration;

use forbear::{Ask, Policy};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

#[test]
fn refusals_are_counted_by_limit_and_kind_and_no_key_is_a_label() {
    let recorder = DebuggingRecorder::new();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let limiter = kit::limiter(Policy::new("counted").limit("10/min burst 2").limit("1 at once"));
            let now = || Ask::new("secret key").max_wait(Duration::ZERO);
            let held = limiter.acquire(now()).await.unwrap();
            assert!(limiter.acquire(now()).await.is_err(), "no seat");
            drop(held);
            drop(limiter.acquire(now()).await.unwrap());
            assert!(limiter.acquire(now()).await.is_err(), "no unit");
            let observed = Policy::new("observed").limit("10/min burst 2").observe_only();
            let observed = kit::limiter(observed);
            for _ in 0..5 {
                drop(observed.acquire(now()).await.unwrap());
            }
        });
    });
    let mut counts = recorder.snapshotter().snapshot().into_vec().into_iter().map(|(key, _, _, value)| {
        let DebugValue::Counter(count) = value else { panic!("only counters: {value:?}") };
        let labels = key.key().labels().map(|label| format!("{}={}", label.key(), label.value()));
        (format!("{} {}", key.key().name(), labels.collect::<Vec<_>>().join(" ")), count)
    });
    let mut counts = counts.by_ref().collect::<Vec<_>>();
    counts.sort();
    let expected = [
        ("forbear_granted_total policy=counted", 2),
        ("forbear_granted_total policy=observed", 5),
        ("forbear_refused_total policy=counted limit=at-once kind=no_seat", 1),
        ("forbear_refused_total policy=counted limit=requests/min kind=rate_limited", 1),
        ("forbear_refused_total policy=observed limit=requests/min kind=rate_limited", 3),
    ];
    assert_eq!(counts, expected.map(|(name, count)| (name.to_owned(), count)));
}
