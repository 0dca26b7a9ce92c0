//! Seats: held until the body has ended, given back whatever happens.

mod support;

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use forbear::{Limit, Policy, Rate, store::Local};
use forbear_server::{Key, LimitLayer, LimitService};
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use support::{Backend, header, service, text, to};
use tokio::sync::mpsc;
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, ServiceExt};

fn seats(seats: u32, max_wait: Duration) -> LimitLayer {
    let policy = Policy::new("slow").limit(Limit::concurrency(seats)).max_wait(max_wait);
    LimitLayer::new(policy, Key::everyone(), Local::new()).build().expect("a layer")
}

async fn free(layer: &LimitLayer) -> u64 {
    layer.limiter("slow").expect("the policy").peek("everyone").await.remaining()
}

/// A body whose frames a test sends.
struct Sent(mpsc::UnboundedReceiver<Result<Frame<Bytes>, io::Error>>);

impl Body for Sent {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0.poll_recv(context)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(7)
    }
}

type Sender = mpsc::UnboundedSender<Result<Frame<Bytes>, io::Error>>;

/// A response whose body the test sends, behind a layer.
async fn streamed(layer: &LimitLayer) -> (Sender, Response<forbear_server::LimitBody<Sent>>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let receiver = Arc::new(std::sync::Mutex::new(Some(receiver)));
    let inner = tower::service_fn(move |_: Request<()>| {
        let receiver = receiver.lock().expect("nobody panicked").take().expect("it is called once");
        async { Ok::<_, Infallible>(Response::new(Sent(receiver))) }
    });
    (sender, layer.layer(inner).oneshot(to("/")).await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn b082_a_seat_is_held_for_as_long_as_the_body() {
    let layer = seats(1, Duration::ZERO);
    let (sender, mut response) = streamed(&layer).await;
    assert_eq!(response.body().size_hint().exact(), Some(7), "the size is the inner body's");
    assert_eq!(free(&layer).await, 0);
    let refused = service(&layer).oneshot(to("/")).await.unwrap();
    assert_eq!(refused.status(), 503);
    assert_eq!(header(&refused, "retry-after"), "1");
    assert_eq!(header(&refused, "ratelimit"), "\"at-once\";r=0");
    assert_eq!(header(&refused, "ratelimit-policy"), "\"at-once\";q=1;qu=\"concurrent-requests\"");
    assert_eq!(header(&refused, "x-ratelimit-policy"), "at-once");
    assert!(text(refused).await.contains("temporary-reduced-capacity"));

    sender.send(Ok(Frame::data(Bytes::from("content")))).expect("the body is there");
    let mut trailers = http::HeaderMap::new();
    trailers.insert("x-sum", http::HeaderValue::from_static("7"));
    sender.send(Ok(Frame::trailers(trailers))).expect("the body is there");
    drop(sender);
    assert_eq!(response.frame().await.unwrap().unwrap().into_data().unwrap(), "content");
    assert_eq!(response.frame().await.unwrap().unwrap().into_trailers().unwrap()["x-sum"], "7");
    assert_eq!(free(&layer).await, 0, "the body may have more");
    assert!(response.frame().await.is_none());
    assert_eq!(free(&layer).await, 1, "although the response is still there");
    assert_eq!(response.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn b010_an_empty_body_frees_the_seat_at_once() {
    let layer = seats(1, Duration::ZERO);
    let empty = tower::service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(
            Response::builder().status(204).body(Full::<Bytes>::default()).expect("a response"),
        )
    });
    let mut kept = Vec::new();
    for _ in 0..4 {
        let response = layer.layer(empty).oneshot(to("/")).await.unwrap();
        assert_eq!(response.status(), 204);
        assert!(response.body().is_end_stream());
        assert_eq!(header(&response, "ratelimit"), "\"at-once\";r=0");
        kept.push(response);
    }
    // Bodies that are never sent, whatever the service has made of them.
    for (method, status) in [("HEAD", 200), ("GET", 204), ("GET", 304)] {
        let unsent = Backend { status, ..Backend::default() };
        let request = Request::builder().method(method).body(()).expect("a request");
        let response = layer.layer(unsent).oneshot(request).await.unwrap();
        assert_eq!(response.status(), status);
        kept.push(response);
    }
    assert_eq!(free(&layer).await, 1);
}

#[tokio::test(start_paused = true)]
async fn b035_a_body_that_nobody_reads_frees_the_seat_when_it_is_dropped() {
    let layer = seats(1, Duration::from_secs(60));
    let (_sender, response) = streamed(&layer).await;
    let next = tokio::spawn(service(&layer).oneshot(to("/")));
    sleep(Duration::from_secs(5)).await;
    assert!(!next.is_finished());
    let before = Instant::now();
    drop(response);
    assert_eq!(next.await.expect("no panic").unwrap().status(), 200);
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn b155_a_body_that_fails_gives_one_seat_back() {
    let layer = seats(2, Duration::ZERO);
    for _ in 0..1_000 {
        let (sender, mut response) = streamed(&layer).await;
        sender.send(Err(io::Error::other("broken"))).expect("the body is there");
        assert!(response.frame().await.unwrap().is_err());
        assert_eq!(free(&layer).await, 2);
        drop(sender);
        assert!(response.frame().await.is_none());
        drop(response);
        assert_eq!(free(&layer).await, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn b020_futures_dropped_anywhere_leak_no_seat() {
    let layer = seats(3, Duration::from_secs(10));
    let backend = Backend { takes: Duration::from_millis(20), ..Backend::default() };
    let mut random = random_numbers(7);
    for _ in 0..100 {
        let calls = (0..50).map(|i| {
            let call = layer.layer(backend.clone()).oneshot(to("/"));
            let gives_up = (i % 5 < 2).then(|| Duration::from_millis(random() % 400));
            tokio::spawn(async move {
                let whole = async { text(call.await.unwrap()).await };
                match gives_up {
                    Some(after) => _ = tokio::time::timeout(after, whole).await,
                    None => assert_eq!(whole.await, "well"),
                }
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.expect("no panic");
        }
        assert_eq!(free(&layer).await, 3);
    }
    assert_eq!(backend.most.load(Ordering::SeqCst), 3);
}

/// Numbers that look random, the same in each run.
fn random_numbers(mut seed: u64) -> impl FnMut() -> u64 {
    move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    }
}

#[tokio::test(start_paused = true)]
async fn b061_whoever_panics_takes_no_seat_along() {
    let policy = Policy::new("slow").limit("2 at once").limit("1 tokens/us burst 1000000");
    fn panics(head: &http::request::Parts, part: &str) {
        assert!(head.uri.path() != part, "a panic that the test wants");
    }
    let layer = LimitLayer::new(
        policy,
        Key::from_fn(move |head| {
            panics(head, "/key");
            Some("everyone".to_owned())
        }),
        Local::new(),
    )
    .cost("tokens", move |head| {
        panics(head, "/cost");
        if head.uri.path() == "/refusal" { 1_000_000_000 } else { 1 }
    })
    .exempt(move |head| {
        panics(head, "/exempt");
        false
    })
    .refusal(move |refusal| -> Response<Bytes> {
        panics(refusal.request(), "/refusal");
        refusal.response()
    })
    .build()
    .expect("a layer");
    let inner = tower::service_fn(async |request: Request<()>| {
        panics(&request.into_parts().0, "/inner");
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("well")))
    });
    for _ in 0..10 {
        for part in ["/key", "/cost", "/exempt", "/refusal", "/inner"] {
            let call = tokio::spawn(layer.layer(inner).oneshot(to(part)));
            assert!(call.await.expect_err("it panics").is_panic(), "{part}");
        }
    }
    let seats = layer.limiter("slow").expect("the policy").peek("everyone").await;
    assert_eq!(seats.limit("at-once").map(|limit| limit.remaining()), Some(2));
    for _ in 0..50 {
        assert_eq!(layer.layer(inner).oneshot(to("/")).await.unwrap().status(), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn b142_whoever_came_first_is_served_first() {
    let layer = seats(2, Duration::from_secs(120));
    let backend = Backend { takes: Duration::from_secs(5), ..Backend::default() };
    let end = Instant::now() + Duration::from_secs(60);
    let clients = (0..10).map(|_| {
        let service = layer.layer(backend.clone());
        tokio::spawn(async move {
            let mut done = 0;
            while Instant::now() < end {
                text(service.clone().oneshot(to("/")).await.unwrap()).await;
                done += usize::from(Instant::now() <= end);
            }
            done
        })
    });
    for client in clients.collect::<Vec<_>>() {
        assert!(client.await.expect("no panic") >= 2);
    }
}

#[tokio::test(start_paused = true)]
async fn seats_of_several_policies_ride_together_and_the_rest_is_not_wrapped() {
    let layer = LimitLayer::new(Policy::new("slow").limit("2 at once"), Key::everyone(), Local::new())
        .and(Policy::new("plan").limit("1 at once").limit("100/s"), Key::peer())
        .build()
        .expect("a layer");
    let request = || support::from("192.0.2.1");
    let hold = service(&layer).oneshot(request()).await.unwrap();
    assert_eq!(free(&layer).await, 1);
    let refused = service(&layer).oneshot(request()).await.unwrap();
    assert_eq!(refused.status(), 503);
    assert_eq!(header(&refused, "x-ratelimit-policy"), "plan/at-once");
    assert_eq!(free(&layer).await, 1, "the seat of the first policy came back");
    assert!(format!("{:?}", hold.body()).contains("rides: true"));
    text(hold).await;
    assert_eq!(free(&layer).await, 2);

    let layer = LimitLayer::new(Policy::new("slow").limit("9/s"), Key::everyone(), Local::new())
        .build()
        .expect("a layer");
    let response = service(&layer).oneshot(to("/")).await.unwrap();
    assert!(format!("{:?}", response.body()).contains("rides: false"));
}

#[tokio::test(start_paused = true)]
async fn a_seat_that_is_missing_and_a_rate_that_is_used_up_are_told_apart() {
    let policy = Policy::new("slow").limit(Limit::fixed_window(Rate::per_minute(2))).limit("1 at once");
    let layer = LimitLayer::new(policy, Key::everyone(), Local::new()).build().expect("a layer");
    let held = service(&layer).oneshot(to("/")).await.unwrap();
    assert_eq!(service(&layer).oneshot(to("/")).await.unwrap().status(), 503);
    drop(held);
    drop(service(&layer).oneshot(to("/")).await.unwrap());
    advance(Duration::from_secs(20)).await;
    let refused = service(&layer).oneshot(to("/")).await.unwrap();
    assert_eq!((refused.status().as_u16(), header(&refused, "retry-after")), (429, "40"));
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_for_seats_is_the_servers_state_and_not_the_callers_fault() {
    let policy = Policy::new("slow").limit("1 at once").max_wait(Duration::from_secs(60)).max_waiting(1);
    let layer = LimitLayer::new(policy, Key::everyone(), Local::new()).build().expect("a layer");
    let held = service(&layer).oneshot(to("/")).await.unwrap();
    let waits = tokio::spawn(service(&layer).oneshot(to("/")));
    tokio::task::yield_now().await;
    let before = Instant::now();
    let refused = service(&layer).oneshot(to("/")).await.unwrap();
    assert_eq!((refused.status().as_u16(), header(&refused, "retry-after")), (503, "1"));
    assert_eq!(before.elapsed(), Duration::ZERO);
    drop(held);
    assert_eq!(waits.await.expect("no panic").unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn b020_never_more_at_once_on_many_threads() {
    let layer = seats(4, Duration::from_secs(30));
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let inner = {
        let (now, most) = (now.clone(), most.clone());
        tower::service_fn(move |_: Request<()>| {
            let (now, most) = (now.clone(), most.clone());
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("well")))
            }
        })
    };
    let service: LimitService<_> = layer.layer(inner);
    let calls = (0..2_000).map(|_| {
        let call = service.clone().oneshot(to("/"));
        // Read here: a response that nobody reads keeps its seat.
        tokio::spawn(async move { text(call.await.unwrap()).await })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.expect("no panic"), "well");
    }
    assert!(most.load(Ordering::SeqCst) <= 4);
    assert_eq!(free(&layer).await, 4);
}
