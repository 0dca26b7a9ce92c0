//! Fields that only one service sends, or only one service means that way.
//!
//! Each dialect is the names it owns and how one of their values becomes a budget. A value that does not
//! have its dialect's form is ignored. What a service tells by its status alone is in `decide`.

use std::time::Duration;

use serde_json::Value;

use super::budget::Budget;
use super::clock::Clock;
use super::field::{Field, Fields};
use super::number::{Count, Decimal, trim};
use super::quota::name_unit;
use super::{Profile, Source, body};

/// What a service's own fields say besides its budgets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Own {
    /// The time after which its documentation lets a refused call come back.
    pub(super) floor: Option<Duration>,
    /// The response is a throttle, whatever its status.
    pub(super) is_throttle: bool,
}

/// Whether this profile reads the field itself, so that no one else does.
pub(super) fn owns(profile: Profile, name: &str) -> bool {
    match profile {
        Profile::AmazonSpApi => name == "x-amzn-ratelimit-limit",
        Profile::Aws => name == "x-amzn-errortype",
        Profile::Basecamp => name == "x-ratelimit",
        Profile::HubSpot => name.starts_with("x-hubspot-ratelimit-"),
        Profile::MediaWiki => name == "x-database-lag",
        Profile::Mistral => name.contains("ratelimitbysize-"),
        Profile::Riot => riot_kind(name).is_some(),
        Profile::Salesforce => name == "sforce-limit-info",
        Profile::Shopify => name == "x-shopify-shop-api-call-limit",
        Profile::Zendesk => name.starts_with("zendesk-ratelimit-"),
        _ => false,
    }
}

/// Reads the fields that the profile owns.
pub(super) fn read(
    profile: Profile,
    fields: &Fields<'_>,
    clock: &Clock<'_>,
    budgets: &mut Vec<Budget>,
) -> Own {
    let mut own = Own::default();
    let lines: Vec<(&str, &[u8])> = fields
        .lines
        .iter()
        .filter_map(|(field, value)| match field {
            Field::Own(name) => Some((*name, trim(value))),
            _ => None,
        })
        .collect();
    match profile {
        Profile::HubSpot => own.floor = hubspot(&lines, budgets),
        Profile::Mistral => mistral(&lines, clock, budgets),
        Profile::Riot => riot(&lines, budgets),
        _ => {}
    }
    for (name, value) in lines {
        match profile {
            Profile::AmazonSpApi => own.floor = Decimal::parse(value).and_then(Decimal::one_at_this_rate),
            Profile::Aws => own.is_throttle = body::is_aws_throttle(&String::from_utf8_lossy(value)),
            Profile::Basecamp => budgets.extend(basecamp(value, clock)),
            Profile::MediaWiki => {
                own.is_throttle = fields.values(|f| matches!(f, Field::RetryAfter)).count() > 0
            }
            Profile::Salesforce => budgets.extend(salesforce(value)),
            Profile::Shopify => budgets.extend(used_of_limit(value)),
            Profile::Zendesk => budgets.extend(zendesk(name, value, clock)),
            _ => {}
        }
    }
    own
}

fn vendor(limit: Option<u64>, remaining: Option<u64>) -> Option<Budget> {
    let budget = Budget { limit, remaining, ..Budget::new(Source::Vendor) };
    (!budget.says_nothing()).then_some(budget)
}

fn requests(limit: u64, used: u64) -> Budget {
    let remaining = Some(limit.saturating_sub(used));
    Budget { limit: Some(limit), remaining, unit: Some(name_unit("requests")), ..Budget::new(Source::Vendor) }
}

/// A count as a budget holds it: a limit that is negative or a fraction is none, what is left rounds down.
fn limit(value: &[u8]) -> Option<u64> {
    Count::parse(value).filter(|count| !count.fractional).and_then(|count| u64::try_from(count.value).ok())
}

fn remaining(value: &[u8]) -> Option<u64> {
    Count::parse(value).map(|count| u64::try_from(count.value).unwrap_or(0))
}

/// `39/40`.
fn used_of_limit(value: &[u8]) -> Option<Budget> {
    let slash = value.iter().position(|byte| *byte == b'/')?;
    Some(requests(limit(&value[slash + 1..])?, limit(&value[..slash])?))
}

/// `api-usage=18/5000; api-bursts=3/600`, and older `api-usage=18/5000, per-app-api-usage=17/250(app)`.
fn salesforce(value: &[u8]) -> Vec<Budget> {
    let budget = |part: &[u8]| {
        let equals = part.iter().position(|byte| *byte == b'=')?;
        let pair = &part[equals + 1..];
        let end = pair.iter().position(|byte| *byte == b'(').unwrap_or(pair.len());
        let name = std::str::from_utf8(trim(&part[..equals])).ok()?;
        Some(Budget { name: Some(name.into()), ..used_of_limit(&pair[..end])? })
    };
    value.split(|byte| matches!(byte, b';' | b',')).filter_map(budget).collect()
}

/// `{"name":"API","period":10,"limit":50,"remaining":0,"until":"2026-11-29T12:00:03Z"}`.
fn basecamp(value: &[u8], clock: &Clock<'_>) -> Option<Budget> {
    let state: Value = serde_json::from_slice(value).ok()?;
    let budget =
        vendor(state["limit"].as_u64(), state["remaining"].as_i64().map(|n| n.max(0).unsigned_abs()))?;
    Some(Budget {
        name: state["name"].as_str().map(Into::into),
        reset: state["until"].as_str().and_then(|until| clock.until_written(until.as_bytes())),
        window: body::time(&state["period"], |n| n.seconds()),
        ..budget
    })
}

/// `total=80; remaining=0; resets=36` for one endpoint.
fn zendesk(name: &str, value: &[u8], clock: &Clock<'_>) -> Option<Budget> {
    let member = |wanted: &[u8]| {
        value.split(|byte| matches!(byte, b';' | b',')).find_map(|part| {
            let rest = trim(part).strip_prefix(wanted)?;
            trim(rest).strip_prefix(b"=").map(trim)
        })
    };
    let reset = member(b"resets").and_then(|resets| clock.reset(resets)).map(|reset| reset.time());
    let budget = Budget {
        name: name.strip_prefix("zendesk-ratelimit-").map(Into::into),
        limit: member(b"total").and_then(limit),
        remaining: member(b"remaining").and_then(remaining),
        reset,
        ..Budget::new(Source::Vendor)
    };
    (!budget.says_nothing()).then_some(budget)
}

/// The interval is the length of a rolling window: an exhausted one is over by then, and nothing is said
/// about when the day's budget returns.
fn hubspot(lines: &[(&str, &[u8])], budgets: &mut Vec<Budget>) -> Option<Duration> {
    let field = |name: &str| {
        let is_it = |line: &&str| line.strip_prefix("x-hubspot-ratelimit-") == Some(name);
        lines.iter().find(|(line, _)| is_it(line)).map(|(_, value)| *value)
    };
    let interval = field("interval-milliseconds").and_then(Decimal::parse).map(Decimal::millis);
    let mut floor = None;
    for (full, left, window) in [
        ("max", "remaining", interval),
        ("secondly", "secondly-remaining", Some(Duration::from_secs(1))),
        ("daily", "daily-remaining", Some(Duration::from_secs(86_400))),
    ] {
        let Some(budget) = vendor(field(full).and_then(limit), field(left).and_then(remaining)) else {
            continue;
        };
        if budget.is_exhausted() && full != "daily" {
            floor = floor.max(window);
        }
        budgets.push(Budget { window, name: Some(full.into()), ..budget });
    }
    floor
}

/// `x-ratelimitbysize-{limit,remaining}-{minute,month}`; the reset is the minute's.
fn mistral(lines: &[(&str, &[u8])], clock: &Clock<'_>, budgets: &mut Vec<Budget>) {
    let field = |role: &str, window: &str| {
        lines.iter().find_map(|(name, value)| {
            let rest = name.split_once("ratelimitbysize-")?.1;
            (rest.strip_prefix(role)?.strip_prefix('-').unwrap_or("minute") == window).then_some(*value)
        })
    };
    for window in ["minute", "month"] {
        let reset = field("reset", window).and_then(|reset| clock.reset(reset));
        let budget = Budget {
            name: Some(window.into()),
            unit: Some(name_unit("tokens")),
            limit: field("limit", window).and_then(limit),
            remaining: field("remaining", window).and_then(remaining),
            reset: reset.map(|reset| reset.time()),
            ..Budget::new(Source::Vendor)
        };
        if !budget.says_nothing() {
            budgets.push(budget);
        }
    }
}

/// `X-App-Rate-Limit: 20:1,100:120` beside `X-App-Rate-Limit-Count: 3:1,99:120`, paired by their seconds.
fn riot(lines: &[(&str, &[u8])], budgets: &mut Vec<Budget>) {
    for (name, value) in lines.iter().filter(|(name, _)| !name.ends_with("-count")) {
        let counts = lines.iter().find(|(line, _)| line.strip_suffix("-count") == Some(name));
        let counts = counts.map_or(&b""[..], |(_, counts)| counts);
        for (limit, seconds) in riot_pairs(value) {
            let used = riot_pairs(counts).find(|(_, window)| *window == seconds).map(|(used, _)| used);
            let budget = requests(limit, used.unwrap_or(0));
            budgets.push(Budget {
                name: riot_kind(name).map(Into::into),
                remaining: used.and(budget.remaining),
                window: Some(Duration::from_secs(seconds)),
                ..budget
            });
        }
    }
}

fn riot_kind(name: &str) -> Option<&str> {
    let (kind, rest) = name.strip_prefix("x-")?.split_once("-rate-limit")?;
    let is_list = matches!(rest, "" | "-count");
    (is_list && matches!(kind, "app" | "method" | "service")).then_some(kind)
}

fn riot_pairs(value: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    value.split(|byte| *byte == b',').filter_map(|pair| {
        let colon = pair.iter().position(|byte| *byte == b':')?;
        Some((limit(&pair[..colon])?, limit(&pair[colon + 1..])?))
    })
}
