//! The server's side: what a refusal, or a success, tells its caller about limits.
//!
//! Renders `Retry-After` (RFC 9110, 10.2.3) and the fields `RateLimit` and `RateLimit-Policy` of
//! draft-ietf-httpapi-ratelimit-headers-10, from plain data. Times round up to whole seconds, so that
//! nobody who obeys comes early, and a refusal never says 0.

use std::time::Duration;

use http::HeaderValue;
use sfv::{Integer, KeyRef, ListSerializer, StringRef, key_ref};
use thiserror::Error;

/// The largest integer of a structured field: 15 digits (RFC 9651, 3.3.1).
const LARGEST: u64 = 999_999_999_999_999;

/// What is left of one quota policy: one item of `RateLimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaState<'a> {
    /// The policy's name, in printable ASCII.
    pub name: &'a str,
    /// Units left (`r`).
    pub remaining: u64,
    /// Time until more of it is there (`t`, whole seconds, rounded up); left out where it is `None`.
    pub reset: Option<Duration>,
}

/// One quota policy: one item of `RateLimit-Policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaPolicy<'a> {
    /// The policy's name, in printable ASCII.
    pub name: &'a str,
    /// Units in a full budget (`q`).
    pub quota: u64,
    /// The period they are for (`w`, whole seconds, rounded up, at least 1); `None` for a concurrency limit.
    pub window: Option<Duration>,
    /// What is counted (`qu`), in printable ASCII; left out where it is the default, `requests`.
    pub unit: &'a str,
}

/// A field that cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// A name or a unit has characters that a structured field cannot hold; name the limit in ASCII.
    #[error("a name in a RateLimit field must be printable ASCII")]
    NotAscii,
    /// There is nothing to say; leave the field out.
    #[error("a RateLimit field needs at least one policy")]
    Empty,
}

/// `Retry-After` in seconds, rounded up, never 0.
pub fn retry_after(wait: Duration) -> HeaderValue {
    HeaderValue::from(seconds_up(wait).max(1))
}

/// `RateLimit`: `"default";r=50;t=30`.
///
/// # Errors
///
/// [`WriteError`] for a name that is not printable ASCII, and for no state at all.
pub fn rate_limit(states: &[QuotaState<'_>]) -> Result<HeaderValue, WriteError> {
    let mut list = ListSerializer::new();
    for state in states {
        let item = list.bare_item(string(state.name)?).parameter(R, integer(state.remaining));
        if let Some(reset) = state.reset {
            let _ = item.parameter(T, integer(seconds_up(reset)));
        }
    }
    value(list)
}

/// `RateLimit-Policy`: `"burst";q=100;w=60`.
///
/// # Errors
///
/// [`WriteError`] for a name or unit that is not printable ASCII, and for no policy at all.
pub fn rate_limit_policy(policies: &[QuotaPolicy<'_>]) -> Result<HeaderValue, WriteError> {
    let mut list = ListSerializer::new();
    for policy in policies {
        let mut item = list.bare_item(string(policy.name)?).parameter(Q, integer(policy.quota));
        if let Some(window) = policy.window {
            item = item.parameter(W, integer(seconds_up(window).max(1)));
        }
        if policy.unit != "requests" {
            let _ = item.parameter(QU, string(policy.unit)?);
        }
    }
    value(list)
}

const R: &KeyRef = key_ref("r");
const T: &KeyRef = key_ref("t");
const Q: &KeyRef = key_ref("q");
const W: &KeyRef = key_ref("w");
const QU: &KeyRef = key_ref("qu");

fn value(list: ListSerializer<String>) -> Result<HeaderValue, WriteError> {
    let text = list.finish().ok_or(WriteError::Empty)?;
    HeaderValue::try_from(text).map_err(|_| WriteError::NotAscii)
}

fn string(text: &str) -> Result<&StringRef, WriteError> {
    StringRef::from_str(text).map_err(|_| WriteError::NotAscii)
}

fn integer(number: u64) -> Integer {
    Integer::try_from(number.min(LARGEST)).expect("15 digits fit")
}

fn seconds_up(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(name: &str, remaining: u64, reset: Option<Duration>) -> Result<HeaderValue, WriteError> {
        rate_limit(&[QuotaState { name, remaining, reset }])
    }

    #[test]
    fn retry_after_rounds_up_and_is_never_zero() {
        let text = |wait| retry_after(wait).to_str().map(ToOwned::to_owned).unwrap_or_default();
        assert_eq!(text(Duration::ZERO), "1");
        assert_eq!(text(Duration::from_nanos(1)), "1");
        assert_eq!(text(Duration::from_millis(1_001)), "2");
        assert_eq!(text(Duration::MAX), u64::MAX.to_string());
    }

    #[test]
    fn states_and_policies_are_lists_of_strings() {
        let states = [
            QuotaState { name: "burst", remaining: 0, reset: Some(Duration::from_millis(41_001)) },
            QuotaState { name: "a\"b", remaining: u64::MAX, reset: None },
        ];
        let expected = r#""burst";r=0;t=42, "a\"b";r=999999999999999"#;
        assert_eq!(rate_limit(&states), Ok(HeaderValue::from_static(expected)));
        let policies = [
            QuotaPolicy {
                name: "burst",
                quota: 100,
                window: Some(Duration::from_millis(1)),
                unit: "requests",
            },
            QuotaPolicy { name: "at-once", quota: 8, window: None, unit: "concurrent-requests" },
        ];
        let expected = r#""burst";q=100;w=1, "at-once";q=8;qu="concurrent-requests""#;
        assert_eq!(rate_limit_policy(&policies), Ok(HeaderValue::from_static(expected)));
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        assert_eq!(state("größe", 1, None), Err(WriteError::NotAscii));
        assert_eq!(state("a\r\nb", 1, None), Err(WriteError::NotAscii));
        assert_eq!(rate_limit(&[]), Err(WriteError::Empty));
        assert_eq!(rate_limit_policy(&[]), Err(WriteError::Empty));
    }
}
