//! What the client does with sequences of answers, by a mock server over HTTP: how often it sends, in which
//! order, and what its caller gets.
//!
//! Clocks run here, so waits are a second at most and only ever checked not to be too short.
#![cfg(feature = "client")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use forbear::client::Stop;
use forbear::{Attempts, Builder, Client, Limiter, Policy, RequestExt, Retry, store::Local};
use httpmock::prelude::*;
use httpmock::{HttpMockRequest, HttpMockResponse};
use parking_lot::Mutex;
use support::server::Server;
use support::{ms, secs};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

/// An answer: status, headers, body.
#[derive(Debug, Clone, Default)]
struct Says {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: &'static str,
}

fn says(status: u16) -> Says {
    Says { status, ..Says::default() }
}

impl Says {
    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    fn body(self, body: &'static str) -> Self {
        Self { body, ..self }
    }
}

/// A server that answers one after the other, the last one again and again; and when it was asked.
struct Script {
    server: MockServer,
    arrivals: Arc<Mutex<Vec<Instant>>>,
}

impl Script {
    async fn of(answers: impl Into<Vec<Says>>) -> Self {
        let (server, answers) = (MockServer::start_async().await, answers.into());
        let (arrivals, next) = (Arc::new(Mutex::new(Vec::new())), AtomicUsize::new(0));
        let noted = arrivals.clone();
        let answer = move |_: &HttpMockRequest| {
            noted.lock().push(Instant::now());
            let says = &answers[next.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1)];
            let response = HttpMockResponse::builder().status(says.status).body(says.body);
            says.headers
                .iter()
                .fold(response, |response, (name, value)| response.header(*name, value))
                .build()
        };
        server
            .mock_async(|when, then| {
                when.path("/");
                then.respond_with(answer);
            })
            .await;
        Self { server, arrivals }
    }

    fn url(&self) -> String {
        self.server.url("/")
    }

    fn count(&self) -> usize {
        self.arrivals.lock().len()
    }

    fn gaps(&self) -> Vec<Duration> {
        self.arrivals.lock().windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

/// The policy without limits: it only does what it is told.
fn client() -> Client {
    forbear::wrap(reqwest::Client::new(), Policy::new("api")).expect("a client")
}

fn tuned(retry: Retry) -> Client {
    Builder::new(reqwest::Client::new()).policy(Policy::new("api")).retry(retry).build().expect("a client")
}

#[allow(clippy::disallowed_methods, reason = "a header holds a date")]
fn now() -> SystemTime {
    SystemTime::now()
}

#[tokio::test]
async fn faults_are_tried_again_until_it_is_well() {
    let script = Script::of([says(503), says(503), says(200).body("well")]).await;
    let response = client().get(script.url()).send().await.expect("an answer");
    let attempts = Attempts::of(&response).expect("a record");
    assert_eq!((response.status().as_u16(), attempts.sends(), script.count()), (200, 3, 3));
    assert_eq!(response.text().await.expect("a body"), "well");
}

#[tokio::test]
async fn faults_of_a_post_are_the_callers_affair() {
    let script = Script::of([says(503), says(200)]).await;
    let response = client().post(script.url()).body("once").send().await.expect("an answer");
    assert_eq!((response.status().as_u16(), script.count()), (503, 1));
    assert_eq!(Attempts::of(&response).expect("a record").stopped(), Some(Stop::NotIdempotent));
    let response = client().post(script.url()).idempotent().body("twice").send().await.expect("an answer");
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn each_kind_of_wait_is_waited_for() {
    // Dates are whole seconds; against the response's own date this one is a second.
    let date = now();
    let (sent, until) = (httpdate::fmt_http_date(date), httpdate::fmt_http_date(date + secs(1)));
    let kinds = [
        ("delta", says(429).with("retry-after", "1")),
        ("date", says(429).with("date", sent).with("retry-after", until)),
        ("milliseconds", says(429).with("retry-after-ms", "1000")),
        ("field", says(429).with("ratelimit", r#""default";r=0;t=1"#)),
        ("vendor", says(429).with("x-ratelimit-remaining", "0").with("x-ratelimit-reset-after", "1")),
    ];
    let mut runs = Vec::new();
    for (kind, refusal) in kinds {
        let script = Script::of([refusal, says(200)]).await;
        runs.push(tokio::spawn(async move {
            let response = client().get(script.url()).send().await.expect("an answer");
            assert_eq!((response.status().as_u16(), script.count()), (200, 2), "{kind}");
            assert!(script.gaps()[0] >= secs(1), "{kind}: {:?}", script.gaps());
        }));
    }
    for run in runs {
        run.await.expect("it does not panic");
    }
}

#[tokio::test]
async fn a_429_that_names_no_wait_gets_our_own() {
    let script = Script::of([says(429), says(200)]).await;
    let response = client().get(script.url()).send().await.expect("an answer");
    assert_eq!((response.status().as_u16(), script.count()), (200, 2));
    assert!(script.gaps()[0] >= ms(500), "{:?}", script.gaps());
}

#[tokio::test]
async fn b092_each_header_counts_by_itself_and_a_bad_one_blocks_nobody() {
    let alone = says(429).with("x-ratelimit-global", "true").with("retry-after", "1");
    let script = Script::of([alone, says(200)]).await;
    client().get(script.url()).send().await.expect("an answer");
    assert!(script.gaps()[0] >= secs(1));
    let partial = [
        says(200).with("x-ratelimit-remaining", "0"),
        says(200).with("x-ratelimit-remaining", "7"),
        says(200).with("x-ratelimit-reset", "60"),
        says(200).with("x-ratelimit-remaining", "abc").with("x-ratelimit-reset", "60"),
        says(200),
    ];
    let script = Script::of(partial).await;
    let client = tuned(Retry::default().max_wait(Duration::ZERO));
    for _ in 0..5 {
        assert_eq!(client.get(script.url()).send().await.expect("nobody is held").status(), 200);
    }
}

#[tokio::test]
async fn the_services_verdict_decides() {
    let script = Script::of([says(503).with("x-should-retry", "false"), says(200)]).await;
    assert_eq!(client().get(script.url()).send().await.expect("an answer").status(), 503);
    let script = Script::of([says(400).with("x-should-retry", "true"), says(200)]).await;
    assert_eq!(client().get(script.url()).send().await.expect("an answer").status(), 200);
    assert_eq!(script.count(), 2);
}

#[tokio::test]
async fn a_wait_that_is_too_long_returns_the_answer_as_it_is() {
    let script = Script::of([says(429).with("retry-after", "3600").body("come back"), says(200)]).await;
    let result = client().get(script.url()).send().await;
    assert_eq!(forbear::retry_after(&result), Some(secs(3600)));
    assert_eq!(result.expect("an answer").text().await.expect("its body"), "come back");
    assert_eq!(script.count(), 1);
}

#[tokio::test]
async fn two_429s_in_a_row_pause_the_key_for_everyone() {
    let refusal = says(429).with("retry-after", "1");
    let script = Script::of([refusal.clone(), refusal, says(200)]).await;
    let limiter = Limiter::new(Policy::new("api"), Local::new()).expect("right");
    let client = forbear::wrap(reqwest::Client::new(), limiter.clone()).expect("a client");
    let url = script.url();
    let key = url.trim_start_matches("http://").trim_end_matches('/');
    let send = || client.get(&url).no_retry().send();
    // The first is a lone one: it holds only its own call.
    assert_eq!(send().await.expect("an answer").status(), 429);
    assert_eq!(limiter.peek(key).await.paused(), None);
    // The second, sent after the first was known, holds the key.
    assert_eq!(send().await.expect("an answer").status(), 429);
    let calls = (0..10).map(|_| tokio::spawn(send())).collect::<Vec<_>>();
    for call in calls {
        assert_eq!(call.await.expect("it does not panic").expect("an answer").status(), 200);
    }
    assert_eq!(script.count(), 12);
    assert!(script.gaps()[1] >= secs(1), "{:?}", script.gaps());
}

/// Answers with these bytes, one for each connection, and hangs up.
async fn cut(answers: [&'static str; 2]) -> Server {
    let next = Arc::new(AtomicUsize::new(0));
    Server::raw(move |mut stream| {
        let answer = answers[next.fetch_add(1, Ordering::SeqCst).min(1)];
        async move {
            let mut request = [0; 1_024];
            _ = stream.read(&mut request).await;
            stream.write_all(answer.as_bytes()).await.expect("the client listens");
        }
    })
    .await
}

#[tokio::test]
async fn bodies_cut_short_stop_no_retry_and_cause_none() {
    let fault = "HTTP/1.1 503 Unavailable\r\ncontent-length: 100\r\n\r\nsorry, I";
    let well = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhere it";
    let server = cut([fault, well]).await;
    let response = client().get(server.url("/")).send().await.expect("a head");
    assert_eq!((response.status().as_u16(), server.accepted()), (200, 2));
    // The body is its reader's affair, and nothing is sent again for it.
    assert!(response.bytes().await.is_err());
    assert_eq!(server.accepted(), 2);
}

#[tokio::test]
async fn b175_a_put_is_sent_again_after_a_429_untuned() {
    let refusal = says(429).with("retry-after", "1");
    let script = Script::of([refusal, says(200)]).await;
    assert_eq!(client().put(script.url()).body("all").send().await.expect("an answer").status(), 200);
    assert_eq!(script.count(), 2);
}
