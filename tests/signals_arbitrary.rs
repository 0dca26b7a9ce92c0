//! Any response whatever: arbitrary statuses, fields, bytes and bodies, and valid ones with slips.
//!
//! `PROPTEST_CASES` sets how many are tried.

mod oracle;

use oracle::Input;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

const NAMES: [&str; 66] = [
    "retry-after",
    "retry-after",
    "retry-after-ms",
    "x-ms-retry-after-ms",
    "x-amz-retry-after",
    "date",
    "age",
    "x-should-retry",
    "stripe-should-retry",
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "ratelimit-resettime",
    "ratelimit-observed",
    "ratelimit-name",
    "x-ratelimit",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-used",
    "x-ratelimit-reset",
    "x-ratelimit-reset-after",
    "x-ratelimit-reset-at",
    "x-ratelimit-reset-in",
    "x-ratelimit-reset-ms",
    "x-ratelimit-next",
    "x-ratelimit-retry-after",
    "x-ratelimit-resource",
    "x-rate-limit",
    "x-rate-limit-limit",
    "x-rate-limit-remaining",
    "x-rate-limit-reset",
    "rate-limit-reset",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "x-ratelimit-requests-remaining",
    "x-ratelimit-requests-reset",
    "x-ratelimit-remaining-minute",
    "anthropic-ratelimit-tokens-limit",
    "anthropic-ratelimit-tokens-remaining",
    "anthropic-ratelimit-tokens-reset",
    "anthropic-ratelimit-unified-status",
    "anthropic-ratelimit-unified-reset",
    "anthropic-priority-input-tokens-reset",
    "x-sib-ratelimit-reset",
    "x-app-limit-24hour-reset",
    "x-contentful-ratelimit-reset",
    "x-contentful-ratelimit-second-remaining",
    "fastly-ratelimit-reset",
    "x-amzn-ratelimit-limit",
    "x-amzn-errortype",
    "x-hubspot-ratelimit-max",
    "x-hubspot-ratelimit-remaining",
    "x-hubspot-ratelimit-interval-milliseconds",
    "x-database-lag",
    "x-ratelimitbysize-remaining-minute",
    "ratelimitbysize-reset",
    "x-app-rate-limit",
    "x-app-rate-limit-count",
    "sforce-limit-info",
    "x-shopify-shop-api-call-limit",
    "zendesk-ratelimit-tickets-index",
];

const VALUES: [&str; 50] = [
    "0",
    "1",
    "60",
    "3600",
    "2147483648",
    "18446744073709551616",
    "1.5",
    "-1",
    "0.0167",
    "598.0",
    "120, 60",
    "0, 1000",
    "1, 1419704",
    "00:01:02.5000000",
    "Sun, 29 Nov 2026 11:55:00 GMT",
    "Sun, 29 Nov 2026 12:00:00 GMT",
    "Sun, 29 Nov 2026 12:01:30 GMT",
    "Sun, 29 Nov 2026 12:05:00 GMT",
    "Sunday, 29-Nov-76 12:00:00 GMT",
    "Sun Nov  1 12:02:00 2026",
    "Thu, 31 Dec 2026 23:59:60 GMT",
    "Fri, 31 Dec 9999 23:59:59 GMT",
    "Thu, 01 Jan 1970 00:00:10 GMT",
    "Sun, 29 Nov 2026 07:01:30 -0500",
    "Sun, 29 Nov 2026 07:01:30 EST",
    "2026-11-29T12:01:30Z",
    "2026-11-29T13:00:05.250+01:00",
    "2026-11-29T12:01Z",
    "2026-11-29 12:00:33",
    "Sun Nov 29 2026 13:00:02 GMT+0100 (Central European Standard Time)",
    "1795953640",
    "1795953653000",
    "1795953621.430",
    "6m0s",
    "850\u{b5}s",
    "23h59m51.36s",
    "true",
    "false",
    "allowed",
    "rejected",
    "\"default\";r=0;t=41",
    "\"a\\\"b\";r=9;t=5;r=0, \"daily\";r=0;t=999999999999999",
    "\"default\";q=120;w=60;qu=\"tokens\";pk=:a2V5LTQy:",
    "limit=80, remaining=0, reset=49",
    "100;w=21600",
    "20:1,100:120",
    "39/40",
    "api-usage=18/5000; api-bursts=3/600",
    "total=80; remaining=0; resets=36",
    "{\"name\":\"API\",\"period\":10,\"limit\":50,\"remaining\":0,\"until\":\"2026-11-29T12:00:03Z\"}",
];

const BODIES: [&str; 9] = [
    r#"{"retry_after": 904.18}"#,
    r#"{"errcode":"M_LIMIT_EXCEEDED","retry_after_ms":5001}"#,
    r#"{"error":{"details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.07s"}]}}"#,
    r#"{"error":{"code":"insufficient_quota"}}"#,
    r#"{"error":{"metadata":{"headers":{"X-RateLimit-Remaining":"0","X-RateLimit-Reset":"1795953620000"}}}}"#,
    r#"{"errors":[{"extensions":{"code":"THROTTLED"}}],"extensions":{"cost":{"requestedQueryCost":502,
        "throttleStatus":{"maximumAvailable":2000.0,"currentlyAvailable":80,"restoreRate":100.0}}}}"#,
    r#"{"__type":"ThrottlingException"}"#,
    r#"[{"errorCode":"REQUEST_LIMIT_EXCEEDED"}]"#,
    r#"{"message":"You have exceeded a secondary rate limit"}"#,
];

fn slipped(valid: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let slips = vec((any::<Index>(), any::<u8>(), 0..4u8), 0..4);
    (select(valid), slips, 0..3usize).prop_map(|(valid, slips, keep)| {
        let mut text = valid.as_bytes().to_vec();
        // Two of three stay valid, since a floor is only demanded by what is.
        for (index, byte, kind) in slips.into_iter().filter(|_| keep == 0) {
            let at = index.index(text.len() + 1);
            match kind {
                0 => text.insert(at, byte),
                1 => text.truncate(at),
                2 if at < text.len() => text[at] = byte,
                _ if at < text.len() => drop(text.remove(at)),
                _ => {}
            }
        }
        text
    })
}

fn input() -> impl Strategy<Value = Input> {
    let name = prop_oneof![
        3 => select(&["retry-after", "date"][..]).prop_map(|name| name.as_bytes().to_vec()),
        9 => select(&NAMES[..]).prop_map(|name| name.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..20),
    ];
    let value = prop_oneof![4 => slipped(&VALUES), 1 => vec(any::<u8>(), 0..40)];
    let body = prop_oneof![2 => slipped(&BODIES), 1 => vec(any::<u8>(), 0..60)];
    let status = prop_oneof![
        4 => select(&[200u16, 301, 400, 403, 408, 409, 413, 418, 425, 429, 429, 500, 503, 529][..]),
        1 => any::<u16>(),
    ];
    let clock = prop_oneof![3 => Just(1_795_953_600), 1 => -1_000_000..5_000_000_000i64, 1 => any::<i64>()];
    (status, any::<u8>(), clock, vec((name, value), 0..10), body).prop_map(
        |(status, profile, received_at, headers, body)| Input {
            status,
            profile: profile.into(),
            received_at,
            headers,
            body,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_panic_and_no_wait_below_what_is_demanded(input in input()) {
        oracle::check(&input);
    }
}
