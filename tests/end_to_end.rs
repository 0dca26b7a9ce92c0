//! Our client against our server over real HTTP, for every limiter: what is counted, and in which order.
//!
//! Clocks run here, so nothing is asserted of time but that a wait was not too short.
#![cfg(feature = "client")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forbear::{Builder, Client, Limit, Policy, Rate, Refused, RequestExt, Retry, store::Local};
use forbear_server::{Key, LimitLayer};
use http::Request;
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use hyper::body::{Bytes, Incoming};
use parking_lot::Mutex;
use support::secs;
use support::server::{Answer, Protocol, Server, answer, with_body};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};

/// A server behind a limit layer, and what it saw: refused requests never reach its inside.
struct Limited {
    server: Server,
    layer: LimitLayer,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    refused: AtomicUsize,
    under_way: AtomicUsize,
    peak: AtomicUsize,
    /// Path, instant of the answer, and whether it was a refusal, in order.
    answers: Mutex<Vec<(String, Instant, bool)>>,
}

struct UnderWay<'a>(&'a Seen);

impl<'a> UnderWay<'a> {
    fn with(seen: &'a Seen) -> Self {
        let now = seen.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        seen.peak.fetch_max(now, Ordering::SeqCst);
        Self(seen)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Limited {
    async fn by(policy: Policy) -> Self {
        Self::serving(policy, |_| async { answer(200) }).await
    }

    async fn serving<F, A>(policy: Policy, inside: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Answer> + Send + 'static,
    {
        let layer = LimitLayer::new(policy, Key::everyone(), Local::new()).build().expect("a layer");
        let (limits, seen) = (layer.clone(), Arc::new(Seen::default()));
        let watched = seen.clone();
        let server = Server::start(Protocol::Http1, move |_, request| {
            let (seen, inside) = (watched.clone(), inside.clone());
            let path = request.uri().path().to_owned();
            let service = limits.layer(service_fn({
                let seen = seen.clone();
                move |request| {
                    let (seen, inside) = (seen.clone(), inside.clone());
                    async move {
                        let _under_way = UnderWay::with(&seen);
                        Ok::<Answer, std::convert::Infallible>(inside(request).await)
                    }
                }
            }));
            async move {
                let answer = service.oneshot(request).await.unwrap_or_else(|never| match never {});
                let refused = matches!(answer.status().as_u16(), 429 | 503);
                seen.refused.fetch_add(usize::from(refused), Ordering::SeqCst);
                seen.answers.lock().push((path, Instant::now(), refused));
                answer.map(BodyExt::boxed_unsync)
            }
        });
        Self { server: server.await, layer, seen }
    }

    fn refused(&self) -> usize {
        self.seen.refused.load(Ordering::SeqCst)
    }

    fn admitted(&self) -> usize {
        self.seen.answers.lock().iter().filter(|(.., refused)| !refused).count()
    }

    async fn free_seats(&self, policy: &str) -> u64 {
        let limiter = self.layer.limiter(policy).expect("it has the policy");
        limiter.peek("everyone").await.remaining()
    }
}

fn limiters(rate: Rate) -> [(&'static str, Limit); 7] {
    let n = rate.units();
    [
        ("plain rate", Limit::rate(rate)),
        ("token bucket", Limit::token_bucket(rate, n)),
        ("leaky bucket", Limit::leaky_bucket(rate, n)),
        ("fixed window", Limit::fixed_window(rate)),
        ("sliding window", Limit::sliding_window(rate, 5)),
        ("sliding counter", Limit::sliding_counter(rate)),
        ("sliding log", Limit::sliding_log(rate)),
    ]
}

fn wrapped(policy: Policy) -> Client {
    Builder::new(reqwest::Client::new()).policy(policy).build().expect("a client")
}

/// What became of so many calls at once: answered 200, answered 429, held back by ourselves.
async fn call(client: &Client, server: &Server, calls: usize) -> (usize, usize, usize) {
    let calls = (0..calls).map(|i| {
        let request = client.get(server.url(&format!("/{i}")));
        tokio::spawn(async move { request.send().await })
    });
    let (mut well, mut refused, mut ours) = (0, 0, 0);
    for call in calls.collect::<Vec<_>>() {
        match call.await.expect("it does not panic") {
            Ok(response) if response.status() == 200 => well += 1,
            Ok(response) if response.status() == 429 => refused += 1,
            Ok(response) => panic!("an answer {}", response.status()),
            Err(error) if Refused::of(&error).is_some() => ours += 1,
            Err(error) => panic!("{error:?}"),
        }
    }
    (well, refused, ours)
}

#[tokio::test]
async fn a_window_admits_its_number_and_the_rest_is_never_sent() {
    for (name, limit) in limiters(Rate::per_hour(5)) {
        let at_once = match name {
            // One goes at once, the others have to wait for their turn.
            "plain rate" | "leaky bucket" => 1,
            // The jitter margin takes less than one unit, and there are no parts of a call.
            "token bucket" | "sliding counter" => 4,
            _ => 5,
        };
        let server = Limited::by(Policy::new("server").limit(limit.clone())).await;
        let client = wrapped(Policy::new("api").limit(limit).max_wait(Duration::ZERO).max_waiting(0));
        let client_side = call(&client, &server.server, 8).await;
        assert_eq!((client_side, server.refused()), ((at_once, 0, 8 - at_once), 0), "{name}");
    }
}

#[tokio::test]
async fn a_loose_client_is_told_by_the_server_and_returns_what_it_was_told() {
    for (name, limit) in limiters(Rate::per_hour(5)) {
        if name == "leaky bucket" {
            // It would hold them for an hour.
            continue;
        }
        let at_once = if name == "plain rate" { 1 } else { 5 };
        let server = Limited::by(Policy::new("server").limit(limit)).await;
        // Without limits: it only does what it is told, and the server asks for more than it may wait.
        let client = wrapped(Policy::new("api"));
        for i in 0..8 {
            let response = client.get(server.server.url("/")).no_retry().send().await;
            let told = forbear::retry_after(&response);
            assert_eq!(told.is_none(), i < at_once, "{name}: {told:?}");
        }
        assert_eq!(server.admitted(), at_once, "{name}");
        // The first that was refused has paused the key: no more were sent.
        assert_eq!(server.refused(), 1, "{name}");
    }
}

#[tokio::test]
async fn no_call_fails_and_every_window_is_used() {
    let tasks = limiters(Rate::per_second(10)).map(|(name, limit)| {
        tokio::spawn(async move {
            let server = Limited::by(Policy::new("server").limit(limit.clone())).await;
            let client = wrapped(Policy::new("api").limit(limit));
            let start = Instant::now();
            // A leaky bucket of ten holds ten and the one that goes; so that none is refused, eleven.
            let calls = if name == "leaky bucket" { 11 } else { 21 };
            assert_eq!(call(&client, &server.server, calls).await, (calls, 0, 0), "{name}");
            // Ten and what one second yields; nothing lets the last go sooner.
            let least = if name == "leaky bucket" { 1_000 } else { 900 };
            assert!(start.elapsed() >= Duration::from_millis(least), "{name}: {:?}", start.elapsed());
            assert_eq!(server.admitted(), calls, "{name}");
        })
    });
    for task in tasks {
        task.await.expect("it does not panic");
    }
}

#[tokio::test]
async fn a_refused_call_comes_back_when_the_server_said_and_not_before() {
    let tasks = limiters(Rate::per_second(4)).map(|(name, limit)| {
        tokio::spawn(async move {
            // A queue of one, so that this one refuses as well.
            let limit =
                if name == "leaky bucket" { Limit::leaky_bucket(Rate::per_second(4), 1) } else { limit };
            let server = Limited::by(Policy::new("server").limit(limit)).await;
            let client = wrapped(Policy::new("api").limit(Limit::token_bucket(Rate::per_second(100), 100)));
            assert_eq!(call(&client, &server.server, 6).await, (6, 0, 0), "{name}");
            assert_eq!(server.admitted(), 6, "{name}");
            assert!(server.refused() > 0, "{name}");
            let answers = server.seen.answers.lock();
            for (i, (path, refused_at, _)) in answers.iter().enumerate().filter(|(_, (.., no))| *no) {
                let again = answers[i + 1..].iter().find(|(other, ..)| other == path);
                let (_, again_at, _) = again.expect("the call went on until it was admitted");
                assert!(*again_at - *refused_at >= secs(1), "{name}: {:?}", *again_at - *refused_at);
            }
        })
    });
    for task in tasks {
        task.await.expect("it does not panic");
    }
}

#[tokio::test]
async fn a_seat_is_held_on_both_sides_until_the_body_is_read() {
    let (open, server) = endless(Policy::new("server").limit("2 at once")).await;
    let limiter = forbear::Limiter::new(Policy::new("api").limit("2 at once"), Local::new()).expect("right");
    let client = forbear::wrap(reqwest::Client::new(), limiter.clone()).expect("a client");
    let url = server.server.url("/stream");
    let key = url.trim_start_matches("http://").trim_end_matches("/stream");
    let first = client.get(&url).send().await.expect("a head");
    let second = client.get(&url).send().await.expect("a head");
    assert_eq!(server.free_seats("server").await, 0);
    assert_eq!(limiter.peek(key).await.remaining(), 0);
    // Whoever does not hold back is refused by the server.
    assert_eq!(reqwest::get(&url).await.expect("an answer").status(), 503);
    // The wrapped client does not even ask.
    let third = tokio::spawn(client.get(&url).send());
    open.lock().remove(0);
    assert_eq!(first.bytes().await.expect("its whole body"), "begun");
    let third = third.await.expect("it does not panic").expect("a head");
    assert_eq!(third.status(), 200);
    open.lock().clear();
    drop((second, third));
    while server.free_seats("server").await < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(limiter.peek(key).await.remaining(), 2);
    assert_eq!(server.refused(), 1, "the one that did not hold back");
}

type Open = Arc<Mutex<Vec<Sender<Bytes, std::io::Error>>>>;

/// A server whose streams begin and go on until their senders are dropped; other paths are answered at once.
async fn endless(policy: Policy) -> (Open, Limited) {
    let open = Open::default();
    let kept = open.clone();
    let server = Limited::serving(policy, move |request| {
        let kept = kept.clone();
        async move {
            if request.uri().path() != "/stream" {
                return with_body(200, "well");
            }
            let (mut sender, body) = Channel::new(1);
            sender.send_data(Bytes::from("begun")).await.expect("it is open");
            kept.lock().push(sender);
            http::Response::new(body.boxed_unsync())
        }
    });
    (open, server.await)
}

#[tokio::test]
async fn b104_the_servers_gauge_stays_inside_the_cap_with_retries() {
    let failures = Arc::new(AtomicUsize::new(0));
    let server = Limited::serving(Policy::new("server").limit("100 at once"), move |_| {
        let fails = failures.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
        async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            answer(if fails { 500 } else { 200 })
        }
    });
    let server = server.await;
    let retry = Retry::default().attempts(20).budget(1.0, 1_000);
    let client = Builder::new(reqwest::Client::new()).policy(Policy::new("api").limit("4 at once"));
    let client = client.retry(retry).build().expect("a client");
    assert_eq!(call(&client, &server.server, 8).await, (8, 0, 0));
    assert!(server.seen.peak.load(Ordering::SeqCst) <= 4);
    let answers = server.seen.answers.lock();
    assert!(answers.len() > 8, "some were sent again: {}", answers.len());
}

#[tokio::test]
async fn b106_estimates_hold_on_both_sides_and_the_true_use_comes_back_on_both() {
    let tokens = || Limit::fixed_window(Rate::per_hour(1_000)).unit("tokens");
    let layer = LimitLayer::new(Policy::new("server").limit(tokens()), Key::everyone(), Local::new())
        .cost("tokens", |_| 400)
        .build()
        .expect("a layer");
    let limits = layer.clone();
    let server = Server::start(Protocol::Http1, move |_, request| {
        let service = limits.layer(service_fn(async |request: Request<Incoming>| {
            let charge = request.extensions().get::<forbear_server::Settle>().expect("it was estimated");
            charge.settle("tokens", 380);
            Ok::<Answer, std::convert::Infallible>(with_body(200, "380"))
        }));
        async move {
            let answer = service.oneshot(request).await.unwrap_or_else(|never| match never {});
            answer.map(BodyExt::boxed_unsync)
        }
    });
    let server = server.await;
    let policy = Policy::new("api").limit(tokens()).max_wait(Duration::ZERO);
    let limiter = forbear::Limiter::new(policy, Local::new()).expect("right");
    let client = forbear::wrap(reqwest::Client::new(), limiter.clone()).expect("a client");
    let calls = (0..10).map(|_| tokio::spawn(client.get(server.url("/")).cost("tokens", 400).send()));
    let (mut well, mut ours) = (0, 0);
    for call in calls.collect::<Vec<_>>() {
        match call.await.expect("it does not panic") {
            Ok(response) => {
                let settle = forbear::Settle::of(&response);
                let used = response.text().await.expect("a body").parse().expect("a number");
                settle.settle("tokens", used);
                well += 1;
            }
            Err(error) => {
                assert!(Refused::of(&error).is_some(), "{error:?}");
                ours += 1;
            }
        }
    }
    assert_eq!((well, ours), (2, 8));
    let theirs = layer.limiter("server").expect("it is there").peek("everyone").await;
    let url = server.url("");
    let ours = limiter.peek(url.trim_start_matches("http://")).await;
    assert_eq!((ours.remaining(), theirs.remaining()), (240, 240));
}

#[tokio::test]
async fn b169_streams_that_are_exempt_starve_nobody() {
    let (open, server) = endless(Policy::new("server").limit("5 at once")).await;
    let client = wrapped(Policy::new("api").limit("1 at once").max_wait(Duration::from_millis(100)));
    let stream = || client.get(server.server.url("/stream"));
    let get = || client.get(server.server.url("/"));
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(stream().exempt().send().await.expect("a head"));
    }
    assert_eq!(get().send().await.expect("an answer").text().await.expect("a body"), "well");
    // A stream that is not exempt holds the seat, and who waits for it is told so in its time.
    streams.push(stream().send().await.expect("a head"));
    let error = get().send().await.expect_err("it waits no longer than it may");
    assert_eq!(Refused::of(&error).expect("ours").policy(), "api");
    drop((streams, open));
}
