//! The text forms of a rate and a limit, both ways.
//!
//! They are what people write in configuration files, so spaces are free, `per` is as good as a slash, and
//! units and periods have the spellings in use. What does not read is a fault that quotes the part; nothing
//! is guessed, and nothing is ever read as "no limit".

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{Kind, Limit, LimitError, MAX_EXACT, REQUESTS, Rate};

/// The most characters of a text form.
const LONGEST: usize = 200;

/// `500/min`, `3/7s`, `200k/day`: a whole number, with `k` or `M` for thousands and millions, a slash (or
/// `per`), and a period in `us`, `ms`, `s`, `min`, `h` or `day`, with a number before it if it is not one.
impl FromStr for Rate {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let form = Text::new(text)?;
        let (rate, unit) = form.rate(&form.plain)?;
        match unit {
            None => Ok(rate),
            Some(unit) => Err(form.fault(unit, "part of a rate, which has no unit")),
        }
    }
}

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let form = Text::new(text)?;
        let limit = if let Some(seats) = form.plain.strip_suffix(" at once") {
            let count = u32::try_from(form.count(seats)?)
                .map_err(|_| form.fault(seats, "a number of seats below 2^32"))?;
            Limit::concurrency(count)
        } else {
            let (head, burst) = match form.plain.split_once(" burst ") {
                Some((head, burst)) => (head, Some(form.count(burst)?)),
                None if form.plain.ends_with(" burst") => {
                    return Err(form.fault("burst", "the end: a number follows it"));
                }
                None => (&*form.plain, None),
            };
            let (rate, unit) = form.rate(head)?;
            let limit = match burst {
                Some(burst) => Limit::token_bucket(rate, burst),
                None => Limit::rate(rate),
            };
            match unit {
                Some(unit) => limit.unit(unit),
                None => limit,
            }
        };
        limit.checked().map(|_| limit)
    }
}

/// Parses the text form, and keeps a fault for the limiter to report. Such a limit is named after its text.
impl From<&str> for Limit {
    fn from(text: &str) -> Self {
        text.parse().unwrap_or_else(|fault| {
            let mut limit = Limit::rate(Rate::per_second(1));
            limit.fault = Some(fault);
            limit.name = Some(quoted(text));
            limit
        })
    }
}

/// The text form, where there is one; for the other algorithms words in its manner.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(rate) = self.kind.rate() else {
            let Kind::Concurrency(seats) = self.kind else { unreachable!("all others have a rate") };
            return write!(f, "{seats} at once");
        };
        match &*self.unit {
            REQUESTS => write!(f, "{rate}")?,
            unit => write!(f, "{} {unit}/{}", rate.units(), rate.period_text())?,
        }
        match self.kind {
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

/// A text as an error quotes it: on one line, and not for ever.
fn quoted(text: &str) -> String {
    text.chars().take(LONGEST).flat_map(char::escape_debug).collect()
}

/// A text form under the knife; faults quote the whole.
struct Text<'a> {
    whole: &'a str,
    /// The words with one space between them.
    plain: String,
}

impl<'a> Text<'a> {
    fn new(whole: &'a str) -> Result<Self, LimitError> {
        let text = Self { whole, plain: whole.split_whitespace().collect::<Vec<_>>().join(" ") };
        if whole.len() > LONGEST {
            return Err(text.fault(whole, "a limit: it is over 200 bytes long"));
        }
        Ok(text)
    }

    /// A part that is missing cannot be quoted; then the whole is.
    fn fault(&self, part: &str, wanted: &'static str) -> LimitError {
        let part = if part.is_empty() { self.whole } else { part };
        LimitError::Text { text: quoted(self.whole), part: quoted(part), wanted }
    }

    /// `500`, `1_000_000`, `200k`, `7M`.
    fn count(&self, part: &str) -> Result<u64, LimitError> {
        let (digits, times) = match part.as_bytes().last() {
            Some(b'k' | b'K') => (&part[..part.len() - 1], 1_000),
            Some(b'M') => (&part[..part.len() - 1], 1_000_000),
            _ => (part, 1),
        };
        if !digits.starts_with(|c: char| c.is_ascii_digit())
            || !digits.bytes().all(|b| b.is_ascii_digit() || b == b'_')
        {
            return Err(self.fault(part, "a whole number, such as 500, 200k or 7M"));
        }
        let number = digits.replace('_', "").parse::<u64>().ok().and_then(|n| n.checked_mul(times));
        number.filter(|n| *n <= MAX_EXACT).ok_or_else(|| self.fault(part, "a number below 2^53"))
    }

    /// `500/min`, `200k tokens/min`, `60 per minute`, and the unit if one is named.
    fn rate<'t>(&self, part: &'t str) -> Result<(Rate, Option<&'t str>), LimitError> {
        let split = part.split_once('/').or_else(|| part.split_once(" per "));
        let (head, period) = split.ok_or_else(|| {
            self.fault(
                part,
                "a limit, such as `500/min`, `200k tokens/min`, `500/min burst 50` or `8 at once`",
            )
        })?;
        let mut words = head.split_whitespace();
        let units = self.count(words.next().unwrap_or(""))?;
        let unit = words.next();
        if let Some(word) = words.next() {
            return Err(self.fault(
                word,
                "expected: before the slash stand a number, such as 200k, and at most one unit",
            ));
        }
        let rate = Rate::new(units, self.period(period.trim())?);
        rate.check()?;
        Ok((rate, unit.filter(|unit| !matches!(*unit, REQUESTS | "request" | "req" | "reqs"))))
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
            "s" | "sec" | "secs" | "second" | "seconds" => 1_000_000,
            "m" | "min" | "mins" | "minute" | "minutes" => 60_000_000,
            "h" | "hr" | "hour" | "hours" => 3_600_000_000,
            "d" | "day" | "days" => 86_400_000_000,
            _ => return Err(self.fault(part, wanted)),
        };
        times.checked_mul(us).map(Duration::from_micros).ok_or_else(|| self.fault(part, wanted))
    }
}
