//! A server whose limits live in a Redis that is away.
#![cfg(feature = "redis")]

#[path = "kit/redis_process.rs"]
mod redis_process;

use std::convert::Infallible;

use forbear::Policy;
use forbear::store::{OnOutage, Redis};
use forbear_server::{Key, LimitLayer};
use http::{Request, Response, StatusCode};
use tower::{Layer, ServiceExt, service_fn};

/// The answers to twelve calls at once, by status.
async fn twelve(store: Redis) -> (usize, usize, usize) {
    let policy = Policy::new("served").limit("10/h burst 10");
    let layer = LimitLayer::new(policy, Key::everyone(), store).build().unwrap();
    let service =
        layer.layer(service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new()))));
    let mut statuses = Vec::new();
    for _ in 0..12 {
        statuses.push(service.clone().oneshot(Request::new(String::new())).await.unwrap().status());
    }
    let count = |status| statuses.iter().filter(|other| **other == status).count();
    (count(StatusCode::OK), count(StatusCode::TOO_MANY_REQUESTS), count(StatusCode::SERVICE_UNAVAILABLE))
}

fn away() -> Redis {
    Redis::new(format!("redis://127.0.0.1:{}", redis_process::free_port())).unwrap()
}

#[tokio::test]
async fn it_goes_on_at_once_within_its_whole_limit() {
    assert_eq!(twelve(away()).await, (10, 2, 0));
}

#[tokio::test]
async fn what_is_stated_for_an_outage_holds() {
    assert_eq!(twelve(away().on_outage(OnOutage::Open)).await, (12, 0, 0));
    assert_eq!(twelve(away().on_outage(OnOutage::Closed)).await, (0, 0, 12));
}
