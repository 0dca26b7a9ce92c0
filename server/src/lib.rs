//! Limits the callers of an HTTP service, with the limiters of [`forbear`]: a tower layer for axum, hyper
//! and tonic.
//!
//! A [`LimitLayer`] has one or several policies, each with the [`Key`] that it limits by. A request that
//! fits under all of them goes on; any other is answered 429 (503 where seats are missing) with an honest
//! `Retry-After`, the fields `RateLimit` and `RateLimit-Policy` of the IETF draft, `X-RateLimit-Policy` with
//! the name of the limit that refused, and a problem document. Successes carry the `RateLimit` fields, too.
//!
//! ```
//! use std::net::SocketAddr;
//!
//! use axum::{Router, routing::get};
//! use forbear::{Policy, store::Local};
//! use forbear_server::{Key, LimitLayer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let layer = LimitLayer::new(Policy::new("address").limit("10/s burst 20"), Key::peer(), Local::new())
//!     .and(Policy::new("server").limit("200 at once"), Key::everyone())
//!     .exempt(|head| head.uri.path() == "/health")
//!     .build()?;
//!
//! let app = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .route("/health", get(|| async { "well" }))
//!     .layer(layer)
//!     .into_make_service_with_connect_info::<SocketAddr>();
//! # async fn serve(app: axum::extract::connect_info::IntoMakeServiceWithConnectInfo<Router, SocketAddr>) {
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await.unwrap();
//! axum::serve(listener, app).await.unwrap();
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! # What to know
//!
//! - Requests are refused at once by default; give a policy a `max_wait` to hold them for a while. A leaky
//!   bucket holds them in its own time. While one is held it takes no place of the inner service.
//! - A seat (`"8 at once"`) is held until the response's body has ended, failed or was dropped. An upgraded
//!   connection gives its seat up.
//! - [`Key::peer`] never looks at headers. Behind proxies say how many: [`Key::behind_proxies`].
//! - In axum a layer that was added later is further out. Whatever provides a key, authentication say, has
//!   to be outside of the limit layer; what sets its own `Retry-After` may be anywhere, it stays.
//! - `Policy::observe_only` tries numbers on live traffic: [`LimitLayer::tallies`] counts what it would
//!   have refused. Callers are told nothing of it.
//! - With a local store each process counts for itself; with `forbear`'s `store::Redis` (its feature `redis`) all
//!   processes count together, and while Redis is away each one keeps to the whole limits by itself, unless
//!   `on_outage` says otherwise.
//!
//! # tonic
//!
//! tonic keeps the peer in an extension of its own, and its clients expect a status:
//!
//! ```
//! use forbear::{Policy, store::Local};
//! use forbear_server::{Key, LimitLayer, Peer};
//! use tonic::transport::server::TcpConnectInfo;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let layer = LimitLayer::new(Policy::new("address").limit("10/s"), Key::peer(), Local::new())
//!     .refusal(|refusal| {
//!         let text = format!("limit `{}` is used up", refusal.limit().unwrap_or("none"));
//!         tonic::Status::resource_exhausted(text).into_http::<bytes::Bytes>()
//!     })
//!     .build()?;
//! let peer = tower::util::MapRequestLayer::new(|mut request: http::Request<tonic::body::Body>| {
//!     let info = request.extensions().get::<TcpConnectInfo>();
//!     if let Some(address) = info.and_then(|info| info.remote_addr()) {
//!         request.extensions_mut().insert(Peer(address.ip()));
//!     }
//!     request
//! });
//! let server = tonic::transport::Server::builder().layer(peer).layer(layer);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod address;
mod body;
mod headers;
mod key;
mod layer;
mod refusal;
mod rule;
mod service;
mod settle;

pub use address::Peer;
pub use body::LimitBody;
pub use headers::Headers;
pub use key::Key;
pub use layer::{LimitLayer, LimitLayerBuilder};
pub use refusal::{Refusal, refuse};
pub use rule::Tally;
pub use service::LimitService;
pub use settle::Settle;
