//! When a call is sent again: never earlier than the service asked, never in a hot loop, never endlessly.
#![cfg(feature = "client")]

mod support;

use std::future::Future;
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use forbear::client::{Backoff, Stop};
use forbear::{Ask, Attempts, Limiter, Policy, RequestExt, Retry, Throttle, store};
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};
use support::log::Log;
use support::{Service, URL, ms, new, reply, secs};

/// Steps of 100 ms, 200 ms, ... without jitter, and none on the service's waits.
fn plain() -> Retry {
    let backoff = Backoff::new(ms(100), secs(300)).without_jitter();
    Retry::default().backoff(backoff).throttle_backoff(backoff).server_jitter(0.0, Duration::ZERO)
}

fn in_secs(n: i64) -> SystemTime {
    let now = SystemTime::UNIX_EPOCH + real_now();
    if n < 0 { now - secs(n.unsigned_abs()) } else { now + secs(n as u64) }
}

#[allow(clippy::disallowed_methods, reason = "headers with dates")]
fn real_now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970")
}

#[tokio::test(start_paused = true)]
async fn b001_a_wait_of_zero_never_replaces_the_backoff() {
    let service = Service::new(|_, _| reply(429).after("0"));
    let client = service.retried(plain().attempts(51).total_timeout(secs(2)));
    let response = client.get(URL).send().await.expect("the last response");
    assert_eq!(response.status(), 429);
    assert!(service.count() <= 6, "{:?}", service.times());
    let gaps = service.gaps();
    assert!(gaps.iter().zip(1..).all(|(gap, n)| *gap >= ms(100) * 2_u32.pow(n - 1)), "{gaps:?}");
}

#[tokio::test(start_paused = true)]
async fn b004_jitter_only_adds() {
    for seed in 0..200 {
        let service = Service::new(|n, _| if n == 0 { reply(429).after("3") } else { reply(200) });
        let client = service.retried(Retry::default().server_jitter(0.5, secs(10)).seed(seed));
        client.get(URL).send().await.expect("a response");
        let gap = service.gaps()[0];
        assert!(gap >= secs(3) && gap <= ms(4_501), "{gap:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn b005_a_date_that_has_passed_is_no_reason_to_hurry() {
    let past = httpdate::fmt_http_date(in_secs(-5));
    let service = Service::new(move |_, _| reply(429).after(&past));
    let client = service.retried(plain().attempts(5));
    client.get(URL).send().await.expect("a response");
    assert_eq!(service.count(), 5);
    assert!(
        service.gaps().iter().zip(0..).all(|(gap, n)| *gap >= ms(100) * 2_u32.pow(n)),
        "{:?}",
        service.gaps()
    );
}

#[tokio::test(start_paused = true)]
async fn b005_dates_are_read_against_the_responses_own() {
    let (date, at) = (httpdate::fmt_http_date(in_secs(-4_000)), httpdate::fmt_http_date(in_secs(-3_997)));
    let service = Service::new(move |n, _| match n {
        0 => reply(429).header("date", &date).after(&at),
        _ => reply(200),
    });
    service.retried(plain()).get(URL).send().await.expect("a response");
    assert_eq!(service.gaps(), [secs(3)]);
}

#[tokio::test(start_paused = true)]
async fn b007_too_long_a_wait_fails_at_once() {
    let service = Service::new(|_, _| reply(503).after("3600"));
    let start = tokio::time::Instant::now();
    let client = service.retried(Retry::default().total_timeout(secs(2)));
    let response = client.get(URL).send().await.expect("the response as it is");
    assert_eq!((response.status().as_u16(), service.count(), start.elapsed()), (503, 1, Duration::ZERO));
    assert_eq!(Attempts::of(&response).expect("a record").stopped(), Some(Stop::WaitTooLong));
    assert_eq!(forbear::retry_after(&Ok(response)), Some(secs(3600)));
}

#[tokio::test(start_paused = true)]
async fn b013_absurd_waits_end_the_call_and_break_nothing() {
    for wait in
        ["9999999999", "18446744073709551615", "99999999999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"]
    {
        let service = Service::new(move |_, _| reply(429).after(wait));
        let retry = Retry::default().max_wait(secs(60)).max_server_wait(Duration::MAX);
        for retry in [retry, Retry::default()] {
            let before = service.count();
            let client = service.retried(retry);
            let response = client.get(URL).send().await.expect("the response as it is");
            assert_eq!((response.status().as_u16(), service.count() - before), (429, 1), "{wait}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn b016_the_cap_is_kept_to_the_second() {
    for (wait, sends) in [("60", 2), ("61", 1), ("75", 1)] {
        let service = Service::new(move |n, _| if n == 0 { reply(429).after(wait) } else { reply(200) });
        let client = service.retried(plain().max_server_wait(secs(60)).attempts(3));
        client.get(URL).send().await.expect("a response");
        assert_eq!(service.count(), sends, "{wait}");
        assert!(service.gaps().iter().all(|gap| *gap == secs(60)));
    }
}

#[tokio::test(start_paused = true)]
async fn b019_a_longest_backoff_does_not_cut_the_services_wait() {
    for seed in 0..100 {
        let service = Service::new(|n, _| if n == 0 { reply(429).after("1") } else { reply(200) });
        let short = Backoff::new(ms(300), ms(800));
        let client =
            service.retried(Retry::default().throttle_backoff(short).server_jitter(0.5, secs(1)).seed(seed));
        client.get(URL).send().await.expect("a response");
        assert!(service.gaps()[0] >= secs(1), "{:?}", service.gaps());
    }
    let service = Service::new(|_, _| reply(429).after("1"));
    let client = service.retried(Retry::default().max_server_wait(ms(800)));
    client.get(URL).send().await.expect("a response");
    assert_eq!(service.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn b029_no_wait_is_begun_that_would_end_too_late() {
    let service = Service::new(|_, _| reply(500));
    let backoff = Backoff::new(ms(200), secs(60)).without_jitter();
    let client = service.retried(Retry::default().backoff(backoff).attempts(8).total_timeout(secs(7)));
    let start = tokio::time::Instant::now();
    let response = client.get(URL).send().await.expect("a response");
    // 0.2 + 0.4 + 0.8 + 1.6 + 3.2 = 6.2 s, and 6.4 s more would be too late.
    assert_eq!((service.count(), start.elapsed()), (6, ms(6_200)));
    assert_eq!(Attempts::of(&response).expect("a record").stopped(), Some(Stop::OutOfTime));
}

#[tokio::test(start_paused = true)]
async fn b031_b088_what_is_no_number_is_no_wait() {
    for wait in ["-5", "120junk", "12 0", "0x10", "", "   ", "abc", "NaN"] {
        let service = Service::new(move |n, _| if n == 0 { reply(429).after(wait) } else { reply(200) });
        service.retried(plain()).get(URL).send().await.expect("a response");
        assert_eq!(service.gaps(), [ms(100)], "{wait:?}");
    }
    let service = Service::new(|n, _| if n == 0 { reply(429).after("  7  ") } else { reply(200) });
    service.retried(plain()).get(URL).send().await.expect("a response");
    assert_eq!(service.gaps(), [secs(7)]);
}

#[tokio::test(start_paused = true)]
async fn b031_a_bad_wait_does_not_shorten_a_pause() {
    let service = Service::new(|n, _| if n == 0 { reply(429).after("-5") } else { reply(200) });
    let limiter = forbear::Limiter::new(Policy::new("p"), forbear::store::Local::new()).expect("a limiter");
    let client = service.client(new().policy(limiter.clone()).retry(plain()));
    client.get(URL).no_retry().send().await.expect("a response");
    limiter.pause("api.example.test", secs(5));
    let (a, b) = tokio::join!(client.get(URL).send(), client.get(URL).send());
    assert!(a.is_ok() && b.is_ok());
    assert!(service.times()[1..].iter().all(|at| *at >= secs(5)), "{:?}", service.times());
}

#[tokio::test(start_paused = true)]
async fn b038_a_budget_of_waiting_ends_the_call() {
    let past = httpdate::fmt_http_date(in_secs(-60));
    let service = Service::new(move |n, _| reply(429).after([&*past, "abc", "0"][n % 3]));
    let client = service.retried(plain().attempts(u32::MAX).max_wait(secs(30)));
    let start = tokio::time::Instant::now();
    let response = client.get(URL).send().await.expect("a response");
    assert_eq!(response.status(), 429);
    assert!(start.elapsed() <= secs(30) && service.count() < 20, "{:?}", service.times());
    let record = Attempts::of(&response).expect("a record");
    assert_eq!(record.stopped(), Some(Stop::MaxWait));
    assert_eq!(record.held().total(), start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn b053_fractions_are_waits() {
    let service = Service::new(|n, _| if n == 0 { reply(429).after("1.5") } else { reply(200) });
    service.retried(plain()).get(URL).send().await.expect("a response");
    assert_eq!(service.gaps(), [ms(1_500)]);
}

#[tokio::test(start_paused = true)]
async fn b064_the_only_retry_comes_late_enough() {
    for seed in 0..50 {
        let service = Service::new(|n, _| if n == 0 { reply(429).after("0") } else { reply(200) });
        let client = service.retried(Retry::default().attempts(2).seed(seed));
        assert_eq!(client.get(URL).send().await.expect("a response").status(), 200);
        assert!(service.gaps()[0] >= ms(500), "{:?}", service.gaps());
    }
}

#[tokio::test(start_paused = true)]
async fn b074_the_header_counts_whatever_the_body_is() {
    let service = Service::new(|n, _| match n {
        0 => reply(429).after("3").header("content-type", "text/html").body("<h1>slow down</h1>"),
        _ => reply(200),
    });
    let client = service.retried(plain());
    client.get(URL).no_retry().send().await.expect("a response");
    client.get(URL).send().await.expect("a response");
    assert_eq!(service.times(), [Duration::ZERO, secs(3)], "the second caller waits too");
}

#[tokio::test(start_paused = true)]
async fn b077_the_header_may_be_missing() {
    let service = Service::new(|n, _| reply([429, 503, 200][n]));
    let client = service.retried(plain().attempts(3));
    assert_eq!(client.get(URL).send().await.expect("a response").status(), 200);
    assert_eq!(service.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn b175_works_untuned_with_one_line_a_wait() {
    let log = Log::default();
    let _kept = log.keep();
    for method in [http::Method::GET, http::Method::PUT] {
        let before = log.lines().len();
        let service = Service::new(|n, _| if n < 2 { reply(429).after("1") } else { reply(200) });
        let client = forbear::wrap(reqwest::Client::new(), Policy::new("p")).expect("a client");
        let response = service.behind(client).request(method, URL).send().await.expect("a response");
        assert_eq!(response.status(), 200);
        assert!(service.times()[2] >= secs(2) && service.times()[2] <= ms(2_202), "{:?}", service.times());
        assert_eq!(log.lines().len() - before, 2, "{:?}", log.lines());
    }
}

#[tokio::test(start_paused = true)]
async fn b178_dates_are_gmt_in_every_zone() {
    // Nothing of ours reads a zone; a date five seconds ahead is five seconds, rounded up.
    let at = httpdate::fmt_http_date(in_secs(5));
    let service = Service::new(move |n, _| if n == 0 { reply(429).after(&at) } else { reply(200) });
    service.retried(plain()).get(URL).send().await.expect("a response");
    assert!(service.gaps()[0] >= secs(4) && service.gaps()[0] <= secs(6), "{:?}", service.gaps());
}

#[tokio::test(start_paused = true)]
async fn the_wait_of_a_call_that_is_given_up_is_on_record() {
    let service = Service::new(|_, _| reply(503));
    let one_an_hour = Limiter::new(Policy::new("p").limit("1/h").max_wait(secs(7_200)), store::Local::new())
        .expect("a limiter");
    _ = one_an_hour.acquire("api.example.test").await.expect("the first");
    let backoff = Backoff::new(secs(10), secs(10)).without_jitter();
    let queued = service.client(new().policy(one_an_hour));
    let backs_off = service.retried(Retry::default().backoff(backoff));
    let (in_queue, in_backoff) = (Attempts::new(), Attempts::new());
    for (client, attempts) in [(queued, &in_queue), (backs_off, &in_backoff)] {
        let given_up = tokio::time::timeout(secs(3), client.get(URL).attempts(attempts).send()).await;
        assert!(given_up.is_err(), "it was waiting");
        assert_eq!(attempts.held().total(), secs(3), "{attempts}");
    }
    assert_eq!((in_queue.held().limits, in_backoff.held().backoff), (secs(3), secs(3)));
}

/// Holds on to what is further in for a while before it runs it.
struct Late;

#[async_trait]
impl Middleware for Late {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut http::Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let inner = next.run(request, extensions);
        tokio::time::sleep(secs(20)).await;
        inner.await
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_is_charged_when_it_goes_however_late_that_is() {
    let service = Service::new(|_, _| reply(200));
    let chain = || reqwest_middleware::ClientBuilder::new(reqwest::Client::new());
    for chain in [chain().with(Retry::default()).with(Late), chain().with(Late)] {
        let limiter = Limiter::new(Policy::new("p").limit("1/10s"), store::Local::new()).expect("a limiter");
        let client = service.behind(chain.with(Throttle::new(limiter.clone())).build());
        client.get(URL).send().await.expect("a response");
        let next = limiter.try_acquire("api.example.test").await.expect_err("one has just gone");
        assert!(next.retry_after() >= Some(secs(10)), "{next}");
    }
}

/// What a closure does that takes its time.
fn dawdle() {
    let advance = std::pin::pin!(tokio::time::advance(secs(5)));
    // Its first poll moves the clock; the rest is for others to run.
    _ = advance.poll(&mut Context::from_waker(Waker::noop()));
}

#[tokio::test(start_paused = true)]
async fn a_closure_that_takes_its_time_does_not_make_a_call_old() {
    let service = Service::new(|_, _| reply(200));
    let limiter = || Limiter::new(Policy::new("p").limit("1/10s"), store::Local::new()).expect("a limiter");
    let counted = || {
        let policy = Policy::new("p").limit("1 tokens/10s");
        Limiter::new(policy, store::Local::new()).expect("a limiter")
    };
    let cost = |_: &Request| {
        dawdle();
        1
    };
    let is_so = |_: &Request| {
        dawdle();
        true
    };
    let host = |_: &Request| {
        dawdle();
        Some("api.example.test")
    };
    let chain = || reqwest_middleware::ClientBuilder::new(reqwest::Client::new());
    let throttle = |limiter: &Limiter| Throttle::new(limiter.clone()).cost("tokens", cost);
    let (alone, behind, marked, ruled) = (counted(), counted(), limiter(), limiter());
    let exempts = limiter();
    let clients = [
        (&alone, chain().with(throttle(&alone)).build()),
        (&behind, chain().with(Retry::default()).with(throttle(&behind)).build()),
        (&marked, new().policy(&marked).retry(Retry::default().idempotent_if(is_so)).build().expect("one")),
        (&ruled, new().rule(host, &ruled).build().expect("a client")),
        (
            &exempts,
            new().policy(&exempts).exempt_if(move |request| !is_so(request)).build().expect("a client"),
        ),
    ];
    for (i, (limiter, client)) in clients.into_iter().enumerate() {
        service.behind(client).post(URL).send().await.expect("a response");
        let ask = Ask::new("api.example.test");
        let ask = if i < 2 { ask.cost("tokens", 1) } else { ask };
        let next = limiter.try_acquire(ask).await.expect_err("one has just gone");
        assert!(next.retry_after() >= Some(secs(10)), "{i}: {next}");
    }
}
