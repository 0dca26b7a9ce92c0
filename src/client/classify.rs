//! What: whether an outcome is worth another send, and for which calls that is safe.
//!
//! Says nothing about when or how often. An outcome is tried again only when it is on a list, of statuses that of
//! `signals::decide`, of errors the one below; everything else, a broken certificate above all, is final. Our own refusals never come back
//! through here as something to try again.

use std::error::Error as StdError;
use std::io;

use http::{Method, StatusCode};
use reqwest::Request;
use reqwest_middleware::Error;

use crate::client::attempts::{ErrorKind, Stop};
use crate::limiter::causes;
use crate::signals::{Class, Signals};

/// Which allowance and which backoff a fault counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The service refused because of load or a limit.
    Throttled,
    /// Something broke.
    Transient,
}

/// Which calls may be sent again after a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Safe {
    /// All: the service did not act on the call.
    AnyMethod,
    /// Those that may run twice.
    Idempotent,
}

/// A fault to try again, or why the call ends here.
pub(crate) type Judgement = Result<(Fault, Safe), Stop>;

pub(crate) fn response(status: StatusCode, signals: &Signals) -> Judgement {
    let throttle = signals.class() == Class::Throttle;
    match signals.should_retry() {
        Some(false) if is_error(status) || throttle => return Err(Stop::ServerSaysNo),
        Some(true) if is_error(status) || throttle => {
            return Ok((if throttle { Fault::Throttled } else { Fault::Transient }, Safe::AnyMethod));
        }
        _ => {}
    }
    match status.as_u16() {
        429 => Ok((Fault::Throttled, Safe::AnyMethod)),
        503 if throttle => Ok((Fault::Throttled, Safe::Idempotent)),
        529 => Ok((Fault::Throttled, Safe::Idempotent)),
        _ if throttle => Ok((Fault::Throttled, Safe::AnyMethod)),
        _ if signals.class() == Class::Transient => Ok((Fault::Transient, Safe::Idempotent)),
        _ if is_error(status) => Err(Stop::Final),
        _ => Err(Stop::Answered),
    }
}

pub(crate) fn is_error(status: StatusCode) -> bool {
    status.is_client_error() || status.is_server_error()
}

pub(crate) fn error(error: &Error) -> Judgement {
    match error_kind(error) {
        ErrorKind::Connect => Ok((Fault::Transient, Safe::AnyMethod)),
        ErrorKind::Timeout | ErrorKind::Broken => Ok((Fault::Transient, Safe::Idempotent)),
        ErrorKind::Other => Err(Stop::Final),
    }
}

pub(crate) fn error_kind(error: &Error) -> ErrorKind {
    let Error::Reqwest(error) = error else { return ErrorKind::Other };
    if error.is_connect() {
        return if error.is_timeout() || error.is_dns() || is_unreachable(error) {
            ErrorKind::Connect
        } else {
            ErrorKind::Other
        };
    }
    if error.is_builder() || error.is_redirect() || error.is_status() || error.is_upgrade() {
        ErrorKind::Other
    } else if error.is_timeout() {
        ErrorKind::Timeout
    } else {
        ErrorKind::Broken
    }
}

/// Whether an I/O error down the chain says that the other side could not be reached.
///
/// A list of what may be tried again, because everything under connect that is not on it may be a refused
/// certificate. TLS stacks wrap an I/O error in another one.
fn is_unreachable(error: &(dyn StdError + 'static)) -> bool {
    use io::ErrorKind::*;
    causes(error).filter_map(|error| error.downcast_ref::<io::Error>()).any(|io| {
        matches!(
            io.kind(),
            ConnectionRefused
                | ConnectionReset
                | ConnectionAborted
                | BrokenPipe
                | NotConnected
                | AddrNotAvailable
                | NetworkDown
                | HostUnreachable
                | NetworkUnreachable
                | TimedOut
                | UnexpectedEof
        )
    })
}

/// Whether the request may run twice by its own statement: its method, or an `Idempotency-Key`.
pub(crate) fn is_idempotent(request: &Request) -> bool {
    matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE
    ) || request.headers().contains_key("idempotency-key")
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use http::HeaderMap;

    use super::*;

    fn judge(status: u16, headers: &[(&'static str, &str)]) -> Judgement {
        let status = StatusCode::from_u16(status).expect("a status");
        let headers: HeaderMap =
            headers.iter().map(|(k, v)| (k.parse().expect("a name"), v.parse().expect("a value"))).collect();
        response(status, &Signals::read(status, &headers, SystemTime::UNIX_EPOCH))
    }

    #[test]
    fn answers() {
        use Fault::*;
        use Safe::*;
        let after = ("retry-after", "3");
        for (status, headers, wanted) in [
            (200, vec![], Err(Stop::Answered)),
            (301, vec![], Err(Stop::Answered)),
            (429, vec![], Ok((Throttled, AnyMethod))),
            (403, vec![after], Ok((Throttled, AnyMethod))),
            (403, vec![], Err(Stop::Final)),
            (413, vec![after], Ok((Throttled, AnyMethod))),
            (413, vec![], Err(Stop::Final)),
            (503, vec![after], Ok((Throttled, Idempotent))),
            (529, vec![], Ok((Throttled, Idempotent))),
            (503, vec![], Ok((Transient, Idempotent))),
            (408, vec![], Ok((Transient, Idempotent))),
            (425, vec![], Ok((Transient, Idempotent))),
            (500, vec![], Ok((Transient, Idempotent))),
            (502, vec![], Ok((Transient, Idempotent))),
            (504, vec![], Ok((Transient, Idempotent))),
            (400, vec![], Err(Stop::Final)),
            (404, vec![], Err(Stop::Final)),
            (501, vec![], Err(Stop::Final)),
            (505, vec![], Err(Stop::Final)),
            (409, vec![("x-should-retry", "true")], Ok((Transient, AnyMethod))),
            (429, vec![("x-should-retry", "false")], Err(Stop::ServerSaysNo)),
            (200, vec![("x-should-retry", "true")], Err(Stop::Answered)),
        ] {
            assert_eq!(judge(status, &headers), wanted, "{status} {headers:?}");
        }
    }

    #[test]
    fn io_errors_are_found_inside_io_errors() {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        assert!(is_unreachable(&refused()));
        assert!(is_unreachable(&io::Error::other(refused())));
        assert!(is_unreachable(&io::Error::other(io::Error::other(refused()))));
        let certificate = || io::Error::new(io::ErrorKind::InvalidData, "invalid peer certificate");
        assert!(!is_unreachable(&certificate()));
        assert!(!is_unreachable(&io::Error::other(certificate())));
    }
}
