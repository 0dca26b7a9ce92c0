//! `Retry-After` (RFC 9110, 10.2.3) and its relatives: how long a service says outright to wait.
//!
//! The longest valid reading counts, so that a repeated or joined field is early for nobody. Where
//! milliseconds and whole seconds tell the same wait, the finer one is taken. What breaks the grammar but
//! leaves no doubt (`2.0`, `"120"`, `30s`, `30 seconds`) is honoured; the rest is absent, never zero, and warned of once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Source;
use super::clock::Clock;
use super::date::{is_weekday, time_span};
use super::field::{Field, Fields};
use super::number::{Decimal, go_duration, trim, unquote, written_duration};

/// The explicit waits of one response, each the longest of its kind.
#[derive(Clone, Copy, Default)]
pub(super) struct Asked {
    millis: Option<Duration>,
    seconds: Option<Duration>,
    vendor: Option<Duration>,
    /// `seconds`, where an epoch was put into `Retry-After` and is read as one.
    repaired: Option<Duration>,
}

impl Asked {
    pub(super) fn read(fields: &Fields<'_>, clock: &Clock<'_>) -> Self {
        let mut asked = Self::default();
        for (field, value) in &fields.lines {
            match field {
                Field::RetryAfter => {
                    let seconds = longest(value, |part| seconds_or_date(part, clock));
                    warn_of_none(seconds, "retry-after");
                    asked.seconds = asked.seconds.max(seconds);
                    let repaired = longest(value, |part| repair(part, clock));
                    asked.repaired = asked.repaired.max(repaired.or(seconds));
                }
                Field::RetryAfterMs => {
                    let millis = longest(value, milliseconds);
                    warn_of_none(millis, "retry-after-ms");
                    asked.millis = asked.millis.max(millis);
                }
                Field::AmzRetryAfter => asked.vendor = asked.vendor.max(longest(value, milliseconds)),
                Field::XRetryAfter => {
                    asked.vendor = asked.vendor.max(longest(value, |part| seconds_or_date(part, clock)));
                }
                _ => {}
            }
        }
        asked
    }

    /// The wait that holds, and which field asked for it.
    pub(super) fn wait(self) -> Option<(Duration, Source)> {
        let standard = match (self.millis, self.seconds) {
            (Some(millis), Some(seconds)) if seconds < millis || is_rounded(millis, seconds) => {
                Some((millis, Source::RetryAfterMs))
            }
            (Some(millis), None) => Some((millis, Source::RetryAfterMs)),
            (_, seconds) => seconds.map(|seconds| (seconds, Source::RetryAfter)),
        };
        match (standard, self.vendor) {
            (Some((wait, source)), vendor) if vendor.is_none_or(|vendor| vendor <= wait) => {
                Some((wait, source))
            }
            (_, vendor) => vendor.map(|wait| (wait, Source::Vendor)),
        }
    }

    /// The same with an epoch in `Retry-After` read as an instant, where that changes anything.
    pub(super) fn repaired(self) -> Option<Self> {
        (self.repaired != self.seconds).then_some(Self { seconds: self.repaired, ..self })
    }
}

/// Whether whole seconds are these milliseconds, rounded up.
fn is_rounded(millis: Duration, seconds: Duration) -> bool {
    millis <= seconds && seconds < millis + Duration::from_secs(1)
}

fn seconds_or_date(text: &[u8], clock: &Clock<'_>) -> Option<Duration> {
    let text = unquote(text);
    Decimal::parse(text)
        .map(Decimal::seconds)
        .or_else(|| written_duration(text))
        .or_else(|| clock.until_written(text))
}

fn milliseconds(text: &[u8]) -> Option<Duration> {
    let text = unquote(text);
    Decimal::parse(text).map(Decimal::millis).or_else(|| go_duration(text)).or_else(|| time_span(text))
}

fn repair(text: &[u8], clock: &Clock<'_>) -> Option<Duration> {
    let number = Decimal::parse(unquote(text)).filter(|number| !number.has_fraction())?;
    let looks_like_epoch = (1_000_000_000..100_000_000_000).contains(&number.whole);
    looks_like_epoch.then(|| clock.until_near_epoch(number.whole))?
}

/// The longest of a value's readings, where a proxy may have joined several with commas.
fn longest(value: &[u8], read: impl Fn(&[u8]) -> Option<Duration>) -> Option<Duration> {
    let value = trim(value);
    if let Some(whole) = read(value) {
        return Some(whole);
    }
    if is_one_number(value) {
        return None;
    }
    let mut longest = None;
    let mut start = 0;
    for end in (0..=value.len()).filter(|end| value.get(*end).is_none_or(|byte| *byte == b',')) {
        let part = trim(&value[start..end]);
        // "Sun, 29 Nov 2026 12:00:45 GMT" has a comma of its own.
        if !is_weekday(part) {
            longest = longest.max(read(part));
            start = end + 1;
        }
    }
    longest
}

/// Whether the commas may be those of one number: a decimal point, or groups of thousands.
fn is_one_number(value: &[u8]) -> bool {
    let groups = || value.split(|byte| *byte == b',');
    let all_digits = groups().all(|group| !group.is_empty() && group.iter().all(u8::is_ascii_digit));
    let is_grouped =
        || groups().all(|group| group.len() <= 3) && groups().skip(1).all(|group| group.len() == 3);
    all_digits && (groups().count() == 2 || (groups().count() > 2 && is_grouped()))
}

fn warn_of_none(read: Option<Duration>, name: &'static str) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if read.is_none() && !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            header = name,
            "a service sent a wait that cannot be read; it counts as absent (said once)"
        );
    }
}
