//! What callers are told, and that it is the truth.

mod support;

use std::time::Duration;

use bytes::Bytes;
use forbear::{Limit, Limiter, Policy, Rate, store::Local};
use forbear_server::{Headers, Key, LimitLayer};
use http::{Response, StatusCode};
use support::{Backend, from, header, service, text};
use tokio::time::{advance, sleep};
use tower::{Layer, ServiceExt};

fn layer(limit: impl Into<Limit>) -> LimitLayer {
    LimitLayer::new(Policy::new("address").limit(limit), Key::peer(), Local::new())
        .cost("requests", |head| {
            head.headers.get("cost").map_or(1, |cost| cost.to_str().unwrap().parse().unwrap())
        })
        .build()
        .expect("a layer")
}

async fn ask(layer: &LimitLayer, cost: u64) -> support::Answer {
    let request = support::with("192.0.2.1", &[("cost", cost.to_string().as_bytes())]);
    service(layer).oneshot(request).await.expect("an answer")
}

async fn asked(layer: &LimitLayer, cost: u64) -> (u16, u64) {
    let response = ask(layer, cost).await;
    (response.status().as_u16(), header(&response, "retry-after").parse().unwrap_or(0))
}

#[tokio::test(start_paused = true)]
async fn b097_retry_after_is_the_time_that_is_left() {
    let window = layer(Limit::fixed_window(Rate::new(3, Duration::from_secs(20))));
    assert_eq!(asked(&window, 3).await, (200, 0));
    assert_eq!(asked(&window, 1).await, (429, 20));
    advance(Duration::from_secs(19)).await;
    assert_eq!(asked(&window, 1).await, (429, 1));
    advance(Duration::from_secs(1)).await;
    assert_eq!(asked(&window, 1).await, (200, 0));

    let log = layer(Limit::sliding_log(Rate::new(3, Duration::from_secs(20))));
    for _ in 0..3 {
        assert_eq!(asked(&log, 1).await, (200, 0));
        advance(Duration::from_secs(5)).await;
    }
    // At 15 s, with units of 0, 5 and 10 s.
    assert_eq!(asked(&log, 1).await, (429, 5));
    assert_eq!(asked(&log, 2).await, (429, 10));
    assert_eq!(asked(&log, 3).await, (429, 15));

    let bucket = layer("1/s burst 10");
    assert_eq!(asked(&bucket, 10).await, (200, 0));
    assert_eq!(asked(&bucket, 1).await, (429, 1));
    assert_eq!(asked(&bucket, 5).await, (429, 5));
}

#[tokio::test(start_paused = true)]
async fn b122_a_wait_rounds_up_and_whoever_waits_it_is_admitted() {
    let limits: [(Limit, u64); 7] = [
        ("10/s burst 10".into(), 10),
        (Limit::token_bucket(Rate::new(2, Duration::from_secs(3)), 1), 1),
        (Limit::fixed_window(Rate::new(4, Duration::from_millis(1_500))), 4),
        (Limit::sliding_log(Rate::new(4, Duration::from_millis(1_500))), 4),
        (Limit::sliding_window(Rate::new(4, Duration::from_millis(1_500)), 3), 4),
        (Limit::sliding_counter(Rate::new(4, Duration::from_millis(1_500))), 4),
        (Limit::rate(Rate::new(50, Duration::from_millis(1_500))), 50),
    ];
    for (limit, most) in limits {
        let layer = layer(limit.clone());
        assert_eq!(asked(&layer, most).await.0, 200, "{limit:?}");
        for cost in 1..=most {
            let (status, wait) = asked(&layer, cost).await;
            if status == 429 {
                assert!((1..=7).contains(&wait), "{limit:?}: {wait}");
                advance(Duration::from_secs(wait)).await;
                assert_eq!(asked(&layer, cost).await.0, 200, "{limit:?} after {wait} s");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn where_a_seat_is_missing_the_wait_of_the_other_limits_is_told() {
    let window = Limit::fixed_window(Rate::per_minute(2));
    let policy = Policy::new("address").limit(window).limit("1 at once");
    let layer = LimitLayer::new(policy, Key::peer(), Local::new()).build().expect("a layer");
    let ask = async || service(&layer).oneshot(from("192.0.2.1")).await.unwrap();
    let seated = ask().await;
    assert_eq!(header(&ask().await, "retry-after"), "1", "the window has room");
    drop(seated);
    let _seated = ask().await;
    let refused = ask().await;
    assert_eq!((refused.status().as_u16(), header(&refused, "x-ratelimit-policy")), (503, "at-once"));
    assert_eq!(header(&refused, "retry-after"), "60");
    assert_eq!(header(&refused, "ratelimit"), "\"requests/min\";r=0;t=60, \"at-once\";r=0");
}

#[tokio::test(start_paused = true)]
async fn b110_headers_are_of_the_decision_and_never_negative() {
    let window = || Policy::new("address").limit(Limit::fixed_window(Rate::per_second(2)));
    let layer = LimitLayer::new(window(), Key::peer(), Local::new()).build().expect("a layer");
    // The state expires while the request is under way.
    let slow = Backend { takes: Duration::from_secs(60), ..Backend::default() };
    let response = layer.layer(slow).oneshot(from("192.0.2.1")).await.unwrap();
    assert_eq!(header(&response, "ratelimit"), "\"requests/s\";r=1;t=1");
    let calls = (0..50).map(|_| tokio::spawn(service(&layer).oneshot(from("192.0.2.1"))));
    let mut refused = 0;
    for call in calls.collect::<Vec<_>>() {
        let response = call.await.expect("no panic").unwrap();
        if response.status() == 429 {
            refused += 1;
            assert_eq!(header(&response, "retry-after"), "1");
            assert_eq!(header(&response, "ratelimit"), "\"requests/s\";r=0;t=1");
        }
    }
    assert_eq!(refused, 48);
}

#[tokio::test(start_paused = true)]
async fn b170_what_the_application_says_stays_and_occurs_once() {
    let own = vec![("retry-after", "120"), ("ratelimit", "\"own\";r=7")];
    let backend = Backend { headers: own, status: 503, ..Backend::default() };
    let response = layer("10/s burst 10").layer(backend).oneshot(from("192.0.2.1")).await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(header(&response, "retry-after"), "120");
    assert_eq!(header(&response, "ratelimit"), "\"own\";r=7");
    assert_eq!(header(&response, "ratelimit-policy"), "", "half of a pair says nothing");

    let backend = Backend { headers: vec![("retry-after", "120")], ..Backend::default() };
    let response = layer("10/s burst 10").layer(backend).oneshot(from("192.0.2.1")).await.unwrap();
    assert_eq!(header(&response, "retry-after"), "120");
    assert_eq!(header(&response, "ratelimit"), "\"requests/s\";r=9;t=1");

    // A layer inside of another: the inner one, nearer to the application, is heard.
    let outer = layer("10/s burst 10");
    let inner = layer("1/min burst 1");
    let nested = outer.layer(service(&inner));
    let response = nested.clone().oneshot(from("192.0.2.1")).await.unwrap();
    assert_eq!(header(&response, "ratelimit"), "\"requests/min\";r=0;t=60");
    let response = nested.oneshot(from("192.0.2.1")).await.unwrap();
    assert_eq!((response.status(), header(&response, "retry-after")), (StatusCode::TOO_MANY_REQUESTS, "60"));
}

#[tokio::test(start_paused = true)]
async fn b172_a_page_of_ones_own_gets_the_facts_and_the_standard_headers() {
    let page = |headers| {
        let policy = Policy::new("address").limit(Limit::fixed_window(Rate::per_minute(1)).named("pages"));
        LimitLayer::new(policy, Key::peer(), Local::new())
            .headers(headers)
            .refusal(|refusal| {
                let text = format!(
                    "{} {} {} {} {:?} {}",
                    refusal.policy(),
                    refusal.limit().unwrap_or("none"),
                    refusal.remaining(),
                    refusal.key_class(),
                    refusal.wait().expect("waiting helps"),
                    refusal.request().uri,
                );
                Response::builder().status(420).header("x-own", "yes").body(text).expect("a response")
            })
            .build()
            .expect("a layer")
    };
    let refused = async |layer: LimitLayer| {
        let _first = service(&layer).oneshot(from("192.0.2.1")).await.unwrap();
        advance(Duration::from_millis(500)).await;
        service(&layer).oneshot(from("192.0.2.1")).await.unwrap()
    };
    let response = refused(page(Headers::Always)).await;
    assert_eq!(response.status(), 420);
    assert_eq!(header(&response, "retry-after"), "60");
    assert_eq!(header(&response, "ratelimit"), "\"pages\";r=0;t=60");
    assert_eq!(header(&response, "ratelimit-policy"), "\"pages\";q=1;w=60");
    assert_eq!(header(&response, "x-ratelimit-policy"), "pages");
    assert_eq!(header(&response, "x-own"), "yes");
    assert_eq!(text(response).await, "address pages 0 peer 59.5s /");

    let response = refused(page(Headers::Never)).await;
    for name in ["retry-after", "ratelimit", "ratelimit-policy", "x-ratelimit-policy"] {
        assert_eq!(header(&response, name), "");
    }
}

#[tokio::test(start_paused = true)]
async fn headers_can_be_left_off_successes_and_never_off_a_default_refusal() {
    for (headers, on_success, on_refusal) in
        [(Headers::Always, true, true), (Headers::OnRefusal, false, true), (Headers::Never, false, false)]
    {
        let layer = LimitLayer::new(Policy::new("a").limit("1/min burst 1"), Key::peer(), Local::new())
            .headers(headers)
            .build()
            .expect("a layer");
        let response = service(&layer).oneshot(from("192.0.2.1")).await.unwrap();
        assert_eq!(response.headers().contains_key("ratelimit"), on_success);
        let response = service(&layer).oneshot(from("192.0.2.1")).await.unwrap();
        assert_eq!(response.headers().contains_key("ratelimit"), on_refusal);
        assert_eq!(header(&response, "retry-after"), "60");
        assert_eq!(header(&response, "x-ratelimit-policy"), "requests/min");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_a_problem_document() {
    let policy = Policy::new("address").limit(Limit::token_bucket(Rate::per_minute(1), 1).named("a\"b\\c"));
    let layer = LimitLayer::new(policy, Key::peer(), Local::new()).build().expect("a layer");
    let _first = service(&layer).oneshot(from("192.0.2.1")).await.unwrap();
    let response = service(&layer).oneshot(from("192.0.2.1")).await.unwrap();
    assert_eq!(header(&response, "ratelimit"), r#""a\"b\\c";r=0;t=60"#);
    let document = text(response).await;
    let expected = r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too many requests","status":429,"violated-policies":["a\"b\\c"]}"#;
    assert_eq!(document, expected);
    assert!(!document.contains("192.0.2.1"), "whose key it was is nobody's business");
}

#[tokio::test(start_paused = true)]
async fn limits_of_one_name_in_two_policies_are_told_apart() {
    let layer = LimitLayer::new(Policy::new("address").limit("10/min burst 10"), Key::peer(), Local::new())
        .and(Policy::new("plan").limit("2/min burst 2").limit("3 at once"), Key::everyone())
        .build()
        .expect("a layer");
    let response = service(&layer).oneshot(from("192.0.2.1")).await.unwrap();
    let standing = r#""address/requests/min";r=9;t=6, "plan/requests/min";r=1;t=30, "plan/at-once";r=2"#;
    assert_eq!(header(&response, "ratelimit"), standing);
    let policies = r#""address/requests/min";q=10;w=60, "plan/requests/min";q=2;w=60, "plan/at-once";q=3;qu="concurrent-requests""#;
    assert_eq!(header(&response, "ratelimit-policy"), policies);
    let _second = service(&layer).oneshot(from("192.0.2.1")).await.unwrap();
    let response = service(&layer).oneshot(from("192.0.2.1")).await.unwrap();
    assert_eq!(header(&response, "x-ratelimit-policy"), "plan/requests/min");
}

#[tokio::test(start_paused = true)]
async fn b149_a_limiter_asked_in_a_handler_answers_like_the_layer() {
    let limiter =
        Limiter::new(Policy::new("reports").limit("1/min burst 1"), Local::new()).expect("a limiter");
    let handler = async || match limiter.try_acquire("alice").await {
        Ok(_permit) => Response::new(Bytes::from("done")),
        Err(refused) => forbear_server::refuse(&refused),
    };
    assert_eq!(handler().await.status(), 200);
    let before = tokio::time::Instant::now();
    sleep(Duration::from_millis(500)).await;
    let response = handler().await;
    assert_eq!(before.elapsed(), Duration::from_millis(500), "no waiting");
    assert_eq!(response.status(), 429);
    assert_eq!(header(&response, "retry-after"), "60");
    assert_eq!(header(&response, "ratelimit"), "\"requests/min\";r=0;t=60");
    assert_eq!(header(&response, "x-ratelimit-policy"), "requests/min");
}
