//! What a body can do to its call: nothing that the head has decided, however slow, broken or endless it is.
#![cfg(feature = "client")]

#[cfg(feature = "redis")]
#[path = "kit/redis_process.rs"]
mod redis_process;
mod support;

use std::time::Duration;

use forbear::client::{Backoff, Stop};
use forbear::{Attempts, Builder, Limiter, Policy, Profile, RequestExt, store};
use support::{Reply, Service, URL, broken, exact, ms, new, reply, secs, slow};
use tokio::time::Instant;

const HOST: &str = "api.example.test";

fn limiter() -> Limiter {
    Limiter::new(Policy::new("test").limit("100/s burst 100"), store::Local::new()).expect("a limiter")
}

/// A 429 whose JSON comes so much later.
fn late(delay: Duration) -> Reply {
    reply(429).header("content-type", "application/json").body(slow("{}", delay))
}

#[tokio::test(start_paused = true)]
async fn b074_waits_in_bodies_count_where_they_are_asked_for() {
    let json = |body: String| reply(429).header("content-type", "application/json; charset=utf-8").body(body);
    for (body, wait) in [
        (r#"{"retry_after": 7}"#.to_owned(), secs(7)),
        ("<h1>slow down</h1>".to_owned(), ms(100)),
        (format!(r#"{{"retry_after": 7, "padding": "{}"}}"#, "x".repeat(70_000)), ms(100)),
    ] {
        let service = Service::new(move |n, _| if n == 0 { json(body.clone()) } else { reply(200) });
        let client = service.client(new().policy(Policy::new("p")).retry(exact()).read_bodies());
        client.get(URL).send().await.expect("a response");
        assert_eq!(service.gaps(), [wait]);
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_in_the_body_of_a_200_are_read_where_the_profile_has_them() {
    for (profile, refusal, wait) in [
        (Profile::Slack, r#"{"ok": false, "error": "ratelimited"}"#, ms(100)),
        (Profile::MediaWiki, r#"{"error": {"code": "maxlag"}, "retry_after": 5}"#, secs(5)),
        (
            Profile::Shopify,
            r#"{"errors": [{"extensions": {"code": "THROTTLED"}}], "extensions": {"cost": {
                "requestedQueryCost": 502, "throttleStatus": {"currentlyAvailable": 80, "restoreRate": 100}}}}"#,
            ms(4_220),
        ),
    ] {
        let service = Service::new(move |n, _| {
            let body = if n == 0 { refusal } else { r#"{"ok": true}"# };
            reply(200).header("content-type", "application/json").body(body)
        });
        let client = |builder: Builder| service.client(builder.policy(Policy::new("p")).retry(exact()));
        let response =
            client(new().profile(profile).read_bodies()).post(URL).send().await.expect("a response");
        assert_eq!(service.gaps(), [wait], "{profile}");
        assert_eq!(response.text().await.expect("a body"), r#"{"ok": true}"#);
        client(new().profile(profile)).post(URL).send().await.expect("a response");
        assert_eq!(service.count(), 3, "{profile}");
    }
}

#[tokio::test(start_paused = true)]
async fn b023_an_empty_account_does_not_hold_the_others() {
    const BODY: &str = r#"{"error":{"code":"insufficient_quota"}}"#;
    let service = Service::new(|n, _| match n {
        0 | 1 => reply(429).header("content-type", "application/json").body(BODY),
        _ => reply(200),
    });
    let client = service.client(new().policy(limiter()).read_bodies().retry(exact()));
    for _ in 0..2 {
        let response = client.post(URL).send().await.expect("the 429");
        assert_eq!(Attempts::of(&response).expect("a record").stopped(), Some(Stop::ServerSaysNo));
        assert_eq!(response.text().await.expect("whole"), BODY);
    }
    let begun = tokio::time::Instant::now();
    client.get(URL).send().await.expect("a response");
    assert!(begun.elapsed() < ms(100), "held for {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn b041_a_wait_in_the_head_holds_before_the_body_is_there() {
    let service = Service::new(|n, _| match n {
        0 => late(ms(900)).after("7"),
        _ => reply(200),
    });
    let client = service.client(new().policy(limiter()).read_bodies().retry(exact()));
    let first = tokio::spawn(client.get(URL).send());
    tokio::time::sleep(ms(100)).await;
    client.get(URL).send().await.expect("a response");
    first.await.expect("no panic").expect("a response");
    let times = service.times();
    assert!(times[1] >= secs(7), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn b071_a_429_counts_although_its_caller_has_gone() {
    let service = Service::new(|n, _| match n {
        0 => late(ms(900)).after("7"),
        _ => reply(200),
    });
    let client = service.client(new().policy(limiter()).read_bodies().retry(exact()));
    let given_up = tokio::time::timeout(ms(50), client.get(URL).send()).await;
    assert!(given_up.is_err());
    client.get(URL).send().await.expect("a response");
    assert!(service.times()[1] >= secs(7), "{:?}", service.times());
}

#[tokio::test(start_paused = true)]
async fn b085_an_old_body_does_not_outlast_the_total_time() {
    let service = Service::new(|_, _| reply(503).body(slow("x", secs(60))));
    let client =
        service.retried(exact().backoff(Backoff::new(ms(10), ms(10)).without_jitter()).total_timeout(ms(50)));
    let begun = tokio::time::Instant::now();
    _ = client.get(URL).send().await;
    assert!(begun.elapsed() <= ms(60), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn b014_a_buffered_429_that_breaks_is_tried_again_whatever_the_method() {
    let service = Service::new(|n, _| if n == 0 { reply(429).after("1").body(broken()) } else { reply(200) });
    let client = service.retried(exact());
    let response = client.post(URL).body("x").buffered().send().await.expect("a response");
    assert_eq!(response.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn b053_a_buffered_429_that_breaks_is_waited_for() {
    let service = Service::new(|n, _| if n == 0 { reply(429).after("1").body(broken()) } else { reply(200) });
    let client = service.retried(exact());
    let response = client.get(URL).buffered().send().await.expect("a response");
    assert_eq!(response.status(), 200);
    assert!(service.gaps()[0] >= secs(1), "{:?}", service.gaps());
}

#[tokio::test(start_paused = true)]
async fn a_buffered_429_that_is_final_is_the_outcome_although_its_body_breaks() {
    let service =
        Service::new(|_, _| reply(429).after("60").header("x-should-retry", "false").body(broken()));
    let chain = reqwest_middleware::ClientBuilder::new(reqwest::Client::new());
    let client = service.behind(chain.with(exact()).build());
    let response = client.get(URL).buffered().send().await.expect("the 429");
    assert_eq!((response.status().as_u16(), service.count()), (429, 1));
    assert_eq!(Attempts::of(&response).expect("a record").stopped(), Some(Stop::ServerSaysNo));
}

#[tokio::test(start_paused = true)]
async fn a_buffered_503_is_tried_again_although_its_body_never_ends() {
    let service = Service::new(|n, _| match n {
        0 => reply(503).body(slow("x", secs(3_600))),
        _ => reply(200),
    });
    let client = service.retried(exact());
    let response = client.get(URL).buffered().send().await.expect("a response");
    assert_eq!((response.status().as_u16(), service.gaps()), (200, vec![ms(100)]));
}

#[tokio::test(start_paused = true)]
async fn a_late_body_does_not_tell_an_answer_twice() {
    let service = Service::new(|n, _| match n {
        0 => late(ms(900)).after("1"),
        1 => reply(200),
        _ => reply(429),
    });
    let limiter = limiter();
    let client = service.client(new().policy(&limiter).read_bodies());
    let first = tokio::spawn(client.get(URL).no_retry().send());
    tokio::time::sleep(ms(100)).await;
    client.get(URL).no_retry().send().await.expect("all is well again");
    assert_eq!(first.await.expect("no panic").expect("the 429").status(), 429);
    client.get(URL).no_retry().send().await.expect("a 429 that follows none");
    assert_eq!((service.count(), limiter.peek(HOST).await.paused()), (3, None));
}

#[tokio::test(start_paused = true)]
async fn a_late_body_does_not_undo_what_an_operator_does() {
    let service = Service::new(|_, _| late(ms(900)).after("7"));
    let limiter = limiter();
    let client = service.client(new().policy(&limiter).read_bodies());
    let call = tokio::spawn(client.get(URL).no_retry().send());
    tokio::time::sleep(ms(100)).await;
    assert!(limiter.peek(HOST).await.paused().is_some(), "told by the head");
    limiter.resume(HOST);
    call.await.expect("no panic").expect("the 429");
    assert_eq!(limiter.peek(HOST).await.paused(), None);
}

#[tokio::test(start_paused = true)]
async fn a_head_that_came_in_time_is_the_outcome_although_its_body_does_not() {
    let service = Service::new(|_, _| late(secs(2)));
    let client = service.client(new().policy(limiter()).read_bodies().retry(exact()));
    let start = Instant::now();
    let response = client.get(URL).deadline(start + ms(300)).send().await.expect("the 429");
    assert_eq!((response.status().as_u16(), service.count(), start.elapsed()), (429, 1, ms(300)));
    assert_eq!(response.text().await.expect("whole"), "{}");
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_head_that_came_in_time_is_the_outcome_although_redis_does_not_answer() {
    let server = std::sync::Arc::new(redis_process::RedisProcess::start());
    let halts = server.clone();
    let service = Service::new(move |_, _| {
        halts.signal("STOP");
        reply(429)
    });
    let store = store::Redis::new(server.url()).expect("a good URL").budget(secs(30));
    let limiter = Limiter::new(Policy::new("test").limit("100/s burst 100"), store).expect("a limiter");
    drop(limiter.acquire(HOST).await.expect("it goes"));
    let client = service.client(new().policy(limiter).retry(exact()));
    let response = client.get(URL).deadline(Instant::now() + secs(3)).send().await.expect("the 429");
    assert_eq!((response.status().as_u16(), service.count()), (429, 1));
}
