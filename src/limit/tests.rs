use proptest::prelude::*;

use super::*;
use crate::{ConfigError, Policy};

fn fault(text: &str) -> String {
    text.parse::<Limit>().expect_err(text).to_string()
}

#[test]
fn what_people_write_is_understood() {
    let rows = [
        ("500/min", Limit::rate(Rate::per_minute(500))),
        ("500 / min", Limit::rate(Rate::per_minute(500))),
        ("  500/min\n", Limit::rate(Rate::per_minute(500))),
        ("500 requests/min", Limit::rate(Rate::per_minute(500))),
        ("1 request/s", Limit::rate(Rate::per_second(1))),
        ("10 req/s", Limit::rate(Rate::per_second(10))),
        ("60 per minute", Limit::rate(Rate::per_minute(60))),
        ("60 requests per minute", Limit::rate(Rate::per_minute(60))),
        ("60 requests per 1 minute", Limit::rate(Rate::per_minute(60))),
        ("1/day", Limit::rate(Rate::per_day(1))),
        ("5000/hour", Limit::rate(Rate::per_hour(5_000))),
        ("3/7s", Limit::rate(Rate::new(3, Duration::from_secs(7)))),
        ("3/100ms", Limit::rate(Rate::new(3, Duration::from_millis(100)))),
        ("3/250 us", Limit::rate(Rate::new(3, Duration::from_micros(250)))),
        ("1_000_000/s", Limit::rate(Rate::per_second(1_000_000))),
        ("200k tokens/min", Limit::rate(Rate::per_minute(200_000)).unit("tokens")),
        ("200K tokens per minute", Limit::rate(Rate::per_minute(200_000)).unit("tokens")),
        ("7M tokens/min burst 50k", Limit::token_bucket(Rate::per_minute(7_000_000), 50_000).unit("tokens")),
        ("10/s burst 20", Limit::token_bucket(Rate::per_second(10), 20)),
        ("500/min  burst\t50", Limit::token_bucket(Rate::per_minute(500), 50)),
        ("8 at once", Limit::concurrency(8)),
        ("8 at  once", Limit::concurrency(8)),
    ];
    for (text, limit) in rows {
        assert_eq!(text.parse(), Ok(limit), "{text}");
    }
}

#[test]
fn what_does_not_read_is_refused_with_the_part_that_is_wrong() {
    let rows = [
        ("", "in ``, `` is not a limit"),
        ("   ", "is not a limit"),
        ("500", "`500` is not a limit"),
        ("unlimited", "`unlimited` is not a limit"),
        ("none", "`none` is not a limit"),
        ("500/", "`500/` is not a period"),
        ("/min", "`/min` is not a whole number"),
        ("/", "`/` is not a whole number"),
        ("500/fortnight", "`fortnight` is not a period"),
        ("500/Min", "`Min` is not a period"),
        ("500/min/s", "`min/s` is not a period"),
        ("500/2.5s", "`2.5s` is not a period"),
        ("500/-1s", "`-1s` is not a period"),
        ("0/min", "the rate is 0"),
        ("500/0s", "the period is 0ns"),
        ("-5/s", "`-5` is not a whole number"),
        ("+5/s", "`+5` is not a whole number"),
        ("1.5/s", "`1.5` is not a whole number"),
        ("1e3/s", "`1e3` is not a whole number"),
        ("k/s", "`k` is not a whole number"),
        ("_5/s", "`_5` is not a whole number"),
        ("0x10/s", "`0x10` is not a whole number"),
        ("inf/s", "`inf` is not a whole number"),
        ("5 big tokens/s", "`tokens` is not expected: before the slash stand a number"),
        ("500/min burst", "`burst` is not the end: a number follows it"),
        ("500/min burst 0", "the burst is 0"),
        ("500/min burst -1", "`-1` is not a whole number"),
        ("500/min burst 5 6", "`5 6` is not a whole number"),
        ("500/min burst fifty", "`fifty` is not a whole number"),
        ("burst 50", "`burst 50` is not a limit"),
        ("0 at once", "the number of seats is 0"),
        ("at once", "`at once` is not a limit"),
        ("some at once", "`some` is not a whole number"),
        ("5000000000 at once", "`5000000000` is not a number of seats below 2^32"),
        ("9007199254740992/s", "`9007199254740992` is not a number below 2^53"),
        ("99999999999999999999999/s", "is not a number below 2^53"),
        ("9007199254740991k/s", "is not a number below 2^53"),
        ("1/99999999999999999days", "is not a number below 2^53"),
        ("1/9007199254740991days", "is not a period"),
        ("1/36700days", "the period is 3170880000s"),
        ("½/s", "`½` is not a whole number"),
        ("５/s", "`５` is not a whole number"),
        ("5/µ", "`µ` is not a period"),
        ("5 to\u{0}kens/s", "the unit is `to\\0kens`"),
        ("drop\ntable/s", "`drop` is not a whole number"),
    ];
    for (text, part) in rows {
        let fault = fault(text);
        assert!(fault.contains(part), "{text:?}: {fault}");
    }
    assert!(fault(&"9".repeat(300)).contains("over 200 bytes"));
    assert!(!fault("a\nb").contains('\n'));
}

#[test]
fn a_rate_reads_without_a_unit() {
    assert_eq!("500/min".parse(), Ok(Rate::per_minute(500)));
    assert_eq!("500 requests/min".parse(), Ok(Rate::per_minute(500)));
    let fault = "500 tokens/min".parse::<Rate>().unwrap_err().to_string();
    assert!(fault.contains("`tokens` is not part of a rate"), "{fault}");
}

#[test]
fn a_rate_is_shown_in_the_largest_period_that_is_exact() {
    let rows = [
        (Rate::per_second(5), "5/s"),
        (Rate::per_minute(60), "60/min"),
        (Rate::new(60, Duration::from_secs(3_600)), "60/h"),
        (Rate::per_day(1), "1/day"),
        (Rate::new(3, Duration::from_secs(7 * 86_400)), "3/7days"),
        (Rate::new(3, Duration::from_secs(90)), "3/90s"),
        (Rate::new(3, Duration::from_millis(1_500)), "3/1500ms"),
        (Rate::new(3, Duration::from_micros(7)), "3/7us"),
    ];
    for (rate, text) in rows {
        assert_eq!(rate.to_string(), text);
        assert_eq!(text.parse(), Ok(rate));
    }
}

#[test]
fn numbers_outside_their_range_are_kept_as_a_fault() {
    let second = Rate::per_second(10);
    let rows = [
        (Limit::rate(Rate::per_second(0)), "the rate is 0"),
        (Limit::rate(Rate::per_second(u64::MAX)), "the rate is 18446744073709551615"),
        (Limit::rate(Rate::new(1, Duration::ZERO)), "the period is 0ns"),
        (Limit::rate(Rate::new(1, Duration::from_nanos(1_500))), "the period is 1.5µs"),
        (Limit::rate(Rate::new(1, Duration::MAX)), "at most 100 years"),
        (Limit::token_bucket(second, 0), "the burst is 0"),
        (Limit::token_bucket(second, u64::MAX), "the burst is"),
        (Limit::leaky_bucket(second, u64::MAX), "the queue is"),
        (Limit::sliding_window(second, 0), "the number of segments is 0"),
        (Limit::sliding_window(second, 101), "the number of segments is 101"),
        (Limit::sliding_window(Rate::new(1, Duration::from_micros(5)), 6), "at most one a microsecond"),
        (Limit::concurrency(0), "the number of seats is 0"),
        (Limit::rate(second).share(0.0), "the share is 0"),
        (Limit::rate(second).share(-0.5), "the share is -0.5"),
        (Limit::rate(second).share(1.5), "the share is 1.5"),
        (Limit::rate(second).share(f64::NAN), "the share is NaN"),
        (Limit::rate(second).share(f64::INFINITY), "the share is inf"),
        (Limit::rate(second).jitter_margin(Duration::MAX), "the jitter margin is"),
        (Limit::rate(second).unit(""), "the unit is ``"),
        (Limit::rate(second).unit("two words"), "the unit is `two words`"),
        (Limit::rate(second).named(""), "the name is ``"),
        (Limit::rate(second).named("a\nb"), "the name is `a\\nb`"),
    ];
    for (limit, part) in rows {
        let fault = limit.checked().expect_err(part).to_string();
        assert!(fault.contains(part), "{fault}");
    }
}

#[test]
fn the_first_fault_is_the_one_that_is_told() {
    let limit = Limit::rate(Rate::per_second(0)).share(2.0).unit("a b");
    assert!(limit.checked().unwrap_err().to_string().contains("the share is 2"));
}

#[test]
fn a_share_is_rounded_down_to_one_unit_at_least() {
    let share = |n: u64, share| match Limit::rate(Rate::per_second(n)).share(share).checked() {
        Ok(Kind::Plain(rate)) => rate.units(),
        other => panic!("{other:?}"),
    };
    let rows = [
        (100, 0.95, 95),
        (100, 0.29, 29),
        (100, 0.07, 7),
        (10, 0.99, 9),
        (3, 0.5, 1),
        (1, 0.01, 1),
        (1_000_000, 0.000_001, 1),
        (1 << 50, 0.5, 1 << 49),
        (MAX_EXACT, 1.0, MAX_EXACT),
    ];
    for (n, part, ours) in rows {
        assert_eq!(share(n, part), ours, "{part} of {n}");
    }
    let bucket = Limit::token_bucket(Rate::per_second(10), 5).share(0.5).checked();
    assert_eq!(bucket, Ok(Kind::TokenBucket { rate: Rate::per_second(5), burst: 2 }));
    let leaky = Limit::leaky_bucket(Rate::per_second(10), 5).share(0.1).checked();
    assert_eq!(leaky, Ok(Kind::LeakyBucket { rate: Rate::per_second(1), queue: 0 }));
    assert_eq!(Limit::concurrency(8).share(0.3).checked(), Ok(Kind::Concurrency(2)));
}

#[test]
fn the_margin_is_the_stated_one_or_a_fiftieth_within_20_and_250_ms() {
    let margin = |limit: &Limit, default| limit.margin_us(limit.checked().unwrap(), default);
    let rows = [
        (Limit::rate(Rate::per_second(10)), 20_000),
        (Limit::rate(Rate::new(10, Duration::from_secs(5))), 100_000),
        (Limit::rate(Rate::per_minute(10)), 250_000),
        // A bucket's window is the time that it takes to fill.
        (Limit::token_bucket(Rate::per_minute(60), 5), 100_000),
        (Limit::token_bucket(Rate::per_day(1), 1), 250_000),
        (Limit::leaky_bucket(Rate::per_second(10), 10), 0),
        (Limit::concurrency(8), 0),
    ];
    for (limit, us) in rows {
        assert_eq!(margin(&limit, Margin::Default), us, "{limit}");
        assert_eq!(margin(&limit, Margin::None), 0, "{limit}");
    }
    let stated = Limit::rate(Rate::per_second(10)).jitter_margin(Duration::from_millis(7));
    assert_eq!(margin(&stated, Margin::Default), 7_000);
    assert_eq!(margin(&stated, Margin::None), 7_000);
}

#[test]
fn names_come_from_unit_and_period_and_never_from_the_numbers() {
    let rows = [
        ("500/min", "requests/min"),
        ("7/min", "requests/min"),
        ("7/min burst 2", "requests/min"),
        ("200k tokens/min", "tokens/min"),
        ("3/7s", "requests/7s"),
        ("8 at once", "at-once"),
    ];
    for (text, name) in rows {
        assert_eq!(Limit::from(text).name(), name);
    }
    assert_eq!(Limit::concurrency(3).unit("jobs").name(), "jobs-at-once");
    assert_eq!(Limit::from("500/min").named("mine").name(), "mine");
}

#[test]
fn a_policy_tells_of_a_text_that_does_not_read_before_it_tells_of_names() {
    let fault = Policy::new("api").limit("1/s").limit("500/fortnight").check().unwrap_err();
    assert!(matches!(fault, ConfigError::Limit { .. }));
    assert!(fault.to_string().contains("policy `api`, limit `500/fortnight`"), "{fault}");
    let fault = Policy::new("api").limit("x").limit("x").check().unwrap_err();
    assert!(matches!(fault, ConfigError::Limit { .. }), "{fault}");
    let fault = Policy::new("api").limit("5/min").limit("9/min").check().unwrap_err();
    assert!(matches!(fault, ConfigError::SameName { .. }), "{fault}");
    assert_eq!(Policy::new("api").limit("5/min").limit("9/s").limit("9 tokens/s").check(), Ok(()));
    assert!(Policy::new("").check().is_err());
    assert!(Policy::new("two\nlines").check().is_err());
}

/// Pieces that texts are made of, right and wrong.
fn nearly_a_text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "5", "500", "0", "007", "200k", "7M", "1_0", "-", ".", "/", "/", "/", " ", " ", " per ", "min", "s",
        "7s", "100ms", "us", "day", "h", " burst ", " at once", "requests", "tokens", "é", "\n", "k", "req",
    ]);
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if std::env::var_os("PROPTEST_CASES").is_some() { ProptestConfig::default().cases } else { 10_000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_limit_reads_back_as_it_is_shown(text in nearly_a_text()) {
        match text.parse::<Limit>() {
            Ok(limit) => prop_assert_eq!(limit.to_string().parse(), Ok(limit)),
            Err(fault) => {
                prop_assert!(Limit::from(&*text).checked() == Err(fault.clone()));
                if let LimitError::Text { part, .. } = &fault {
                    prop_assert!(quoted_of(&text).contains(&**part), "{}", fault);
                    prop_assert!(fault.to_string().contains(&**part));
                }
            }
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(text: String) {
        let _ = text.parse::<Limit>();
        let _ = text.parse::<Rate>();
        let _ = Limit::from(&*text).unit(&text).named(&text).to_string();
    }

    #[test]
    fn a_limit_made_of_numbers_reads_back(units in 1..MAX_EXACT, period_us in 1..3_000_000_000_000_000_u64, burst in 1..MAX_EXACT - 1) {
        let rate = Rate::new(units, Duration::from_micros(period_us));
        for limit in [Limit::rate(rate), Limit::token_bucket(rate, burst), Limit::rate(rate).unit("tokens")] {
            prop_assert_eq!(limit.to_string().parse(), Ok(limit));
        }
    }
}

/// A text as a fault may quote a part of it: with the spaces that were written or with one between words.
fn quoted_of(text: &str) -> String {
    let escape = |text: &str| text.chars().flat_map(char::escape_debug).collect::<String>();
    let plain = text.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{}\n{}", escape(text), escape(&plain))
}
