//! A service with limits for each address, for each plan and for exports, on loopback:
//!
//! ```text
//! cargo run -p forbear-server --example server             # serves, and says what to try
//! cargo run -p forbear-server --example server -- --demo   # tries it itself, and ends
//! ```

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use forbear::{ConfigError, Limit, Policy, Rate, store::Local};
use forbear_server::{Key, LimitLayer};
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::net::TcpListener;

/// What authentication found about a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Account {
    Free(String),
    Paying(String),
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Account::Free(name) => write!(f, "free/{name}"),
            Account::Paying(name) => write!(f, "paying/{name}"),
        }
    }
}

/// Stands for real authentication: believes whatever `Authorization` says.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let told = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let account = told.and_then(|told| match told.split_once(' ')? {
        ("Free", name) => Some(Account::Free(name.to_owned())),
        ("Paying", name) => Some(Account::Paying(name.to_owned())),
        _ => None,
    });
    if let Some(account) = account {
        request.extensions_mut().insert(account);
    }
    next.run(request).await
}

/// The key of an account, if it has the plan.
fn on_plan(plan: fn(&Account) -> bool) -> Key {
    Key::from_fn(move |head| {
        head.extensions.get::<Account>().filter(|account| plan(account)).map(Account::to_string)
    })
}

/// The limits of the whole service.
fn limits() -> Result<LimitLayer, ConfigError> {
    let store = Local::new();
    let address = Policy::new("address").limit("20/s burst 40");
    let free = Policy::new("free").limit("10/min burst 5");
    let paying = Policy::new("paying").limit("600/min burst 100");
    // Numbers on trial: counted, and nobody is refused for them.
    let trial = Policy::new("stricter").limit("5/s burst 5").observe_only();
    LimitLayer::new(address, Key::peer(), store)
        .and(free, on_plan(|account| matches!(account, Account::Free(_))))
        .and(paying, on_plan(|account| matches!(account, Account::Paying(_))))
        .and(trial, Key::peer())
        .exempt(|head| head.uri.path() == "/health")
        .build()
}

/// The limits of exports: two at once, and a budget of rows, of which each export says how many it wants.
fn export_limits() -> Result<LimitLayer, ConfigError> {
    let rows = Limit::token_bucket(Rate::per_minute(60_000), 10_000).unit("rows");
    LimitLayer::new(Policy::new("exports").limit("2 at once").limit(rows), Key::everyone(), Local::new())
        .cost("rows", |head| {
            let rows = head.uri.path().rsplit('/').next();
            rows.and_then(|rows| rows.parse().ok()).unwrap_or(0)
        })
        .build()
}

/// Sends rows, a hundred every 10 ms; the export's seat is taken until the last one.
async fn export(Path(rows): Path<u64>) -> Body {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        for first in (0..rows).step_by(100) {
            let text = (first..rows.min(first + 100)).map(|row| format!("row {row}\n")).collect::<String>();
            if sender.send(Ok::<_, Infallible>(Frame::data(Bytes::from(text)))).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    Body::new(StreamBody::new(Received(receiver)))
}

/// A channel as a stream.
struct Received<T>(tokio::sync::mpsc::Receiver<T>);

impl<T> futures_core::Stream for Received<T> {
    type Item = T;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<T>> {
        self.0.poll_recv(context)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let layer = limits()?;
    // In axum what is added later is further out: authentication runs before the limits.
    let app = Router::new()
        .route("/export/{rows}", get(export))
        .route_layer(export_limits()?)
        .route("/", get(|| async { "hello\n" }))
        .route("/health", get(|| async { "well\n" }))
        .layer(layer.clone())
        .layer(middleware::from_fn(authenticate));

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}, try:");
    println!("  curl -i http://{address}/                                       20/s, 40 at once");
    println!("  curl -i -H 'authorization: Free alice' http://{address}/        10/min, 5 at once");
    println!("  curl -i -H 'authorization: Paying bob' http://{address}/        600/min, 100 at once");
    println!("  curl -i http://{address}/export/8000                            2 at once, 60k rows/min");
    println!("  curl -i http://{address}/health                                 never refused");
    let serving = axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>());
    if std::env::args().any(|argument| argument == "--demo") {
        tokio::select! {
            served = serving => served?,
            shown = demo::run(address) => shown?,
        }
        println!("what each policy did:");
        for tally in layer.tallies() {
            println!(
                "  {:<9} passed {:>3}, refused {:>2}, would have refused {:>2}, did not apply to {:>2}",
                tally.policy, tally.passed, tally.refused, tally.observed, tally.not_applied
            );
        }
    } else {
        serving.await?;
    }
    Ok(())
}

/// Tries what the service promises, over HTTP.
mod demo {
    use std::net::SocketAddr;

    use bytes::Bytes;
    use http::Response;
    use http_body_util::{BodyExt, Empty};
    use hyper::body::Incoming;
    use hyper_util::rt::TokioIo;

    type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

    async fn get(address: SocketAddr, path: &str, account: Option<&str>) -> Outcome<Response<Incoming>> {
        let stream = tokio::net::TcpStream::connect(address).await?;
        let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = http::Request::get(path).header("host", address.to_string());
        if let Some(account) = account {
            request = request.header("authorization", account);
        }
        Ok(client.send_request(request.body(Empty::<Bytes>::new())?).await?)
    }

    /// How often each status came, and the last refusal.
    async fn ask(
        address: SocketAddr,
        what: &str,
        path: &str,
        account: Option<&str>,
        times: u32,
    ) -> Outcome<()> {
        let (mut passed, mut refused, mut told) = (0, 0, String::new());
        for _ in 0..times {
            let response = get(address, path, account).await?;
            let field = |name: &str| {
                response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("-").to_owned()
            };
            if response.status() == 200 {
                passed += 1;
            } else {
                refused += 1;
                told = format!(
                    ", the last one: {}, retry-after {}, by {}",
                    response.status(),
                    field("retry-after"),
                    field("x-ratelimit-policy")
                );
            }
            response.into_body().collect().await?;
        }
        println!("{what}: {passed} of {times} passed, {refused} refused{told}");
        Ok(())
    }

    pub(crate) async fn run(address: SocketAddr) -> Outcome<()> {
        ask(address, "alice, on the free plan", "/", Some("Free alice"), 8).await?;
        ask(address, "carol, on the free plan", "/", Some("Free carol"), 4).await?;
        ask(address, "bob, who pays", "/", Some("Paying bob"), 20).await?;
        let one = get(address, "/export/8000", None).await?;
        let two = get(address, "/export/1000", None).await?;
        ask(address, "an export while two others are sent", "/export/500", None, 1).await?;
        for export in [one, two] {
            let rows = export.into_body().collect().await?.to_bytes();
            println!("an export: {} rows", rows.iter().filter(|byte| **byte == b'\n').count());
        }
        ask(address, "an export of more rows than are left", "/export/9000", None, 1).await?;
        ask(address, "anybody at this address", "/", None, 80).await?;
        ask(address, "the health check", "/health", None, 50).await
    }
}
