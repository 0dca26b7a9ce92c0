//! What a JSON body says about waiting, for services that say it nowhere else.
//!
//! Only members with a documented name are read: never prose, and never a body over 64 KiB. What is not
//! JSON, or not of the form, says nothing. A body can lengthen what the headers asked for or fill it in
//! where they are silent; it cannot shorten it.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::{Number, Value};

use super::budget::Budget;
use super::clock::{Clock, FixedClock};
use super::field::Fields;
use super::number::{Decimal, LONGEST, from_millis, go_duration};
use super::quota::name_unit;
use super::retry_after::Asked;
use super::{Profile, Source, quota};

/// Larger bodies are not read.
const MOST_BYTES: usize = 64 * 1024;

/// What a body told.
#[derive(Default)]
pub(super) struct Told {
    pub(super) wait: Option<Duration>,
    /// The response is a throttle, whatever its status.
    pub(super) is_throttle: bool,
    /// Trying again cannot help: a quota that only money or a month brings back.
    pub(super) is_permanent: bool,
    pub(super) budgets: Vec<Budget>,
}

impl Told {
    pub(super) fn read(profile: Profile, status: StatusCode, body: &[u8], clock: Option<FixedClock>) -> Self {
        if body.len() > MOST_BYTES {
            return Self::default();
        }
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        let body = match serde_json::from_slice::<Value>(body) {
            Ok(Value::Array(parts)) => parts.into_iter().next().unwrap_or_default(),
            Ok(body) => body,
            Err(_) => return Self::default(),
        };
        let mut told = Self { is_throttle: is_throttle(profile, status, &body), ..Self::default() };
        if profile == Profile::Shopify {
            told.shopify(&body["extensions"]["cost"]);
        }
        if told.is_throttle || matches!(status.as_u16(), 429 | 503 | 529) {
            told.wait = told.wait.max(wait(&body));
            told.is_permanent = is_permanent(&body);
            if let Some(clock) = clock {
                told.openrouter(&body["error"]["metadata"]["headers"], &clock.clock());
            }
        }
        told
    }

    /// The cost of a GraphQL query against a bucket of points that refills at a rate a second.
    fn shopify(&mut self, cost: &Value) {
        let bucket = &cost["throttleStatus"];
        let points = |value: &Value| value.as_f64().filter(|points| *points >= 0.0);
        let left = points(&bucket["currentlyAvailable"]);
        let budget = Budget {
            unit: Some(name_unit("points")),
            // A cast of a float saturates and rounds towards zero, as credit does.
            limit: points(&bucket["maximumAvailable"]).map(|points| points as u64),
            remaining: left.map(|points| points as u64),
            ..Budget::new(Source::Body)
        };
        let missing = points(&cost["requestedQueryCost"]).zip(left).map(|(asked, left)| asked - left);
        let rate = points(&bucket["restoreRate"]).filter(|rate| *rate > 0.0);
        if let (true, Some(missing), Some(rate)) = (self.is_throttle, missing, rate) {
            self.wait = Some(from_millis((missing * 1_000.0 / rate).ceil().max(0.0) as u128));
        }
        if !budget.says_nothing() {
            self.budgets.push(budget);
        }
    }

    /// The headers of the provider behind it, as members of an object.
    fn openrouter(&mut self, members: &Value, clock: &Clock<'_>) {
        let mut headers = HeaderMap::new();
        for (name, value) in members.as_object().into_iter().flatten() {
            let value = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
            let name = HeaderName::from_bytes(name.as_bytes());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&value)) {
                headers.append(name, value);
            }
        }
        let mut fields = Fields::none();
        fields.gather(Profile::Generic, &headers);
        let asked = Asked::read(&fields, clock).wait();
        self.wait = self.wait.max(asked.map(|(wait, _)| wait));
        quota::read(&fields, clock, &mut self.budgets);
        self.budgets.iter_mut().for_each(|budget| budget.source = Source::Body);
    }
}

/// The longest of the waits that the body states.
fn wait(body: &Value) -> Option<Duration> {
    const SECONDS: [&str; 3] = ["retry_after", "retry_after_seconds", "retryAfterSeconds"];
    const MILLIS: [&str; 2] = ["retry_after_ms", "retryAfterMs"];
    let places = [body, &body["error"], &body["details"], &body["parameters"]];
    let stated = places.into_iter().flat_map(|place| {
        let seconds = SECONDS.iter().filter_map(|name| time(&place[*name], |n| n.seconds()));
        seconds.chain(MILLIS.iter().filter_map(|name| time(&place[*name], |n| n.millis())))
    });
    stated.chain(retry_info(&body["error"]["details"])).chain(retry_info(&body["details"])).max()
}

/// google.rpc.RetryInfo, whose delay is a protobuf Duration: a decimal that ends in `s`.
fn retry_info(details: &Value) -> Option<Duration> {
    let infos = details
        .as_array()?
        .iter()
        .filter(|detail| detail["@type"].as_str().is_some_and(|kind| kind.ends_with("google.rpc.RetryInfo")));
    let delays = infos.filter_map(|info| info["retryDelay"].as_str()?.strip_suffix('s'));
    delays.filter_map(|delay| Decimal::parse(delay.as_bytes())).map(Decimal::seconds).max()
}

/// A number in `unit`, or a string that holds one.
pub(super) fn time(value: &Value, unit: fn(Decimal<'_>) -> Duration) -> Option<Duration> {
    match value {
        Value::Number(number) => time_of(number, unit),
        Value::String(text) => {
            Decimal::parse(text.as_bytes()).map(unit).or_else(|| go_duration(text.as_bytes()))
        }
        _ => None,
    }
}

fn time_of(number: &Number, unit: fn(Decimal<'_>) -> Duration) -> Option<Duration> {
    // Its shortest decimal form is what was sent; the float's product with 1,000 may lie a hair above it.
    if let Some(number) = Decimal::parse(number.to_string().as_bytes()) {
        return Some(unit(number));
    }
    // Only a sign or an exponent is left, and exponents are written for the very large and very small.
    match number.as_f64()? {
        value if value >= 1.0 => Some(LONGEST),
        value if value > 0.0 => Some(Duration::from_millis(1)),
        _ => None,
    }
}

/// Codes of quotas that waiting does not bring back.
fn is_permanent(body: &Value) -> bool {
    let error = &body["error"];
    let codes =
        [&error["code"], &error["type"], &error["details"]["error_code"], &body["code"], &body["type"]];
    codes.iter().filter_map(|code| code.as_str()).any(|code| {
        matches!(
            code,
            "insufficient_quota"
                | "billing_hard_limit_reached"
                | "billing_not_active"
                | "enforced_spend_limit_reached"
        )
    })
}

/// Whether a service tells a throttle in its body, under a status that does not say so.
fn is_throttle(profile: Profile, status: StatusCode, body: &Value) -> bool {
    let is = |value: &Value, codes: &[&str]| value.as_str().is_some_and(|code| codes.contains(&code));
    let any_error = |codes: &[&str]| {
        body["errors"]
            .as_array()
            .is_some_and(|errors| errors.iter().any(|e| is(&e["extensions"]["code"], codes)))
    };
    match profile {
        Profile::Aws => {
            let code = body["__type"].as_str().or_else(|| body["code"].as_str());
            status == StatusCode::BAD_REQUEST && code.is_some_and(is_aws_throttle)
        }
        // The page that the documentation links names the limit; the message beside it is prose.
        Profile::GitHub => {
            let page = body["documentation_url"].as_str().unwrap_or_default();
            let names_limit = page.contains("secondary-rate-limit") || page.contains("abuse-rate-limit");
            let is_graphql = || {
                let errors = body["errors"].as_array();
                errors.is_some_and(|errors| {
                    errors.iter().any(|error| is(&error["type"], &["RATE_LIMITED", "RATE_LIMIT"]))
                })
            };
            names_limit || is_graphql() || (status.is_client_error() && has_github_phrase(body))
        }
        Profile::Linear => any_error(&["RATELIMITED"]),
        Profile::MediaWiki => is(&body["error"]["code"], &["maxlag", "ratelimited"]),
        Profile::Salesforce => is(&body["errorCode"], &["REQUEST_LIMIT_EXCEEDED"]),
        Profile::Shopify => any_error(&["THROTTLED"]),
        Profile::Slack => is(&body["error"], &["ratelimited", "rate_limited"]),
        _ => false,
    }
}

/// GitHub's secondary limit may come with no field of its own but its message, which has been the same for
/// years, in two wordings. It only adds a limit where nothing else tells one, and no number is taken from it.
fn has_github_phrase(body: &Value) -> bool {
    const PHRASES: [&str; 2] = ["secondary rate limit", "abuse detection mechanism"];
    body["message"].as_str().is_some_and(|message| PHRASES.iter().any(|phrase| message.contains(phrase)))
}

/// Whether an AWS error code, as `x-amzn-ErrorType` or `__type` writes it, is one of throttling.
pub(super) fn is_aws_throttle(code: &str) -> bool {
    let code = code.split(':').next().unwrap_or(code);
    let code = code.rsplit('#').next().unwrap_or(code);
    matches!(
        code,
        "Throttling"
            | "ThrottlingException"
            | "ThrottledException"
            | "RequestThrottled"
            | "RequestThrottledException"
            | "TooManyRequestsException"
            | "ProvisionedThroughputExceededException"
            | "RequestLimitExceeded"
            | "BandwidthLimitExceeded"
            | "LimitExceededException"
            | "PriorRequestNotComplete"
            | "TransactionInProgressException"
            | "SlowDown"
    )
}
