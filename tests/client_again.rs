//! What is not sent again although its answer asks for it, and when the rest is.
#![cfg(feature = "client")]

#[cfg(feature = "redis")]
#[path = "kit/redis_process.rs"]
mod redis_process;
mod support;

use std::time::Duration;

use forbear::client::{Backoff, Stop};
use forbear::{Attempts, Limiter, Policy, RequestExt, Retry, store};
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
    service.retried(retry).get(URL).exempt().send().await.expect("a response");
    let gaps = service.gaps();
    let distinct = gaps.iter().collect::<std::collections::BTreeSet<_>>();
    assert!(gaps.len() == 29 && distinct.len() > 20, "{gaps:?}");
}

/// Where all who come back stand in one queue, what the service asks for is the wait, however often it was refused.
#[cfg(feature = "redis")]
#[tokio::test]
async fn in_a_shared_queue_a_call_that_is_refused_again_waits_as_long_as_it_is_asked_to() {
    use support::{Reply, ms};

    let redis = redis_process::RedisProcess::start();
    let shared = || Some(store::Redis::new(redis.url()).expect("a good URL"));
    let six_refusals = |name: &'static str, store: Option<store::Redis>, refused: fn() -> Reply| async move {
        let service = Service::new(move |n, _| if n < 6 { refused() } else { reply(200) });
        let retry = Retry::default().throttle_backoff(Backoff::new(ms(20), secs(10)));
        let builder = new().policy(Policy::new(name).limit("1000/s")).retry(retry);
        let client = service.client(match store {
            Some(store) => builder.store(store),
            None => builder,
        });
        assert_eq!(client.get(URL).send().await.expect("a response").status(), 200);
        service.gaps().into_iter().sum::<Duration>()
    };
    let asks = || reply(429).header("retry-after-ms", "60");
    let (in_order, alone, unasked) = tokio::join!(
        six_refusals("in order", shared(), asks),
        six_refusals("alone", None, asks),
        six_refusals("unasked", shared(), || reply(429)),
    );
    let doubled = ms(20 + 40 + 80 + 160 + 320 + 640);
    assert!(in_order >= 6 * ms(60), "{in_order:?}");
    assert!(in_order * 2 < alone, "{in_order:?} beside {alone:?}");
    assert!(alone >= doubled && unasked >= doubled, "{alone:?}, {unasked:?}");
}

#[tokio::test]
async fn what_never_reached_the_service_used_nothing_of_what_was_estimated() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
    let policy = Policy::new("p").limit("1000 tokens/min burst 1000").limit("10/min burst 10");
    let limiter = Limiter::new(policy, store::Local::new()).expect("a limiter");
    let client = new().policy(&limiter).build().expect("a client");
    let call = client.post(format!("http://{closed}/")).cost("tokens", 400).no_retry();
    let error = call.send().await.expect_err("nobody is there");
    assert!(error.is_connect(), "{error:?}");
    let peek = limiter.peek(&closed.to_string()).await;
    assert_eq!(peek.limit("tokens/min").expect("a limit").remaining(), 1_000);
    assert_eq!(peek.limit("requests/min").expect("a limit").remaining(), 9, "who cannot connect is paced");
}

#[test]
fn two_policies_of_one_name_have_one_set_of_limits() {
    let a = || Policy::new("api").limit("500/min");
    let b = || Policy::new("api").limit("10/s burst 10");
    for builder in [new().host("a.test", a()).policy(b()), new().policy(b()).policy(a())] {
        let error = builder.build().expect_err("they would forget each other");
        assert!(error.to_string().contains("`api` has two sets of limits"), "{error}");
    }
    // Of one key there is one set.
    for builder in [
        new().policy(a()).overall(b()),
        new().each_host(a()).host("a.test", b()),
        new().host("a.test", a()).host("b.test", b()),
        new().host("a.test", a()).policy(a()),
    ] {
        builder.build().expect("nothing is forgotten");
    }
    let fault = new().policy(Policy::new("api").limit("500/mim")).policy(b()).build().expect_err("no limit");
    assert!(fault.to_string().contains("mim"), "{fault}");
}

/// A policy that only observes holds nothing, so a pause under it is nobody's reason to give up.
#[tokio::test(start_paused = true)]
async fn a_pause_that_is_only_observed_stops_no_retry() {
    let service = Service::new(|n, _| match n {
        0 => reply(429).after("600"),
        1 => reply(503),
        _ => reply(200),
    });
    let client = service.client(new().policy(Policy::new("watches").limit("5/s burst 5").observe_only()));
    assert_eq!(client.get(URL).no_retry().send().await.expect("a response").status(), 429);
    assert_eq!(client.get(URL).send().await.expect("a response").status(), 200);
    assert_eq!(service.count(), 3);
}

/// Who may not be held at all is sent once: a backoff is a wait too, however short it comes out.
#[tokio::test(start_paused = true)]
async fn a_call_that_may_not_wait_is_not_sent_again() {
    let service = Service::new(|_, _| reply(503).body("as it was"));
    let client =
        service.client(new().policy(Policy::new("now").limit("1/s burst 1").max_wait(Duration::ZERO)));
    let response = client.get(URL).send().await.expect("the answer itself");
    assert_eq!(Attempts::of(&response).expect("a record").stopped(), Some(Stop::MaxWait));
    assert_eq!((response.status(), service.count()), (reqwest::StatusCode::SERVICE_UNAVAILABLE, 1));
    assert_eq!(response.text().await.expect("a body"), "as it was");
}

/// Two throttles by hand, as their docs have them: the one further in need not know what the other counts, and what it
/// refuses costs nothing.
#[tokio::test(start_paused = true)]
async fn a_throttle_further_in_minds_its_own_units_and_takes_nothing_from_the_other() {
    let outer = Limiter::new(Policy::new("outer").limit("1000 tokens/min burst 1000"), store::Local::new());
    let (outer, inner) = (outer.expect("a limiter"), Policy::new("inner").limit("1 at once"));
    let inner = Limiter::new(inner.max_wait(Duration::ZERO), store::Local::new()).expect("a limiter");
    let service = Service::new(|_, _| reply(200));
    let throttles = reqwest_middleware::ClientBuilder::new(reqwest::Client::new())
        .with(forbear::Throttle::new(outer.clone()))
        .with(forbear::Throttle::new(inner.clone()))
        .build();
    let client = service.behind(throttles);
    client.get(URL).cost("tokens", 300).send().await.expect("it goes");
    let left = || async { outer.peek("api.example.test").await.remaining() };
    assert_eq!(left().await, 700);
    let _seat = inner.acquire("api.example.test").await.expect("a seat");
    let error = client.get(URL).cost("tokens", 300).send().await.expect_err("no seat");
    assert_eq!(forbear::Refused::of(&error).expect("ours").policy(), "inner");
    assert_eq!(left().await, 700, "it was never sent");
    let error =
        client.get(URL).cost("tokens", 1).cost("pages", 1).send().await.expect_err("nobody counts pages");
    assert_eq!(forbear::Refused::of(&error).expect("ours").policy(), "outer");
}
