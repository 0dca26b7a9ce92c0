//! Faults that readers of these signals really had, each by its name.

use std::time::{Duration, SystemTime};

use forbear::{Class, Profile, Signals, Source};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// Sun, 29 Nov 2026 12:00:00 GMT.
const NOON: Duration = Duration::from_secs(1_795_953_600);
const LONGEST: Duration = Duration::from_secs(1 << 31);

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let line = |(name, value): &(&str, &str)| {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
        (name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"))
    };
    lines.iter().map(line).collect()
}

fn read_at(now: Duration, profile: Profile, status: u16, lines: &[(&str, &str)]) -> Signals {
    let status = StatusCode::from_u16(status).expect("a status");
    Signals::read_as(profile, status, &headers(lines), SystemTime::UNIX_EPOCH + now)
}

fn read(status: u16, lines: &[(&str, &str)]) -> Signals {
    read_at(NOON, Profile::Generic, status, lines)
}

fn wait(lines: &[(&str, &str)]) -> Option<Duration> {
    read(429, lines).wait()
}

fn seconds(n: u64) -> Option<Duration> {
    Some(Duration::from_secs(n))
}

#[test]
fn b005_a_date_is_read_against_the_services_own_clock() {
    let five_fast = NOON + Duration::from_secs(5);
    let date = ("date", "Sun, 29 Nov 2026 12:00:00 GMT");
    let retry_after = ("retry-after", "Sun, 29 Nov 2026 12:00:03 GMT");
    assert_eq!(read_at(five_fast, Profile::Generic, 429, &[date, retry_after]).wait(), seconds(3));
    // Without a Date it has passed: zero, which leaves the own backoff to decide.
    assert_eq!(read_at(five_fast, Profile::Generic, 429, &[retry_after]).wait(), seconds(0));
}

#[test]
fn b013_what_is_too_long_to_count_is_very_long() {
    for value in
        ["9999999999", "18446744073709551615", "99999999999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"]
    {
        let signals = read(429, &[("retry-after", value)]);
        assert_eq!(signals.wait(), Some(LONGEST), "{value}");
        assert_eq!(signals.source(), Source::RetryAfter);
    }
}

#[test]
fn b016_a_wait_above_any_cap_is_still_told() {
    for n in [60, 61, 75, 1_209_600] {
        assert_eq!(wait(&[("retry-after", &n.to_string())]), seconds(n));
    }
}

#[test]
fn b031_a_negative_delay_is_absent() {
    for value in ["-5", "-0", "-1.5"] {
        let signals = read(429, &[("retry-after", value)]);
        assert_eq!((signals.wait(), signals.source()), (None, Source::None), "{value}");
        assert_eq!(signals.class(), Class::Throttle);
    }
}

#[test]
fn b053_a_fraction_is_read_and_rounds_up() {
    assert_eq!(wait(&[("retry-after", "1.5")]), Some(Duration::from_millis(1_500)));
    assert_eq!(wait(&[("retry-after", "1.0001")]), Some(Duration::from_millis(1_001)));
}

#[test]
fn a_unit_that_is_spelled_out_leaves_no_doubt() {
    for (value, secs) in [
        ("30 s", 30),
        ("30 seconds", 30),
        ("1 Second", 1),
        ("2 min", 120),
        ("0.5 hours", 1_800),
        ("2000 milliseconds", 2),
        ("1 day", 86_400),
    ] {
        assert_eq!(wait(&[("retry-after", value)]), seconds(secs), "{value:?}");
    }
    for value in ["30 apples", "s", "- 30 s", "30 s ago"] {
        assert_eq!(wait(&[("retry-after", value)]), None, "{value:?}");
    }
}

#[test]
fn a_reset_that_was_joined_or_has_parameters_is_read() {
    let date = ("date", "Sun, 29 Nov 2026 12:00:00 GMT");
    for (reset, secs) in
        [("17, 60", 60), ("17;w=60", 17), ("17 seconds", 17), ("soon, 5", 5), ("1795953610,1795953640", 40)]
    {
        let fields = [date, ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", reset)];
        assert_eq!(wait(&fields), seconds(secs), "{reset:?}");
    }
    let fields = [date, ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "soon")];
    assert_eq!(wait(&fields), None);
    for (name, reset, secs) in
        [("reset-after", "17, 60", 60), ("reset-in", "7;w=60", 7), ("reset-ms", "1, 2000", 2)]
    {
        let name = format!("x-ratelimit-{name}");
        assert_eq!(wait(&[("x-ratelimit-remaining", "0"), (&name, reset)]), seconds(secs), "{name}: {reset}");
    }
}

#[test]
fn lists_without_end_are_one_budget() {
    let (zeros, ones) = (["0"; 20_000].join(","), ["1"; 20_000].join(","));
    let signals = read(429, &[("x-ratelimit-remaining", &zeros), ("x-ratelimit-reset", &ones)]);
    assert_eq!((signals.budgets().len(), signals.wait()), (1, seconds(1)));
}

#[test]
fn of_two_limits_the_one_that_is_known_counts_in_any_order() {
    let mut lines = [("x-ratelimit-limit", "-1"), ("x-rate-limit", "700"), ("x-ratelimit-remaining", "9")];
    for _ in 0..2 {
        let signals = read(200, &lines);
        assert_eq!(signals.binding().and_then(|budget| budget.limit()), Some(700), "{lines:?}");
        lines.reverse();
    }
}

#[test]
fn b074_a_body_that_is_not_json_takes_nothing_from_the_header() {
    let signals = read(429, &[("content-type", "text/html"), ("retry-after", "3")]);
    let signals = signals.with_body(b"<html>busy</html>");
    assert_eq!((signals.wait(), signals.source()), (seconds(3), Source::RetryAfter));
}

#[test]
fn b083_a_403_is_a_limit_only_where_something_says_so() {
    let date = ("date", "Sun, 29 Nov 2026 12:00:00 GMT");
    let asked = [date, ("retry-after", "60")];
    let exhausted = [date, ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1795953690")];
    let left = [date, ("x-ratelimit-remaining", "4999"), ("x-ratelimit-reset", "1795953690")];
    let secondary = br#"{"message":"You have exceeded a secondary rate limit.",
        "documentation_url":"https://docs.github.com/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits"}"#;
    let permission = br#"{"message":"Resource not accessible by integration"}"#;
    let answer = |signals: Signals| (signals.class(), signals.wait());
    for profile in [Profile::Generic, Profile::GitHub] {
        let read = |lines: &[(&str, &str)]| read_at(NOON, profile, 403, lines);
        assert_eq!(answer(read(&asked)), (Class::Throttle, seconds(60)));
        assert_eq!(answer(read(&exhausted)), (Class::Throttle, seconds(90)));
        assert_eq!(answer(read(&left)), (Class::None, None));
        assert_eq!(answer(read(&left).with_body(permission)), (Class::None, None));
    }
    let with = |profile: Profile| answer(read_at(NOON, profile, 403, &left).with_body(secondary));
    assert_eq!(with(Profile::GitHub), (Class::Throttle, seconds(60)));
    assert_eq!(with(Profile::Generic), (Class::None, None));
}

#[test]
fn b088_junk_after_digits_is_absent() {
    for value in ["120junk", "12 0", "0x10", "5,5", "", "  "] {
        let signals = read(429, &[("retry-after", value)]);
        assert_eq!((signals.wait(), signals.source()), (None, Source::None), "{value:?}");
    }
    assert_eq!(wait(&[("retry-after", "   7  ")]), seconds(7));
}

#[test]
fn b092_each_field_is_used_on_its_own() {
    assert_eq!(wait(&[("retry-after", "2"), ("x-ratelimit-global", "true")]), seconds(2));

    let only_remaining = read(200, &[("x-ratelimit-remaining", "7")]);
    let budget = only_remaining.binding().expect("one budget");
    assert_eq!((budget.limit(), budget.remaining(), budget.reset()), (None, Some(7), None));

    let only_reset = read(200, &[("x-ratelimit-reset", "9")]);
    let budget = only_reset.binding().expect("one budget");
    assert_eq!((budget.remaining(), budget.reset(), budget.is_exhausted()), (None, seconds(9), false));

    let unreadable = read(200, &[("x-ratelimit-remaining", "abc")]);
    assert_eq!((unreadable.budgets().len(), unreadable.wait()), (0, None));
}

#[test]
fn b139_the_longer_of_header_and_body_holds() {
    let told = |header: &str| {
        let signals = read(429, &[("retry-after", header)]).with_body(br#"{"retry_after": 2}"#);
        (signals.wait(), signals.source())
    };
    assert_eq!(told("0"), (seconds(2), Source::Body));
    assert_eq!(told("5"), (seconds(5), Source::RetryAfter));
}

#[test]
fn b152_the_header_decides_whatever_the_text_says() {
    let signals = read_at(NOON, Profile::GitHub, 403, &[("retry-after", "60")]);
    let signals = signals.with_body(br#"{"message":"a phrase that no one has seen before"}"#);
    assert_eq!((signals.class(), signals.wait()), (Class::Throttle, seconds(60)));
}

#[test]
fn b158_seconds_and_milliseconds_are_told_apart_by_size() {
    let reset = |value: &str| {
        let lines = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", value)];
        read_at(Duration::from_secs(1_759_999_990), Profile::Generic, 429, &lines).wait()
    };
    assert_eq!(reset("1760000000"), seconds(10));
    assert_eq!(reset("1760000000000"), seconds(10));
    for garbage in ["4133980800", "99999999999", "4133980800000", "99999999999999", "176000000000000000"] {
        assert_eq!(reset(garbage), None, "{garbage}");
    }
}

#[test]
fn b178_a_date_has_no_local_zone() {
    // The reader never asks for one: the zone is the header's, and the wait the same wherever this runs.
    for value in
        ["Sun, 29 Nov 2026 12:00:05 GMT", "Sun, 29 Nov 2026 07:00:05 -0500", "2026-11-29T17:30:05+05:30"]
    {
        assert_eq!(wait(&[("retry-after", value)]), seconds(5), "{value}");
    }
}

#[test]
fn a_joined_retry_after_is_the_longest_valid_part() {
    for (value, right) in [
        ("5, 60", seconds(60)),
        ("60,5,7", seconds(60)),
        ("junk, 30", seconds(30)),
        ("10, Sun, 29 Nov 2026 12:00:45 GMT", seconds(45)),
        ("Sun, 29 Nov 2026 12:00:45 GMT, Sun, 29 Nov 2026 12:00:50 GMT", seconds(50)),
        ("junk, more", None),
        ("1,000", None),
        ("1,000,000", None),
        ("3600,120,120", seconds(3_600)),
        (",", None),
    ] {
        assert_eq!(wait(&[("retry-after", value)]), right, "{value}");
    }
}

#[test]
fn nothing_is_learnt_from_the_budgets_of_a_cached_response() {
    let lines = [("age", "20"), ("ratelimit", r#""default";r=0;t=41"#), ("x-ratelimit-remaining", "0")];
    assert!(read(200, &lines).budgets().is_empty());
    assert_eq!(read(200, &[("age", "0"), ("ratelimit", r#""default";r=0;t=41"#)]).budgets().len(), 1);
}

#[test]
fn families_by_window_and_unit_are_told_apart() {
    let signals = read(
        429,
        &[
            ("x-ratelimit-limit-minute", "10"),
            ("x-ratelimit-remaining-minute", "0"),
            ("x-ratelimit-limit-tokens-day", "1000"),
            ("x-ratelimit-remaining-tokens-day", "900"),
            ("x-ratelimit-reset-tokens-day", "4000.5"),
        ],
    );
    let [minute, day] = signals.budgets() else { panic!("two budgets, got {:?}", signals.budgets()) };
    assert_eq!((minute.unit(), minute.window(), minute.remaining()), (None, seconds(60), Some(0)));
    assert_eq!((day.unit(), day.window()), (Some("tokens"), seconds(86_400)));
    assert_eq!(day.reset(), Some(Duration::from_millis(4_000_500)));
    assert_eq!(signals.wait(), None, "the exhausted budget states no reset");
}

#[test]
fn a_verdict_in_place_of_a_count_is_understood() {
    let unified = |status: &str| {
        read(
            429,
            &[
                ("anthropic-ratelimit-unified-5h-status", "allowed"),
                ("anthropic-ratelimit-unified-5h-reset", "1795953700"),
                ("anthropic-ratelimit-unified-7d-status", status),
                ("anthropic-ratelimit-unified-7d-reset", "1795954600"),
                ("anthropic-ratelimit-unified-overage-status", "rejected"),
            ],
        )
    };
    assert_eq!((unified("rejected").wait(), unified("allowed_warning").wait()), (seconds(1_000), None));
}

#[test]
fn services_that_hide_a_throttle_are_understood_with_their_profile() {
    let class = |profile: Profile, status: u16, lines: &[(&str, &str)], body: &str| {
        let plain = read_at(NOON, Profile::Generic, status, lines).with_body(body.as_bytes()).class();
        assert_eq!(plain, Class::None, "{profile} without its profile");
        read_at(NOON, profile, status, lines).with_body(body.as_bytes()).class()
    };
    let lag = [("retry-after", "5"), ("x-database-lag", "7")];
    assert_eq!(class(Profile::MediaWiki, 200, &lag, ""), Class::Throttle);
    assert_eq!(class(Profile::MediaWiki, 200, &[], r#"{"error":{"code":"maxlag"}}"#), Class::Throttle);
    assert_eq!(class(Profile::MediaWiki, 200, &[], r#"{"query":{}}"#), Class::None);
    assert_eq!(class(Profile::Slack, 200, &[], r#"{"ok":false,"error":"ratelimited"}"#), Class::Throttle);
    assert_eq!(class(Profile::Slack, 200, &[], r#"{"ok":true}"#), Class::None);
    let throttled = [("x-amzn-errortype", "ThrottlingException:http://internal.example/")];
    assert_eq!(class(Profile::Aws, 400, &throttled, ""), Class::Throttle);
    let coded = r#"{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"}"#;
    assert_eq!(class(Profile::Aws, 400, &[], coded), Class::Throttle);
    assert_eq!(class(Profile::Aws, 400, &[("x-amzn-errortype", "ValidationException")], ""), Class::None);
    let refused = r#"[{"message":"x","errorCode":"REQUEST_LIMIT_EXCEEDED"}]"#;
    assert_eq!(class(Profile::Salesforce, 403, &[], refused), Class::Throttle);
    assert_eq!(
        class(Profile::Linear, 400, &[], r#"{"errors":[{"extensions":{"code":"RATELIMITED"}}]}"#),
        Class::Throttle
    );
    assert_eq!(class(Profile::Nvd, 403, &[], ""), Class::Throttle);
    let abuse = r#"{"message":"You have triggered an abuse detection mechanism."}"#;
    assert_eq!(class(Profile::GitHub, 403, &[], abuse), Class::Throttle);
    assert_eq!(
        class(Profile::GitHub, 200, &[], r#"{"message":"a commit about the secondary rate limit"}"#),
        Class::None
    );
}

#[test]
fn githubs_graphql_refuses_with_a_200() {
    let empty =
        [("x-ratelimit-limit", "5000"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1795956000")];
    let primary = read_at(NOON, Profile::GitHub, 200, &empty);
    assert_eq!((primary.class(), primary.wait()), (Class::None, None), "the last call of a budget did well");
    let primary = primary.with_body(br#"{"errors":[{"type":"RATE_LIMITED"}]}"#);
    assert_eq!((primary.class(), primary.wait()), (Class::Throttle, seconds(2_400)));
    let page =
        "https://docs.github.com/graphql/overview/rate-limits-for-the-graphql-api#secondary-rate-limits";
    let secondary = read_at(NOON, Profile::GitHub, 200, &[]);
    let secondary = secondary.with_body(format!(r#"{{"documentation_url":"{page}"}}"#).as_bytes());
    assert_eq!((secondary.class(), secondary.wait()), (Class::Throttle, seconds(60)));
}

#[test]
fn a_purse_that_is_empty_is_no_budget() {
    let overage = [
        ("anthropic-ratelimit-unified-status", "allowed"),
        ("anthropic-ratelimit-unified-reset", "1795957200"),
        ("anthropic-ratelimit-unified-overage-status", "rejected"),
        ("anthropic-ratelimit-unified-overage-reset", "1796817600"),
    ];
    let signals = read(503, &overage);
    assert_eq!((signals.class(), signals.wait()), (Class::Transient, None));
    assert!(!read(200, &overage).budgets().iter().any(|budget| budget.remaining() == Some(0)));
}

#[test]
fn a_code_that_no_wait_helps_beats_a_header_that_says_try_again() {
    let signals = read(429, &[("x-should-retry", "true")]);
    assert_eq!(signals.should_retry(), Some(true));
    let body = br#"{"error":{"code":"insufficient_quota"}}"#;
    assert_eq!(signals.with_body(body).should_retry(), Some(false));
}

#[test]
fn a_wait_whose_name_says_seconds_is_read() {
    let lines = [("x-rate-limit-remaining", "0"), ("x-rate-limit-retry-after-seconds", "37")];
    assert_eq!((wait(&lines), read(429, &lines).source()), (seconds(37), Source::Vendor));
}

#[test]
fn a_body_over_64_kib_is_not_read() {
    let body = |padding: usize| format!(r#"{{"retry_after": 9, "padding": "{}"}}"#, "x".repeat(padding));
    assert_eq!(read(429, &[]).with_body(body(60_000).as_bytes()).wait(), seconds(9));
    assert_eq!(read(429, &[]).with_body(body(70_000).as_bytes()).wait(), None);
}

#[test]
fn body_numbers_keep_their_digits_and_their_size() {
    let told = |body: &str| read(429, &[]).with_body(body.as_bytes()).wait();
    assert_eq!(told(r#"{"retry_after": 904.18}"#), Some(Duration::from_millis(904_180)));
    assert_eq!(told(r#"{"retry_after_ms": 5001}"#), Some(Duration::from_millis(5_001)));
    assert_eq!(told(r#"{"retry_after_ms": 1e30}"#), Some(LONGEST));
    assert_eq!(told(r#"{"retry_after": 1e-9}"#), Some(Duration::from_millis(1)));
    assert_eq!(told(r#"{"parameters": {"retry_after": 35}}"#), seconds(35));
    assert_eq!(told(r#"{"retry_after": "2.5"}"#), Some(Duration::from_millis(2_500)));
    for nothing in
        [r#"{"retry_after": -1}"#, r#"{"retry_after": null}"#, r#"{"retry_after": "soon"}"#, "[]", "7", ""]
    {
        assert_eq!(told(nothing), None, "{nothing}");
    }
}

#[test]
fn signals_travel_in_extensions() {
    let mut extensions = http::Extensions::new();
    extensions.insert(read(429, &[("retry-after", "5")]));
    let found = extensions.get::<Signals>().expect("what was put in");
    assert_eq!((found.wait(), found.received_at()), (seconds(5), None));
}

#[test]
fn profiles_are_their_names() {
    for profile in Profile::all() {
        assert_eq!(profile.to_string().parse(), Ok(profile));
    }
    assert!("nobody".parse::<Profile>().is_err());
    assert_eq!(Profile::default(), Profile::Generic);
}
