//! The layer over a plain service: what passes, what is refused, and what callers are told.

mod support;

use std::time::Duration;

use forbear::{Policy, store::Local};
use forbear_server::{Key, LimitLayer};
use support::{from, header, service};
use tower::{Service, ServiceExt};

fn bucket() -> Policy {
    Policy::new("address").limit("10/s burst 2")
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_is_answered_429_and_told_when_it_would() {
    let layer = LimitLayer::new(bucket(), Key::peer(), Local::new()).build().expect("a right layer");
    let mut service = service(&layer);
    for left in ["1", "0"] {
        let response = service.ready().await.unwrap().call(from("192.0.2.1")).await.unwrap();
        assert_eq!(response.status(), 200);
        let standing = header(&response, "ratelimit");
        assert!(standing.starts_with(&format!("\"requests/s\";r={left};t=1")), "{standing}");
        assert_eq!(header(&response, "ratelimit-policy"), "\"requests/s\";q=10;w=1");
        assert!(!response.headers().contains_key("retry-after"));
    }
    let response = service.call(from("192.0.2.1")).await.unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(header(&response, "retry-after"), "1");
    assert_eq!(header(&response, "ratelimit"), "\"requests/s\";r=0;t=1");
    assert_eq!(header(&response, "x-ratelimit-policy"), "requests/s");
    assert_eq!(header(&response, "content-type"), "application/problem+json");
    assert_eq!(service.call(from("192.0.2.2")).await.unwrap().status(), 200);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(service.call(from("192.0.2.1")).await.unwrap().status(), 200);
}
