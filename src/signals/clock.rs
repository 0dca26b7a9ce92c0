//! How far away an instant is that a response states.
//!
//! An instant only has a meaning against the clock of whoever wrote it, so [`Clock`] counts from the
//! response's own `Date` (plus its `Age`), and from the receipt where it has none. `Date` is parsed by the
//! first value that needs it. A wait that comes out of two clocks is never below zero, and never absurd
//! because one of them was never set.

use std::cell::OnceCell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::date::{DAY, HOUR, SECOND, instant};
use super::number::{Decimal, from_millis, trim, unquote, written_duration};

/// An epoch in a reset field from here on (the year 2101) is rubbish, say a number of milliseconds.
const END_OF_2100: i64 = 4_133_980_800 * SECOND;

/// "Now", as the response saw it.
#[derive(Clone, Debug)]
pub(super) struct Clock<'h> {
    received: i64,
    date: Option<&'h [u8]>,
    age: i64,
    served: OnceCell<Option<i64>>,
}

impl<'h> Clock<'h> {
    /// `Date` is parsed by the first absolute value that needs it.
    pub(super) fn new(received: SystemTime, date: Option<&'h [u8]>, age: Duration) -> Self {
        let received = match received.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX / 4),
            Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX / 4) - 1,
        };
        let age = i64::try_from(age.as_millis()).unwrap_or(0);
        Self { received, date, age, served: OnceCell::new() }
    }

    /// The same clock without the borrow of its headers.
    pub(super) fn fixed(&self) -> FixedClock {
        FixedClock { received: self.received, served: self.served() }
    }

    fn served(&self) -> Option<i64> {
        *self.served.get_or_init(|| {
            let date = instant(trim(self.date?), self.received)?;
            Some(date.saturating_add(self.age))
        })
    }

    /// How far away an instant is, where `resolve` says which instant is meant given "now".
    fn until(&self, resolve: impl Fn(i64) -> Option<i64>) -> Option<Duration> {
        let away = |now: i64| resolve(now).map(|then| then.saturating_sub(now));
        let local = away(self.received);
        let away = match self.served() {
            None => local?,
            Some(served) => {
                let by_date = away(served)?;
                // A `Date` of 1970 would make it decades; then our own clock is the better witness.
                let clocks_differ = served.abs_diff(self.received) > DAY.unsigned_abs();
                match local {
                    Some(local) if clocks_differ && by_date.abs() > DAY && (-HOUR..=DAY).contains(&local) => {
                        local
                    }
                    _ => by_date,
                }
            }
        };
        Some(from_millis(away.max(0).unsigned_abs().into()))
    }

    /// How far away a written instant is; zero when it has passed.
    pub(super) fn until_written(&self, text: &[u8]) -> Option<Duration> {
        self.until(|now| instant(text, now))
    }

    /// How far away an epoch in seconds is, provided that it is near: within a day back, a month ahead.
    pub(super) fn until_near_epoch(&self, seconds: u64) -> Option<Duration> {
        let then = i64::try_from(seconds).ok()?.checked_mul(SECOND)?;
        let now = self.served().unwrap_or(self.received);
        (now - DAY..=now + 31 * DAY).contains(&then).then(|| self.until(|_| Some(then)))?
    }

    /// Reads the value of a reset field, whose unit the field does not say.
    ///
    /// Below 10^9 a number is seconds from now, below 10^11 an epoch in seconds, below 10^14 one in
    /// milliseconds. Larger ones, epochs after 2100, signs and datetimes without a zone mean nothing.
    pub(super) fn reset(&self, text: &[u8]) -> Option<Reset> {
        let text = unquote(trim(text));
        let Some(number) = Decimal::parse(text) else {
            return written_duration(text).map(Reset::In).or_else(|| self.until_written(text).map(Reset::At));
        };
        let then = match number.whole {
            0..1_000_000_000 => return Some(Reset::In(number.seconds())),
            1_000_000_000..100_000_000_000 => number.in_millis(1_000),
            100_000_000_000..100_000_000_000_000 => number.in_millis(1),
            _ => return None,
        };
        (then < END_OF_2100).then(|| self.until(|_| Some(then)))?.map(Reset::At)
    }

    /// Reads the value of a reset field whose name or service says milliseconds: from now below 10^11.
    pub(super) fn reset_millis(&self, text: &[u8]) -> Option<Reset> {
        match Decimal::parse(unquote(trim(text))) {
            Some(number) if number.whole < 100_000_000_000 => Some(Reset::In(number.millis())),
            _ => self.reset(text),
        }
    }
}

/// A [`Clock`] that may outlive its response's headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct FixedClock {
    received: i64,
    served: Option<i64>,
}

impl FixedClock {
    pub(super) fn clock(self) -> Clock<'static> {
        Clock { received: self.received, date: None, age: 0, served: OnceCell::from(self.served) }
    }
}

/// What a reset field said, both counted from now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reset {
    /// It stated a length of time.
    In(Duration),
    /// It stated an instant.
    At(Duration),
}

impl Reset {
    pub(super) fn time(self) -> Duration {
        match self {
            Self::In(time) | Self::At(time) => time,
        }
    }
}
