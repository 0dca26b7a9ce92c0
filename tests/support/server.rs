//! A real server on loopback, for what only a transport can show.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};

pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;
pub type Answer = http::Response<Body>;

pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

pub fn answer(status: u16) -> Answer {
    with_body(status, "")
}

pub fn with_body(status: u16, body: impl Into<Bytes>) -> Answer {
    http::Response::builder().status(status).body(full(body)).expect("a response")
}

/// Adds a header.
pub fn with(mut answer: Answer, name: &'static str, value: &str) -> Answer {
    answer.headers_mut().append(name, value.parse().expect("a value"));
    answer
}

/// Stops when it is dropped.
pub struct Server {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Which protocol, with its bound on streams.
#[derive(Clone, Copy)]
pub enum Protocol {
    Http1,
    Http2 { streams: u32 },
}

impl Server {
    /// Answers each request by `service`, which gets its number, from 0.
    pub async fn start<F, A>(protocol: Protocol, service: F) -> Self
    where
        F: Fn(usize, http::Request<Incoming>) -> A + Send + Sync + 'static,
        A: Future<Output = Answer> + Send + 'static,
    {
        let (service, number) = (Arc::new(service), Arc::new(AtomicUsize::new(0)));
        Self::raw(move |stream| {
            let (service, number) = (service.clone(), number.clone());
            async move {
                let service = service_fn(move |request| {
                    let answer = service(number.fetch_add(1, Ordering::SeqCst), request);
                    async move { Ok::<_, Infallible>(answer.await) }
                });
                let io = TokioIo::new(stream);
                // How a connection ends is the client's affair.
                match protocol {
                    Protocol::Http1 => {
                        _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
                    }
                    Protocol::Http2 { streams } => {
                        _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                            .max_concurrent_streams(streams)
                            .serve_connection(io, service)
                            .await;
                    }
                }
            }
        })
        .await
    }

    /// Hands over each connection as it is.
    pub async fn raw<F, A>(serve: F) -> Self
    where
        F: Fn(TcpStream) -> A + Send + 'static,
        A: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let accepted = Arc::new(AtomicUsize::new(0));
        let counted = accepted.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream));
            }
        });
        Self { address, accepted, task }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Connections so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}
