//! What the tests of the layer have in common: requests, a service that counts, and headers as text.
#![allow(dead_code, reason = "each test file takes what it needs")]

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forbear_server::{LimitBody, LimitLayer, LimitService};
use http::{Request, Response};
use http_body_util::Full;
use tower::Layer;

/// A request from a peer.
pub(crate) fn from(peer: &str) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(SocketAddr::new(peer.parse::<IpAddr>().expect("an address"), 4711));
    request
}

/// A request to a path.
pub(crate) fn to(path: &str) -> Request<()> {
    Request::builder().uri(path).body(()).expect("a path")
}

/// A request with headers and a peer.
pub(crate) fn with(peer: &str, headers: &[(&str, &[u8])]) -> Request<()> {
    let mut request = from(peer);
    for (name, value) in headers {
        let name = http::HeaderName::try_from(*name).expect("a name");
        request.headers_mut().append(name, http::HeaderValue::from_bytes(value).expect("a value"));
    }
    request
}

/// A header, or nothing.
pub(crate) fn header<'a, B>(response: &'a Response<B>, name: &str) -> &'a str {
    let mut all = response.headers().get_all(name).iter();
    let value = all.next().map_or("", |value| value.to_str().expect("visible text"));
    assert!(all.next().is_none(), "`{name}` occurs twice");
    value
}

/// A service that counts its calls, those under way, and takes its time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Backend {
    pub(crate) takes: Duration,
    pub(crate) calls: Arc<AtomicUsize>,
    pub(crate) now: Arc<AtomicUsize>,
    pub(crate) most: Arc<AtomicUsize>,
    pub(crate) headers: Vec<(&'static str, &'static str)>,
    pub(crate) status: u16,
}

struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl tower::Service<Request<()>> for Backend {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            this.calls.fetch_add(1, Ordering::SeqCst);
            let under_way = UnderWay(this.now.clone());
            let now = this.now.fetch_add(1, Ordering::SeqCst) + 1;
            this.most.fetch_max(now, Ordering::SeqCst);
            if !this.takes.is_zero() {
                tokio::time::sleep(this.takes).await;
            }
            drop(under_way);
            let mut response = Response::new(Full::from("well"));
            if this.status > 0 {
                *response.status_mut() = http::StatusCode::from_u16(this.status).expect("a status");
            }
            for (name, value) in &this.headers {
                response.headers_mut().append(*name, http::HeaderValue::from_static(value));
            }
            Ok(response)
        })
    }
}

/// A backend behind a layer.
pub(crate) fn service(layer: &LimitLayer) -> LimitService<Backend> {
    layer.layer(Backend::default())
}

pub(crate) type Answer = Response<LimitBody<Full<Bytes>>>;

/// The text of a response.
pub(crate) async fn text<B: http_body::Body<Data = Bytes>>(response: Response<B>) -> String
where
    B::Error: std::fmt::Debug,
{
    let body = http_body_util::BodyExt::collect(response.into_body()).await.expect("a whole body");
    String::from_utf8(body.to_bytes().to_vec()).expect("text")
}
