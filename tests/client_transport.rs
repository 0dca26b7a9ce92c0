//! What only a real transport can show: connections, streams, bodies that break, and a response that is the
//! same as without us. Counts and order only, no tight times.
#![cfg(feature = "client")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forbear::client::{Backoff, Stop};
use forbear::{Attempts, Client, Limiter, Policy, RequestExt, Retry, store};
use http_body_util::BodyExt;
use http_body_util::channel::Channel;
use parking_lot::Mutex;
use support::server::{Body, Protocol, Server, answer, with, with_body};
use support::{ms, secs};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

fn quick() -> Retry {
    let backoff = Backoff::new(ms(5), ms(20));
    Retry::default().backoff(backoff).throttle_backoff(backoff)
}

fn client(policy: Policy, retry: Retry) -> Client {
    wrapped(reqwest::Client::new(), policy, retry)
}

fn wrapped(client: reqwest::Client, policy: Policy, retry: Retry) -> Client {
    forbear::Builder::new(client).policy(policy).retry(retry).build().expect("a client")
}

fn one_at_once() -> Policy {
    Policy::new("p").limit("1 at once").max_wait(secs(5))
}

async fn read(request: http::Request<hyper::body::Incoming>) -> Vec<u8> {
    request.into_body().collect().await.expect("a body").to_bytes().to_vec()
}

/// A body of three parts that cannot be sent twice.
fn stream() -> reqwest::Body {
    let (mut sender, body) = Channel::<bytes::Bytes, std::io::Error>::new(1);
    tokio::spawn(async move {
        for part in ["one ", "two ", "three"] {
            // Whoever took the body may have let it go.
            _ = sender.send_data(part.into()).await;
        }
    });
    reqwest::Body::wrap(body)
}

/// A body that goes on.
fn endless() -> Body {
    let (mut sender, body) = Channel::<bytes::Bytes, std::io::Error>::new(1);
    tokio::spawn(async move { while sender.send_data("event\n".into()).await.is_ok() {} });
    body.boxed_unsync()
}

#[tokio::test]
async fn b008_b065_streams_are_sent_whole_and_once() {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let seen = bodies.clone();
    let server = Server::start(Protocol::Http1, move |n, request| {
        let seen = seen.clone();
        async move {
            let body = read(request).await;
            seen.lock().push(body);
            if n == 0 { answer(200) } else { with(answer(429), "retry-after", "1") }
        }
    })
    .await;
    let client = client(Policy::new("p"), quick());
    assert_eq!(client.post(server.url("/")).body(stream()).send().await.expect("a response").status(), 200);
    let response = client.post(server.url("/")).body(stream()).send().await.expect("the 429");
    assert_eq!(response.status(), 429);
    assert_eq!(Attempts::of(&response).expect("a record").stopped(), Some(Stop::NotReplayable));
    assert_eq!(*bodies.lock(), [b"one two three".to_vec(), b"one two three".to_vec()]);
}

#[tokio::test]
async fn b010_bodiless_answers_free_their_seat_and_keep_their_data() {
    let server = Server::start(Protocol::Http1, |_, request| async move {
        match request.uri().path() {
            "/204" => answer(204),
            "/304" => answer(304),
            "/empty" => with(answer(200), "content-length", "0"),
            "/moved" => with(answer(302), "location", "/there"),
            _ => with(with_body(200, "hello"), "x-own", "yes"),
        }
    })
    .await;
    let limited = client(one_at_once(), quick());
    let plain = reqwest::Client::new();
    let mut kept = vec![limited.head(server.url("/")).send().await.expect("a response")];
    for path in ["/204", "/304", "/empty"] {
        kept.push(limited.get(server.url(path)).max_wait(Duration::ZERO).send().await.expect("a free seat"));
    }
    for path in ["/", "/moved", "/204"] {
        let ours = limited.get(server.url(path)).max_wait(Duration::ZERO).send().await.expect("a free seat");
        let theirs = plain.get(server.url(path)).send().await.expect("a response");
        assert_eq!((ours.url(), ours.version()), (theirs.url(), theirs.version()));
        assert_eq!(ours.remote_addr(), theirs.remote_addr());
        assert_eq!(ours.content_length(), theirs.content_length());
        let named = |response: &reqwest::Response| response.headers().get("x-own").cloned();
        assert_eq!((ours.status(), named(&ours)), (theirs.status(), named(&theirs)));
        assert!(ours.extensions().len() >= theirs.extensions().len());
        assert_eq!(ours.text().await.expect("a body"), theirs.text().await.expect("a body"));
    }
}

#[tokio::test]
async fn b014_a_post_that_broke_is_sent_once() {
    let requests = Arc::new(AtomicUsize::new(0));
    let seen = requests.clone();
    let server = Server::raw(move |mut stream| {
        let seen = seen.clone();
        async move {
            let mut bytes = [0; 4_096];
            if stream.read(&mut bytes).await.is_ok_and(|read| read > 0) {
                seen.fetch_add(1, Ordering::SeqCst);
            }
            _ = stream.set_zero_linger();
        }
    })
    .await;
    let client = client(Policy::new("p"), quick());
    let attempts = Attempts::new();
    let error =
        client.post(server.url("/")).body("x").attempts(&attempts).send().await.expect_err("it broke");
    assert!(!error.is_middleware() && error.is_request(), "{error:?}");
    assert_eq!((requests.load(Ordering::SeqCst), attempts.stopped()), (1, Some(Stop::NotIdempotent)));
    client.get(server.url("/")).attempts(&attempts).send().await.expect_err("it breaks again");
    assert_eq!(attempts.sends(), 4);
}

#[tokio::test]
async fn b047_forms_are_sent_again_where_they_can_be() {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let seen = bodies.clone();
    let server = Server::start(Protocol::Http1, move |n, request| {
        let seen = seen.clone();
        async move {
            let body = String::from_utf8(read(request).await).expect("text");
            seen.lock().push(body);
            if n == 0 || n == 2 { with(answer(429), "retry-after", "0") } else { answer(200) }
        }
    })
    .await;
    let client = client(Policy::new("p"), quick());
    let plain = reqwest::Client::new();
    use reqwest::multipart::{Form, Part};
    let form = Form::new().text("name", "value").part("file", Part::bytes(b"bytes".to_vec()));
    let request = plain.post(server.url("/")).multipart(form).build().expect("a request");
    let status = client.execute(request).await.expect("a response").status();
    let sends = bodies.lock().len();
    assert!((status == 200 && sends == 2) || (status == 429 && sends == 1), "{status} after {sends}");
    assert!(bodies.lock().iter().all(|body| body.contains("value") && body.contains("bytes")));
    bodies.lock().resize(2, String::new());
    let form = Form::new().part("file", Part::stream(stream()));
    let request = plain.post(server.url("/")).multipart(form).build().expect("a request");
    client.execute(request).await.expect("never an error before sending");
}

#[tokio::test]
async fn b050_what_is_sent_again_is_the_same() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let requests = seen.clone();
    let server = Server::start(Protocol::Http1, move |n, request| {
        let requests = requests.clone();
        async move {
            let headers = request.headers().clone();
            let body = read(request).await;
            requests.lock().push((headers, body));
            if n < 2 { with(with_body(503, "busy"), "retry-after", "0") } else { answer(200) }
        }
    })
    .await;
    let client = client(Policy::new("p"), quick().idempotent_if(|_| true));
    let body = format!("{{\"text\":\"{}\"}}", "x".repeat(10_240 - 11));
    let call = client.post(server.url("/")).header("x-own", "once").body(body.clone());
    assert_eq!(call.send().await.expect("a response").status(), 200);
    let seen = seen.lock();
    assert_eq!(seen.len(), 3);
    for (headers, bytes) in &*seen {
        assert_eq!(bytes, body.as_bytes());
        assert_eq!(headers["content-length"], body.len().to_string());
        assert_eq!(headers.get_all("x-own").iter().count(), 1);
    }
}

#[tokio::test]
async fn b052_connections_are_used_again() {
    let server = Server::start(Protocol::Http1, |n, _| async move {
        match n {
            0 | 1 => with(with_body(429, "x".repeat(2_048)), "retry-after", "0"),
            2 => {
                let (mut sender, body) = Channel::<bytes::Bytes, std::io::Error>::new(1);
                tokio::spawn(async move { sender.send_data("chunk".repeat(400).into()).await });
                let mut answer = answer(429).map(|_| body.boxed_unsync());
                answer.headers_mut().insert("retry-after", http::HeaderValue::from_static("0"));
                answer
            }
            _ => answer(200),
        }
    })
    .await;
    let response = client(Policy::new("p"), quick()).get(server.url("/")).send().await.expect("a response");
    assert_eq!((response.status().as_u16(), server.accepted()), (200, 1));
}

#[tokio::test]
async fn b052_a_body_that_never_ends_is_let_go() {
    let server = Server::start(Protocol::Http1, |n, _| async move {
        if n == 0 { answer(503).map(|_| endless()) } else { answer(200) }
    })
    .await;
    let response = client(one_at_once(), quick()).get(server.url("/")).send().await.expect("a response");
    assert_eq!(response.status(), 200);
}

/// Cuts the first body short, and sends the others whole.
async fn breaks_once(seen: Arc<AtomicUsize>) -> Server {
    Server::raw(move |mut stream| {
        let seen = seen.clone();
        async move {
            let mut bytes = [0; 4_096];
            let first = seen.fetch_add(1, Ordering::SeqCst) == 0;
            _ = stream.read(&mut bytes).await;
            let length = if first { 1_000_000 } else { 300_000 };
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            _ = stream.write_all(head.as_bytes()).await;
            _ = stream.write_all(&vec![b'x'; 300_000]).await;
        }
    })
    .await
}

#[tokio::test]
async fn b073_a_body_that_breaks_is_the_readers_error() {
    let requests = Arc::new(AtomicUsize::new(0));
    let server = breaks_once(requests.clone()).await;
    let limiter = Limiter::new(one_at_once(), store::Local::new()).expect("a limiter");
    let client = forbear::wrap(reqwest::Client::new(), &limiter).expect("a client");
    let error =
        client.get(server.url("/")).send().await.expect("a head").bytes().await.expect_err("it broke");
    assert!(error.is_body() || error.is_decode(), "{error:?}");
    assert_eq!(requests.load(Ordering::SeqCst), 1, "what was handed out is not sent for again");
    let response =
        client.get(server.url("/")).max_wait(Duration::ZERO).send().await.expect("the seat is free");
    assert_eq!(response.bytes().await.expect("a body").len(), 300_000);
}

#[tokio::test]
async fn b073_a_buffered_body_that_breaks_is_tried_again() {
    let requests = Arc::new(AtomicUsize::new(0));
    let server = breaks_once(requests.clone()).await;
    let client = client(one_at_once(), quick());
    let response = client.get(server.url("/")).buffered().send().await.expect("the second attempt");
    assert_eq!((response.content_length(), requests.load(Ordering::SeqCst)), (Some(300_000), 2));
    assert_eq!(response.bytes().await.expect("a body").len(), 300_000);
    let requests = Arc::new(AtomicUsize::new(0));
    let server = breaks_once(requests.clone()).await;
    let error = client.post(server.url("/")).buffered().send().await.expect_err("not idempotent");
    assert!(error.is_body() && requests.load(Ordering::SeqCst) == 1, "{error:?}");
}

#[tokio::test]
async fn b085_b103_times_of_attempts_and_of_the_call_are_apart() {
    let server = Server::start(Protocol::Http1, |n, _| async move {
        if n != 1 {
            tokio::time::sleep(secs(60)).await;
        }
        answer(200)
    })
    .await;
    let plain = reqwest::Client::builder().timeout(ms(300)).build().expect("a client");
    let each = wrapped(plain, Policy::new("p"), quick().total_timeout(secs(10)));
    assert_eq!(each.get(server.url("/")).send().await.expect("the second attempt").status(), 200);
    let start = Instant::now();
    let whole = client(Policy::new("p"), quick().total_timeout(ms(200)));
    let error = whole.get(server.url("/")).send().await.expect_err("nobody answers");
    assert!(forbear::TimedOut::of(&error).is_some() && start.elapsed() < secs(5));
}

#[tokio::test]
async fn b112_streams_stay_inside_the_cap() {
    let (busy, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for cap in [Some("8 at once"), None] {
        let (busy, seen) = (busy.clone(), peak.clone());
        let server = Server::start(Protocol::Http2 { streams: 10 }, move |_, _| {
            let (busy, seen) = (busy.clone(), seen.clone());
            async move {
                seen.fetch_max(busy.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(ms(2)).await;
                busy.fetch_sub(1, Ordering::SeqCst);
                with_body(200, "done")
            }
        })
        .await;
        let plain = reqwest::Client::builder().http2_prior_knowledge().build().expect("a client");
        let policy = cap.iter().fold(Policy::new("p"), |policy, cap| policy.limit(*cap));
        let client = wrapped(plain, policy, quick());
        let calls: Vec<_> = (0..100)
            .map(|_| {
                let call = client.get(server.url("/")).send();
                tokio::spawn(async move {
                    let response = call.await.expect("a response");
                    let attempts = Attempts::of(&response).expect("a record");
                    (response.text().await.expect("a body"), attempts.sends())
                })
            })
            .collect();
        for call in calls {
            let (body, sends) = call.await.expect("no panic");
            assert_eq!(body, "done");
            assert!(cap.is_none() || sends == 1);
        }
        if cap.is_some() {
            assert!(peak.load(Ordering::SeqCst) <= 8);
        }
    }
}

#[tokio::test]
async fn b119_a_retry_does_not_wait_for_its_own_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("it is bound"));
    let serve = tokio::spawn(async move {
        // One connection at a time: the next is taken when the one before has closed.
        for answers in [&["503 Service Unavailable", "200 OK"][..]; 4] {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            for status in answers {
                let mut bytes = [0; 4_096];
                if stream.read(&mut bytes).await.is_ok_and(|read| read > 0) {
                    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 4\r\n\r\nbody");
                    _ = stream.write_all(answer.as_bytes()).await;
                }
            }
        }
    });
    let plain = reqwest::Client::builder().pool_max_idle_per_host(1).build().expect("a client");
    let client = wrapped(plain, one_at_once(), quick());
    let response = tokio::time::timeout(secs(10), client.get(url).send()).await.expect("it is not blocked");
    assert_eq!(response.expect("a response").status(), 200);
    serve.abort();
}

#[tokio::test]
async fn b136_a_wait_in_the_transport_ends_with_the_attempt() {
    let senders = Arc::new(Mutex::new(Vec::new()));
    let kept = senders.clone();
    let server = Server::start(Protocol::Http2 { streams: 4 }, move |_, _| {
        let (sender, body) = Channel::<bytes::Bytes, std::io::Error>::new(1);
        kept.lock().push(sender);
        async move { answer(200).map(|_| body.boxed_unsync()) }
    })
    .await;
    let limiter = Limiter::new(Policy::new("p").limit("16 at once"), store::Local::new()).expect("a limiter");
    let plain = reqwest::Client::builder().http2_prior_knowledge().build().expect("a client");
    let client =
        forbear::Builder::new(plain).policy(&limiter).retry(quick().attempts(1)).build().expect("a client");
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(client.get(server.url("/events")).send().await.expect("a stream"));
    }
    let attempts = Attempts::new();
    let error =
        client.get(server.url("/")).timeout(ms(300)).attempts(&attempts).send().await.expect_err("no stream");
    assert!(error.is_timeout() && !error.is_middleware(), "{error:?}");
    assert_eq!(attempts.held().limits, Duration::ZERO, "it did not wait for us");
    let authority = server.url("").replace("http://", "");
    assert_eq!(limiter.peek(&authority).await.remaining(), 12, "its seat is free");
}

#[tokio::test]
async fn redirects_are_charged_where_they_end() {
    let there = Server::start(Protocol::Http1, |_, _| async { with_body(200, "there") }).await;
    let target = there.url("/");
    let here = Server::start(Protocol::Http1, move |_, _| {
        let target = target.clone();
        async move { with(answer(302), "location", &target) }
    })
    .await;
    let policy = Policy::new("p").limit("10/min burst 10").limit("4 at once");
    let limiter = Limiter::new(policy, store::Local::new()).expect("a limiter");
    let client = forbear::wrap(reqwest::Client::new(), &limiter).expect("a client");
    let response = client.get(here.url("/")).send().await.expect("a response");
    assert_eq!(response.url().as_str(), there.url("/"));
    for server in [&here, &there] {
        let peek = limiter.peek(&server.url("").replace("http://", "")).await;
        assert!(peek.limit("requests/min").expect("a limit").remaining() <= 9, "{peek:?}");
    }
    assert_eq!(response.text().await.expect("a body"), "there");
}
