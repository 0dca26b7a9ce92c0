//! Which header fields speak about limits: one pass over the names of a response's headers.
//!
//! Families of fields are recognised by their stem and role, in either order of role and unit:
//! `x-ratelimit-reset-tokens`, `x-ratelimit-requests-reset`, `anthropic-ratelimit-tokens-reset`. Values
//! are only looked at later, and only where a name was found: a plain 200 costs a few comparisons a
//! field, no allocation and no date.

use http::{HeaderMap, HeaderValue};
use smallvec::SmallVec;

use super::{Profile, vendor};

/// Budgets' fields are read up to this many; more than any service sends.
const MOST: usize = 64;

/// What a field is about.
#[derive(Clone, Copy)]
pub(super) enum Field<'h> {
    RetryAfter,
    RetryAfterMs,
    /// Milliseconds, despite its name.
    AmzRetryAfter,
    /// Seconds, in the `X-RateLimit` family.
    XRetryAfter,
    ShouldRetry,
    /// The IETF field of one of the drafts since 07.
    RateLimit,
    RateLimitPolicy,
    Quota(Quota<'h>),
    /// A field that only the profile in use understands, by its name.
    Own(&'h str),
}

/// One number of a budget, in a field of its own.
#[derive(Clone, Copy)]
pub(super) struct Quota<'h> {
    pub(super) family: Family,
    /// What is counted, and over which period: `tokens`, `requests-day`; empty where the name says neither.
    pub(super) key: &'h str,
    pub(super) role: Role,
}

impl Quota<'_> {
    /// Whether both are about the same budget.
    pub(super) fn is_beside(&self, other: &Quota<'_>) -> bool {
        self.family == other.family && self.key == other.key
    }
}

/// Fields that speak of the same budgets.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Family {
    /// The three fields of the IETF drafts 01 to 06.
    Ietf,
    /// `X-RateLimit-*` in its spellings.
    X,
    Anthropic,
    AnthropicPriority,
    Brevo,
    Contentful,
    Fastly,
    TwitterUser,
    TwitterApp,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Role {
    Limit,
    Remaining,
    Used,
    Reset,
    ResetAfter,
    ResetMillis,
    Standing,
    Name,
    RetryAfter,
}

const STEMS: [(&str, Family); 11] = [
    ("ratelimit", Family::Ietf),
    ("x-ratelimit", Family::X),
    ("x-rate-limit", Family::X),
    ("rate-limit", Family::X),
    ("anthropic-ratelimit", Family::Anthropic),
    ("anthropic-priority", Family::AnthropicPriority),
    ("x-sib-ratelimit", Family::Brevo),
    ("x-contentful-ratelimit", Family::Contentful),
    ("fastly-ratelimit", Family::Fastly),
    ("x-user-limit-24hour", Family::TwitterUser),
    ("x-app-limit-24hour", Family::TwitterApp),
];

/// Roles that a unit may stand next to.
const COUNTED: [(&str, Role); 6] = [
    ("reset-after", Role::ResetAfter),
    ("reset", Role::Reset),
    ("remaining", Role::Remaining),
    ("limit", Role::Limit),
    ("used", Role::Used),
    ("status", Role::Standing),
];

/// Roles whose name is the whole rest.
const ALONE: [(&str, Role); 15] = [
    ("resettime", Role::Reset),
    ("reset-time", Role::Reset),
    ("reset-timestamp", Role::Reset),
    ("reset-date", Role::Reset),
    ("reset-at", Role::Reset),
    ("reset-in", Role::ResetAfter),
    ("reset-seconds", Role::ResetAfter),
    ("reset-ms", Role::ResetMillis),
    ("next", Role::Reset),
    ("observed", Role::Used),
    ("name", Role::Name),
    ("resource", Role::Name),
    ("bucket", Role::Name),
    ("retry-after", Role::RetryAfter),
    ("retry-after-seconds", Role::RetryAfter),
];

/// The fields of a response that speak about limits, in their order, and what dates are counted from.
pub(super) struct Fields<'h> {
    pub(super) lines: SmallVec<[(Field<'h>, &'h [u8]); 12]>,
    pub(super) date: Option<&'h [u8]>,
    pub(super) age: Option<&'h [u8]>,
}

impl<'h> Fields<'h> {
    pub(super) fn none() -> Self {
        Self { lines: SmallVec::new(), date: None, age: None }
    }

    /// In the caller's place, for they are many bytes and mostly empty.
    pub(super) fn gather(&mut self, profile: Profile, headers: &'h HeaderMap) {
        for (name, value) in headers {
            match name.as_str() {
                "date" => self.date = self.date.or(Some(value.as_bytes())),
                "age" => self.age = self.age.or(Some(value.as_bytes())),
                name => self.push(profile, name, value),
            }
        }
    }

    fn push(&mut self, profile: Profile, name: &'h str, value: &'h HeaderValue) {
        let Some(field) = recognise(profile, name) else { return };
        let is_one_of_many = matches!(field, Field::Quota(_) | Field::Own(_));
        if !is_one_of_many || self.lines.len() < MOST {
            self.lines.push((field, value.as_bytes()));
        }
    }

    /// The values of the fields that `wanted` picks.
    pub(super) fn values(&self, wanted: impl Fn(Field<'h>) -> bool) -> impl Iterator<Item = &'h [u8]> {
        self.lines.iter().filter(move |(field, _)| wanted(*field)).map(|(_, value)| *value)
    }
}

fn recognise(profile: Profile, name: &str) -> Option<Field<'_>> {
    if profile != Profile::Generic && vendor::owns(profile, name) {
        return Some(Field::Own(name));
    }
    match name {
        "retry-after" => Some(Field::RetryAfter),
        "retry-after-ms" | "x-ms-retry-after-ms" => Some(Field::RetryAfterMs),
        "x-amz-retry-after" => Some(Field::AmzRetryAfter),
        "x-should-retry" | "stripe-should-retry" => Some(Field::ShouldRetry),
        "ratelimit" => Some(Field::RateLimit),
        "ratelimit-policy" => Some(Field::RateLimitPolicy),
        name if matches!(name.as_bytes().first(), Some(b'r' | b'x' | b'a' | b'f')) => quota(profile, name),
        _ => None,
    }
}

fn quota(profile: Profile, name: &str) -> Option<Field<'_>> {
    let (rest, family) = STEMS.iter().find_map(|(stem, family)| {
        let rest = name.strip_prefix(stem)?;
        (rest.is_empty() || rest.starts_with('-')).then_some((rest, *family))
    })?;
    let rest = rest.strip_prefix('-').unwrap_or(rest);
    let (key, role) = match rest {
        "" => ("", Role::Limit),
        rest => role(rest)?,
    };
    Some(match role {
        Role::RetryAfter => Field::XRetryAfter,
        Role::Reset if profile == Profile::Prisjakt && family == Family::X => {
            Field::Quota(Quota { family, key, role: Role::ResetMillis })
        }
        role => Field::Quota(Quota { family, key, role }),
    })
}

fn role(rest: &str) -> Option<(&str, Role)> {
    if let Some((_, role)) = ALONE.iter().find(|(name, _)| rest == *name) {
        return Some(("", *role));
    }
    let before = COUNTED.iter().find_map(|(name, role)| {
        let key = rest.strip_prefix(name)?;
        if key.is_empty() { Some(("", *role)) } else { Some((key.strip_prefix('-')?, *role)) }
    });
    before.or_else(|| {
        COUNTED.iter().find_map(|(name, role)| Some((rest.strip_suffix(name)?.strip_suffix('-')?, *role)))
    })
}
