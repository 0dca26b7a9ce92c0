//! What a caller is told that may not go.
//!
//! A refusal is a response, never an error of the service: 429, or 503 where the server is at capacity,
//! with the wait that the limiter computed and a problem document (RFC 9457) of the types that the RateLimit
//! draft names. Never says whose key it was.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use forbear::{Decision, Refused, RefusedKind};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};

use crate::headers::{self, Naming};

/// What is told where nobody knows when there is room, as for a seat.
const UNKNOWN_WAIT: Duration = Duration::from_secs(1);

/// A request that was not let through, as the function given to
/// [`refusal`](crate::LimitLayerBuilder::refusal) sees it.
#[derive(Debug)]
pub struct Refusal<'a> {
    pub(crate) refused: &'a Refused,
    pub(crate) request: &'a Parts,
    pub(crate) key_class: &'static str,
    pub(crate) naming: Naming,
}

impl Refusal<'_> {
    /// From the decision until the request could have gone. Where nobody can tell, as for a seat: a second, or
    /// as long as the policy's other limits ask for. `None` where no wait would help: the cost is above what
    /// the limit can hold.
    pub fn wait(&self) -> Option<Duration> {
        wait(self.refused)
    }

    /// Name of the limit that refused; `None` if its key is paused.
    pub fn limit(&self) -> Option<&str> {
        self.refused.limit()
    }

    /// Units left under that limit; 0 where there is none, or where none was asked about since the cost can
    /// never fit.
    pub fn remaining(&self) -> u64 {
        let mut limits = self.decision().limits();
        limits.find(|limit| Some(limit.name()) == self.limit()).map_or(0, |limit| limit.remaining())
    }

    /// Name of the policy that refused.
    pub fn policy(&self) -> &str {
        self.refused.policy()
    }

    /// What kind of key the policy limits by: see [`Key::class`](crate::Key::class).
    pub fn key_class(&self) -> &'static str {
        self.key_class
    }

    /// Why.
    pub fn kind(&self) -> RefusedKind {
        self.refused.kind()
    }

    /// The decision: how each limit of the policy stands.
    pub fn decision(&self) -> &Decision {
        self.refused.decision()
    }

    /// The head of the request.
    pub fn request(&self) -> &Parts {
        self.request
    }

    /// The status of the default refusal: 429; 503 where seats are missing or the limiter was closed; 413
    /// for a cost that can never fit.
    pub fn status(&self) -> StatusCode {
        status(self.refused)
    }

    /// The default refusal, to build upon.
    pub fn response(&self) -> Response<Bytes> {
        response(self.refused, self.naming)
    }

    pub(crate) fn refused_by(&self) -> String {
        refused_by(self.refused, self.naming)
    }
}

/// The response to a refusal by a limiter that was asked inside of a handler: 429 with `Retry-After`,
/// `RateLimit` and the rest, as the layer would answer.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use forbear::{Limiter, Policy, store::Local};
///
/// let limiter = Limiter::new(Policy::new("reports").limit("1/min"), Local::new())?;
/// let _permit = limiter.try_acquire("alice").await?;
/// let refused = limiter.try_acquire("alice").await.unwrap_err();
/// let response = forbear_server::refuse(&refused);
/// assert_eq!(response.status(), 429);
/// assert_eq!(response.headers()["retry-after"], "60");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub fn refuse(refused: &Refused) -> Response<Bytes> {
    let mut response = response(refused, Naming::Short);
    headers::add_standing(response.headers_mut(), std::slice::from_ref(refused.decision()), Naming::Short);
    response
}

/// Whether time, or a seat, would help; else the request or the server is at fault.
fn wait(refused: &Refused) -> Option<Duration> {
    match refused.kind() {
        RefusedKind::NeverFits | RefusedKind::UnknownUnit | RefusedKind::NoCost | RefusedKind::NoRuntime => {
            None
        }
        _ => Some(refused.retry_after().unwrap_or_else(|| at_least(refused.decision()))),
    }
}

/// Where nobody can tell when there is a seat: what the other limits ask for in any case.
fn at_least(decision: &Decision) -> Duration {
    decision.limits().map(|limit| limit.wait()).max().unwrap_or_default().max(UNKNOWN_WAIT)
}

pub(crate) fn status(refused: &Refused) -> StatusCode {
    match refused.kind() {
        RefusedKind::NoSeat | RefusedKind::Closed | RefusedKind::StoreAway => StatusCode::SERVICE_UNAVAILABLE,
        // A queue in which nobody waits for time waits for seats.
        RefusedKind::QueueFull if refused.decision().wait().is_zero() => StatusCode::SERVICE_UNAVAILABLE,
        RefusedKind::NeverFits => StatusCode::PAYLOAD_TOO_LARGE,
        RefusedKind::UnknownUnit | RefusedKind::NoCost | RefusedKind::NoRuntime => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        _ => StatusCode::TOO_MANY_REQUESTS,
    }
}

fn refused_by(refused: &Refused, naming: Naming) -> String {
    match refused.limit() {
        Some(limit) => naming.name(refused.policy(), limit).into_owned(),
        None => refused.policy().to_owned(),
    }
}

fn response(refused: &Refused, naming: Naming) -> Response<Bytes> {
    let status = status(refused);
    let refused_by = refused_by(refused, naming);
    let (kind, title) = match status {
        StatusCode::SERVICE_UNAVAILABLE => (Some("temporary-reduced-capacity"), "The server is at capacity"),
        StatusCode::TOO_MANY_REQUESTS => (Some("quota-exceeded"), "Too many requests"),
        StatusCode::PAYLOAD_TOO_LARGE => (None, "The request costs more than its limit can hold"),
        _ => (None, "The server's limits are not set up"),
    };
    let mut response = problem(status, kind, title, Some(&refused_by));
    headers::add_refusal(response.headers_mut(), wait(refused), &refused_by);
    response
}

/// The response of a server that cannot tell who its caller is.
pub(crate) fn fault() -> Response<Bytes> {
    problem(StatusCode::INTERNAL_SERVER_ERROR, None, "The server's limits are not set up", None)
}

/// A problem document. `kind` is a name of the IANA registry of problem types.
fn problem(status: StatusCode, kind: Option<&str>, title: &str, violated: Option<&str>) -> Response<Bytes> {
    let mut text = String::from("{");
    if let Some(kind) = kind {
        _ = write!(text, "\"type\":\"https://iana.org/assignments/http-problem-types#{kind}\",");
    }
    _ = write!(text, "\"title\":\"{title}\",\"status\":{}", status.as_u16());
    if let Some(violated) = violated {
        _ = write!(text, ",\"violated-policies\":[\"{}\"]", Json(violated));
    }
    text.push('}');
    let mut response = Response::new(Bytes::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Text inside of a JSON string.
struct Json<'a>(&'a str);

impl std::fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}
