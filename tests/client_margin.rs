//! The margin of windows and logs: as long as the answers to a client's calls show to be needed. On a paused clock;
//! `fleet_margin.rs` has the same on Redis.
#![cfg(feature = "client")]

mod support;

use std::time::Duration;

use forbear::{Limit, Policy, Rate};
use support::{Service, URL, new, reply, secs};
use tokio::time::Instant;

const ALLOWED: u64 = 20;
const CALLS: usize = 100;

/// How long a job of five windows takes, with the margin that is usual for windows of a second.
async fn windows(limit: Limit, service: Service) -> Duration {
    let client = service.client(new().policy(Policy::new("windows").limit(limit).max_wait(secs(60))));
    let start = Instant::now();
    let calls = (0..CALLS).map(|_| tokio::spawn(client.get(URL).send()));
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("a task").expect("a response");
    }
    start.elapsed()
}

/// Of a call that was answered the service cannot count later than that, so no more is left for what it may have seen.
#[tokio::test(start_paused = true)]
async fn a_margin_is_no_longer_than_the_answer_took() {
    let rate = Rate::per_second(ALLOWED);
    for limit in [Limit::sliding_log(rate), Limit::fixed_window(rate)] {
        let at_once = windows(limit.clone(), Service::new(|_, _| reply(200))).await;
        let in_5_ms = || Service::new(|_, _| reply(200).in_time(Duration::from_millis(5)));
        let soon = windows(limit.clone(), in_5_ms()).await;
        let late = windows(limit.clone(), Service::new(|_, _| reply(200).in_time(secs(1)))).await;
        // Four steps from one window to the next; a log knows it to the next of 32 parts of its margin.
        let ms = |from: u64, to: u64| Duration::from_millis(from)..Duration::from_millis(to);
        assert!(ms(4_000, 4_010).contains(&at_once), "{at_once:?}");
        assert!(ms(4_020, 4_035).contains(&soon), "{soon:?}");
        assert!(ms(5_080, 5_090).contains(&late), "{late:?}");
    }
}

/// A gateway and a cache answer without the service.
#[tokio::test(start_paused = true)]
async fn what_did_not_come_from_the_service_says_nothing_of_when_a_call_arrived() {
    let rate = Rate::per_second(ALLOWED);
    for limit in [Limit::sliding_log(rate), Limit::fixed_window(rate)] {
        let cached = windows(limit.clone(), Service::new(|_, _| reply(200).header("age", "3"))).await;
        assert!(cached >= Duration::from_millis(4_080), "{cached:?}");
        let failed = windows(limit, Service::new(|_, _| reply(501))).await;
        assert!(failed >= Duration::from_millis(4_080), "{failed:?}");
    }
}
