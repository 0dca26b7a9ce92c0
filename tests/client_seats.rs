//! Who is held back, by what, and until when: seats, pauses and keys, as the service sees them.
#![cfg(feature = "client")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use forbear::client::Backoff;
use forbear::{
    Client, Limit, Limiter, Policy, Rate, Refused, RefusedKind, RequestExt, Retry, Throttle, store,
};
use http_body_util::channel::{Channel, Sender};
use parking_lot::Mutex;
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};
use support::log::Log;
use support::{Service, URL, ms, new, reply, secs, slow};
use tokio::time::Instant;

const HOST: &str = "api.example.test";

fn limiter(limit: &str) -> Limiter {
    Limiter::new(Policy::new("p").limit(limit), store::Local::new()).expect("a limiter")
}

async fn left(limiter: &Limiter) -> u64 {
    limiter.peek(HOST).await.remaining()
}

/// Bodies that go on until their sender is dropped.
#[derive(Clone, Default)]
struct Streams(Arc<Mutex<Vec<Sender<bytes::Bytes, std::io::Error>>>>);

impl Streams {
    fn body(&self) -> reqwest::Body {
        let (sender, body) = Channel::new(4);
        self.0.lock().push(sender);
        reqwest::Body::wrap(body)
    }
}

#[tokio::test(start_paused = true)]
async fn b002_a_sleeping_retry_holds_no_seat() {
    let service = Service::new(|_, request| match request.url().path() {
        "/a" => reply(503).in_time(ms(10)),
        _ => reply(200),
    });
    let backoff = Backoff::new(secs(1), secs(10)).without_jitter();
    let client = service
        .client(new().policy(Policy::new("p").limit("1 at once")).retry(Retry::default().backoff(backoff)));
    let a = tokio::spawn(client.get("https://api.example.test/a").send());
    tokio::time::sleep(ms(210)).await;
    let start = Instant::now();
    client.get("https://api.example.test/b").send().await.expect("a response");
    assert_eq!(start.elapsed(), Duration::ZERO);
    a.await.expect("no panic").expect("a response");
    assert_eq!((service.count(), service.peak()), (5, 1));
}

#[tokio::test(start_paused = true)]
async fn b020_dropped_calls_leave_nothing_taken() {
    let limiter = limiter("3 at once");
    let streams = Streams::default();
    let bodies = streams.clone();
    let service = Service::new(move |n, _| {
        let reply = reply(200).in_time(ms(5));
        if n % 2 == 0 { reply.body("done") } else { reply.body(bodies.body()) }
    });
    let client = service.client(new().policy(&limiter));
    for round in 0..100 {
        let rng = &mut fastrand::Rng::with_seed(round);
        let calls: Vec<_> = (0..50)
            .map(|i| {
                let (client, drop_at) = (client.clone(), ms(rng.u64(0..20)));
                tokio::spawn(async move {
                    let call =
                        async { client.get(URL).send().await.expect("a response").chunk().await.map(drop) };
                    match i % 5 < 2 {
                        true => _ = tokio::time::timeout(drop_at, call).await,
                        false => _ = tokio::time::timeout(secs(1), call).await,
                    }
                })
            })
            .collect();
        for call in calls {
            call.await.expect("no panic");
        }
        streams.0.lock().clear();
        assert_eq!(left(&limiter).await, 3, "round {round}");
    }
    assert!(service.peak() <= 3);
}

#[tokio::test(start_paused = true)]
async fn b035_a_dropped_response_frees_its_seat() {
    let limiter = limiter("1 at once");
    let streams = Streams::default();
    let bodies = streams.clone();
    let service = Service::new(move |_, _| reply(500).body(bodies.body()));
    let client = service.client(new().policy(&limiter).retry(Retry::default().attempts(1)));
    let response = client.get(URL).send().await.expect("a response");
    assert_eq!(left(&limiter).await, 0);
    let _error = response.error_for_status().expect_err("a 500");
    assert_eq!(left(&limiter).await, 1);
    drop(client.get(URL).send().await.expect("a response"));
    assert_eq!(left(&limiter).await, 1);
}

#[tokio::test(start_paused = true)]
async fn b035_bodies_that_lie_unread_are_named() {
    let log = Log::default();
    let _kept = log.keep();
    let streams = Streams::default();
    let bodies = streams.clone();
    let service = Service::new(move |_, _| reply(200).body(bodies.body()));
    let client = service.client(new().policy(Policy::new("p").limit("1 at once")));
    let leaked = client.get(URL).send().await.expect("a response");
    for _ in 0..2 {
        let error = client.get(URL).max_wait(secs(40)).send().await.expect_err("the seat is taken");
        assert_eq!(Refused::of(&error).expect("ours").kind(), RefusedKind::NoSeat);
        assert!(error.to_string().contains("unread"), "{error}");
    }
    assert_eq!(log.count(tracing::Level::WARN, "lie unread"), 1);
    drop(leaked);

    let mut read = client.get(URL).send().await.expect("a response");
    let reader = tokio::spawn(async move { read.chunk().await.map(drop) });
    let error = client.get(URL).max_wait(secs(60)).send().await.expect_err("the seat is taken");
    assert!(!error.to_string().contains("unread"), "someone waits for that body: {error}");
    reader.abort();
}

#[tokio::test(start_paused = true)]
async fn b041_a_wait_holds_the_whole_service_and_no_other() {
    let service = Service::new(|n, request| match request.url().host_str() {
        Some(HOST) if n == 0 => reply(429).after("7"),
        _ => reply(200),
    });
    let client = service.client(new().policy(Policy::new("p").limit("1 at once")));
    let calls: Vec<_> = (0..20).map(|_| tokio::spawn(client.get(URL).send())).collect();
    tokio::time::sleep(ms(1)).await;
    client.get("https://other.example.test").send().await.expect("a response");
    for call in calls {
        call.await.expect("no panic").expect("a response");
    }
    let (here, there): (Vec<_>, Vec<_>) =
        service.arrivals().into_iter().partition(|arrival| arrival.host == HOST);
    assert_eq!((here.len(), here[0].at, there[0].at), (21, Duration::ZERO, ms(1)));
    assert!(here[1..].iter().all(|arrival| arrival.at >= secs(7)));
}

#[tokio::test(start_paused = true)]
async fn b071_a_wait_empties_what_was_saved_up() {
    let service = Service::new(|n, _| if n == 0 { reply(429).after("2") } else { reply(200) });
    let client = service.client(new().policy(Policy::new("p").limit("100/s burst 100").limit("1 at once")));
    let calls: Vec<_> = (0..50).map(|_| tokio::spawn(client.get(URL).send())).collect();
    for call in calls {
        call.await.expect("no panic").expect("a response");
    }
    let times = service.times();
    assert_eq!(times.len(), 51);
    assert!(times[1..].iter().all(|at| *at >= secs(2)), "{times:?}");
    assert!(times[1..].iter().filter(|at| **at < ms(2_100)).count() <= 11, "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn b059_one_service_has_one_key_and_credentials_share_it() {
    let service = Service::new(|_, _| reply(200));
    let client = service.client(new().policy(Policy::new("p").limit("1 at once").limit("2/min burst 2")));
    for url in ["http://API.example.test", "http://api.example.test:80"] {
        client.get(url).send().await.expect("a response");
    }
    for url in ["http://api.example.test./", "http://user@api.example.test", "https://api.example.test:443/a"]
    {
        assert!(client.get(url).max_wait(Duration::ZERO).send().await.is_err(), "{url}");
    }
    client
        .get("https://api.example.test:8443")
        .max_wait(Duration::ZERO)
        .send()
        .await
        .expect("another service");
    client.get(URL).limit_key("mine").max_wait(Duration::ZERO).send().await.expect("another key");
    let apart =
        service.client(new().policy(Policy::new("p").limit("1/min burst 1")).per_credential("x-api-key"));
    for key in ["a", "b"] {
        let call = || apart.get(URL).header("x-api-key", key).max_wait(Duration::ZERO).send();
        assert!(call().await.is_ok() && call().await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn rules_hold_together_and_the_overall_cap_last() {
    let service = Service::new(|_, _| reply(200));
    let one = |name: &str| Policy::new(name).limit("1/min burst 1");
    let five = Limit::token_bucket(Rate::per_minute(5), 5).jitter_margin(Duration::ZERO);
    let builder = new()
        .host("*.example.test", one("below"))
        .each_host(one("others"))
        .rule(|request| request.url().path().starts_with("/search").then_some("search"), one("search"))
        .overall(Policy::new("all").limit(five));
    let client = service.client(builder);
    let refused_by = |url: &'static str| {
        let call = client.get(url).max_wait(Duration::ZERO).send();
        async move { call.await.err().map(|error| Refused::of(&error).expect("ours").policy().to_owned()) }
    };
    assert_eq!(refused_by("https://a.example.test/").await, None);
    assert_eq!(refused_by("https://a.example.test/").await.as_deref(), Some("below"));
    assert_eq!(refused_by("https://b.example.test/search").await, None);
    assert_eq!(refused_by("https://c.test/search").await.as_deref(), Some("search"));
    assert_eq!(refused_by("https://c.test/").await, None, "a refusal charges nothing");
    assert_eq!(refused_by("https://c.test/").await.as_deref(), Some("others"));
    assert_eq!(refused_by("https://d.test/").await, None);
    assert_eq!(refused_by("https://e.test/").await, None);
    assert_eq!(refused_by("https://f.test/").await.as_deref(), Some("all"));
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_one_service_leaves_the_overall_cap_alone() {
    let service = Service::new(|_, request| match request.url().host_str() {
        Some(HOST) => reply(429).after("60"),
        _ => reply(200),
    });
    let client =
        service.client(new().policy(Policy::new("p")).overall(Policy::new("all").limit("8 at once")));
    client.get(URL).no_retry().send().await.expect("a response");
    client.get("https://b.test").max_wait(Duration::ZERO).send().await.expect("another service");
}

#[tokio::test(start_paused = true)]
async fn a_redirect_counts_where_it_ended() {
    let service = Service::new(|n, _| match n {
        0 => reply(429).after("60").url("https://b.example.test/there"),
        _ => reply(200),
    });
    let limiter = limiter("10/min burst 10");
    let client = service.client(new().policy(&limiter));
    client.get(URL).no_retry().send().await.expect("a response");
    client.get(URL).max_wait(Duration::ZERO).send().await.expect("this service said nothing");
    let error =
        client.get("https://b.example.test").max_wait(Duration::ZERO).send().await.expect_err("paused");
    assert_eq!(Refused::of(&error).expect("ours").kind(), RefusedKind::Paused);
}

#[tokio::test(start_paused = true)]
async fn a_redirect_is_charged_although_its_caller_has_gone_and_not_for_an_exempt_call() {
    let service = Service::new(|_, _| {
        let there = reply(404).url("https://b.example.test/there");
        there.header("content-type", "application/json").body(slow("{}", ms(900)))
    });
    let limiter = limiter("10/min burst 10");
    let there = async || limiter.peek("b.example.test").await.remaining();
    let client = service.client(new().policy(&limiter).read_bodies());
    client.get(URL).exempt().send().await.expect("a response");
    assert_eq!((left(&limiter).await, there().await), (10, 10));
    let given_up = tokio::time::timeout(ms(50), client.get(URL).send()).await;
    assert!(given_up.is_err(), "its body was read");
    assert_eq!((left(&limiter).await, there().await), (9, 9));
}

#[tokio::test(start_paused = true)]
async fn b061_a_panic_in_a_closure_costs_no_capacity() {
    let limiter = limiter("2 at once");
    let service = Service::new(|_, _| reply(200).body("done").in_time(ms(1)));
    let builder = new()
        .rule(|request| Some(if request.url().path() == "/rule" { panic!("rule") } else { HOST }), &limiter)
        .exempt_if(|request| if request.url().path() == "/exempt" { panic!("exempt") } else { false })
        .retry(Retry::default().idempotent_if(|request| request.url().path() == "/twice" && panic!("twice")));
    let client = service.client(builder);
    for path in ["/rule", "/exempt", "/twice"] {
        for _ in 0..5 {
            let call = client.post(format!("https://api.example.test{path}")).send();
            assert!(tokio::spawn(call).await.expect_err("it panics").is_panic());
        }
    }
    assert_eq!(left(&limiter).await, 2);
    let calls: Vec<_> = (0..50).map(|_| tokio::spawn(client.get(URL).send())).collect();
    for call in calls {
        call.await.expect("no panic").expect("a response");
    }
    assert_eq!((left(&limiter).await, service.peak()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn b082_a_finished_future_holds_nothing() {
    let limiter = limiter("1 at once");
    let service = Service::new(|_, _| reply(200).body("done"));
    let client = service.client(new().policy(&limiter));
    let mut a = std::pin::pin!(client.get(URL).send());
    let response = a.as_mut().await.expect("a response");
    assert_eq!(response.text().await.expect("a body"), "done");
    client.get(URL).max_wait(Duration::ZERO).send().await.expect("the seat is free");
}

/// Sends a second request for each that comes, as a hedge does.
struct Twice;

#[async_trait]
impl Middleware for Twice {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut http::Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let (second, mut others) = (request.try_clone().expect("no stream"), extensions.clone());
        let (first, second) =
            tokio::join!(next.clone().run(request, extensions), next.run(second, &mut others));
        first.or(second)
    }
}

#[tokio::test(start_paused = true)]
async fn b104_retries_and_hedges_stay_inside_the_cap() {
    let limiter = limiter("4 at once");
    let service = Service::new(|n, _| reply(if n % 3 == 0 { 503 } else { 200 }).in_time(ms(10)));
    let chain = reqwest_middleware::ClientBuilder::new(reqwest::Client::new());
    let client =
        service.behind(chain.with(Retry::default()).with(Twice).with(Throttle::new(limiter.clone())).build());
    let calls: Vec<_> = (0..8).map(|_| tokio::spawn(client.get(URL).send())).collect();
    for call in calls {
        call.await.expect("no panic").expect("a response");
    }
    assert!(service.count() >= 16 && service.peak() == 4, "{} {}", service.count(), service.peak());
    assert_eq!(left(&limiter).await, 4);
}

#[tokio::test(start_paused = true)]
async fn b130_a_long_pause_is_shared() {
    let service = Service::new(|_, _| reply(429).after("60"));
    let client = service.client(new().policy(Policy::new("p").limit("1 at once").max_wait(secs(300))));
    let start = Instant::now();
    let calls: Vec<_> = (0..100).map(|_| tokio::spawn(client.get(URL).send())).collect();
    let mut done = 0;
    for call in calls {
        done += usize::from(call.await.expect("no panic").is_ok_and(|response| response.status() == 200));
    }
    assert_eq!(done, 0);
    assert!(start.elapsed() <= secs(301), "{:?}", start.elapsed());
    assert!(service.count() <= 12, "a few a minute: {:?}", service.times());
}

#[tokio::test(start_paused = true)]
async fn b140_those_who_wait_hold_nobody_up() {
    let limiter = limiter("8 at once");
    limiter.pause(HOST, secs(30));
    let service = Service::new(|_, _| reply(200).in_time(ms(3)));
    let client = service.client(new().policy(limiter));
    let waiting: Vec<_> = (0..500).map(|_| tokio::spawn(client.get(URL).send())).collect();
    tokio::task::yield_now().await;
    let start = Instant::now();
    for _ in 0..20 {
        client.get("https://b.test").send().await.expect("a response");
    }
    assert_eq!(start.elapsed(), ms(60));
    for call in waiting {
        call.await.expect("no panic").expect("a response");
    }
}

#[test]
fn b154_clients_leave_nothing_behind() {
    let build = || forbear::wrap(reqwest::Client::new(), Policy::new("p").limit("1/s")).expect("a client");
    let alive = Arc::new(AtomicUsize::new(0));
    struct Alive(Arc<AtomicUsize>);
    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    drop(build());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        for _ in 0..100 {
            alive.fetch_add(1, Ordering::SeqCst);
            let guard = Alive(alive.clone());
            let throttle =
                Throttle::new(limiter("1/s")).exempt_if(move |_| guard.0.load(Ordering::SeqCst) == 0);
            let service = Service::new(|_, _| reply(200));
            let chain = reqwest_middleware::ClientBuilder::new(reqwest::Client::new());
            let client = service.behind(chain.with(Retry::default()).with(throttle).build());
            client.get(URL).send().await.expect("a response");
        }
    });
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    assert_eq!(runtime.metrics().num_alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn b155_a_body_that_fails_gives_its_seat_back_once() {
    let limiter = limiter("2 at once");
    let service = Service::new(move |_, _| {
        let (sender, body) = Channel::<bytes::Bytes, std::io::Error>::new(1);
        sender.abort(std::io::ErrorKind::ConnectionReset.into());
        reply(200).body(reqwest::Body::wrap(body))
    });
    let client = service.client(new().policy(&limiter));
    for _ in 0..1_000 {
        let mut response = client.get(URL).send().await.expect("a response");
        assert!(response.chunk().await.is_err());
        assert_eq!(left(&limiter).await, 2);
        drop(response);
        assert_eq!(left(&limiter).await, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn b169_exempt_streams_starve_nobody() {
    let streams = Streams::default();
    let bodies = streams.clone();
    let service = Service::new(move |_, request| match request.url().path() {
        "/watch" => reply(200).body(bodies.body()),
        _ => reply(200).body("done"),
    });
    let client = service.client(new().policy(Policy::new("p").limit("4 at once").max_wait(secs(20))));
    let watch = "https://api.example.test/watch";
    let mut open = Vec::new();
    for _ in 0..8 {
        open.push(client.get(watch).exempt().send().await.expect("a response"));
    }
    client.get(URL).max_wait(Duration::ZERO).send().await.expect("there is room");
    for _ in 0..4 {
        open.push(client.get(watch).send().await.expect("a response"));
    }
    let start = Instant::now();
    let error = client.get(URL).send().await.expect_err("no seat");
    assert_eq!((Refused::of(&error).expect("ours").kind(), start.elapsed()), (RefusedKind::NoSeat, secs(20)));
}

/// Keeps the first answer.
#[derive(Default)]
struct Cache(Mutex<Option<String>>);

#[async_trait]
impl Middleware for Cache {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut http::Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        if let Some(body) = self.0.lock().clone() {
            return Ok(http::Response::new(body).into());
        }
        let body = next.run(request, extensions).await?.text().await?;
        *self.0.lock() = Some(body.clone());
        Ok(http::Response::new(body).into())
    }
}

#[tokio::test(start_paused = true)]
async fn b176_a_cache_outside_costs_one_unit() {
    let limiter = limiter("2/5s burst 2");
    let service = Service::new(|_, _| reply(200).body("cached"));
    let chain = reqwest_middleware::ClientBuilder::new(reqwest::Client::new());
    let chain = chain.with(Cache::default()).with(Retry::default()).with(Throttle::new(limiter.clone()));
    let client: Client = service.behind(chain.build());
    let start = Instant::now();
    for _ in 0..100 {
        assert_eq!(client.get(URL).send().await.expect("a response").text().await.expect("a body"), "cached");
    }
    assert_eq!((service.count(), start.elapsed(), left(&limiter).await), (1, Duration::ZERO, 1));
}
