//! Numbers and lengths of time as servers write them.
//!
//! Everything here works on bytes, since a header value need not be UTF-8, and in integers, since a
//! float could round a wait down. What breaks the grammar is `None`, never zero; what is too large is
//! the longest wait, never `None`. Nothing here may panic or make a length of time shorter than written.

use std::time::Duration;

/// The longest wait that is ever reported: 2^31 s, where RFC 9111 (1.2.2) lets an overflow end.
pub(super) const LONGEST: Duration = Duration::from_secs(1 << 31);

const NANOS_PER_MS: u128 = 1_000_000;
const NANOS_PER_S: u128 = 1_000_000_000;

/// A number without a sign, kept exact: `1.5` is a whole part and the digits of its fraction.
#[derive(Clone, Copy)]
pub(super) struct Decimal<'a> {
    /// Saturates.
    pub(super) whole: u64,
    fraction: &'a [u8],
}

impl<'a> Decimal<'a> {
    /// Reads `digits` or `digits.digits`: no sign, exponent, separator or blank.
    pub(super) fn parse(text: &'a [u8]) -> Option<Self> {
        let (number, rest) = Self::parse_prefix(text)?;
        rest.is_empty().then_some(number)
    }

    fn parse_prefix(text: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (whole, rest) = split_digits(text);
        if whole.is_empty() {
            return None;
        }
        let whole = whole
            .iter()
            .fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
        let Some(after_point) = rest.strip_prefix(b".") else {
            return Some((Self { whole, fraction: &[] }, rest));
        };
        let (fraction, rest) = split_digits(after_point);
        (!fraction.is_empty()).then_some((Self { whole, fraction }, rest))
    }

    pub(super) fn has_fraction(self) -> bool {
        self.fraction.iter().any(|digit| *digit != b'0')
    }

    /// This many units of `unit` nanoseconds, in nanoseconds, rounded up.
    fn nanos_up(self, unit: u128) -> u128 {
        // 18 digits keep the product below 2^128; the rest can only push the result up by one.
        let (kept, rest) = self.fraction.split_at(self.fraction.len().min(18));
        let scale = kept.iter().fold(1u128, |scale, _| scale * 10);
        let digits = kept.iter().fold(0u128, |sum, digit| sum * 10 + u128::from(digit - b'0'));
        let beyond = u128::from(rest.iter().any(|digit| *digit != b'0'));
        u128::from(self.whole) * unit + (digits * unit + beyond).div_ceil(scale)
    }

    pub(super) fn seconds(self) -> Duration {
        from_nanos_up(self.nanos_up(NANOS_PER_S))
    }

    pub(super) fn millis(self) -> Duration {
        from_nanos_up(self.nanos_up(NANOS_PER_MS))
    }

    /// Milliseconds of so many units of `unit` milliseconds, rounded up, for an instant rather than a wait.
    pub(super) fn in_millis(self, unit: u64) -> i64 {
        let millis = self.nanos_up(u128::from(unit) * NANOS_PER_MS).div_ceil(NANOS_PER_MS);
        i64::try_from(millis).unwrap_or(i64::MAX)
    }

    /// How long one takes at this many a second; `None` at a rate of zero.
    pub(super) fn one_at_this_rate(self) -> Option<Duration> {
        let (kept, _) = self.fraction.split_at(self.fraction.len().min(18));
        let scale = kept.iter().fold(1u128, |scale, _| scale * 10);
        let digits =
            kept.iter().fold(u128::from(self.whole), |sum, digit| sum * 10 + u128::from(digit - b'0'));
        (digits > 0).then(|| from_nanos_up((NANOS_PER_S * scale).div_ceil(digits)))
    }
}

/// A count that may have run below zero, rounded down.
#[derive(Clone, Copy)]
pub(super) struct Count {
    /// Saturates; `-1` stands for every value below zero.
    pub(super) value: i64,
    pub(super) fractional: bool,
}

impl Count {
    /// Reads the first item of a value such as `100, 100;w=60`.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let end = text.iter().position(|byte| matches!(byte, b',' | b';')).unwrap_or(text.len());
        let text = unquote(trim(&text[..end]));
        let (negative, digits) = match text.strip_prefix(b"-") {
            Some(digits) => (true, digits),
            None => (false, text),
        };
        let number = Decimal::parse(digits)?;
        let fractional = number.has_fraction();
        let value = if negative && (number.whole > 0 || fractional) {
            -1
        } else {
            i64::try_from(number.whole).unwrap_or(i64::MAX)
        };
        Some(Self { value, fractional })
    }
}

/// Reads a Go duration such as `6m0s`, `850µs` or `1.5h`; every number has its unit.
pub(super) fn go_duration(text: &[u8]) -> Option<Duration> {
    let mut rest = text;
    let mut nanos = 0u128;
    while !rest.is_empty() {
        let (number, after) = Decimal::parse_prefix(rest)?;
        let (unit, after) = go_unit(after)?;
        nanos = nanos.saturating_add(number.nanos_up(unit));
        rest = after;
    }
    (!text.is_empty()).then(|| from_nanos_up(nanos))
}

/// Reads a length of time with its units, short as Go writes them or as words.
pub(super) fn written_duration(text: &[u8]) -> Option<Duration> {
    go_duration(text).or_else(|| spelled_duration(text))
}

/// Reads one number with its unit as a word, `30 seconds` or `2 min`.
fn spelled_duration(text: &[u8]) -> Option<Duration> {
    const WORDS: [(&[&str], u128); 5] = [
        (&["ms", "msec", "millis", "millisecond", "milliseconds"], NANOS_PER_MS),
        (&["s", "sec", "secs", "second", "seconds"], NANOS_PER_S),
        (&["min", "mins", "minute", "minutes"], 60 * NANOS_PER_S),
        (&["h", "hr", "hrs", "hour", "hours"], 3_600 * NANOS_PER_S),
        (&["d", "day", "days"], 86_400 * NANOS_PER_S),
    ];
    let (number, rest) = Decimal::parse_prefix(text)?;
    let is_it = |word: &&str| trim(rest).eq_ignore_ascii_case(word.as_bytes());
    let (_, unit) = WORDS.iter().find(|(words, _)| words.iter().any(is_it))?;
    Some(from_nanos_up(number.nanos_up(*unit)))
}

fn go_unit(text: &[u8]) -> Option<(u128, &[u8])> {
    // The longer spellings first; the micro sign is U+00B5 or U+03BC in UTF-8, or one Latin-1 byte.
    const UNITS: [(&[u8], u128); 10] = [
        (b"ns", 1),
        (b"us", 1_000),
        (b"\xc2\xb5s", 1_000),
        (b"\xce\xbcs", 1_000),
        (b"\xb5s", 1_000),
        (b"ms", NANOS_PER_MS),
        (b"s", NANOS_PER_S),
        (b"m", 60 * NANOS_PER_S),
        (b"h", 3_600 * NANOS_PER_S),
        (b"d", 86_400 * NANOS_PER_S),
    ];
    UNITS.iter().find_map(|(name, nanos)| text.strip_prefix(*name).map(|rest| (*nanos, rest)))
}

/// Rounds up to the next millisecond and ends at [`LONGEST`].
fn from_nanos_up(nanos: u128) -> Duration {
    from_millis(nanos.div_ceil(NANOS_PER_MS))
}

/// Ends at [`LONGEST`].
pub(super) fn from_millis(millis: u128) -> Duration {
    u64::try_from(millis).map_or(LONGEST, |millis| Duration::from_millis(millis).min(LONGEST))
}

/// Without the blanks around it; HTTP stacks may leave them in (RFC 9110, 5.5).
pub(super) fn trim(text: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = text.iter().position(|byte| !blank(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !blank(byte)).map_or(start, |last| last + 1);
    &text[start..end]
}

/// Without one pair of double quotes around it.
pub(super) fn unquote(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).map_or(text, trim)
}

fn split_digits(text: &[u8]) -> (&[u8], &[u8]) {
    text.split_at(text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_round_up_and_need_a_unit_each() {
        let millis = |text: &str| go_duration(text.as_bytes()).map(|d| d.as_millis());
        assert_eq!(millis("6m0s"), Some(360_000));
        assert_eq!(millis("850µs"), Some(1));
        assert_eq!(millis("850μs"), Some(1));
        assert_eq!(go_duration(b"850\xb5s"), Some(Duration::from_millis(1)));
        assert_eq!(millis("23h59m51.36s"), Some(86_391_360));
        assert_eq!(millis("1.0000000000000000000000001s"), Some(1_001));
        assert_eq!(millis("99999999999999999999h"), Some(LONGEST.as_millis()));
        for bad in ["", "6m0", "s", "-1s", "1.s", ".5s", "1 s", "1S"] {
            assert_eq!(millis(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn counts_round_down_and_take_the_first_item() {
        let count = |text: &str| Count::parse(text.as_bytes()).map(|count| (count.value, count.fractional));
        assert_eq!(count("598.0"), Some((598, false)));
        assert_eq!(count("0.02"), Some((0, true)));
        assert_eq!(count("90, 90;window=60"), Some((90, false)));
        assert_eq!(count("0;w=21600"), Some((0, false)));
        assert_eq!(count("-2"), Some((-1, false)));
        assert_eq!(count("99999999999999999999"), Some((i64::MAX, false)));
        for bad in ["", "-", "abc", "+3", "1e3", "0x10", "1_0", "39/40"] {
            assert_eq!(count(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_rate_gives_the_time_of_one() {
        let millis = |text: &str| Decimal::parse(text.as_bytes())?.one_at_this_rate().map(|d| d.as_millis());
        assert_eq!(millis("0.0167"), Some(59_881));
        assert_eq!(millis("0.5"), Some(2_000));
        assert_eq!(millis("15"), Some(67));
        assert_eq!(millis("0"), None);
        assert_eq!(millis("0.00"), None);
    }
}
