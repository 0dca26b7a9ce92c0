//! The service: a real HTTP server that limits its callers, writes down every decision, and answers `429`
//! with `Retry-After: 1`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::load::{BURST, CLIENTS, Load, PER_SECOND, RETRY_AFTER_US};
use super::quota::{Kind, Quota};

/// In which a request says whose it is and which call it belongs to.
pub(crate) const CLIENT: &str = "x-client";
pub(crate) const CALL: &str = "x-call";

/// Where nothing is decided.
const GREETING: &str = "greeting";
const GREETING_TAKES: Duration = Duration::from_millis(250);

/// One decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decided {
    pub(crate) at_us: u64,
    pub(crate) call: u32,
    pub(crate) admitted: bool,
}

/// What the server knows of a client that it refused.
#[derive(Debug, Clone, Copy, Default)]
struct Standing {
    /// Until when it was told to stay away.
    told_until: u64,
    banned_until: u64,
}

/// Who may pass, by the server's quota and what it does under its load.
pub(crate) struct Gate {
    load: Load,
    pub(crate) quota: Quota,
    standings: [Standing; CLIENTS],
}

impl Gate {
    pub(crate) fn new(kind: Kind, load: Load) -> Self {
        let quota = Quota::new(kind, PER_SECOND, BURST);
        Self { load, quota, standings: [Standing::default(); CLIENTS] }
    }

    pub(crate) fn may_pass(&mut self, client: usize, now: u64) -> bool {
        let standing = &mut self.standings[client];
        if self.load == Load::Banning {
            if now < standing.banned_until {
                return false;
            }
            if now < standing.told_until {
                *standing = Standing { told_until: 0, banned_until: now + RETRY_AFTER_US };
                return false;
            }
        }
        self.quota.set_rate(now, self.load.allowed(now));
        let admitted = self.quota.admit(now);
        if !admitted {
            standing.told_until = now + RETRY_AFTER_US;
        }
        admitted
    }
}

struct State {
    gate: Gate,
    start: Instant,
    decisions: Vec<Decided>,
}

impl State {
    fn decide(&mut self, client: usize, call: u32) -> bool {
        let now = self.start.elapsed().as_micros() as u64;
        let admitted = self.gate.may_pass(client, now);
        self.decisions.push(Decided { at_us: now, call, admitted });
        admitted
    }
}

/// A running server; dropping it ends it.
pub(crate) struct Server {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
    _tasks: JoinSet<()>,
}

impl Server {
    pub(crate) async fn start(kind: Kind, load: Load) -> Result<Self> {
        let state = Arc::new(Mutex::new(State {
            gate: Gate::new(kind, load),
            start: Instant::now(),
            decisions: Vec::new(),
        }));
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let url = format!("http://{}/", listener.local_addr()?);
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, state.clone()));
        Ok(Self { url, state, _tasks: tasks })
    }

    /// Where a client is greeted after a while, so that all who come at once need connections of their own.
    pub(crate) fn greeting(&self) -> String {
        format!("{}{GREETING}", self.url)
    }

    /// From here on time counts; somebody else may begin to call, too.
    pub(crate) fn begin(&mut self) {
        let (start, load) = {
            let mut state = self.state.lock();
            state.start = Instant::now();
            (state.start, state.gate.load)
        };
        if let Some(every_us) = load.neighbour_every_us() {
            let state = self.state.clone();
            self._tasks.spawn(async move {
                for i in 0.. {
                    tokio::time::sleep_until(start + Duration::from_micros(every_us * i)).await;
                    let mut state = state.lock();
                    let now = state.start.elapsed().as_micros() as u64;
                    state.gate.quota.take(now);
                }
            });
        }
    }

    /// Every decision so far, in order.
    pub(crate) fn decisions(&self) -> Vec<Decided> {
        self.state.lock().decisions.clone()
    }
}

async fn serve(listener: TcpListener, state: Arc<Mutex<State>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        _ = stream.set_nodelay(true);
        let state = state.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let greeted = request.uri().path().ends_with(GREETING);
            let answer = if greeted { Response::default() } else { answer(&state, &request) };
            async move {
                if greeted {
                    tokio::time::sleep(GREETING_TAKES).await;
                }
                Ok::<_, Infallible>(answer)
            }
        });
        connections.spawn(
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
        );
    }
}

fn answer(state: &Mutex<State>, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let number = |name| request.headers().get(name)?.to_str().ok()?.parse::<u32>().ok();
    let (Some(client), Some(call)) = (number(CLIENT), number(CALL)) else {
        let mut answer = Response::new(Full::from("say who you are"));
        *answer.status_mut() = StatusCode::BAD_REQUEST;
        return answer;
    };
    if state.lock().decide(client as usize % CLIENTS, call) {
        return Response::new(Full::from("well"));
    }
    let refusal = Response::builder().status(StatusCode::TOO_MANY_REQUESTS).header("retry-after", "1");
    refusal.body(Full::from("slower")).expect("the head is valid")
}
