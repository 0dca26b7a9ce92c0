//! How long a call may take, and be held back: deadlines, total times, and `max_wait`, whoever states it.
#![cfg(feature = "client")]

mod support;

use std::time::Duration;

use forbear::client::{Backoff, Outcome, Stop};
use forbear::{Attempts, Limiter, Policy, Refused, RequestExt, Retry, Throttle, TimedOut, store};
use reqwest_middleware::ClientBuilder;
use support::{Service, URL, broken, ms, new, reply, secs};

/// Steps of 100 ms, 200 ms, ... without jitter, and none on the service's waits.
fn plain() -> Retry {
    let backoff = Backoff::new(ms(100), secs(300)).without_jitter();
    Retry::default().backoff(backoff).throttle_backoff(backoff).server_jitter(0.0, Duration::ZERO)
}

#[tokio::test(start_paused = true)]
async fn b085_an_attempt_ends_with_the_total_time() {
    let service =
        Service::new(
            |n, _| if n == 0 { reply(500).in_time(ms(95)) } else { reply(200).in_time(secs(3_600)) },
        );
    let backoff = Backoff::new(ms(1), ms(1)).without_jitter();
    let client = service.retried(Retry::default().total_timeout(ms(100)).backoff(backoff));
    let start = tokio::time::Instant::now();
    let error = client.get(URL).send().await.expect_err("nobody answers");
    assert_eq!((start.elapsed(), service.count()), (ms(100), 2));
    let timed_out = TimedOut::of(&error).expect("ours");
    assert_eq!(timed_out.after(), ms(100));
    assert_eq!(timed_out.last().expect("the first answer").status, 500);
    assert!(error.to_string().contains("total time"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn b085_no_time_is_not_endless_time() {
    let service = Service::new(|_, _| reply(200).in_time(secs(3_600)));
    let attempts = Attempts::new();
    for client in
        [service.retried(Retry::default().total_timeout(Duration::ZERO)), service.retried(Retry::default())]
    {
        let past = tokio::time::Instant::now();
        let result = client.get(URL).deadline(past).attempts(&attempts).send().await;
        assert!(TimedOut::of(&result.expect_err("no time")).is_some());
        assert_eq!(attempts.list()[0].outcome, Outcome::TimedOut);
        assert_eq!(attempts.sends(), 0, "what was never sent is not counted");
    }
    assert_eq!(service.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn b085_a_deadline_holds_without_retries_too() {
    let service = Service::new(|_, _| reply(200).in_time(secs(3_600)));
    let limiter = Limiter::new(Policy::new("p"), store::Local::new()).expect("a limiter");
    let client = ClientBuilder::new(reqwest::Client::new()).with(Throttle::new(limiter)).build();
    let start = tokio::time::Instant::now();
    let result = service.behind(client).get(URL).deadline(start + secs(2)).send().await;
    assert!(TimedOut::of(&result.expect_err("nobody answers")).is_some());
    assert_eq!(start.elapsed(), secs(2));
}

#[tokio::test(start_paused = true)]
async fn b029_an_answer_is_not_given_up_for_a_wait_in_a_pause_that_outlasts_the_deadline() {
    let service = Service::new(|n, _| match n {
        0 => reply(429).after("1").in_time(secs(1)),
        _ => reply(429).after("60"),
    });
    let client = service.retried(plain());
    let attempts = Attempts::new();
    let start = tokio::time::Instant::now();
    let call = client.get(URL).deadline(start + secs(5)).attempts(&attempts);
    let (first, other) = tokio::join!(call.send(), client.get(URL).no_retry().send());
    assert_eq!(other.expect("the pause of a minute").status(), 429);
    assert_eq!(first.expect("the answer as it is").status(), 429);
    assert_eq!((start.elapsed(), attempts.stopped()), (secs(1), Some(Stop::OutOfTime)));
}

#[tokio::test(start_paused = true)]
async fn b124_b166_a_wait_that_cannot_fit_fails_at_once_and_says_whose_fault() {
    let service = Service::new(|_, _| reply(200));
    let client = service.client(new().policy(Policy::new("mail").limit("1/min burst 1")));
    client.get(URL).send().await.expect("a response");
    let start = tokio::time::Instant::now();
    for call in [client.get(URL).max_wait(secs(1)), client.get(URL).deadline(start + secs(1))] {
        let error = call.send().await.expect_err("too long a wait");
        let refused = Refused::of(&error).expect("ours");
        assert!(refused.is_timeout());
        assert!(refused.retry_after().expect("known") > secs(50));
        let text = error.to_string();
        assert!(
            text.contains("client-side limit") && text.contains("mail") && text.contains("would wait"),
            "{text}"
        );
        assert!(std::error::Error::source(&error).is_some_and(|source| source.is::<Refused>()));
        assert_eq!(forbear::retry_after(&Err(error)), Refused::retry_after(&refused_again(&client).await));
    }
    assert_eq!((start.elapsed(), service.count()), (Duration::ZERO, 1));
}

async fn refused_again(client: &forbear::Client) -> Refused {
    let error = client.get(URL).max_wait(Duration::ZERO).send().await.expect_err("no time to wait");
    Refused::of(&error).expect("ours").clone()
}

#[tokio::test(start_paused = true)]
async fn max_wait_is_shared_by_all_attempts() {
    let service = Service::new(|_, _| reply(429).after("4"));
    let client = service.client(new().policy(Policy::new("p").max_wait(secs(10))).retry(plain()));
    let attempts = Attempts::new();
    let response = client.get(URL).attempts(&attempts).send().await.expect("a response");
    assert_eq!((response.status().as_u16(), service.times()), (429, vec![secs(0), secs(4), secs(8)]));
    assert_eq!(attempts.stopped(), Some(Stop::MaxWait));
    assert_eq!(attempts.held().total(), secs(8));
}

#[tokio::test(start_paused = true)]
async fn max_wait_of_the_policy_holds_whatever_is_tried_again() {
    let backoff = Backoff::new(secs(4), secs(4)).without_jitter();
    let retry = || plain().backoff(backoff).throttle_backoff(backoff);
    let policy = Policy::new("p").max_wait(secs(3));
    for status in [429, 503, 500, 409] {
        let service = Service::new(move |_, _| reply(status).header("x-should-retry", "true"));
        let response = service.client(new().policy(&policy).retry(retry())).get(URL).send().await;
        let stopped = Attempts::of(&response.expect("a response")).expect("a record").stopped();
        assert_eq!((stopped, service.count()), (Some(Stop::MaxWait), 1), "{status}");
    }
    let attempts = Attempts::new();
    let client = new().policy(&policy).retry(retry()).build().expect("a client");
    client.get("http://127.0.0.1:1").attempts(&attempts).send().await.expect_err("nobody listens");
    assert_eq!((attempts.stopped(), attempts.sends()), (Some(Stop::MaxWait), 1), "{attempts}");
    let service = Service::new(|_, _| reply(200).body(broken()));
    let call = service.client(new().policy(&policy).retry(retry())).get(URL).buffered().attempts(&attempts);
    call.send().await.expect_err("its body breaks");
    assert_eq!((attempts.stopped(), service.count()), (Some(Stop::MaxWait), 1), "{attempts}");
}

#[tokio::test(start_paused = true)]
async fn the_shortest_max_wait_of_a_chain_holds_further_in_too() {
    let throttle = |name: &str, limit: &str, max_wait| {
        let policy = Policy::new(name).limit(limit).max_wait(max_wait);
        Throttle::new(Limiter::new(policy, store::Local::new()).expect("a limiter"))
    };
    let service = Service::new(|_, _| reply(200));
    let chain = ClientBuilder::new(reqwest::Client::new())
        .with(throttle("short", "100/s burst 100", secs(1)))
        .with(throttle("long", "1/10s burst 1", secs(60)));
    let client = service.behind(chain.build());
    client.get(URL).send().await.expect("a response");
    let error = client.get(URL).send().await.expect_err("it would have to wait ten seconds");
    assert!(Refused::of(&error).expect("ours").is_timeout(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_only_observes_has_no_say_in_what_others_wait() {
    let limiter = |policy: Policy| Limiter::new(policy, store::Local::new()).expect("a limiter");
    let watching = Policy::new("watching").limit("1/min burst 1").max_wait(Duration::ZERO).observe_only();
    let service = Service::new(|_, _| reply(200));
    let chain = ClientBuilder::new(reqwest::Client::new())
        .with(Throttle::new(limiter(watching)))
        .with(Throttle::new(limiter(Policy::new("real").limit("1/10s burst 1"))));
    let client = service.behind(chain.build());
    for _ in 0..2 {
        client.get(URL).send().await.expect("a response");
    }
    assert_eq!(service.gaps().len(), 1);
    assert!(service.gaps()[0] >= secs(10), "{:?}", service.gaps());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_after_an_answer_carries_it() {
    let service = Service::new(|_, _| reply(429).after("1"));
    let policy = Policy::new("p").limit("1/min burst 1").max_wait(secs(5));
    let client = service.client(new().policy(policy).retry(plain()));
    let error = client.get(URL).send().await.expect_err("no slot for the second attempt");
    let refused = Refused::of(&error).expect("ours");
    let last = refused.last().expect("the answer before");
    assert_eq!((last.status.as_u16(), last.signals.wait()), (429, Some(secs(1))));
    assert_eq!(service.count(), 1);
}
