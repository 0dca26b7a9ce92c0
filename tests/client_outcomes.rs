//! What a call ends with, and what is tried again: the last outcome untouched, and a record that says why.
#![cfg(feature = "client")]

mod support;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forbear::client::{Backoff, ErrorKind, Outcome, Stop};
use forbear::{
    Attempts, Builder, Limiter, Policy, Profile, Refused, RefusedKind, RequestExt, Retry, Settle, Throttle,
    store,
};
use http::Method;
use http_body_util::channel::Channel;
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};
use support::log::Log;
use support::{Service, URL, exact, ms, new, reply, secs};

fn quick() -> Retry {
    let backoff = Backoff::new(ms(100), secs(1)).without_jitter();
    Retry::default().backoff(backoff).throttle_backoff(backoff)
}

/// Answers with these in turn, then 200.
fn script(statuses: &'static [u16]) -> Service {
    Service::new(|n, _| reply(statuses.get(n).copied().unwrap_or(200)))
}

async fn send(service: &Service, retry: Retry, method: Method) -> (u16, usize, Option<Stop>) {
    let before = service.count();
    let response = service.retried(retry).request(method, URL).send().await.expect("a response");
    let stopped = Attempts::of(&response).expect("a record").stopped();
    (response.status().as_u16(), service.count() - before, stopped)
}

#[tokio::test(start_paused = true)]
async fn b014_a_throttle_is_tried_again_whatever_the_method() {
    let service = Service::new(|n, _| if n == 0 { reply(429).after("1") } else { reply(200) });
    let client = service.retried(quick());
    let response = client.patch(URL).body(r#"{"a":1}"#).send().await.expect("a response");
    assert_eq!(response.status(), 200);
    let bodies: Vec<_> = service.arrivals().into_iter().map(|arrival| arrival.body).collect();
    assert_eq!(bodies, [br#"{"a":1}"#.to_vec(), br#"{"a":1}"#.to_vec()]);
}

#[tokio::test(start_paused = true)]
async fn b028_a_post_is_not_sent_twice_unless_marked() {
    assert_eq!(send(&script(&[503]), quick(), Method::POST).await, (503, 1, Some(Stop::NotIdempotent)));
    assert_eq!(send(&script(&[429]), quick(), Method::POST).await, (200, 2, Some(Stop::Answered)));
    assert_eq!(send(&script(&[503]), quick(), Method::GET).await, (200, 2, Some(Stop::Answered)));
    assert_eq!(Stop::NotIdempotent.to_string(), "method not idempotent");
    let marked = quick().idempotent_if(|request| request.method() == Method::POST);
    assert_eq!(send(&script(&[503]), marked, Method::POST).await, (200, 2, Some(Stop::Answered)));
    for mark in ["header", "extension"] {
        let service = script(&[500, 502]);
        let client = service.retried(quick());
        let call = match mark {
            "header" => client.post(URL).header("Idempotency-Key", "k"),
            _ => client.post(URL).idempotent(),
        };
        assert_eq!(call.send().await.expect("a response").status(), 200, "{mark}");
        assert_eq!(service.count(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn b065_a_body_that_is_a_stream_is_sent_once() {
    let service = Service::new(|_, _| reply(429).after("1"));
    let (mut sender, body) = Channel::<bytes::Bytes, std::io::Error>::new(4);
    sender.send_data("chunk".into()).await.expect("the body is there");
    let attempts = Attempts::new();
    let call = service.retried(quick()).post(URL).body(reqwest::Body::wrap(body)).attempts(&attempts);
    assert_eq!(call.send().await.expect("the 429").status(), 429);
    assert_eq!((attempts.sends(), attempts.stopped()), (1, Some(Stop::NotReplayable)));
    assert_eq!(Stop::NotReplayable.to_string(), "body not replayable");
}

#[tokio::test(start_paused = true)]
async fn b083_a_403_is_a_throttle_only_where_it_says_so() {
    let count = |script: fn(usize) -> support::Reply| async move {
        let service = Service::new(move |n, _| script(n));
        let response = service.retried(quick()).get(URL).send().await.expect("a response");
        (response.status().as_u16(), service.times())
    };
    let after: fn(usize) -> _ = |n| if n == 0 { reply(403).after("60") } else { reply(200) };
    let (status, times) = count(after).await;
    assert!(status == 200 && times[1] >= secs(60), "{times:?}");
    let exhausted: fn(usize) -> _ = |n| match n {
        0 => reply(403).header("x-ratelimit-remaining", "0").header("x-ratelimit-reset", "30"),
        _ => reply(200),
    };
    let (status, times) = count(exhausted).await;
    assert!(status == 200 && times[1] >= secs(30), "{times:?}");
    let plain: fn(usize) -> _ = |_| reply(403).body("secondary rate limit");
    assert_eq!(count(plain).await, (403, vec![Duration::ZERO]));

    let secondary = r#"{"message": "You have exceeded a secondary rate limit."}"#;
    let service = Service::new(move |n, _| match n {
        0 => reply(403)
            .header("x-ratelimit-remaining", "4999")
            .header("content-type", "application/json")
            .body(secondary),
        1 => reply(200),
        _ => reply(403)
            .header("content-type", "application/json")
            .body(r#"{"message": "Must have admin rights"}"#),
    });
    let client = service.client(new().policy(Policy::new("p")).profile(Profile::GitHub).read_bodies());
    assert_eq!(client.get(URL).send().await.expect("a response").status(), 200);
    assert!(service.gaps()[0] >= secs(60), "{:?}", service.gaps());
    let denied = client.get(URL).send().await.expect("a response");
    assert_eq!((denied.status().as_u16(), service.count()), (403, 3));
    assert!(
        denied.text().await.expect("a body").contains("admin rights"),
        "a body that was read is still there"
    );
}

#[tokio::test(start_paused = true)]
async fn b098_the_record_lists_each_attempt() {
    let service = Service::new(|n, _| if n == 0 { reply(429).after("2") } else { reply(503) });
    let attempts = Attempts::new();
    let response = service.retried(quick()).get(URL).attempts(&attempts).send().await.expect("a response");
    assert_eq!(response.status(), 503);
    let list = attempts.list();
    let outcomes: Vec<_> = list.iter().map(|attempt| attempt.outcome).collect();
    let status = |code| Outcome::Status(http::StatusCode::from_u16(code).expect("a status"));
    assert_eq!(outcomes, [status(429), status(503), status(503), status(503), status(503)]);
    assert_eq!(list[0].server_wait, Some(secs(2)));
    assert!(list[0].wait >= secs(2));
    assert_eq!((list[1].wait, list[2].wait, list[3].wait, list[4].wait), (ms(100), ms(200), ms(400), ms(0)));
    assert_eq!((attempts.sends(), attempts.stopped()), (5, Some(Stop::AttemptsUsedUp)));
    let held = attempts.held();
    assert_eq!((held.limits, held.server, held.backoff), (ms(0), list[0].wait, ms(700)));
    assert!(attempts.to_string().contains("429, 503, 503, 503, 503; all attempts used up"), "{attempts}");
}

#[tokio::test]
async fn b098_errors_pass_untouched_and_are_on_record() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/", free.local_addr().expect("it is bound"));
    drop(free);
    let backoff = Backoff::new(ms(1), ms(1));
    let client =
        new().policy(Policy::new("p")).retry(Retry::default().backoff(backoff)).build().expect("a client");
    let attempts = Attempts::new();
    let error = client.post(&url).attempts(&attempts).send().await.expect_err("nobody listens");
    assert!(error.is_connect() && !error.is_middleware(), "{error:?}");
    assert_eq!(attempts.sends(), 4, "a POST is safe where nobody was reached");
    assert!(attempts.list().iter().all(|attempt| attempt.outcome == Outcome::Error(ErrorKind::Connect)));
    assert_eq!(attempts.stopped(), Some(Stop::AttemptsUsedUp));
}

#[tokio::test(start_paused = true)]
async fn b101_the_budget_comes_back() {
    let down = Arc::new(AtomicBool::new(true));
    let is_down = down.clone();
    let service = Service::new(move |_, _| reply(if is_down.load(Ordering::SeqCst) { 503 } else { 200 }));
    let client = service.retried(quick().budget(0.2, 0));
    let calls = |n: usize| {
        let (client, service) = (client.clone(), service.clone());
        async move {
            let before = service.count();
            for _ in 0..n {
                client.get(URL).send().await.expect("a response");
            }
            service.count() - before
        }
    };
    let sends = calls(100).await;
    assert!((125..=130).contains(&sends), "ten saved up, and one more for each five calls: {sends}");
    down.store(false, Ordering::SeqCst);
    assert_eq!(calls(200).await, 200);
    down.store(true, Ordering::SeqCst);
    assert_eq!(calls(1).await, 4, "tried again as often as any call");
    assert!(calls(100).await <= 128, "no more than ten were saved up");
}

#[tokio::test(start_paused = true)]
async fn b151_a_storm_is_bounded() {
    let service = Service::new(|_, _| reply(503));
    let client = service.retried(quick().budget(0.1, 0));
    let calls: Vec<_> = (0..100).map(|_| tokio::spawn(client.get(URL).send())).collect();
    for call in calls {
        assert_eq!(call.await.expect("no panic").expect("a response").status(), 503);
    }
    assert!(service.count() <= 120, "{}", service.count());
    let before = service.count();
    let response = client.get(URL).no_retry().send().await.expect("a response");
    assert_eq!(service.count() - before, 1);
    assert_eq!(Attempts::of(&response).expect("a record").stopped(), Some(Stop::NoRetry));
}

#[tokio::test(start_paused = true)]
async fn b167_kinds_of_faults_are_counted_apart() {
    let service = script(&[429, 429, 429, 429, 500, 500, 500]);
    let retry = quick().throttled_attempts(11).transient_attempts(3);
    assert_eq!(send(&service, retry, Method::GET).await, (500, 7, Some(Stop::AttemptsUsedUp)));
    let service = script(&[429, 500, 429, 500, 429, 500, 429]);
    let retry = quick().throttled_attempts(11).transient_attempts(11).attempts(6);
    assert_eq!(send(&service, retry, Method::GET).await, (500, 6, Some(Stop::AttemptsUsedUp)));
    let always = Service::new(|_, _| reply(429).after("0"));
    let client = always.retried(Retry::default().max_wait(secs(3_600)));
    client.get(URL).max_wait(secs(3_600)).send().await.expect("a response");
    assert!(always.count() <= 10);
}

#[tokio::test(start_paused = true)]
async fn the_services_verdict_decides_within_bounds() {
    let never = Service::new(|_, _| reply(429).header("x-should-retry", "false"));
    assert_eq!(send(&never, quick(), Method::GET).await, (429, 1, Some(Stop::ServerSaysNo)));
    let please =
        Service::new(|n, _| if n < 2 { reply(409).header("x-should-retry", "true") } else { reply(200) });
    assert_eq!(send(&please, quick(), Method::POST).await, (200, 3, Some(Stop::Answered)));
    let always = Service::new(|_, _| reply(409).header("x-should-retry", "true"));
    assert_eq!(send(&always, quick(), Method::POST).await, (409, 4, Some(Stop::AttemptsUsedUp)));
}

#[tokio::test(start_paused = true)]
async fn b149_now_or_not_at_all() {
    let service = Service::new(|_, _| reply(200));
    let client = service.client(new().policy(Policy::new("p").limit("1/s burst 1")));
    client.get(URL).send().await.expect("a response");
    let start = tokio::time::Instant::now();
    let error = client.get(URL).max_wait(Duration::ZERO).send().await.expect_err("no room");
    let refused = Refused::of(&error).expect("ours");
    assert_eq!((refused.kind(), start.elapsed()), (RefusedKind::RateLimited, Duration::ZERO));
    assert!(refused.retry_after().is_some_and(|wait| wait > ms(900) && wait < ms(1_200)));
    client.get(URL).send().await.expect("others wait for it");
}

#[tokio::test]
async fn b133_our_errors_and_logs_hold_no_secrets() {
    let log = Log::default();
    let _kept = log.keep();
    let url = "https://joe:hunter2@api.example.test/v1?api_key=SECRET";
    let service = Service::new(|n, _| if n == 0 { reply(503) } else { reply(429).after("1000") });
    let limiter =
        Limiter::new(Policy::new("p").limit("1/min burst 2"), store::Local::new()).expect("a limiter");
    let builder = new().policy(limiter).retry(Retry::default().backoff(Backoff::new(ms(1), ms(1))));
    let client = service.client(builder.per_credential("authorization"));
    let attempts = Attempts::new();
    client.get(url).attempts(&attempts).send().await.expect("the 429");
    let calls = [
        client.get(url).max_wait(ms(1)).attempts(&attempts),
        client.get(url).deadline(tokio::time::Instant::now()),
        client.get(url).cost("SECRETS", 1),
    ];
    for call in calls {
        let error = call.send().await.expect_err("refused");
        let mut chain = format!("{error} {error:?} {attempts} {attempts:?}");
        let mut next: Option<&dyn Error> = Some(&error);
        while let Some(error) = next {
            chain += &format!("{error} {error:?}");
            next = error.source();
        }
        for secret in ["hunter2", "SECRET=", "api_key", "joe", "v1", "aHVudGVyMg", "Basic"] {
            assert!(!chain.contains(secret), "{secret} in {chain}");
            let lines = format!("{:?}", log.lines());
            assert!(!lines.contains(secret), "{secret} in {lines}");
        }
    }
    assert!(!log.lines().is_empty());
}

#[tokio::test(start_paused = true)]
async fn installed_twice_is_installed_once() {
    let log = Log::default();
    let _kept = log.keep();
    let limiter =
        Limiter::new(Policy::new("p").limit("2/s burst 2"), store::Local::new()).expect("a limiter");
    let service = Service::new(|_, _| reply(503));
    let client = reqwest_middleware::ClientBuilder::new(reqwest::Client::new())
        .with(quick().attempts(2))
        .with(quick().attempts(2))
        .with(Throttle::new(limiter.clone()))
        .with(quick().attempts(2))
        .with(Throttle::new(limiter.clone()))
        .build();
    let client = service.behind(client);
    for _ in 0..3 {
        client.get(URL).max_wait(secs(60)).send().await.expect("a response");
    }
    assert_eq!(service.count(), 6, "two sends a call, each charged once");
    assert_eq!(log.count(tracing::Level::WARN, "a second retry"), 2, "once for each that does nothing");
    assert_eq!(log.count(tracing::Level::WARN, "a second throttle"), 1);
}

/// Sends once more, through the same extensions, what is not answered in time.
struct Impatient;

#[async_trait::async_trait]
impl Middleware for Impatient {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut http::Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let copy = request.try_clone().expect("no stream");
        match tokio::time::timeout(ms(10), next.clone().run(copy, extensions)).await {
            Ok(result) => result,
            Err(_) => next.run(request, extensions).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_throttle_that_was_given_up_is_not_in_the_way_of_the_next() {
    let log = Log::default();
    let _kept = log.keep();
    let limiter =
        Limiter::new(Policy::new("p").limit("9/min burst 9"), store::Local::new()).expect("a limiter");
    let service = Service::new(|n, _| reply(200).in_time(ms(if n == 0 { 50 } else { 1 })));
    let chain = reqwest_middleware::ClientBuilder::new(reqwest::Client::new());
    let chain = chain.with(quick()).with(Impatient).with(Throttle::new(limiter.clone()));
    service.behind(chain.build()).get(URL).send().await.expect("a response");
    assert_eq!((service.count(), limiter.peek("api.example.test").await.remaining()), (2, 7));
    assert_eq!(log.count(tracing::Level::WARN, "a second throttle"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_mark_does_not_outlive_its_call() {
    let service = script(&[503]);
    let client = service.retried(quick());
    let mut extensions = http::Extensions::new();
    let request = || reqwest::Request::new(Method::GET, URL.parse().expect("a URL"));
    let dropped =
        tokio::time::timeout(ms(50), client.execute_with_extensions(request(), &mut extensions)).await;
    assert!(dropped.is_err(), "it was in its backoff");
    let response = client.execute_with_extensions(request(), &mut extensions).await.expect("a response");
    assert_eq!(Attempts::of(&response).expect("a record").stopped(), Some(Stop::Answered));
}

/// Looks at the record of each response that passes.
#[derive(Clone, Default)]
struct Looks(Arc<std::sync::Mutex<Vec<Option<String>>>>);

#[async_trait::async_trait]
impl Middleware for Looks {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut http::Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let response = next.run(request, extensions).await?;
        let record = Attempts::of(&response).map(|attempts| attempts.to_string());
        self.0.lock().expect("no panic").push(record);
        Ok(response)
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_tells_all_of_a_call_whoever_looks() {
    let limiter = Limiter::new(Policy::new("p").limit("9/min burst 9"), store::Local::new());
    let (between, throttle) = (Looks::default(), Throttle::new(limiter.expect("a limiter")));
    let chain = reqwest_middleware::ClientBuilder::new(reqwest::Client::new());
    let chain = chain.with(quick()).with(between.clone()).with(throttle);
    let client = script(&[200, 503, 200, 404]).behind(chain.build());
    let mut records = Vec::new();
    for _ in 0..3 {
        let response = client.get(URL).send().await.expect("a response");
        records.push(Attempts::of(&response).expect("a record").to_string());
    }
    let again = "2 sends, held 0.100 s: 503, 200; answered";
    let of_404 = "1 sends, held 0.000 s: 404; not an outcome to try again";
    assert_eq!(records, ["1 sends, held 0.000 s: 200; answered", again, of_404]);
    let seen = between.0.lock().expect("no panic").clone();
    let so_far = Some("1 sends, held 0.100 s: 503".to_owned());
    assert_eq!(seen, [Some(records[0].clone()), None, so_far, None]);
}

#[tokio::test(start_paused = true)]
async fn a_cost_is_settled_after_the_body() {
    let limiter = Limiter::new(
        Policy::new("p").limit("1000 tokens/min burst 1000").limit("1 at once"),
        store::Local::new(),
    )
    .expect("a limiter");
    let service = Service::new(|_, _| reply(200).body("500"));
    let client = service.client(new().policy(&limiter));
    let left =
        || async { limiter.peek("api.example.test").await.limit("tokens/min").expect("a limit").remaining() };
    let mut response = client.get(URL).cost("tokens", 900).send().await.expect("a response");
    let settle = Settle::of(&response);
    assert_eq!(left().await, 100);
    while response.chunk().await.expect("a body").is_some() {}
    let seats = limiter.peek("api.example.test").await.limit("at-once").expect("a limit").remaining();
    assert_eq!(seats, 1, "the body has ended, whoever holds the handle");
    settle.settle("tokens", 500);
    assert_eq!(left().await, 500);
    Settle::of(&response).settle("tokens", 100);
    assert_eq!(left().await, 900, "the later statement holds");
    let error = client.get(URL).send().await.expect_err("no cost");
    assert_eq!(Refused::of(&error).expect("ours").kind(), RefusedKind::NoCost);
    let error =
        client.get(URL).cost("tokens", 1).cost("pages", 1).send().await.expect_err("nobody counts pages");
    assert_eq!(Refused::of(&error).expect("ours").kind(), RefusedKind::UnknownUnit);
}

#[tokio::test(start_paused = true)]
async fn a_cost_by_closure_and_one_that_the_request_states() {
    let limiter = Limiter::new(Policy::new("p").limit("1000 tokens/min burst 1000"), store::Local::new())
        .expect("a limiter");
    let service = Service::new(|_, _| reply(200));
    let client = service.client(new().policy(&limiter).cost("tokens", |_| 300));
    let left = || async { limiter.peek("api.example.test").await.remaining() };
    client.get(URL).send().await.expect("a response");
    assert_eq!(left().await, 700);
    client.get(URL).cost("tokens", 10).send().await.expect("a response");
    assert_eq!(left().await, 690);
    let settle = Settle::new();
    let call = client.get(URL).settle(&settle).deadline(tokio::time::Instant::now() + secs(1));
    call.send().await.expect("a response");
    settle.settle("tokens", 0);
    assert_eq!(left().await, 690);
}

#[test]
fn faults_come_out_where_the_client_is_built() {
    let policy = || Policy::new("mail").limit("500/min");
    let fault = |builder: Builder| builder.build().expect_err("a fault").to_string();
    assert!(fault(new()).contains("policy"), "no limits at all is not a client without limits");
    assert!(fault(new().host("https://a", policy())).contains("`https://a`"));
    assert!(fault(new().policy(policy()).per_credential("no header")).contains("header"));
    assert!(fault(new().policy(policy()).cost("tokens", |_| 1)).contains("tokens"));
    let two = new().host("a b", policy()).policy(Policy::new("").limit("x"));
    assert!(fault(two).contains("a b"), "the first");
    assert!(forbear::wrap(reqwest::Client::new(), Policy::new("p").limit("500/minute?")).is_err());
}

#[test]
fn a_refusal_is_found_whatever_wraps_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let refused = runtime.block_on(async {
        let policy = Policy::new("wrapped").limit("10/s burst 10").limit("100 tokens/s burst 100");
        let limiter = Limiter::new(policy, forbear::store::Local::new()).unwrap();
        limiter.acquire(forbear::Ask::new("k").cost("tokens", 101)).await.unwrap_err()
    });
    assert_eq!(refused.limit(), Some("tokens/s"));
    assert!(refused.to_string().contains("`tokens/s`"), "{refused}");
    let io = std::io::Error::other(refused);
    assert!(Refused::of(&io).is_some());
    let twice = reqwest_middleware::Error::middleware(std::io::Error::other(io));
    assert_eq!(Refused::of(&twice).unwrap().kind(), RefusedKind::NeverFits);
}

#[tokio::test(start_paused = true)]
async fn a_5xx_of_a_proxy_is_a_fault_that_may_pass() {
    for status in [520, 522, 524, 530] {
        let service = Service::new(move |n, _| reply(if n == 0 { status } else { 200 }));
        let client = service.retried(exact());
        assert_eq!(client.get(URL).send().await.expect("a response").status(), 200, "{status}");
        let service = Service::new(move |n, _| reply(if n == 0 { status } else { 200 }));
        let client = service.retried(exact());
        assert_eq!(client.post(URL).send().await.expect("a response").status().as_u16(), status);
    }
}
