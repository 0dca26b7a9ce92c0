//! What people write in files and flags: times, and numbers and times that are drawn from a range.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fastrand::Rng;
use serde::Deserialize;

/// `50ms`, `1.5s`, `2min`, `1h`, `250us`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Time(pub(crate) Duration);

impl FromStr for Time {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let unit = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(unit);
        let seconds = match unit.trim() {
            "us" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "min" => 60.0,
            "h" => 3_600.0,
            _ => bail!("`{text}` is not a time such as 50ms, 1.5s or 2min"),
        };
        let number =
            number.parse::<f64>().with_context(|| format!("`{text}` does not begin with a number"))?;
        Ok(Self(Duration::try_from_secs_f64(number * seconds)?))
    }
}

impl TryFrom<String> for Time {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

/// A value, or one drawn evenly from a range: `500`, `500 to 2000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Drawn {
    least: u64,
    most: u64,
}

impl Drawn {
    pub(crate) const fn always(value: u64) -> Self {
        Self { least: value, most: value }
    }

    pub(crate) fn draw(self, rng: &mut Rng) -> u64 {
        rng.u64(self.least..=self.most)
    }

    fn parse(text: &str, one: impl Fn(&str) -> Result<u64>) -> Result<Self> {
        let (least, most) = text.split_once(" to ").unwrap_or((text, text));
        let (least, most) = (one(least.trim())?, one(most.trim())?);
        if least > most {
            bail!("`{text}` ends before it begins");
        }
        Ok(Self { least, most })
    }
}

/// A number, as a number or as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "NumberOrText")]
pub(crate) struct Cost(pub(crate) Drawn);

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u64),
    Text(String),
}

impl TryFrom<NumberOrText> for Cost {
    type Error = anyhow::Error;

    fn try_from(from: NumberOrText) -> Result<Self> {
        match from {
            NumberOrText::Number(number) => Ok(Self(Drawn::always(number))),
            NumberOrText::Text(text) => text.parse(),
        }
    }
}

impl FromStr for Cost {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let one = |text: &str| text.parse().with_context(|| format!("`{text}` is not a whole number"));
        Drawn::parse(text, one).map(Self)
    }
}

/// How long something takes, in microseconds: `50ms`, `20ms to 80ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Takes(pub(crate) Drawn);

impl FromStr for Takes {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Drawn::parse(text, |text| Ok(text.parse::<Time>()?.0.as_micros() as u64)).map(Self)
    }
}

impl TryFrom<String> for Takes {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_ranges_read_as_they_are_written() {
        let time = |text: &str| text.parse::<Time>().map(|time| time.0.as_micros()).ok();
        assert_eq!(
            ["50ms", "1.5s", "2 min", "250us"].map(time),
            [50_000, 1_500_000, 120_000_000, 250].map(Some)
        );
        assert_eq!(["50", "ms", "-1s", "1 day", ""].map(time), [None; 5]);
        assert_eq!("20ms to 80ms".parse::<Takes>().unwrap().0, Drawn { least: 20_000, most: 80_000 });
        assert_eq!("7".parse::<Cost>().unwrap().0, Drawn::always(7));
        assert!("80ms to 20ms".parse::<Takes>().is_err());
    }
}
