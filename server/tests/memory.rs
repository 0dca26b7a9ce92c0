//! Memory stays bounded whatever callers do, and what is built goes away again.
//!
//! One test at a time: the resident set is the process's.

mod support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use forbear::{Policy, store::Local};
use forbear_server::{Key, LimitLayer};
use http::Request;
use support::{service, with};
use tower::ServiceExt;

static ALONE: Mutex<()> = Mutex::new(());

/// Resident bytes of this process.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    pages.split(' ').nth(1).expect("the second field").parse::<u64>().expect("pages") * 4_096
}

fn by_name(store: &Local) -> LimitLayer {
    let policy = Policy::new("name").limit("1/day burst 2");
    LimitLayer::new(policy, Key::header("x-name"), store.clone()).build().expect("a layer")
}

async fn status(layer: &LimitLayer, name: &str) -> u16 {
    let request = with("192.0.2.1", &[("x-name", name.as_bytes())]);
    service(layer).oneshot(request).await.expect("an answer").status().as_u16()
}

#[tokio::test(start_paused = true)]
async fn b080_a_flood_of_keys_is_bounded_and_frees_nobody() {
    let _alone = ALONE.lock();
    let store = Local::new();
    let layer = by_name(&store);
    let regulars = (0..1_000).map(|i| format!("regular-{i}")).collect::<Vec<_>>();
    for name in &regulars {
        assert_eq!(status(&layer, name).await, 200);
        assert_eq!(status(&layer, name).await, 200);
    }
    let mut overflowed = 0;
    for i in 0..130_000 {
        overflowed += usize::from(status(&layer, &format!("stranger-{i}")).await == 429);
        if i % 1_000 == 0 {
            assert_eq!(status(&layer, &regulars[i / 130]).await, 429, "no fresh budget for a regular");
        }
    }
    assert!(store.len() <= 100_000, "{} keys", store.len());
    assert!(store.len() > 99_000, "{} keys", store.len());
    assert_eq!(overflowed, 130_000 - 99_000 - 2, "strangers share one budget when the table is full");
    for name in &regulars {
        assert_eq!(status(&layer, name).await, 429);
    }
    tokio::time::advance(Duration::from_secs(3 * 86_400)).await;
    assert_eq!(store.len(), 0, "an unused budget is not kept");
    assert_eq!(status(&layer, "stranger-129999").await, 200);
}

#[tokio::test(start_paused = true)]
async fn b080_a_bound_that_is_stated_holds() {
    let store = Local::new().max_keys(100);
    let layer = by_name(&store);
    for i in 0..1_000 {
        _ = status(&layer, &format!("stranger-{i}")).await;
    }
    assert_eq!(store.len(), 100);
}

#[test]
fn b154_a_layer_is_built_anywhere_and_leaves_no_task() {
    let layer = by_name(&Local::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        for _ in 0..1_000 {
            let layer = by_name(&Local::new());
            assert_eq!(status(&layer, "alice").await, 200);
        }
        assert_eq!(status(&layer, "alice").await, 200);
        let held =
            Policy::new("held").limit(forbear::Limit::leaky_bucket(forbear::Rate::per_second(1_000), 5));
        let held = LimitLayer::new(held, Key::header("x-name"), Local::new()).build().expect("a layer");
        let calls = (0..6).map(|_| {
            let held = held.clone();
            tokio::spawn(async move { status(&held, "alice").await })
        });
        for call in calls.collect::<Vec<_>>() {
            assert_eq!(call.await.expect("no panic"), 200);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
    });
}

#[test]
fn b173_routers_that_come_and_go_leave_nothing() {
    let _alone = ALONE.lock();
    let build = || {
        let layer = LimitLayer::new(
            Policy::new("tenant").limit("10/s").limit("8 at once"),
            Key::everyone(),
            Local::new(),
        )
        .build()
        .expect("a layer");
        drop(Router::<()>::new().route("/", get(|| async { "well" })).layer(layer));
    };
    (0..1_000).for_each(|_| build());
    let before = resident();
    (0..10_000).for_each(|_| build());
    let grown = resident().saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes more");
}

/// Two seconds of refusals to one caller on all threads, with other routes asked in between.
#[test]
fn a_flood_of_refusals_leaves_memory_flat_and_other_routes_alone() {
    let _alone = ALONE.lock();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let caller = Key::header("x-caller");
        let layer = LimitLayer::new(Policy::new("caller").limit("5/h burst 5"), caller, Local::new())
            .build()
            .expect("a layer");
        let limited = Router::new().route("/limited", get(|| async { "well" })).layer(layer);
        let app = limited.route("/other", get(|| async { "well" }));
        let to = |path: &str| {
            let request = Request::builder().uri(path).header("x-caller", "flooder");
            request.body(Body::empty()).expect("a request")
        };
        static STOP: AtomicBool = AtomicBool::new(false);
        static REFUSED: AtomicUsize = AtomicUsize::new(0);
        let flooders = (0..4).map(|_| {
            let app = app.clone();
            tokio::spawn(async move {
                let mut passed = 0;
                while !STOP.load(Ordering::Relaxed) {
                    for _ in 0..100 {
                        let response = app.clone().oneshot(to("/limited")).await.expect("an answer");
                        if response.status() == 429 {
                            REFUSED.fetch_add(1, Ordering::Relaxed);
                            assert!(response.headers().contains_key("retry-after"));
                            assert!(response.headers().contains_key("ratelimit"));
                        } else {
                            passed += 1;
                        }
                    }
                    tokio::task::yield_now().await;
                }
                passed
            })
        });
        let flooders = flooders.collect::<Vec<_>>();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = resident();
        let end = tokio::time::Instant::now() + Duration::from_secs(2);
        let mut others = 0;
        while tokio::time::Instant::now() < end {
            assert_eq!(app.clone().oneshot(to("/other")).await.expect("an answer").status(), 200);
            others += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let grown = resident().saturating_sub(before);
        STOP.store(true, Ordering::Relaxed);
        let mut passed = 0;
        for flooder in flooders {
            passed += flooder.await.expect("no panic");
        }
        assert_eq!(passed, 5, "one budget, whatever the flood");
        assert!(REFUSED.load(Ordering::Relaxed) > 1_000);
        assert!(others > 20, "another route answered {others} times");
        assert!(grown < 4 << 20, "{grown} bytes more");
    });
}
