//! One rule: an algorithm, its numbers and the unit that it counts.
//!
//! A [`Limit`] is what a user writes down and what a service documents; it holds no state and knows no
//! clock. Constructors and setters never fail: the first fault is kept in the limit and comes out, with the
//! policy's and the limit's names, where a limiter is built. Nothing in here decides anything: that is
//! `algorithm`, which reads the reduced numbers.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

mod rate;
#[cfg(test)]
mod tests;
mod text;
mod ticks;

pub use rate::Rate;
pub(crate) use ticks::Ticks;

/// The largest whole number that a Lua number, a double, holds exactly, and one to spare: 2^53 - 1.
pub(crate) const MAX_EXACT: u64 = (1 << 53) - 1;

/// The unit that a rate counts where nothing else is said: one for each call.
pub(crate) const REQUESTS: &str = "requests";
/// The unit of a concurrency limit where nothing else is said: one for each call under way.
pub(crate) const SEATS: &str = "seats";

/// The most segments of a sliding window.
const MAX_SEGMENTS: u32 = 100;

/// What is wrong with a rate or a limit; names the part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// A text form that does not read as a limit.
    #[error("in `{text}`, `{part}` is not {wanted}")]
    Text {
        /// The whole text.
        text: String,
        /// The part that does not fit.
        part: String,
        /// What was expected there.
        wanted: &'static str,
    },
    /// A number outside its range.
    #[error("{part} is {value}, and must be {wanted}")]
    Number {
        /// Which number.
        part: &'static str,
        /// What it was.
        value: String,
        /// What it may be.
        wanted: &'static str,
    },
    /// Numbers whose product leaves the range of exact arithmetic, by more than one part in a million.
    #[error(
        "{units} units per {period:?} with up to {most} at once cannot be kept exactly; use smaller numbers or a coarser unit"
    )]
    Precision {
        /// Units of the rate.
        units: u64,
        /// Period of the rate.
        period: Duration,
        /// The most units at once.
        most: u64,
    },
}

fn number(part: &'static str, value: impl fmt::Display, wanted: &'static str) -> LimitError {
    LimitError::Number { part, value: value.to_string(), wanted }
}

/// Which algorithm, and its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Plain(Rate),
    TokenBucket { rate: Rate, burst: u64 },
    LeakyBucket { rate: Rate, queue: u64 },
    FixedWindow(Rate),
    SlidingWindow { rate: Rate, segments: u32 },
    SlidingCounter(Rate),
    SlidingLog(Rate),
    Concurrency(u32),
}

impl Kind {
    pub(crate) fn rate(&self) -> Option<Rate> {
        match *self {
            Kind::Plain(rate)
            | Kind::TokenBucket { rate, .. }
            | Kind::LeakyBucket { rate, .. }
            | Kind::FixedWindow(rate)
            | Kind::SlidingWindow { rate, .. }
            | Kind::SlidingCounter(rate)
            | Kind::SlidingLog(rate) => Some(rate),
            Kind::Concurrency(_) => None,
        }
    }
}

/// One rule: an algorithm, its numbers and the unit that it counts.
///
/// As text: `"500/min"` (the plain rate), `"200k tokens/min"` (another unit), `"500/min burst 50"` (a token
/// bucket), `"8 at once"` (a concurrency limit). A text that does not read as a limit is a fault that comes
/// out when a limiter is built; [`str::parse`] gives it at once.
///
/// ```
/// # use forbear::{Limit, Rate};
/// assert_eq!("500/min".parse(), Ok(Limit::rate(Rate::per_minute(500))));
/// assert_eq!("200k tokens/min".parse(), Ok(Limit::rate(Rate::per_minute(200_000)).unit("tokens")));
/// assert_eq!("500/min burst 50".parse(), Ok(Limit::token_bucket(Rate::per_minute(500), 50)));
/// assert_eq!("8 at once".parse(), Ok(Limit::concurrency(8)));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    pub(crate) kind: Kind,
    unit: Cow<'static, str>,
    name: Option<String>,
    margin: Option<Duration>,
    share: f64,
    fault: Option<LimitError>,
}

impl Limit {
    fn of(kind: Kind) -> Self {
        let unit = if matches!(kind, Kind::Concurrency(_)) { SEATS } else { REQUESTS };
        Self { kind, unit: Cow::Borrowed(unit), name: None, margin: None, share: 1.0, fault: None }
    }

    /// The plain rate, for those who know only a number: strict and paced. Never more than N units in any
    /// period, a fiftieth of that at once.
    ///
    /// It stays inside a server that counts by windows of any kind and any phase, or by a bucket that holds
    /// a fiftieth of N and what the rate yields in the jitter margin, and uses 96 to 99.6 % of N for
    /// periods of a second or more. A call that costs more than the fiftieth, up to N, goes when nothing is
    /// owed and is repaid before the next one; with such calls the most in a period is N plus the dearest.
    pub fn rate(rate: Rate) -> Self {
        Self::of(Kind::Plain(rate))
    }

    /// A token bucket: a long-run `rate`, and up to `burst` units, 1 or more, at once after a pause.
    ///
    /// The most in any period is the burst and what the rate yields in the period: `"500/min burst 500"`
    /// lets up to 999 units through in one minute. A call may cost up to `burst`.
    ///
    /// A strict burst of one refuses some calls on any real network, whatever the client does; with a
    /// jitter margin such a bucket is spaced wider, by at most a tenth.
    pub fn token_bucket(rate: Rate, burst: u64) -> Self {
        Self::of(Kind::TokenBucket { rate, burst })
    }

    /// A leaky bucket: calls leave evenly at `rate`, up to `queue` units wait for their turn, and a call
    /// that finds the queue full is refused at once. A held call needs no `max_wait`.
    pub fn leaky_bucket(rate: Rate, queue: u64) -> Self {
        Self::of(Kind::LeakyBucket { rate, queue })
    }

    /// A fixed window, opened by the first call and again by the first call after its end. Around a
    /// boundary up to twice the rate passes within one period. It mirrors a server well only where the
    /// server's window opens with our first request; for aligned or unknown windows use
    /// [`rate`](Self::rate) or [`sliding_log`](Self::sliding_log). Where the service refuses a call with a wait of at
    /// most a second, the window is full until its end.
    pub fn fixed_window(rate: Rate) -> Self {
        Self::of(Kind::FixedWindow(rate))
    }

    /// A sliding window of `segments` equal parts, 1 to 100: never more than the rate's units in as many
    /// whole segments in a row. A period that `segments` does not divide is made longer, by less than a
    /// microsecond a segment.
    pub fn sliding_window(rate: Rate, segments: u32) -> Self {
        Self::of(Kind::SlidingWindow { rate, segments })
    }

    /// The weighted sliding counter: this window's count, and of the last window's the part that a window
    /// ending now would still cover. It takes the last window to have been even; when it was not, up to
    /// nearly twice the rate can pass within one period. It mirrors a server well only where the server's
    /// window opens with our first request.
    pub fn sliding_counter(rate: Rate) -> Self {
        Self::of(Kind::SlidingCounter(rate))
    }

    /// The sliding log: never more than the rate's units in any period, exactly. Keeps the time of each
    /// admission, up to one for each unit of the rate. Where a service refuses a client's call with a 429, it counts
    /// none of it, and what the log had left when that was sent counts as missing until the wait that it asks for is
    /// over. Then one unit of it returns, and the others once a call of that one would have been answered: within a
    /// sixteenth of a period where answers come fast, a little over half of one at the latest. Where it asks for no wait,
    /// all return evenly over a period. A belief in more than there is costs about one refusal in each period, two where
    /// there is less than half.
    pub fn sliding_log(rate: Rate) -> Self {
        Self::of(Kind::SlidingLog(rate))
    }

    /// At most `seats` calls at once, 1 or more. A seat is taken before a call is sent and given back when its permit
    /// is dropped: on the client, at the end of the response's body.
    pub fn concurrency(seats: u32) -> Self {
        Self::of(Kind::Concurrency(seats))
    }

    /// Counts `unit` instead of requests (for a concurrency limit: instead of one seat for each call). Each
    /// call must then state its cost in that unit. A word of at most 100 bytes without white space or slash.
    pub fn unit(mut self, unit: &str) -> Self {
        if unit.is_empty()
            || unit.len() > 100
            || unit.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/')
        {
            self.keep(number(
                "the unit",
                format_args!("`{}`", unit.escape_debug()),
                "a word of at most 100 bytes without white space or slash",
            ));
        }
        self.unit = Cow::Owned(unit.to_owned());
        self
    }

    /// Names the limit, in errors, decisions and headers. By default from unit and period, never from the
    /// numbers: `requests/min`, `tokens/min`, `at-once`. 1 to 100 bytes without control characters.
    pub fn named(mut self, name: &str) -> Self {
        if name.is_empty() || name.len() > 100 || name.contains(|c: char| c.is_control()) {
            self.keep(number(
                "the name",
                format_args!("`{}`", name.escape_debug()),
                "1 to 100 printable characters",
            ));
        }
        self.name = Some(name.to_owned());
        self
    }

    /// What is kept free for jitter: two calls sent a window apart arrive closer together when the first
    /// was slower on the way. By default a fiftieth of the window (for a bucket, of the time that it takes
    /// to fill), within 20 and 250 ms, for clients; none for servers and bare limiters. Never changes what
    /// can fit.
    ///
    /// Once a client's call is answered the service has seen it: then a fixed window and a log wait no longer for it
    /// than a window from there, where that is sooner. An answer of a gateway or a cache (a 5xx, or one with `Age`)
    /// says nothing of that.
    ///
    /// A new connection across the internet takes 30 to 80 ms: for windows of less than about 5 s there, state
    /// 100 ms. At most an hour.
    pub fn jitter_margin(mut self, margin: Duration) -> Self {
        if margin > Duration::from_secs(3_600) {
            self.keep(number("the jitter margin", format!("{margin:?}"), "at most an hour"));
        }
        self.margin = Some(margin);
        self
    }

    /// The part of this limit that is ours, above 0 and at most 1: rate, burst, queue and seats are
    /// multiplied by it and rounded down, to one unit at least.
    pub fn share(mut self, share: f64) -> Self {
        if share > 0.0 && share <= 1.0 {
            self.share = share;
        } else {
            self.keep(number("the share", share, "above 0 and at most 1"));
        }
        self
    }

    fn keep(&mut self, fault: LimitError) {
        self.fault.get_or_insert(fault);
    }

    /// The limit's name.
    pub fn name(&self) -> Cow<'_, str> {
        match (&self.name, self.kind.rate()) {
            (Some(name), _) => Cow::Borrowed(name),
            (None, Some(rate)) => Cow::Owned(format!("{}/{}", self.unit, rate.period_text())),
            (None, None) if self.unit == SEATS => Cow::Borrowed("at-once"),
            (None, None) => Cow::Owned(format!("{}-at-once", self.unit)),
        }
    }

    /// The unit that it counts.
    pub fn counts(&self) -> &str {
        &self.unit
    }

    /// The algorithm with our share of the numbers; the first fault if there is one.
    pub(crate) fn checked(&self) -> Result<Kind, LimitError> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if let Some(rate) = self.kind.rate() {
            rate.check()?;
        }
        // Two roundings lie between 0.29 of 100 and 29: what they can have lost is added before the cut.
        let part = |n: u64| ((n as f64 * self.share * (1.0 + 2.0 * f64::EPSILON)) as u64).min(n);
        let ours = |rate: Rate| Rate::new(part(rate.units()).max(1), rate.period());
        let kind = match self.kind {
            Kind::TokenBucket { burst: burst @ (0 | MAX_EXACT..), .. } => {
                return Err(number("the burst", burst, "at least 1 and below 2^53 - 1"));
            }
            Kind::LeakyBucket { queue: queue @ MAX_EXACT.., .. } => {
                return Err(number("the queue", queue, "below 2^53 - 1"));
            }
            Kind::SlidingWindow { segments, .. } if segments == 0 || segments > MAX_SEGMENTS => {
                return Err(number("the number of segments", segments, "from 1 to 100"));
            }
            Kind::SlidingWindow { rate, segments } if rate.period_us() < u64::from(segments) => {
                return Err(number("the number of segments", segments, "at most one a microsecond"));
            }
            Kind::Concurrency(0) => return Err(number("the number of seats", 0, "at least 1")),
            _ if self.share == 1.0 => return Ok(self.kind),
            Kind::Plain(rate) => Kind::Plain(ours(rate)),
            Kind::TokenBucket { rate, burst } => {
                Kind::TokenBucket { rate: ours(rate), burst: part(burst).max(1) }
            }
            Kind::LeakyBucket { rate, queue } => Kind::LeakyBucket { rate: ours(rate), queue: part(queue) },
            Kind::FixedWindow(rate) => Kind::FixedWindow(ours(rate)),
            Kind::SlidingWindow { rate, segments } => Kind::SlidingWindow { rate: ours(rate), segments },
            Kind::SlidingCounter(rate) => Kind::SlidingCounter(ours(rate)),
            Kind::SlidingLog(rate) => Kind::SlidingLog(ours(rate)),
            Kind::Concurrency(seats) => Kind::Concurrency(part(u64::from(seats)).max(1) as u32),
        };
        Ok(kind)
    }

    /// The margin in microseconds: the stated one, else 0 or the default for this kind.
    pub(crate) fn margin_us(&self, kind: Kind, default: Margin) -> u64 {
        let window_us = match kind {
            Kind::Concurrency(_) | Kind::LeakyBucket { .. } => return 0,
            Kind::TokenBucket { rate, burst } => (u128::from(rate.period_us()) * u128::from(burst)
                / u128::from(rate.units()))
            .min(u128::from(MAX_EXACT)) as u64,
            Kind::Plain(rate)
            | Kind::FixedWindow(rate)
            | Kind::SlidingWindow { rate, .. }
            | Kind::SlidingCounter(rate)
            | Kind::SlidingLog(rate) => rate.period_us(),
        };
        match (self.margin, default) {
            (Some(margin), _) => margin.as_micros() as u64,
            (None, Margin::None) => 0,
            (None, Margin::Default) => (window_us / 50).clamp(20_000, 250_000),
        }
    }
}

/// A token bucket of the quota's burst and replenishment. The time for one cell has to be in whole
/// microseconds, or the limiter that is built with the limit says so.
#[cfg(feature = "governor")]
impl From<governor::Quota> for Limit {
    fn from(quota: governor::Quota) -> Self {
        Self::token_bucket(Rate::new(1, quota.replenish_interval()), u64::from(quota.burst_size().get()))
    }
}

/// Which jitter margin a limit gets that states none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Margin {
    /// None: bare limiters and servers.
    None,
    /// A fiftieth of the window, within 20 and 250 ms: clients.
    Default,
}

impl From<&Limit> for Limit {
    fn from(limit: &Limit) -> Self {
        limit.clone()
    }
}
