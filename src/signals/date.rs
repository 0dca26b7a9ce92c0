//! Instants that a server writes out.
//!
//! Reads the three forms of HTTP-date (RFC 9110, 5.6.7), their RFC 5322 relatives, ISO 8601 with a zone
//! and JavaScript's `Date` string, all into milliseconds of the Unix epoch. A date that does not exist is
//! `None`; nothing is ever normalised, guessed or read in a local zone.

use std::time::Duration;

use super::number::{Decimal, trim, unquote};

pub(super) const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
pub(super) const HOUR: i64 = 60 * MINUTE;
pub(super) const DAY: i64 = 24 * HOUR;

/// Reads a written instant: milliseconds of the Unix epoch, fractions rounded up.
pub(super) fn instant(text: &[u8], now: i64) -> Option<i64> {
    let text = unquote(trim(text));
    if text.get(4) == Some(&b'-') { iso(text) } else { words(text, now) }
}

/// `2026-11-29T12:01:30.250+01:00`: a blank for the `T`, and seconds left out, are accepted; no zone is not.
fn iso(text: &[u8]) -> Option<i64> {
    let date = text.get(..10)?;
    let (year, month, day) = (date.get(..4)?, date.get(5..7)?, date.get(8..10)?);
    if date[4] != b'-' || date[7] != b'-' || !matches!(text.get(10)?, b'T' | b't' | b' ') {
        return None;
    }
    let rest = &text[11..];
    let end = rest.iter().position(|byte| !matches!(byte, b'0'..=b'9' | b':' | b'.'))?;
    let days = days(digits(year)?, digits(month)?, digits(day)?)?;
    Some(days * DAY + time_of_day(&rest[..end])? - zone(trim(&rest[end..]))?)
}

/// Every form made of words: IMF-fixdate, RFC 850, asctime, RFC 5322 and JavaScript's, in any order that
/// leaves no doubt. The day's name says nothing that the date does not, and is not checked against it.
fn words(text: &[u8], now: i64) -> Option<i64> {
    let mut found = Found::default();
    let tokens = text.split(|byte| matches!(byte, b' ' | b'\t' | b',')).filter(|token| !token.is_empty());
    for (index, token) in tokens.enumerate() {
        if token.starts_with(b"(") {
            break;
        }
        if index == 0 && is_weekday(token) {
            continue;
        }
        found.take(token)?;
    }
    let (day, month, time) = (found.day?, found.month?, found.time?);
    let at = |year: i64| Some(days(year, month, day)? * DAY + time - found.zone.unwrap_or(0));
    match found.year? {
        Year::Full(year) => at(year),
        Year::TwoDigits(digits) => at(rolling_year(digits, month, day, time, now)),
    }
}

#[derive(Default)]
struct Found {
    day: Option<i64>,
    month: Option<i64>,
    year: Option<Year>,
    time: Option<i64>,
    zone: Option<i64>,
}

enum Year {
    Full(i64),
    TwoDigits(i64),
}

impl Found {
    /// `None` when the token has no meaning or says something a second time.
    fn take(&mut self, token: &[u8]) -> Option<()> {
        let all_digits = token.iter().all(u8::is_ascii_digit);
        if token.contains(&b':') && token[0].is_ascii_digit() {
            return set(&mut self.time, time_of_day(token)?);
        }
        if all_digits && token.len() == 4 {
            return set(&mut self.year, Year::Full(digits(token)?));
        }
        if all_digits && token.len() <= 2 && self.day.is_none() {
            return set(&mut self.day, digits(token)?);
        }
        if all_digits && token.len() == 2 {
            return set(&mut self.year, Year::TwoDigits(digits(token)?));
        }
        if let Some(month) = month(token) {
            return set(&mut self.month, month);
        }
        if token[0].is_ascii_digit() && token.contains(&b'-') {
            for part in token.split(|byte| *byte == b'-') {
                if part.is_empty() || part.contains(&b':') {
                    return None;
                }
                self.take(part)?;
            }
            return Some(());
        }
        set(&mut self.zone, zone(token)?)
    }
}

fn set<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.is_none().then(|| *place = Some(value))
}

/// The latest year with these digits whose date is at most 50 years ahead (RFC 9110, 5.6.7).
fn rolling_year(digits: i64, month: i64, day: i64, time: i64, now: i64) -> i64 {
    let (this_year, this_month, this_day) = civil(now.div_euclid(DAY));
    let latest = this_year + 50;
    let year = latest - (latest - digits).rem_euclid(100);
    let too_far = year == latest && (month, day, time) > (this_month, this_day, now.rem_euclid(DAY));
    if too_far { year - 100 } else { year }
}

/// `12:01:30`, `12:01:30.25` or `12:01`, in milliseconds. Second 60 is the next minute; where seconds were
/// cut off, the minute's end is meant, since anything else could be early.
fn time_of_day(text: &[u8]) -> Option<i64> {
    let mut parts = text.split(|byte| *byte == b':');
    let (hour, minute) = (parts.next()?, parts.next()?);
    if hour.len() > 2 || minute.len() != 2 {
        return None;
    }
    let (hour, minute) = (digits(hour)?, digits(minute)?);
    let seconds = match parts.next() {
        None => MINUTE,
        Some(text) => {
            let point = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
            let number = (point == 2).then(|| Decimal::parse(text))??;
            // A fraction of second 60 would have to be a second leap second.
            (number.whole < 60 || number.whole == 60 && !number.has_fraction())
                .then(|| number.in_millis(1_000))?
        }
    };
    let real = hour < 24 && minute < 60 && parts.next().is_none();
    real.then_some(hour * HOUR + minute * MINUTE + seconds)
}

/// A length of time of less than a day as .NET prints one, `00:01:02.5`.
pub(super) fn time_span(text: &[u8]) -> Option<Duration> {
    let has_seconds = text.iter().filter(|byte| **byte == b':').count() == 2;
    let millis = has_seconds.then(|| time_of_day(text))??;
    Some(Duration::from_millis(millis.unsigned_abs()))
}

/// How far a zone is ahead of UTC. One that we do not know could be anywhere, so it is `None`.
fn zone(text: &[u8]) -> Option<i64> {
    const NAMES: [(&[u8], i64); 8] = [
        (b"EST", -5),
        (b"EDT", -4),
        (b"CST", -6),
        (b"CDT", -5),
        (b"MST", -7),
        (b"MDT", -6),
        (b"PST", -8),
        (b"PDT", -7),
    ];
    if let Some((_, hours)) = NAMES.iter().find(|(name, _)| text.eq_ignore_ascii_case(name)) {
        return Some(hours * HOUR);
    }
    let is_letter = |byte: &u8| byte.is_ascii_alphabetic();
    let (name, offset) = text.split_at(text.iter().position(|byte| !is_letter(byte)).unwrap_or(text.len()));
    let is_utc = [&b"GMT"[..], b"UTC", b"UT", b"Z"].iter().any(|utc| name.eq_ignore_ascii_case(utc));
    let (sign, offset) = match offset {
        [] if is_utc => return Some(0),
        [b'+', rest @ ..] if is_utc || name.is_empty() => (1, rest),
        [b'-', rest @ ..] if is_utc || name.is_empty() => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = match offset {
        [_, _] => (offset, &b"00"[..]),
        [_, _, b':', _, _] => (&offset[..2], &offset[3..]),
        [_, _, _, _] => offset.split_at(2),
        _ => return None,
    };
    let (hours, minutes) = (digits(hours)?, digits(minutes)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * HOUR + minutes * MINUTE))
}

fn digits(text: &[u8]) -> Option<i64> {
    let readable = (1..=4).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    readable.then(|| text.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')))
}

fn month(text: &[u8]) -> Option<i64> {
    const MONTHS: [&[u8]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    (1..).zip(MONTHS).find(|(_, name)| text.eq_ignore_ascii_case(name)).map(|(number, _)| number)
}

/// Whether this is a day's name, in full or its first three letters.
pub(super) fn is_weekday(text: &[u8]) -> bool {
    const DAYS: [&[u8]; 7] =
        [b"Monday", b"Tuesday", b"Wednesday", b"Thursday", b"Friday", b"Saturday", b"Sunday"];
    DAYS.iter().any(|name| text.eq_ignore_ascii_case(name) || text.eq_ignore_ascii_case(&name[..3]))
}

/// Days since 1970-01-01 in the Gregorian calendar; `None` for a day that does not exist.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=length).contains(&day) {
        return None;
    }
    // Years counted from March, so that the leap day is the last of its year.
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(
        365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468,
    )
}

/// The date of a day since 1970-01-01: the opposite of [`days`].
fn civil(day: i64) -> (i64, i64, i64) {
    // The calendar repeats every 400 years of 146,097 days; again counted from March.
    let shifted = day + 719_468;
    let (cycle, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let month = (from_march + 2) % 12 + 1;
    let year = 400 * cycle + year + i64::from(month <= 2);
    (year, month, day_of_year - (153 * from_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: i64 = 1_795_953_600_000;

    fn at(text: &str) -> Option<i64> {
        instant(text.as_bytes(), NOON).map(|then| then - NOON)
    }

    #[test]
    fn every_form_of_one_instant() {
        for text in [
            "Sun, 29 Nov 2026 12:01:30 GMT",
            "Sunday, 29-Nov-26 12:01:30 GMT",
            "Sun, 29-Nov-2026 12:01:30 GMT",
            "Sun Nov 29 12:01:30 2026",
            "Sun Nov 29 12:01:30 UTC 2026",
            "sun, 29 nov 2026 12:01:30 gmt",
            "29 Nov 2026 12:01:30 +0000",
            "29 Nov 26 12:01:30 UT",
            "Sun, 29 Nov 2026 07:01:30 EST",
            "Sun, 29 Nov 2026 17:31:30 +0530",
            "Sun Nov 29 2026 13:01:30 GMT+0100 (Central European Standard Time)",
            "2026-11-29T12:01:30Z",
            "2026-11-29t12:01:30.000z",
            "2026-11-29 12:01:30 UTC",
            "2026-11-29T13:01:30+01:00",
            "2026-11-29T13:01:30+0100",
            "2026-11-29T13:01:30+01",
            "\"Sun, 29 Nov 2026 12:01:30 GMT\"",
        ] {
            assert_eq!(at(text), Some(90_000), "{text}");
        }
    }

    #[test]
    fn what_does_not_exist_is_none() {
        for text in [
            "",
            "Sun",
            "Sun, 29 Nov 2026",
            "Mon, 30 Feb 2027 12:00:00 GMT",
            "Sun, 00 Nov 2026 12:00:00 GMT",
            "Sun, 29 Nov 2026 24:00:00 GMT",
            "Sun, 29 Nov 2026 12:60:00 GMT",
            "Sun, 29 Nov 2026 12:00:61 GMT",
            "Sun, 29 Nov 2026 12:00:00 XYZ",
            "Sun, 29 Nov 2026 12:00:00 GMT later",
            "Sun, 29 Nov 20266 12:00:00 GMT",
            "29-Nov-2026-1 12:00:00 GMT",
            "2026-11-29",
            "2026-11-29T12:00:33",
            "2026-11-29 12:00:33",
            "2026-13-29T12:00:33Z",
            "2026-11-29T12:00:33+24:00",
        ] {
            assert_eq!(at(text), None, "{text}");
        }
    }

    #[test]
    fn cut_off_seconds_mean_the_end_of_the_minute_and_sixty_the_next() {
        assert_eq!(at("2026-11-29T12:01Z"), Some(120_000));
        assert_eq!(at("Sun, 29 Nov 2026 12:00:60 GMT"), Some(60_000));
        assert_eq!(at("2026-11-29T12:00:05.2500001Z"), Some(5_251));
    }

    #[test]
    fn two_digits_roll_over_fifty_years() {
        assert_eq!(at("Sunday, 29-Nov-76 12:00:00 GMT"), Some(1_577_923_200_000));
        assert!(at("Sunday, 29-Nov-76 12:00:01 GMT") < Some(0));
        let eve_of_2100 = days(2099, 12, 31).map(|day| day * DAY);
        let new_year = instant(b"Friday, 01-Jan-00 00:00:00 GMT", eve_of_2100.unwrap_or(0));
        assert_eq!(new_year, days(2100, 1, 1).map(|day| day * DAY));
    }

    #[test]
    fn days_and_dates_are_inverse() {
        for day in (-1_000_000..1_000_000).step_by(17) {
            let (year, month, of_month) = civil(day);
            assert_eq!(days(year, month, of_month), Some(day));
        }
    }
}
