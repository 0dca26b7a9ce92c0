//! Our own refusal: why a call may not go, and when it could.
//!
//! Never carries a user's key, a URL or a secret: it ends up in logs. It is one error type for everything
//! that the limiter itself refuses, so that it cannot be mistaken for the service's answer or a transport
//! error.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use http::StatusCode;

use crate::decision::Decision;
use crate::signals::Signals;

/// Why a call was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusedKind {
    /// A limit is used up, and the wait for it is longer than the call may wait.
    RateLimited,
    /// The service or an operator paused the key, for longer than the call may wait.
    Paused,
    /// No seat came free in the time that the call may wait.
    NoSeat,
    /// As many calls wait for this key as may, or a leaky bucket's queue is full.
    QueueFull,
    /// The cost is above what the limit can ever hold: no wait would help.
    NeverFits,
    /// The call states a cost in a unit that no limit of the policy counts.
    UnknownUnit,
    /// A limit counts a unit for which the call states no cost.
    NoCost,
    /// The limiter was closed.
    Closed,
    /// The call would have to wait, and there is no tokio runtime to wait in.
    NoRuntime,
    /// The store does not answer, and nothing may go then: so it was stated, or this process's part is not known.
    /// Also what `Limiter::try_acquire_at` gives where the budgets live in Redis.
    StoreAway,
}

#[cfg(feature = "metrics")]
impl RefusedKind {
    /// A label for metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            RefusedKind::RateLimited => "rate_limited",
            RefusedKind::Paused => "paused",
            RefusedKind::NoSeat => "no_seat",
            RefusedKind::QueueFull => "queue_full",
            RefusedKind::NeverFits => "never_fits",
            RefusedKind::UnknownUnit => "unknown_unit",
            RefusedKind::NoCost => "no_cost",
            RefusedKind::Closed => "closed",
            RefusedKind::NoRuntime => "no_runtime",
            RefusedKind::StoreAway => "store_away",
        }
    }
}

/// A call that was not sent, because of our own limits or a pause.
///
/// In an error chain, [`Refused::of`] finds it.
#[derive(Debug, Clone)]
pub struct Refused(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    kind: RefusedKind,
    decision: Decision,
    max_wait: Duration,
    named: Option<String>,
    hint: Option<&'static str>,
    last: Option<Last>,
}

/// The answer that an earlier attempt of the same call got.
#[derive(Debug, Clone)]
pub struct Last {
    /// Its status.
    pub status: StatusCode,
    /// What it said about limits.
    pub signals: Signals,
}

impl Refused {
    pub(crate) fn new(kind: RefusedKind, decision: Decision, max_wait: Duration) -> Self {
        #[cfg(feature = "metrics")]
        crate::metrics::refused(decision.policy(), decision.refused_by(), kind.name());
        Self(Box::new(Inner { kind, decision, max_wait, named: None, hint: None, last: None }))
    }

    /// Names the unit that is unknown or missing, or the limit under which the cost never fits.
    pub(crate) fn naming(mut self, name: &str) -> Self {
        self.0.named = Some(name.chars().take(100).collect());
        self
    }

    /// Adds what the caller can do about it.
    #[cfg(feature = "client")]
    pub(crate) fn hint(mut self, hint: &'static str) -> Self {
        self.0.hint = Some(hint);
        self
    }

    /// Adds the answer of the attempt before.
    #[cfg(feature = "client")]
    pub(crate) fn after(mut self, last: Last) -> Self {
        self.0.last = Some(last);
        self
    }

    /// Finds the refusal in an error or anywhere down its chain of sources.
    pub fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Refused> {
        causes(error).find_map(|error| error.downcast_ref())
    }

    /// Why.
    pub fn kind(&self) -> RefusedKind {
        self.0.kind
    }

    /// From the refusal until the call could have gone; `None` where nobody can tell, as for a seat, or
    /// where waiting does not help.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.0.kind {
            RefusedKind::RateLimited | RefusedKind::Paused | RefusedKind::QueueFull => {
                self.0.decision.retry_after()
            }
            _ => None,
        }
    }

    /// Name of the policy that refused.
    pub fn policy(&self) -> &str {
        self.0.decision.policy()
    }

    /// Name of the limit that refused, if it was one limit.
    pub fn limit(&self) -> Option<&str> {
        match self.0.kind {
            RefusedKind::NeverFits => self.0.named.as_deref(),
            _ => self.0.decision.refused_by(),
        }
    }

    /// The decision behind the refusal: what is left under each limit.
    pub fn decision(&self) -> &Decision {
        &self.0.decision
    }

    /// Whether waiting longer would have helped: the call ran out of its `max_wait`. The counterpart of
    /// `is_timeout` for a wait on this side of the wire.
    pub fn is_timeout(&self) -> bool {
        matches!(self.0.kind, RefusedKind::RateLimited | RefusedKind::Paused | RefusedKind::NoSeat)
    }

    /// The answer that an earlier attempt of this call got, where there was one and its body is gone.
    pub fn last(&self) -> Option<&Last> {
        self.0.last.as_ref()
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, decision, max_wait, named, hint, last } = &*self.0;
        write!(f, "client-side limit of policy `{}`", decision.policy())?;
        if let Some(limit) = self.limit() {
            write!(f, ", `{limit}`")?;
        }
        let named = named.as_deref().unwrap_or("?");
        match kind {
            RefusedKind::RateLimited => {
                write!(f, ": would wait {}, may wait {}", Secs(decision.wait()), Secs(*max_wait))
            }
            RefusedKind::Paused => {
                write!(f, ": paused for another {}, may wait {}", Secs(decision.wait()), Secs(*max_wait))
            }
            RefusedKind::NoSeat => write!(
                f,
                ": no seat came free in {}; each is held until its permit is dropped, or its response's body",
                Secs(*max_wait)
            ),
            RefusedKind::QueueFull => write!(f, ": the queue is full"),
            RefusedKind::NeverFits => write!(f, ": the cost is above what can ever fit"),
            RefusedKind::UnknownUnit => write!(f, ": a cost in `{named}`, which no limit counts"),
            RefusedKind::NoCost => write!(f, ": state the call's cost in `{named}`, which a limit counts"),
            RefusedKind::Closed => write!(f, ": the limiter is closed"),
            RefusedKind::NoRuntime => write!(f, ": there is no tokio runtime to wait in"),
            RefusedKind::StoreAway => write!(f, ": the store does not answer"),
        }?;
        if let Some(hint) = hint {
            write!(f, " ({hint})")?;
        }
        match last {
            Some(last) => write!(f, "; the attempt before was answered {}", last.status.as_u16()),
            None => Ok(()),
        }
    }
}

impl Error for Refused {}

/// An error and its causes, the outermost first, whatever wraps them.
pub(crate) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| {
        // The source of these two skips what they wrap.
        #[cfg(feature = "client")]
        if let Some(reqwest_middleware::Error::Middleware(inner)) = error.downcast_ref() {
            return Some(inner.as_ref());
        }
        match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        }
    })
}

/// A duration to read: three digits behind the point, without the zeros.
struct Secs(Duration);

impl fmt::Display for Secs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:.3}", self.0.as_secs_f64());
        write!(f, "{} s", text.trim_end_matches('0').trim_end_matches('.'))
    }
}
