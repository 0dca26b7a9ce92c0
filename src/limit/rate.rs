//! So many units in a period: what people know of a service.
//!
//! A plain pair of numbers, checked where a limiter is built. It never turns one period into another: what a
//! server counts by the minute is not what it counts by the second.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use super::{LimitError, MAX_EXACT, number};

/// The longest period of a rate: a hundred years.
const MAX_PERIOD: Duration = Duration::from_secs(100 * 366 * 86_400);

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

    pub(super) fn check(self) -> Result<(), LimitError> {
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
    pub(super) fn period_text(self) -> Cow<'static, str> {
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
