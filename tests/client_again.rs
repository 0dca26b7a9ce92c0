//! What is not sent again although its answer asks for it, and when the rest is.
#![cfg(feature = "client")]

mod support;

use std::time::Duration;

use forbear::client::{Backoff, Stop};
use forbear::{Attempts, Policy, RequestExt, Retry};
use http::Method;
use support::{Service, URL, new, reply, secs};

#[tokio::test(start_paused = true)]
async fn a_call_that_was_redirected_may_have_been_acted_on() {
    const ELSEWHERE: &str = "https://api.example.test/orders/1";
    for (method, there, sends) in
        [(Method::POST, ELSEWHERE, 1), (Method::GET, ELSEWHERE, 2), (Method::POST, URL, 2)]
    {
        let service = Service::new(move |n, _| match n {
            0 => reply(429).after("1").url(there),
            _ => reply(200),
        });
        let response = service.client(new().policy(Policy::new("p"))).request(method, URL).send().await;
        let response = response.expect("a response");
        assert_eq!(service.count(), sends, "{there}");
        let stopped = if sends == 1 { Stop::NotIdempotent } else { Stop::Answered };
        assert_eq!(Attempts::of(&response).expect("a record").stopped(), Some(stopped));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_once_is_sent_once_whatever_else_is_said_of_it() {
    let service = Service::new(|_, _| reply(503));
    let client = service.client(new().policy(Policy::new("p")));
    client.post(URL).no_retry().idempotent().send().await.expect("a response");
    client.post(URL).idempotent().no_retry().send().await.expect("a response");
    assert_eq!(service.count(), 2);
}

/// Nine seconds and a half of ten fit, with whatever jitter on them.
#[tokio::test(start_paused = true)]
async fn jitter_never_decides_whether_a_call_is_given_up() {
    for _ in 0..40 {
        let service = Service::new(|n, _| if n == 0 { reply(429).after("9.5") } else { reply(200) });
        let retry = Retry::default().server_jitter(0.5, secs(5));
        let deadline = tokio::time::Instant::now() + secs(10);
        let response = service.retried(retry).get(URL).deadline(deadline).send().await.expect("a response");
        assert_eq!(response.status(), 200);
        let gap = service.gaps()[0];
        assert!((Duration::from_millis(9_500)..=Duration::from_millis(9_751)).contains(&gap), "{gap:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn callers_do_not_come_back_in_step_once_their_waits_are_the_longest() {
    let service = Service::new(|_, _| reply(429));
    let retry = Retry::default().throttle_backoff(Backoff::new(secs(1), secs(1))).throttled_attempts(30);
    service.retried(retry).get(URL).send().await.expect("a response");
    let gaps = service.gaps();
    let distinct = gaps.iter().collect::<std::collections::BTreeSet<_>>();
    assert!(distinct.len() > 5, "{gaps:?}");
}

#[test]
fn two_policies_of_one_name_have_one_set_of_limits() {
    let a = || Policy::new("api").limit("500/min");
    let b = || Policy::new("api").limit("10/s burst 10");
    let error = new().host("a.test", a()).policy(b()).build().expect_err("they would forget each other");
    assert!(error.to_string().contains("two sets of limits"), "{error}");
    let error = new().policy(a()).overall(b()).build().expect_err("they would forget each other");
    assert!(error.to_string().contains("`api`"), "{error}");
    new().host("a.test", a()).policy(a()).build().expect("one budget, told twice");
}
