//! Where a service that counts by a log allows less than it was believed to.
#![cfg(feature = "client")]

mod support;

use std::collections::VecDeque;
use std::time::Duration;

use forbear::{Limit, Policy, Rate};
use parking_lot::Mutex;
use support::{Service, URL, exact, new, reply, secs};
use tokio::time::Instant;

const ALLOWED: usize = 20;
const CALLS: usize = 100;

/// Lets so many through in any second, and tells the others to come again after one.
fn service(allowed: usize) -> Service {
    let log = Mutex::new(VecDeque::new());
    Service::new(move |_, _| {
        let (mut log, now) = (log.lock(), Instant::now());
        while log.front().is_some_and(|first| *first + secs(1) <= now) {
            log.pop_front();
        }
        if log.len() == allowed {
            return reply(429).after("1");
        }
        log.push_back(now);
        reply(200)
    })
}

/// How long the calls take twenty tasks that believe in so many a second, and how often they are refused.
async fn job(service: &Service, believed: u64) -> (Duration, usize) {
    let limit = Limit::sliding_log(Rate::per_second(believed)).jitter_margin(Duration::from_millis(1));
    let policy = Policy::new("believes").limit(limit).max_wait(secs(60));
    let client = service.client(new().policy(policy).retry(exact().attempts(1_000)));
    let start = Instant::now();
    let tasks = (0..20).map(|_| {
        let client = client.clone();
        tokio::spawn(async move {
            for _ in 0..CALLS / 20 {
                assert_eq!(client.get(URL).send().await.expect("a response").status(), 200);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("a task");
    }
    (start.elapsed(), service.count() - CALLS)
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_right_is_never_refused() {
    let (took, refused) = job(&service(ALLOWED), 20).await;
    assert_eq!(refused, 0);
    assert!((secs(4)..Duration::from_millis(4_050)).contains(&took), "{took:?}");
}

/// What the service has not is not asked for until its wait is over, and then a call at a time; what it has is.
#[tokio::test(start_paused = true)]
async fn a_log_that_believes_in_twice_as_much_soon_asks_for_what_there_is() {
    let (took, refused) = job(&service(ALLOWED), 40).await;
    assert!(took < Duration::from_millis(4_500), "{took:?} instead of 4 s");
    assert!(refused <= 12, "{refused} refused");
}

/// One replica of ten that refuses all it gets: slower calls would not be refused less.
#[tokio::test(start_paused = true)]
async fn a_service_that_refuses_a_part_whatever_comes_gets_half_as_much_at_least() {
    let service = Service::new(|n, _| if n % 10 == 3 { reply(429).after("1") } else { reply(200) });
    let (took, refused) = job(&service, 20).await;
    // Nine of ten in a second instead of eighteen of twenty.
    assert!(took < secs(12), "{took:?}");
    assert!((9..=12).contains(&refused), "{refused} refused");
}
