//! What became of a call: how often it was sent, what held it back, and why it ended.
//!
//! Errors of `reqwest` cannot carry anything, so this is a handle that the caller may attach to a request
//! and read whatever the outcome, even after the call was dropped. Responses carry it as an extension, but for
//! those that were sent for once and at once: such a response tells all of it. Holds no URL, header or key.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use parking_lot::{Mutex, MutexGuard};
use reqwest::Response;
use smallvec::SmallVec;

use crate::client::receipt;
use crate::limiter::RefusedKind;

/// Attempts kept of one call; of more the oldest are forgotten.
const KEPT: usize = 100;

/// The record of one call, filled as the call goes. Cheap to clone; clones are the same record.
///
/// Attach a fresh one to a request with [`RequestExt::attempts`](crate::RequestExt::attempts), or take it
/// from a response with [`Attempts::of`].
#[derive(Debug, Clone, Default)]
pub struct Attempts(Arc<Mutex<Record>>);

#[derive(Debug, Clone, Default)]
struct Record {
    sends: u32,
    held: Held,
    /// With room for the only attempt of most calls.
    attempts: SmallVec<[Attempt; 1]>,
    stopped: Option<Stop>,
}

impl Record {
    /// `sends` is 1, or 0 if it ended before it was sent.
    fn ended(&mut self, attempt: Attempt, sends: u32) {
        self.sends = self.sends.saturating_add(sends);
        if self.attempts.len() == KEPT {
            self.attempts.remove(0);
        }
        self.attempts.push(attempt);
    }
}

/// How long a call was held back, and for what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// By our own limits and by pauses of the key: before its sends.
    pub limits: Duration,
    /// Because the service said how long to wait: between its sends.
    pub server: Duration,
    /// By our own backoff: between its sends.
    pub backoff: Duration,
}

impl Held {
    /// All of it.
    pub fn total(&self) -> Duration {
        self.limits.saturating_add(self.server).saturating_add(self.backoff)
    }
}

/// One attempt of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// How it ended.
    pub outcome: Outcome,
    /// How long it was held back by limits and pauses before it was sent.
    pub held: Duration,
    /// How long the service asked to wait after it.
    pub server_wait: Option<Duration>,
    /// How long was waited after it, from its end to the next attempt. Zero for the last.
    pub wait: Duration,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// With a response.
    Status(StatusCode),
    /// With an error of the transport or of another middleware.
    Error(ErrorKind),
    /// It was not sent: our own limits.
    Refused(RefusedKind),
    /// The total time of the call was over, before or after it was sent.
    TimedOut,
}

/// What kind of error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No connection: refused, unreachable, timed out, or the name was not found.
    Connect,
    /// Timed out after a connection was there.
    Timeout,
    /// The connection broke.
    Broken,
    /// Anything else, such as a refused certificate or a request that could not be built.
    Other,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Status(status) => write!(f, "{}", status.as_u16()),
            Outcome::Error(ErrorKind::Connect) => f.write_str("could not connect"),
            Outcome::Error(ErrorKind::Timeout) => f.write_str("timed out"),
            Outcome::Error(ErrorKind::Broken) => f.write_str("connection broke"),
            Outcome::Error(ErrorKind::Other) => f.write_str("failed"),
            Outcome::Refused(_) => f.write_str("refused by our own limits"),
            Outcome::TimedOut => f.write_str("total time over"),
        }
    }
}

/// Why a call was not sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// It was answered, with neither a fault nor a throttle.
    Answered,
    /// Another send would end the same way.
    Final,
    /// The fault may have come after the service acted, or from where a redirect led, and the method is not
    /// idempotent. See [`RequestExt::idempotent`](crate::RequestExt::idempotent).
    NotIdempotent,
    /// The body is a stream, which cannot be sent twice.
    NotReplayable,
    /// The request said so: [`RequestExt::no_retry`](crate::RequestExt::no_retry).
    NoRetry,
    /// The service said that it must not be tried again.
    ServerSaysNo,
    /// All attempts were used.
    AttemptsUsedUp,
    /// The service asked for more than the longest wait that is accepted from it.
    WaitTooLong,
    /// The wait would be longer than what is left of the call's `max_wait`.
    MaxWait,
    /// The total time or the deadline of the call would pass first, or did.
    OutOfTime,
    /// Too many calls to the service are being retried already.
    RetryBudget,
    /// Our own limits refused the attempt.
    Refused,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stop::Answered => "answered",
            Stop::Final => "not an outcome to try again",
            Stop::NotIdempotent => "method not idempotent",
            Stop::NotReplayable => "body not replayable",
            Stop::NoRetry => "retries turned off for this request",
            Stop::ServerSaysNo => "the service said not to retry",
            Stop::AttemptsUsedUp => "all attempts used up",
            Stop::WaitTooLong => "the service asked for too long a wait",
            Stop::MaxWait => "the wait is longer than what is left of max_wait",
            Stop::OutOfTime => "out of time",
            Stop::RetryBudget => "retry budget used up",
            Stop::Refused => "refused by our own limits",
        })
    }
}

impl Attempts {
    /// An empty record.
    pub fn new() -> Self {
        Self::default()
    }

    /// The record of the call that `response` answered, if it went through [`Retry`](crate::Retry) or
    /// [`Throttle`](crate::Throttle). Of a call that was sent once, at once, and answered well the response carries no
    /// record in its extensions; it is made here of what the response says.
    pub fn of(response: &Response) -> Option<Self> {
        response.extensions().get().cloned().or_else(|| Self::of_only(response))
    }

    /// That of a call of which there is no more to tell than its response does.
    fn of_only(response: &Response) -> Option<Self> {
        let receipt = receipt::of_only(response)?;
        let attempts = Self::new();
        attempts.ended(receipt.attempt(Duration::ZERO), 1);
        attempts.stop(Stop::Answered);
        Some(attempts)
    }

    /// How often the call was sent.
    pub fn sends(&self) -> u32 {
        self.record().sends
    }

    /// How long it was held back, and for what.
    pub fn held(&self) -> Held {
        self.record().held
    }

    /// Each attempt, in order: the last 100.
    pub fn list(&self) -> Vec<Attempt> {
        self.record().attempts.to_vec()
    }

    /// Why the call was not sent again; `None` while it is under way, or if it was dropped.
    pub fn stopped(&self) -> Option<Stop> {
        self.record().stopped
    }

    pub(crate) fn begin(&self) {
        *self.record() = Record::default();
    }

    pub(crate) fn held_by_limits(&self, time: Duration) {
        self.record().held.limits += time;
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock()
    }

    /// `sends` is 1, or 0 if it ended before it was sent.
    pub(crate) fn ended(&self, attempt: Attempt, sends: u32) {
        self.record().ended(attempt, sends);
    }

    /// A wait between two attempts that has passed.
    pub(crate) fn waited(&self, time: Duration, cause: Cause) {
        let record = &mut *self.record();
        match cause {
            Cause::Server => record.held.server += time,
            Cause::Backoff => record.held.backoff += time,
        }
        if let Some(last) = record.attempts.last_mut() {
            last.wait = time;
        }
    }

    pub(crate) fn stop(&self, why: Stop) {
        self.record().stopped = Some(why);
    }
}

/// What a wait between two attempts was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Server,
    Backoff,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Server => "the service's wait",
            Cause::Backoff => "backoff",
        })
    }
}

/// `3 sends, held 2.5 s: 429, 503, could not connect; all attempts used up`.
impl fmt::Display for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = self.record();
        write!(f, "{} sends, held {:.3} s", record.sends, record.held.total().as_secs_f64())?;
        for (i, attempt) in record.attempts.iter().enumerate() {
            write!(f, "{} {}", if i == 0 { ":" } else { "," }, attempt.outcome)?;
        }
        match record.stopped {
            Some(stop) => write!(f, "; {stop}"),
            None => Ok(()),
        }
    }
}
