//! One rule: an algorithm, its numbers and the unit that it counts.
//!
//! A [`Limit`] is what a user writes down and what a service documents; it holds no state and knows no
//! clock. Constructors and setters never fail: the first fault is kept in the limit and comes out, with the
//! policy's and the limit's names, where a limiter is built. Nothing in here decides anything: that is
//! `algorithm`, which reads the reduced numbers.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The largest whole number that a Lua number, a double, holds exactly, and one to spare: 2^53 - 1.
pub(crate) const MAX_EXACT: u64 = (1 << 53) - 1;

/// The unit that a rate counts where nothing else is said: one for each call.
pub(crate) const REQUESTS: &str = "requests";
/// The unit of a concurrency limit where nothing else is said: one for each call under way.
pub(crate) const SEATS: &str = "seats";

/// The longest period of a rate: a hundred years.
const MAX_PERIOD: Duration = Duration::from_secs(100 * 366 * 86_400);
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

/// So many units in a period. Keeps its period: 60 a minute is not 1 a second.
///
/// ```
/// # use forbear::Rate;
/// # use std::time::Duration;
/// let rate: Rate = "3/7s".parse()?;
/// assert_eq!(rate, Rate::new(3, Duration::from_secs(7)));
/// # Ok::<(), forbear::LimitError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    units: u64,
    period: Duration,
}

impl Rate {
    /// `units` in each `period`. The period is in whole microseconds, up to a hundred years; both are above
    /// zero, or the limiter that is built with the rate says so.
    pub const fn new(units: u64, period: Duration) -> Self {
        Self { units, period }
    }

    /// `units` a second.
    pub const fn per_second(units: u64) -> Self {
        Self::new(units, Duration::from_secs(1))
    }

    /// `units` a minute.
    pub const fn per_minute(units: u64) -> Self {
        Self::new(units, Duration::from_secs(60))
    }

    /// `units` an hour.
    pub const fn per_hour(units: u64) -> Self {
        Self::new(units, Duration::from_secs(3_600))
    }

    /// `units` a day of 24 hours.
    pub const fn per_day(units: u64) -> Self {
        Self::new(units, Duration::from_secs(86_400))
    }

    /// Units in each period.
    pub const fn units(self) -> u64 {
        self.units
    }

    /// The period.
    pub const fn period(self) -> Duration {
        self.period
    }

    pub(crate) fn period_us(self) -> u64 {
        self.period.as_micros() as u64
    }

    fn check(self) -> Result<(), LimitError> {
        if self.units == 0 || self.units > MAX_EXACT {
            return Err(number("the rate", self.units, "a whole number from 1 to 2^53 - 1"));
        }
        if self.period.is_zero() || self.period > MAX_PERIOD {
            return Err(number(
                "the period",
                format!("{:?}", self.period),
                "above zero and at most 100 years",
            ));
        }
        if !self.period.subsec_nanos().is_multiple_of(1_000) {
            return Err(number("the period", format!("{:?}", self.period), "whole microseconds"));
        }
        Ok(())
    }

    /// The period as it stands behind the slash: `min`, `7s`, `100ms`.
    fn period_text(self) -> Cow<'static, str> {
        const NAMED: [(u64, &str); 4] =
            [(1_000_000, "s"), (60_000_000, "min"), (3_600_000_000, "h"), (86_400_000_000, "day")];
        let us = self.period_us();
        if let Some((_, name)) = NAMED.iter().find(|(named, _)| *named == us) {
            return Cow::Borrowed(name);
        }
        match us {
            us if us.is_multiple_of(86_400_000_000) => format!("{}days", us / 86_400_000_000).into(),
            us if us.is_multiple_of(1_000_000) => format!("{}s", us / 1_000_000).into(),
            us if us.is_multiple_of(1_000) => format!("{}ms", us / 1_000).into(),
            us => format!("{us}us").into(),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.units, self.period_text())
    }
}

/// `500/min`, `3/7s`, `200k/day`: a whole number, with `k` or `M` for thousands and millions, a slash (or
/// `per`), and a period in `us`, `ms`, `s`, `min`, `h` or `day`, with a number before it if it is not one.
impl FromStr for Rate {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let parts = Text::new(text)?;
        let (rate, unit) = parts.rate()?;
        match unit {
            None => Ok(rate),
            Some(unit) => Err(parts.fault(unit, "a rate, which has no unit")),
        }
    }
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
    fn rate(&self) -> Option<Rate> {
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

    /// A token bucket: a long-run `rate`, and up to `burst` units at once after a pause.
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
    /// [`rate`](Self::rate) or [`sliding_log`](Self::sliding_log).
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
    /// admission, up to one for each unit of the rate.
    pub fn sliding_log(rate: Rate) -> Self {
        Self::of(Kind::SlidingLog(rate))
    }

    /// At most `seats` calls at once. A seat is taken before a call is sent and given back when its permit
    /// is dropped: on the client, at the end of the response's body.
    pub fn concurrency(seats: u32) -> Self {
        Self::of(Kind::Concurrency(seats))
    }

    /// Counts `unit` instead of requests (for a concurrency limit: instead of one seat for each call). Each
    /// call must then state its cost in that unit. A word without white space or slash.
    pub fn unit(mut self, unit: &str) -> Self {
        if unit.is_empty() || unit.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/') {
            self.keep(number("the unit", format_args!("`{unit}`"), "a word without white space or slash"));
        }
        self.unit = Cow::Owned(unit.to_owned());
        self
    }

    /// Names the limit, in errors, decisions and headers. By default from unit and period, never from the
    /// numbers: `requests/min`, `tokens/min`, `at-once`.
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
        if !(share > 0.0 && share <= 1.0) {
            self.keep(number("the share", share, "above 0 and at most 1"));
        }
        self.share = share;
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
        let part = |n: u64| ((n as f64 * self.share * (1.0 + 1e-12)) as u64).min(n);
        let ours = |rate: Rate| Rate::new(part(rate.units).max(1), rate.period);
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
                / u128::from(rate.units))
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

/// Which jitter margin a limit gets that states none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Margin {
    /// None: bare limiters and servers.
    None,
    /// A fiftieth of the window, within 20 and 250 ms: clients.
    Default,
}

/// Parses the text form, and keeps a fault for the limiter to report.
impl From<&str> for Limit {
    fn from(text: &str) -> Self {
        text.parse().unwrap_or_else(|fault| {
            let mut limit = Limit::rate(Rate::per_second(1));
            limit.fault = Some(fault);
            limit
        })
    }
}

impl From<&Limit> for Limit {
    fn from(limit: &Limit) -> Self {
        limit.clone()
    }
}

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let parts = Text::new(text)?;
        let words = text.split_whitespace().collect::<Vec<_>>();
        if let [seats, "at", "once"] = words[..] {
            let seats = parts.count(seats)?;
            let seats =
                u32::try_from(seats).map_err(|_| parts.fault(words[0], "a number of seats below 2^32"))?;
            let limit = Limit::concurrency(seats);
            return limit.checked().map(|_| limit);
        }
        let (head, burst) = match text.split_once(" burst ") {
            Some((head, burst)) => (head, Some(parts.count(burst.trim())?)),
            None => (text, None),
        };
        let (rate, unit) = Text { whole: text, text: head }.rate()?;
        let limit = match burst {
            Some(burst) => Limit::token_bucket(rate, burst),
            None => Limit::rate(rate),
        };
        let limit = match unit {
            Some(unit) => limit.unit(unit),
            None => limit,
        };
        limit.checked().map(|_| limit)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Concurrency(seats) => write!(f, "{seats} at once"),
            kind => {
                let rate = kind.rate().expect("only a concurrency limit has no rate");
                match &*self.unit {
                    REQUESTS => write!(f, "{rate}")?,
                    unit => write!(f, "{} {unit}/{}", rate.units, rate.period_text())?,
                }
                match kind {
                    Kind::TokenBucket { burst, .. } => write!(f, " burst {burst}"),
                    Kind::LeakyBucket { queue, .. } => write!(f, " leaky, queue {queue}"),
                    Kind::FixedWindow(_) => write!(f, " fixed window"),
                    Kind::SlidingWindow { segments, .. } => write!(f, " sliding window of {segments}"),
                    Kind::SlidingCounter(_) => write!(f, " sliding counter"),
                    Kind::SlidingLog(_) => write!(f, " sliding log"),
                    Kind::Plain(_) | Kind::Concurrency(_) => Ok(()),
                }
            }
        }
    }
}

/// A text form under the knife; faults quote the whole.
struct Text<'a> {
    whole: &'a str,
    text: &'a str,
}

impl<'a> Text<'a> {
    fn new(text: &'a str) -> Result<Self, LimitError> {
        let parts = Self { whole: text, text };
        if text.len() > 200 {
            return Err(parts.fault("...", "a limit: it is over 200 characters long"));
        }
        Ok(parts)
    }

    fn fault(&self, part: &str, wanted: &'static str) -> LimitError {
        let shorten = |text: &str| text.chars().take(200).flat_map(char::escape_debug).collect::<String>();
        LimitError::Text { text: shorten(self.whole), part: shorten(part), wanted }
    }

    /// `500`, `1_000_000`, `200k`, `7M`.
    fn count(&self, part: &str) -> Result<u64, LimitError> {
        let wanted = "a whole number, such as 500, 200k or 7M";
        let (digits, times) = match part.as_bytes().last() {
            Some(b'k') => (&part[..part.len() - 1], 1_000),
            Some(b'M') => (&part[..part.len() - 1], 1_000_000),
            _ => (part, 1),
        };
        if !digits.starts_with(|c: char| c.is_ascii_digit())
            || !digits.bytes().all(|b| b.is_ascii_digit() || b == b'_')
        {
            return Err(self.fault(part, wanted));
        }
        let number = digits.replace('_', "").parse::<u64>().ok().and_then(|n| n.checked_mul(times));
        number.filter(|n| *n <= MAX_EXACT).ok_or_else(|| self.fault(part, "a number below 2^53"))
    }

    /// `500/min`, `200k tokens/min`, `60 per minute`, and the unit if one is named.
    fn rate(&self) -> Result<(Rate, Option<&'a str>), LimitError> {
        let split = self.text.split_once('/').or_else(|| self.text.split_once(" per "));
        let (head, period) = split.ok_or_else(|| {
            self.fault(
                self.text.trim(),
                "a limit, such as `500/min`, `200k tokens/min`, `500/min burst 50` or `8 at once`",
            )
        })?;
        let mut words = head.split_whitespace();
        let units = self.count(words.next().unwrap_or(""))?;
        let unit = words.next();
        if let Some(word) = words.next() {
            return Err(self.fault(word, "expected before the slash: a number and at most one unit"));
        }
        let rate = Rate::new(units, self.period(period.trim())?);
        rate.check()?;
        Ok((rate, unit.filter(|unit| *unit != REQUESTS && *unit != "request")))
    }

    /// `min`, `7s`, `100 ms`.
    fn period(&self, part: &str) -> Result<Duration, LimitError> {
        let wanted = "a period, such as s, min, h, day, 7s or 100ms";
        let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_').len();
        let (times, name) = part.split_at(digits);
        let times = if times.is_empty() { 1 } else { self.count(times)? };
        let us = match name.trim() {
            "us" | "µs" => 1,
            "ms" => 1_000,
            "s" | "sec" | "second" | "seconds" => 1_000_000,
            "min" | "m" | "minute" | "minutes" => 60_000_000,
            "h" | "hour" | "hours" => 3_600_000_000,
            "d" | "day" | "days" => 86_400_000_000,
            _ => return Err(self.fault(part, wanted)),
        };
        times.checked_mul(us).map(Duration::from_micros).ok_or_else(|| self.fault(part, wanted))
    }
}

/// A rate in ticks: one unit is `p` ticks, a microsecond repays `r`; p/r is period/units, reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticks {
    pub(crate) p: u64,
    pub(crate) r: u64,
}

impl Ticks {
    /// `units` in each `period_us`, with room for `most` units in one state. Where the exact form leaves the
    /// range it is the nearest one below, at most one part in a million slower.
    pub(crate) fn new(units: u64, period_us: u64, most: u64) -> Option<Self> {
        let divisor = gcd(units, period_us);
        let exact = Self { p: period_us / divisor, r: units / divisor };
        // A quarter of the range: a sum of two debts and one repayment stays inside it.
        let (p_max, r_max) = (MAX_EXACT / 4 / most.max(1), MAX_EXACT / 4);
        if exact.p <= p_max && exact.r <= r_max {
            return Some(exact);
        }
        let near = exact.below(p_max, r_max)?;
        let (slow, fast) =
            (u128::from(near.r) * u128::from(exact.p), u128::from(exact.r) * u128::from(near.p));
        ((fast - slow) * 1_000_000 <= fast).then_some(near)
    }

    /// The largest r/p not above this one with `p <= p_max` and `r <= r_max`, by descent of the
    /// Stern-Brocot tree in whole runs.
    fn below(self, p_max: u64, r_max: u64) -> Option<Self> {
        let (x_r, x_p) = (u128::from(self.r), u128::from(self.p));
        let (p_max, r_max) = (u128::from(p_max), u128::from(r_max));
        let (mut low_r, mut low_p, mut high_r, mut high_p) = (0_u128, 1_u128, 1_u128, 0_u128);
        loop {
            let (over, under) = (high_r * x_p - x_r * high_p, x_r * low_p - low_r * x_p);
            let mut up = under / over;
            if high_p > 0 {
                up = up.min(p_max.saturating_sub(low_p) / high_p);
            }
            up = up.min(r_max.saturating_sub(low_r) / high_r);
            (low_r, low_p) = (low_r + up * high_r, low_p + up * high_p);
            let under = x_r * low_p - low_r * x_p;
            let down = if under == 0 { 0 } else { (over - 1) / under };
            (high_r, high_p) = (high_r + down * low_r, high_p + down * low_p);
            let room = low_p + high_p <= p_max && low_r + high_r <= r_max;
            if under == 0 || !room || (up == 0 && down == 0) {
                break;
            }
        }
        (low_r > 0 && low_p <= p_max).then_some(Self { p: low_p as u64, r: low_r as u64 })
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
