//! What must hold for any response whatever, for the property test and the fuzz target alike.
//!
//! It reads the valid forms of `Retry-After` by itself, strictly and without the code under test, and
//! holds the reader to them: no panic, nothing out of bounds, and no wait below what a valid reading
//! demands, whatever else the response says.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forbear::{Profile, Signals, Source};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

const DAY: u64 = 86_400;
const LONGEST: Duration = Duration::from_secs(1 << 31);

/// A response as raw parts; what `http` refuses of them is left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Input {
    pub(crate) status: u16,
    /// Chooses a profile, besides the generic one.
    pub(crate) profile: usize,
    /// The wall clock at the receipt, in seconds of the Unix epoch.
    pub(crate) received_at: i64,
    pub(crate) headers: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl Input {
    /// Reads a text of the form of HTTP: `429 7 1795953600`, lines of `name: value`, a blank line, a body.
    #[allow(dead_code, reason = "the property test makes its parts itself")]
    pub(crate) fn decode(text: &[u8]) -> Self {
        let mut input = Self { status: 429, received_at: 1_795_953_600, ..Self::default() };
        let mut rest = text;
        let mut is_first = true;
        while !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            let (line, after) = (&rest[..end], rest.get(end + 1..).unwrap_or_default());
            rest = after;
            if line.is_empty() {
                break;
            }
            if std::mem::take(&mut is_first) {
                let line = String::from_utf8_lossy(line);
                let mut numbers = line.split(' ');
                let mut next = || numbers.next().and_then(|number| number.parse::<i64>().ok());
                input.status = next().and_then(|status| status.try_into().ok()).unwrap_or(input.status);
                input.profile = next().and_then(|index| index.try_into().ok()).unwrap_or(0);
                input.received_at = next().unwrap_or(input.received_at);
            } else if let Some(colon) = line.iter().position(|byte| *byte == b':') {
                input.headers.push((line[..colon].to_vec(), line[colon + 1..].to_vec()));
            }
        }
        input.body = rest.to_vec();
        input
    }

    fn received_at(&self) -> SystemTime {
        let seconds = Duration::from_secs(self.received_at.unsigned_abs().min(1 << 40));
        let time = if self.received_at < 0 {
            UNIX_EPOCH.checked_sub(seconds)
        } else {
            UNIX_EPOCH.checked_add(seconds)
        };
        time.expect("40 bits of seconds fit a SystemTime")
    }

    fn headers(&self) -> HeaderMap {
        let line = |(name, value): &(Vec<u8>, Vec<u8>)| {
            Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?))
        };
        self.headers.iter().filter_map(line).collect()
    }
}

/// Panics when something that must hold does not.
pub(crate) fn check(input: &Input) {
    let Ok(status) = StatusCode::from_u16(input.status) else { return };
    let (headers, received_at) = (input.headers(), input.received_at());
    let floor = demanded(&headers, received_at);
    let chosen = Profile::all().nth(input.profile % Profile::all().count()).unwrap_or_default();
    for profile in [Profile::Generic, chosen] {
        let signals = Signals::read_as(profile, status, &headers, received_at);
        bounded(&signals);
        let with_body = signals.clone().with_body(&input.body);
        bounded(&with_body);
        for signals in [&signals, &with_body] {
            let wait = signals.wait();
            // Whole seconds beside the milliseconds that they are the rounding of.
            let is_finer = signals.source() == Source::RetryAfterMs
                && wait.is_some_and(|wait| floor < Some(wait + Duration::from_secs(1)));
            assert!(
                wait >= floor || is_finer,
                "{profile}: waits {wait:?} where {floor:?} was asked: {input:?}"
            );
        }
        if profile == Profile::Generic {
            assert!(with_body.wait() >= signals.wait(), "the body made the wait shorter: {input:?}");
        }
    }
}

fn bounded(signals: &Signals) {
    let wait = signals.wait();
    assert_eq!(wait.is_none(), signals.source() == Source::None);
    for time in wait.into_iter().chain(signals.repaired_wait()) {
        assert!(time <= LONGEST && time.subsec_nanos() % 1_000_000 == 0, "{time:?}");
    }
    assert_eq!(signals.binding().is_none(), signals.budgets().is_empty());
    for budget in signals.budgets() {
        assert!(budget.reset().is_none_or(|reset| reset <= LONGEST));
        assert!(
            budget.limit().is_some()
                || budget.remaining().is_some()
                || budget.reset().is_some()
                || budget.is_exhausted()
                || budget.name().is_some()
        );
    }
    let mut text = String::new();
    write!(text, "{} {} {signals:?}", signals.source(), signals.class()).expect("a String takes all");
}

/// The longest wait that a strictly valid `Retry-After` among the headers asks for.
fn demanded(headers: &HeaderMap, received_at: SystemTime) -> Option<Duration> {
    let values = headers.get_all("retry-after").into_iter().filter_map(text);
    values.filter_map(|value| delta(value).or_else(|| date_away(value, headers, received_at))).max()
}

fn text(value: &HeaderValue) -> Option<&str> {
    Some(value.to_str().ok()?.trim_matches([' ', '\t']))
}

fn delta(text: &str) -> Option<Duration> {
    let is_delta = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_delta.then(|| Duration::from_secs(text.parse().unwrap_or(u64::MAX)).min(LONGEST))
}

/// An IMF-fixdate, which is what is printed the same again.
fn date(text: &str) -> Option<SystemTime> {
    let date = httpdate::parse_http_date(text).ok()?;
    (httpdate::fmt_http_date(date) == text).then_some(date)
}

/// `None` where it cannot be said without the reader's own leniency what "now" is.
fn date_away(value: &str, headers: &HeaderMap, received_at: SystemTime) -> Option<Duration> {
    let then = date(value)?;
    let away = |now: SystemTime| then.duration_since(now).unwrap_or_default().min(LONGEST);
    let Some(served) = headers.get("date") else { return Some(up(away(received_at))) };
    let age = headers.get("age").map_or(Some(Duration::ZERO), |age| delta(text(age)?))?;
    let served = date(text(served)?)? + age;
    let apart = served.duration_since(received_at).unwrap_or_else(|before| before.duration());
    // Clocks that far apart make the reader choose one, so only the sooner of both is sure.
    let sure = if apart.as_secs() <= DAY { away(served) } else { away(served).min(away(received_at)) };
    Some(up(sure))
}

fn up(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)).min(LONGEST)
}
