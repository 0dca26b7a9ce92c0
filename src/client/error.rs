//! The errors that this side of the wire adds, and nothing else: what the transport says passes untouched.
//!
//! `reqwest_middleware::Error` is transparent over what a middleware gives it, so that its `source` skips
//! exactly that. Ours therefore go inside one outer error, which keeps them reachable. No URL, key or
//! secret in any of them.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::limiter::{Last, Refused, causes};

/// The total time of a call was over before a response's head was there.
///
/// By [`Retry::total_timeout`](crate::Retry::total_timeout) or
/// [`RequestExt::deadline`](crate::RequestExt::deadline), while the call was waiting for the transport or
/// the service. [`TimedOut::of`] finds it in an error. A call that knows beforehand that its wait would be
/// too long does not wait: it ends with what it has, or with a [`Refused`].
#[derive(Debug, Clone)]
pub struct TimedOut {
    after: Duration,
    last: Option<Box<Last>>,
}

impl TimedOut {
    pub(crate) fn new(after: Duration) -> Self {
        Self { after, last: None }
    }

    /// Finds it in an error or anywhere down its chain of sources.
    pub fn of<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a TimedOut> {
        causes(error).find_map(|error| error.downcast_ref())
    }

    /// From the start of the call until its time was over.
    pub fn after(&self) -> Duration {
        self.after
    }

    /// The answer that an earlier attempt of this call got, where there was one and its body is gone.
    pub fn last(&self) -> Option<&Last> {
        self.last.as_deref()
    }
}

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the call's total time was over after {:.3} s, without a response",
            self.after.as_secs_f64()
        )?;
        match &self.last {
            Some(last) => write!(f, "; the attempt before was answered {}", last.status.as_u16()),
            None => Ok(()),
        }
    }
}

impl StdError for TimedOut {}

/// What goes into `reqwest_middleware::Error::Middleware`.
#[derive(Debug)]
pub(crate) enum Ours {
    Refused(Refused),
    TimedOut(TimedOut),
}

impl Ours {
    /// Ours in `error`, if it is.
    pub(crate) fn of(error: &reqwest_middleware::Error) -> Option<&Self> {
        match error {
            reqwest_middleware::Error::Middleware(inner) => inner.downcast_ref(),
            reqwest_middleware::Error::Reqwest(_) => None,
        }
    }

    /// Adds the answer of the attempt before to an error of ours; any other stays as it is.
    pub(crate) fn after(error: reqwest_middleware::Error, last: Last) -> reqwest_middleware::Error {
        let reqwest_middleware::Error::Middleware(inner) = error else { return error };
        match inner.downcast::<Ours>() {
            Ok(Ours::Refused(refused)) => refused.after(last).into_error(),
            Ok(Ours::TimedOut(timed_out)) => TimedOut { last: Some(Box::new(last)), ..timed_out }.into(),
            Err(inner) => reqwest_middleware::Error::Middleware(inner),
        }
    }
}

impl fmt::Display for Ours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ours::Refused(refused) => write!(f, "not sent: {refused}"),
            Ours::TimedOut(timed_out) => write!(f, "given up: {timed_out}"),
        }
    }
}

impl StdError for Ours {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Ours::Refused(refused) => Some(refused),
            Ours::TimedOut(timed_out) => Some(timed_out),
        }
    }
}

impl From<TimedOut> for reqwest_middleware::Error {
    fn from(timed_out: TimedOut) -> Self {
        Self::middleware(Ours::TimedOut(timed_out))
    }
}

impl Refused {
    /// The error of a call that was refused.
    pub(crate) fn into_error(self) -> reqwest_middleware::Error {
        reqwest_middleware::Error::middleware(Ours::Refused(self))
    }
}
