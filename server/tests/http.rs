//! Real HTTP on loopback: axum and a plain hyper service behind the layer.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::Next;
use axum::routing::{get, post};
use bytes::Bytes;
use forbear::{Limit, Policy, store::Local};
use forbear_server::{Key, LimitLayer};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tower::Layer;

/// Serves an app, and says where.
async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

type Client = hyper::client::conn::http1::SendRequest<Empty<Bytes>>;

async fn connect(address: SocketAddr) -> Client {
    let stream = TcpStream::connect(address).await.expect("it listens");
    let (client, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("it speaks HTTP");
    tokio::spawn(connection);
    client
}

async fn send(client: &mut Client, method: &str, path: &str, user: Option<&str>) -> Response<Incoming> {
    let mut request = http::Request::builder().method(method).uri(path).header("host", "localhost");
    if let Some(user) = user {
        request = request.header("x-user", user);
    }
    client.ready().await.expect("the connection is there");
    client.send_request(request.body(Empty::new()).expect("a request")).await.expect("an answer")
}

async fn text(response: Response<Incoming>) -> String {
    let body = response.into_body().collect().await.expect("a whole body").to_bytes();
    String::from_utf8(body.to_vec()).expect("text")
}

#[tokio::test]
async fn axum_limits_by_the_address_of_the_connection() {
    let layer = LimitLayer::new(Policy::new("address").limit("3/h burst 3"), Key::peer(), Local::new())
        .exempt(|head| head.uri.path() == "/health")
        .build()
        .expect("a layer");
    let app = Router::new()
        .route("/", get(|| async { "well" }))
        .route("/health", get(|| async { "alive" }))
        .layer(layer);
    let address = serve(app).await;
    // Budgets are by address, not by connection.
    for _ in 0..3 {
        let response = send(&mut connect(address).await, "GET", "/", None).await;
        assert_eq!(response.status(), 200);
        assert_eq!(text(response).await, "well");
    }
    let mut client = connect(address).await;
    let response = send(&mut client, "GET", "/", None).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["retry-after"], "1200");
    assert_eq!(response.headers()["ratelimit"], "\"requests/h\";r=0;t=1200");
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let length = response.headers()["content-length"].to_str().expect("a number").to_owned();
    assert_eq!(text(response).await.len().to_string(), length);
    let head = send(&mut client, "HEAD", "/", None).await;
    assert_eq!(head.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(text(head).await, "", "and the connection goes on");
    for _ in 0..10 {
        assert_eq!(text(send(&mut client, "GET", "/health", None).await).await, "alive");
    }
}

/// What authentication has found.
#[derive(Clone)]
struct Plan(&'static str);

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

async fn authenticate(mut request: Request, next: Next) -> axum::response::Response {
    if request.headers().get("x-user").is_some_and(|user| user == "alice") {
        request.extensions_mut().insert(Plan("gold"));
    }
    next.run(request).await
}

#[tokio::test]
async fn axum_limits_by_what_authentication_found() {
    let layer =
        LimitLayer::new(Policy::new("plan").limit("2/h burst 2"), Key::extension::<Plan>(), Local::new())
            .build()
            .expect("a layer");
    let exports =
        LimitLayer::new(Policy::new("exports").limit(Limit::concurrency(1)), Key::peer(), Local::new())
            .build()
            .expect("a layer");
    let export = async || axum::body::Body::from_stream(chunks());
    let app = Router::new()
        .route("/export", post(export))
        .route_layer(exports)
        .route("/", get(|| async { "well" }))
        .layer(layer)
        .layer(axum::middleware::from_fn(authenticate));
    let address = serve(app).await;
    let mut client = connect(address).await;
    for expected in [200, 200, 429, 429] {
        let response = send(&mut client, "GET", "/", Some("alice")).await;
        assert_eq!(response.status(), expected);
        text(response).await;
    }
    for _ in 0..5 {
        assert_eq!(text(send(&mut client, "GET", "/", None).await).await, "well");
    }
    // A seat is held until the export's body has been read, or its connection has gone.
    let mut other = connect(address).await;
    let export = send(&mut client, "POST", "/export", None).await;
    let refused = send(&mut other, "POST", "/export", None).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()["retry-after"], "1");
    text(refused).await;
    drop((export, client));
    let mut status = StatusCode::SERVICE_UNAVAILABLE;
    for _ in 0..100 {
        let response = send(&mut other, "POST", "/export", None).await;
        status = response.status();
        if status == 200 {
            break;
        }
        text(response).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(status, 200);
}

/// A body that goes on for as long as someone reads it.
fn chunks() -> impl futures_core::Stream<Item = Result<Bytes, Infallible>> + Send {
    struct Chunks(tokio::time::Interval);
    impl futures_core::Stream for Chunks {
        type Item = Result<Bytes, Infallible>;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            self.0.poll_tick(context).map(|_| Some(Ok(Bytes::from_static(b"row\n"))))
        }
    }
    Chunks(tokio::time::interval(Duration::from_millis(10)))
}

#[tokio::test]
async fn a_plain_hyper_service_says_its_peer_itself() {
    let layer = LimitLayer::new(Policy::new("address").limit("2/h burst 2"), Key::peer(), Local::new())
        .build()
        .expect("a layer");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.expect("a connection");
            let limited = layer.layer(tower::service_fn(async |_: http::Request<Incoming>| {
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("well")))
            }));
            let told = tower::util::MapRequest::new(limited, move |mut request: http::Request<Incoming>| {
                request.extensions_mut().insert(peer);
                request
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(told));
            tokio::spawn(connection);
        }
    });
    for expected in [200, 200, 429] {
        let response = send(&mut connect(address).await, "GET", "/", None).await;
        assert_eq!(response.status(), expected);
        assert_eq!(response.headers().contains_key("retry-after"), expected == 429);
    }
}

/// The other tests of leaky buckets run on a clock that stands still between a question and its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaky_bucket_holds_what_its_queue_has_room_for_on_a_real_clock() {
    for rate in [50, 200, 1_000] {
        let policy = Policy::new("fragile").limit(Limit::leaky_bucket(forbear::Rate::per_second(rate), 10));
        let layer = LimitLayer::new(policy, Key::everyone(), Local::new()).build().expect("a layer");
        let service = layer.layer(tower::service_fn(async |_: http::Request<()>| {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("well")))
        }));
        let calls = (0..11).map(|_| {
            let call = tower::ServiceExt::oneshot(service.clone(), http::Request::new(()));
            tokio::spawn(async move { call.await.map(|response| response.status().as_u16()) })
        });
        for call in calls.collect::<Vec<_>>() {
            assert_eq!(call.await.expect("no panic").unwrap(), 200, "at {rate} a second");
        }
    }
}
