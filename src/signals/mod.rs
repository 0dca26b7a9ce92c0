//! What a response says about limits: its waits, its budgets, its verdict.
//!
//! [`Signals::read`] looks at the headers once and answers in facts: how long to wait, who said so, what
//! kind of refusal it is, what is left. Whether and when to act on it is the caller's. Dialects are
//! recognised by the fields' names; a [`Profile`] is for services whose names are ambiguous. Nothing here
//! reads a clock, sleeps or keeps a header: a value that cannot be read is absent, never zero, and none is
//! ever printed.

mod body;
mod budget;
mod clock;
mod date;
mod decide;
mod field;
mod number;
mod profile;
mod quota;
mod ratelimit;
mod retry_after;
mod vendor;
pub mod write;

use std::fmt;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};
use tokio::time::Instant;

pub use self::budget::Budget;
pub use self::profile::{Profile, UnknownProfile};

use self::body::Told;
use self::clock::{Clock, FixedClock};
use self::decide::{Facts, Verdict};
use self::field::{Field, Fields};
use self::number::{Decimal, trim};
use self::retry_after::Asked;
use self::vendor::Own;

/// Which signal decided the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// `Retry-After` (RFC 9110).
    RetryAfter,
    /// `retry-after-ms` or `x-ms-retry-after-ms`.
    RetryAfterMs,
    /// The IETF RateLimit fields, of any draft.
    RateLimit,
    /// A field, or the documentation, of this service or of its kind.
    Vendor,
    /// The response's body.
    Body,
    /// No signal: the response sets no wait.
    None,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::RetryAfter => "retry-after",
            Self::RetryAfterMs => "retry-after-ms",
            Self::RateLimit => "ratelimit",
            Self::Vendor => "vendor",
            Self::Body => "body",
            Self::None => "none",
        })
    }
}

/// What kind of answer a response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// The service asks to be called less: the key is to slow down.
    Throttle,
    /// A fault that may pass, and no reason to slow the key down.
    Transient,
    /// Neither: a success, a redirect, an error that a repeat would not mend.
    None,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Throttle => "throttle",
            Self::Transient => "transient",
            Self::None => "none",
        })
    }
}

/// What one response says about limits.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use forbear::signals::{Class, Signals};
///
/// let mut headers = http::HeaderMap::new();
/// headers.insert("retry-after", "30".parse()?);
/// let signals = Signals::read(http::StatusCode::TOO_MANY_REQUESTS, &headers, SystemTime::UNIX_EPOCH);
/// assert_eq!(signals.wait(), Some(Duration::from_secs(30)));
/// assert_eq!(signals.class(), Class::Throttle);
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
#[derive(Clone, Debug)]
pub struct Signals {
    profile: Profile,
    status: StatusCode,
    /// `None` of the many that are no error and say nothing.
    said: Option<Box<Said>>,
    pub(crate) sent: Option<Instant>,
    pub(crate) received: Option<Instant>,
}

/// The facts of a response that says something, and what they come to.
#[derive(Clone, Debug)]
struct Said {
    /// Kept where the body may hold an instant.
    clock: Option<FixedClock>,
    asked: Option<(Duration, Source)>,
    repaired: Option<(Duration, Source)>,
    told: Option<Duration>,
    should_retry: Option<bool>,
    own: Own,
    budgets: Vec<Budget>,
    verdict: Verdict,
}

impl Signals {
    /// Reads a response's headers in the generic profile.
    ///
    /// `received_at` is the wall clock at the receipt. It only counts where the response has no usable
    /// `Date`; with one, instants are read against the service's own clock.
    pub fn read(status: StatusCode, headers: &HeaderMap, received_at: SystemTime) -> Self {
        Self::read_as(Profile::Generic, status, headers, received_at)
    }

    /// Reads a response's headers as `profile` means them.
    pub fn read_as(
        profile: Profile,
        status: StatusCode,
        headers: &HeaderMap,
        received_at: SystemTime,
    ) -> Self {
        Self::read_at(profile, status, headers, || received_at)
    }

    /// The same, for which the wall clock is only read where a header says something.
    pub(crate) fn read_at(
        profile: Profile,
        status: StatusCode,
        headers: &HeaderMap,
        received_at: impl FnOnce() -> SystemTime,
    ) -> Self {
        let mut fields = Fields::none();
        fields.gather(profile, headers);
        let said = Said::read(profile, status, &fields, received_at);
        Self { profile, status, said, sent: None, received: None }
    }

    /// Adds what a JSON body says: a wait that the headers left out or told too short, or a verdict.
    ///
    /// No number is ever taken from prose, and nothing from a body that is not JSON or is over 64 KiB.
    /// Without a profile only bodies of 429, 503 and 529 are looked at.
    pub fn with_body(mut self, body: &[u8]) -> Self {
        let clock = self.said.as_ref().and_then(|said| said.clock);
        let told = Told::read(self.profile, self.status, body, clock);
        let said = self.said.get_or_insert_with(|| Box::new(Said::nothing()));
        said.told = said.told.max(told.wait);
        said.own.is_throttle |= told.is_throttle;
        if told.is_permanent {
            said.should_retry = Some(false);
        }
        said.budgets.extend(told.budgets);
        said.decide(self.profile, self.status);
        self
    }

    /// The least time from the receipt to the next attempt, before own backoff, jitter and caps.
    ///
    /// `None` where the response sets none: the own backoff decides then. Rounded up to a millisecond; an
    /// overflow is 2^31 s. A wait that was stated outright is reported whatever the status, and
    /// [`Signals::class`] tells whether it holds the key; that of an exhausted budget only where the
    /// response may be tried again.
    pub fn wait(&self) -> Option<Duration> {
        self.said.as_ref()?.verdict.wait
    }

    /// As [`Signals::wait`], with an epoch that a service put into `Retry-After` read as that instant.
    ///
    /// By the standard such a value is a delay of half a century. This is the guess that it is not: only
    /// for a number from 10^9 that is, as an epoch in seconds, at most a day past or 31 days ahead.
    pub fn repaired_wait(&self) -> Option<Duration> {
        let said = self.said.as_ref()?;
        match said.repaired {
            None => said.verdict.wait,
            repaired => Facts { asked: repaired, ..said.facts(self.profile, self.status) }.decide().wait,
        }
    }

    /// Which signal decided [`Signals::wait`].
    pub fn source(&self) -> Source {
        self.said.as_ref().map_or(Source::None, |said| said.verdict.source)
    }

    /// What kind of answer this is.
    pub fn class(&self) -> Class {
        self.said.as_ref().map_or(Class::None, |said| said.verdict.class)
    }

    /// The service's own verdict (`x-should-retry` and its like), where it gave one.
    ///
    /// `false` ends the call; `true` still obeys attempts, `max_wait` and a body that can be sent again.
    pub fn should_retry(&self) -> Option<bool> {
        self.said.as_ref()?.should_retry
    }

    /// Every budget that was told, in the order of the fields.
    pub fn budgets(&self) -> &[Budget] {
        self.said.as_ref().map_or(&[], |said| &said.budgets)
    }

    /// The budget that binds: the exhausted one with the latest reset, else the one nearest to it.
    pub fn binding(&self) -> Option<&Budget> {
        let said = self.said.as_ref()?;
        said.verdict.binding.map(|index| &said.budgets[index])
    }

    /// The response's status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The instant from which [`Signals::wait`] counts, once a client has stamped it.
    pub fn received_at(&self) -> Option<Instant> {
        self.received
    }

    /// Whether its wait is only what the service's documentation asks for, which a body may shorten.
    #[cfg(feature = "client")]
    pub(crate) fn is_floor(&self) -> bool {
        self.said.as_ref().is_some_and(|said| said.verdict.is_floor)
    }

    /// Notes when the attempt was sent and when its response's head was there.
    #[cfg(feature = "client")]
    pub(crate) fn stamp(&mut self, sent: Instant, received: Instant) {
        (self.sent, self.received) = (Some(sent), Some(received));
    }
}

impl Said {
    fn nothing() -> Self {
        Self {
            clock: None,
            asked: None,
            repaired: None,
            told: None,
            should_retry: None,
            own: Own::default(),
            budgets: Vec::new(),
            verdict: Verdict::NOTHING,
        }
    }

    fn read(
        profile: Profile,
        status: StatusCode,
        fields: &Fields<'_>,
        received_at: impl FnOnce() -> SystemTime,
    ) -> Option<Box<Self>> {
        let keeps_clock = profile == Profile::OpenRouter;
        if fields.lines.is_empty() && !keeps_clock && status.as_u16() < 400 {
            return None;
        }
        let needs_clock = !fields.lines.is_empty() || keeps_clock;
        let received_at = if needs_clock { received_at() } else { SystemTime::UNIX_EPOCH };
        let age =
            fields.age.and_then(|age| Decimal::parse(trim(age))).map_or(Duration::ZERO, Decimal::seconds);
        let clock = Clock::new(received_at, fields.date, age);
        let asked = Asked::read(fields, &clock);
        let mut said = Self {
            asked: asked.wait(),
            repaired: asked.repaired().and_then(Asked::wait),
            should_retry: should_retry(fields),
            ..Self::nothing()
        };
        // A cached response counted no call of ours (draft-ietf-httpapi-ratelimit-headers: ignore it).
        if !fields.lines.is_empty() && age.is_zero() {
            ratelimit::read(fields, &mut said.budgets);
            quota::read(fields, &clock, &mut said.budgets);
            said.own = vendor::read(profile, fields, &clock, &mut said.budgets);
        }
        said.clock = keeps_clock.then(|| clock.fixed());
        said.decide(profile, status);
        Some(Box::new(said))
    }

    fn decide(&mut self, profile: Profile, status: StatusCode) {
        self.verdict = self.facts(profile, status).decide();
    }

    fn facts(&self, profile: Profile, status: StatusCode) -> Facts<'_> {
        Facts {
            profile,
            status,
            asked: self.asked,
            told: self.told,
            should_retry: self.should_retry,
            is_throttle: self.own.is_throttle,
            floor: self.own.floor,
            budgets: &self.budgets,
        }
    }
}

/// The verdict of the headers; where two disagree, the refusal.
fn should_retry(fields: &Fields<'_>) -> Option<bool> {
    let verdicts = fields.values(|field| matches!(field, Field::ShouldRetry)).filter_map(|value| {
        let is = |word: &[u8]| trim(value).eq_ignore_ascii_case(word);
        if is(b"false") { Some(false) } else { is(b"true").then_some(true) }
    });
    verdicts.min()
}
