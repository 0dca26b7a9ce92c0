//! What the layer lets through: chains, costs, holding, observing, exempting.

mod support;

use std::time::Duration;

use forbear::{ConfigError, Limit, Policy, Rate, store::Local};
use forbear_server::{Key, LimitLayer, LimitLayerBuilder, Settle};
use http::{Request, Response};
use http_body_util::Full;
use support::{Backend, from, header, service, text, to};
use tokio::time::{Instant, advance};
use tower::{Layer, ServiceExt};

async fn status(layer: &LimitLayer, request: Request<()>) -> u16 {
    service(layer).oneshot(request).await.expect("an answer").status().as_u16()
}

async fn passed(layer: &LimitLayer, times: usize, request: impl Fn() -> Request<()>) -> usize {
    let mut passed = 0;
    for _ in 0..times {
        passed += usize::from(status(layer, request()).await == 200);
    }
    passed
}

fn window(name: &str, rate: Rate) -> Policy {
    Policy::new(name).limit(Limit::fixed_window(rate))
}

#[tokio::test(start_paused = true)]
async fn b032_a_refused_request_is_charged_by_no_policy() {
    let special = Key::from_fn(|head| (head.uri.path() == "/special").then(|| "special".to_owned()));
    let layer = LimitLayer::new(window("group", Rate::per_minute(10)), Key::everyone(), Local::new())
        .and(window("route", Rate::per_minute(3)), special)
        .build()
        .expect("a layer");
    assert_eq!(passed(&layer, 5, || to("/special")).await, 3);
    assert_eq!(passed(&layer, 8, || to("/other")).await, 7);
    let tallies = layer.tallies();
    assert_eq!((tallies[0].passed, tallies[0].refused, tallies[0].not_applied), (10, 1, 0));
    assert_eq!((tallies[1].passed, tallies[1].refused, tallies[1].not_applied), (3, 2, 8));
}

#[tokio::test(start_paused = true)]
async fn b032_whichever_policy_of_three_refuses() {
    for refusing in 0..3 {
        let of = |i: usize| if i == refusing { 2 } else { 100 };
        let layer = LimitLayer::new(window("address", Rate::per_minute(of(0))), Key::peer(), Local::new())
            .and(window("plan", Rate::per_minute(of(1))), Key::from_fn(|_| Some("gold".to_owned())))
            .and(window("server", Rate::per_minute(of(2))), Key::everyone())
            .build()
            .expect("a layer");
        assert_eq!(passed(&layer, 10, || from("192.0.2.1")).await, 2);
        for (name, key) in [("address", "192.0.2.1"), ("plan", "gold"), ("server", "everyone")] {
            let limiter = layer.limiter(name).expect("a policy of the layer");
            let quota = limiter.peek(key).await.limits().next().expect("one limit").quota();
            assert_eq!(limiter.peek(key).await.remaining(), quota - 2, "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn b032_a_chain_is_exact_on_many_threads() {
    for _ in 0..20 {
        let layer = LimitLayer::new(window("address", Rate::per_hour(100)), Key::peer(), Local::new())
            .and(window("server", Rate::per_hour(60)), Key::everyone())
            .build()
            .expect("a layer");
        let calls = (0..200).map(|_| tokio::spawn(service(&layer).oneshot(from("192.0.2.1"))));
        let mut passed = 0;
        for call in calls.collect::<Vec<_>>() {
            passed += u64::from(call.await.expect("no panic").unwrap().status() == 200);
        }
        assert_eq!(passed, 60);
        assert_eq!(layer.limiter("address").expect("the policy").peek("192.0.2.1").await.remaining(), 40);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_an_operator_paused_is_told_how_long() {
    let layer = LimitLayer::new(Policy::new("a").limit("10/s burst 10"), Key::peer(), Local::new())
        .build()
        .expect("a layer");
    let limiter = layer.limiter("a").expect("the policy");
    limiter.pause("192.0.2.1", Duration::from_secs(30));
    let response = service(&layer).oneshot(from("192.0.2.1")).await.unwrap();
    assert_eq!(response.status(), 429);
    let wait = header(&response, "retry-after").parse::<u64>().expect("seconds");
    assert!((30..=31).contains(&wait), "{wait}");
    assert_eq!(header(&response, "x-ratelimit-policy"), "a");
    assert_eq!(status(&layer, from("192.0.2.2")).await, 200);
    limiter.resume("192.0.2.1");
    advance(Duration::from_millis(100)).await;
    assert_eq!(status(&layer, from("192.0.2.1")).await, 200);
}

#[tokio::test(start_paused = true)]
async fn b046_a_request_that_waits_is_charged_once() {
    let policy = Policy::new("backend")
        .limit(Limit::fixed_window(Rate::new(10, Duration::from_secs(10))))
        .limit("1 at once")
        .max_wait(Duration::from_secs(5));
    let layer = LimitLayer::new(policy, Key::everyone(), Local::new()).build().expect("a layer");
    let backend = Backend { takes: Duration::from_millis(100), ..Backend::default() };
    let calls = (0..6).map(|_| {
        let service = layer.layer(backend.clone());
        tokio::spawn(async move { text(service.oneshot(to("/")).await.unwrap()).await })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.expect("no panic"), "well");
    }
    let left = layer.limiter("backend").expect("the policy").peek("everyone").await;
    assert_eq!(left.limit("requests/10s").map(|limit| limit.remaining()), Some(4));
    assert_eq!(backend.most.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn b026_a_cost_that_can_never_fit_is_no_429() {
    let layer = LimitLayer::new(Policy::new("a").limit("10/s burst 5"), Key::everyone(), Local::new())
        .cost("requests", |head| head.uri.path().len() as u64)
        .build()
        .expect("a layer");
    let response = service(&layer).oneshot(to("/23456")).await.unwrap();
    assert_eq!(response.status(), 413);
    assert_eq!(header(&response, "retry-after"), "", "no wait would help");
    assert_eq!(status(&layer, to("/2345")).await, 200, "nothing was charged");
}

#[tokio::test(start_paused = true)]
async fn b026_a_page_of_ones_own_is_told_the_limit_under_which_a_cost_never_fits() {
    let layer = LimitLayer::new(Policy::new("a").limit("10/s burst 5"), Key::everyone(), Local::new())
        .cost("requests", |_| 6)
        .refusal(|refusal| {
            let told = (refusal.limit().unwrap_or("none"), refusal.remaining(), refusal.wait());
            Response::builder().status(refusal.status()).body(format!("{told:?}")).expect("a response")
        })
        .build()
        .expect("a layer");
    let response = service(&layer).oneshot(to("/")).await.unwrap();
    assert_eq!(text(response).await, r#"("requests/s", 0, None)"#);
}

#[tokio::test(start_paused = true)]
async fn b106_estimates_hold_at_once_and_are_settled_later() {
    let layer = LimitLayer::new(
        Policy::new("model").limit(Limit::token_bucket(Rate::per_minute(1_000), 1_000).unit("tokens")),
        Key::everyone(),
        Local::new(),
    )
    .cost("tokens", |_| 400)
    .build()
    .expect("a layer");
    let model = tower::service_fn(async |request: Request<()>| {
        let settle = request.extensions().get::<Settle>().expect("a charge").clone();
        tokio::time::sleep(Duration::from_millis(1)).await;
        settle.settle("tokens", if request.uri().path() == "/fails" { 0 } else { 380 });
        Ok::<_, std::convert::Infallible>(Response::new(Full::<bytes::Bytes>::from("well")))
    });
    let calls = (0..10).map(|_| tokio::spawn(layer.layer(model).oneshot(to("/"))));
    let mut started = 0;
    for call in calls.collect::<Vec<_>>() {
        started += usize::from(call.await.expect("no panic").unwrap().status() == 200);
    }
    assert_eq!(started, 2);
    let left = async || layer.limiter("model").expect("the policy").peek("everyone").await.remaining();
    assert_eq!(left().await, 240, "380 of 400 were used, twice");
    advance(Duration::from_secs(30)).await;
    let before = left().await;
    assert_eq!(layer.layer(model).oneshot(to("/fails")).await.unwrap().status(), 200);
    assert_eq!(left().await, before, "a call that failed gives all back");
    advance(Duration::from_secs(120)).await;
    assert_eq!(left().await, 1_000, "and never more than fits");
}

#[tokio::test(start_paused = true)]
async fn b106_layers_in_layers_are_settled_together() {
    let tokens = |name: &str| {
        Policy::new(name).limit(Limit::token_bucket(Rate::per_minute(1_000), 1_000).unit("tokens"))
    };
    let layer = |name: &str| {
        LimitLayer::new(tokens(name), Key::everyone(), Local::new())
            .cost("tokens", |_| 400)
            .exempt(|head| head.uri.path() == "/free")
            .build()
            .expect("a layer")
    };
    let (outer, inner) = (layer("outer"), layer("inner"));
    let model = tower::service_fn(async |request: Request<()>| {
        request.extensions().get::<Settle>().expect("also where nothing was charged").settle("tokens", 100);
        Ok::<_, std::convert::Infallible>(Response::new(Full::<bytes::Bytes>::from("well")))
    });
    for (path, left) in [("/free", 1_000), ("/", 900)] {
        assert_eq!(outer.layer(inner.layer(model)).oneshot(to(path)).await.unwrap().status(), 200);
        for (layer, name) in [(&outer, "outer"), (&inner, "inner")] {
            let limiter = layer.limiter(name).expect("the policy");
            assert_eq!(limiter.peek("everyone").await.remaining(), left, "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn b163_a_dear_request_passes_where_its_unit_is_counted_by_the_minute() {
    let layer = LimitLayer::new(Policy::new("model").limit("40k tokens/min"), Key::everyone(), Local::new())
        .cost("tokens", |head| head.uri.path()[1..].parse().expect("a number"))
        .build()
        .expect("a layer");
    for cost in [800, 5_000, 40_000] {
        let mut waited = 0;
        while status(&layer, to(&format!("/{cost}"))).await == 429 {
            advance(Duration::from_secs(1)).await;
            waited += 1;
            assert!(waited <= 61, "{cost} tokens never fit");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn b145_new_numbers_hold_at_once() {
    let policy = |n| window("a", Rate::per_minute(n));
    let layer = LimitLayer::new(policy(10), Key::everyone(), Local::new()).build().expect("a layer");
    assert_eq!(passed(&layer, 3, || to("/")).await, 3);
    layer.limiter("a").expect("the policy").set_policy(policy(5)).expect("a right policy");
    let before = Instant::now();
    assert_eq!(passed(&layer, 7, || to("/")).await, 2);
    assert_eq!(before.elapsed(), Duration::ZERO, "the new policy refuses at once, too");
}

#[tokio::test(start_paused = true)]
async fn requests_are_held_only_where_a_policy_says_so() {
    let bucket = || Policy::new("a").limit("1/s burst 1");
    let at_once = LimitLayer::new(bucket(), Key::everyone(), Local::new()).build().expect("a layer");
    let before = Instant::now();
    assert_eq!(passed(&at_once, 3, || to("/")).await, 1);
    assert_eq!(before.elapsed(), Duration::ZERO);
    let patient = bucket().max_wait(Duration::from_secs(2));
    let patient = LimitLayer::new(patient, Key::everyone(), Local::new()).build().expect("a layer");
    assert_eq!(passed(&patient, 3, || to("/")).await, 3);
    assert_eq!(before.elapsed(), Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn b076_a_leaky_bucket_serves_in_order() {
    let policy = Policy::new("fragile").limit(Limit::leaky_bucket(Rate::per_second(5), 99));
    let layer = LimitLayer::new(policy, Key::everyone(), Local::new()).build().expect("a layer");
    let start = Instant::now();
    let calls = (0..101).map(|_| {
        let call = service(&layer).oneshot(to("/"));
        tokio::spawn(async move { (call.await.unwrap(), Instant::now()) })
    });
    let mut last = start;
    for (i, call) in calls.collect::<Vec<_>>().into_iter().enumerate() {
        let (response, at) = call.await.expect("no panic");
        if i == 100 {
            assert_eq!(response.status(), 429, "the queue is full");
            assert_eq!(header(&response, "retry-after"), "1");
            assert_eq!(at, start);
        } else {
            assert_eq!(response.status(), 200);
            assert!(at >= last, "in order");
            last = at;
        }
    }
    let total = last - start;
    assert!((19_800..=20_100).contains(&total.as_millis()), "{total:?}");
}

#[tokio::test(start_paused = true)]
async fn b140_a_held_request_takes_no_place_of_the_service() {
    let policy = Policy::new("fragile").limit(Limit::leaky_bucket(Rate::per_second(1), 20));
    let layer = LimitLayer::new(policy, Key::peer(), Local::new()).build().expect("a layer");
    let one = tower::limit::ConcurrencyLimit::new(Backend::default(), 1);
    let service = layer.layer(one);
    let held = (0..20).map(|_| tokio::spawn(service.clone().oneshot(from("192.0.2.1")))).collect::<Vec<_>>();
    tokio::task::yield_now().await;
    let before = Instant::now();
    assert_eq!(service.clone().oneshot(from("192.0.2.2")).await.unwrap().status(), 200);
    assert_eq!(before.elapsed(), Duration::ZERO);
    for held in held {
        assert_eq!(held.await.expect("no panic").unwrap().status(), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_observes_lets_through_and_counts() {
    let layer = LimitLayer::new(Policy::new("firm").limit("5/min burst 5"), Key::everyone(), Local::new())
        .and(Policy::new("trial").limit("2/min burst 2").observe_only(), Key::everyone())
        .build()
        .expect("a layer");
    let response = service(&layer).oneshot(to("/")).await.unwrap();
    let told = header(&response, "ratelimit");
    assert!(
        told.contains("firm/requests/min") && !told.contains("trial"),
        "callers are told what holds: {told}"
    );
    assert_eq!(passed(&layer, 9, || to("/")).await, 4);
    let [firm, trial] = &layer.tallies()[..] else { panic!("two policies") };
    assert_eq!((firm.passed, firm.refused, firm.observed), (5, 5, 0));
    assert_eq!((trial.passed, trial.refused, trial.observed), (5, 0, 3));
    // Turned on while it runs.
    let strict = Policy::new("trial").limit("2/min burst 2");
    layer.limiter("trial").expect("the policy").set_policy(strict).expect("a right policy");
    advance(Duration::from_secs(3_600)).await;
    assert_eq!(passed(&layer, 9, || to("/")).await, 2);
}

#[tokio::test(start_paused = true)]
async fn exempt_requests_are_neither_counted_nor_told() {
    let layer = LimitLayer::new(Policy::new("a").limit("1/min burst 1"), Key::peer(), Local::new())
        .exempt(|head| head.uri.path() == "/health")
        .exempt(|head| head.method == http::Method::OPTIONS)
        .build()
        .expect("a layer");
    for _ in 0..5 {
        // No peer is needed either.
        let response = service(&layer).oneshot(to("/health")).await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(!response.headers().contains_key("ratelimit"));
    }
    let mut preflight = from("192.0.2.1");
    *preflight.method_mut() = http::Method::OPTIONS;
    assert_eq!(status(&layer, preflight).await, 200);
    assert_eq!(status(&layer, from("192.0.2.1")).await, 200);
    assert_eq!(status(&layer, from("192.0.2.1")).await, 429);
}

#[test]
fn what_is_wrong_with_a_layer_is_told_when_it_is_built() {
    let tokens = || Policy::new("model").limit("10 tokens/s");
    let plain = || Policy::new("plain").limit("10/s");
    let of = |policy: Policy| LimitLayer::new(policy, Key::peer(), Local::new());
    let fault = |layer: LimitLayerBuilder| layer.build().expect_err("a wrong layer").to_string();
    let table = [
        (of(plain()).and(plain(), Key::everyone()), ["plain", "name", "two policies"]),
        (of(tokens()), ["model", "cost", "tokens"]),
        (of(plain()).cost("tokens", |_| 1), ["plain", "cost", "tokens"]),
        (of(Policy::new("größe").limit("1/s")), ["größe", "name", "ASCII"]),
        (of(Policy::new("a").limit(Limit::from("1/s").named("größe"))), ["a", "limits", "größe"]),
        (LimitLayer::new(plain(), Key::header("two words"), Local::new()), ["plain", "key", "two words"]),
        (of(Policy::new("a").limit("nonsense")), ["a", "", "nonsense"]),
        (of(Policy::new("a").limit("0/s")), ["a", "", ""]),
        (of(Policy::new("a").limit("1/s").limit("2/s")), ["a", "", "requests/s"]),
        (of(Policy::new("").limit("1/s")), ["", "name", ""]),
        (of(plain()).and(Policy::new("b").limit("0 at once"), Key::everyone()), ["b", "", ""]),
    ];
    for (layer, words) in table {
        let text = fault(layer);
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
    assert!(of(tokens()).cost("tokens", |_| 1).build().is_ok());
    assert!(matches!(of(tokens()).build(), Err(ConfigError::Field { field: "cost", .. })));
}
