//! What callers may do to a limiter whose budgets live in Redis: ask all at once, not wait, wait for several
//! limits, and change the policy under those who wait.
#![cfg(feature = "redis")]

#[path = "kit/redis_process.rs"]
mod redis_process;

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use forbear::store::Redis;
use forbear::{Ask, Builder, Limit, Limiter, Permit, Policy, Rate, Refused, RefusedKind};
use forbear_server::{Key, LimitLayer};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use redis_process::RedisProcess;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};

/// Long enough for anything that does not wait, on a machine that is busy with other things.
const SOON: Duration = Duration::from_secs(5);

fn limiter(server: &RedisProcess, policy: Policy) -> Limiter {
    Limiter::new(policy, Redis::new(server.url()).expect("a good URL")).expect("a good policy")
}

/// A bucket that earns next to nothing while a test runs.
fn bucket(units: u64) -> Limit {
    Limit::token_bucket(Rate::per_day(1), units)
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(SOON, future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}

/// So many calls at once.
async fn at_once(limiter: &Limiter, calls: usize, max_wait: Duration) -> Vec<Result<Permit, Refused>> {
    let mut set = JoinSet::new();
    for _ in 0..calls {
        let limiter = limiter.clone();
        set.spawn(async move { limiter.acquire(Ask::new("k").max_wait(max_wait)).await });
    }
    soon("all at once", set.join_all()).await
}

/// Twenty calls that wait, with patience.
async fn twenty_wait(limiter: &Limiter) -> JoinSet<Result<Permit, Refused>> {
    let mut waiting = JoinSet::new();
    for _ in 0..20 {
        let limiter = limiter.clone();
        waiting.spawn(async move { limiter.acquire(Ask::new("k").max_wait(20 * SOON)).await });
    }
    sleep(Duration::from_millis(300)).await;
    assert_eq!(limiter.waiting("k"), 20);
    waiting
}

fn granted(answers: &[Result<Permit, Refused>]) -> usize {
    answers.iter().filter(|answer| answer.is_ok()).count()
}

#[tokio::test]
async fn those_who_try_at_once_get_all_there_is_and_no_more() {
    let server = RedisProcess::start();
    for (name, units) in [("all", 64), ("half", 32)] {
        let limiter = limiter(&server, Policy::new(name).limit(bucket(units)));
        let mut set = JoinSet::new();
        for _ in 0..64 {
            let limiter = limiter.clone();
            set.spawn(async move { limiter.try_acquire("k").await });
        }
        let answers = soon("trying", set.join_all()).await;
        assert_eq!(granted(&answers) as u64, units);
    }
}

#[tokio::test]
async fn those_who_come_at_once_go_in_one_trip() {
    let server = RedisProcess::start();
    for (name, limit) in [("seats", Limit::concurrency(4)), ("bucket", bucket(4))] {
        let limiter = limiter(&server, Policy::new(name).limit(limit));
        _ = limiter.peek("k").await;
        sleep(Duration::from_millis(200)).await;
        let before = server.calls("mget");
        let answers = at_once(&limiter, 20, Duration::ZERO).await;
        assert_eq!((granted(&answers), server.calls("mget") - before), (4, 1));
    }
}

#[tokio::test]
async fn refusals_take_no_trips_while_it_is_known_that_nothing_is_left() {
    let server = RedisProcess::start();
    let limiter = limiter(&server, Policy::new("known").limit(bucket(3)));
    let (start, mut went, mut asked) = (Instant::now(), 0, 0);
    while start.elapsed() < Duration::from_millis(500) {
        went += u64::from(limiter.try_acquire("k").await.is_ok());
        asked += 1;
    }
    assert_eq!(went, 3);
    // The three, one that finds nothing left, and one more where the machine was held up for a second.
    assert!(server.calls("mget") <= 5, "{} trips for {asked} calls", server.calls("mget"));
}

#[tokio::test]
async fn what_goes_back_can_be_had_at_once() {
    let server = RedisProcess::start();
    let limiter = limiter(&server, Policy::new("settled").limit(bucket(10).unit("tokens")));
    let ask = || Ask::new("k").cost("tokens", 10);
    let permit = limiter.try_acquire(ask()).await.expect("there is enough");
    let refused = limiter.try_acquire(ask()).await.expect_err("nothing is left");
    assert_eq!(refused.kind(), RefusedKind::RateLimited);
    permit.settle("tokens", 0);
    soon("using what was not used", async {
        while limiter.try_acquire(ask()).await.is_err() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_refuses_what_is_above_and_says_for_how_long() {
    let server = RedisProcess::start();
    let hello = service_fn(async |_: Request<Full<Bytes>>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello")))
    });
    let layer = || {
        let store = Redis::new(server.url()).expect("a good URL");
        LimitLayer::new(
            Policy::new("api").limit(Limit::fixed_window(Rate::per_hour(10))),
            Key::everyone(),
            store,
        )
    };
    // Two servers that share one budget.
    let services = [(); 2].map(|()| layer().build().expect("a good policy").layer(hello));
    let mut set = JoinSet::new();
    for i in 0..40 {
        let service = services[i % 2].clone();
        set.spawn(
            async move { service.oneshot(Request::new(Full::default())).await.expect("it never fails") },
        );
    }
    let answers = soon("answering", set.join_all()).await;
    let refused = answers.iter().filter(|answer| answer.status() == StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.clone().count(), 30);
    for answer in refused {
        let wait = answer.headers()["retry-after"].to_str().expect("text").parse::<u64>().expect("seconds");
        assert!((3_500..=3_600).contains(&wait), "{wait}");
    }
}

#[tokio::test]
async fn a_full_queue_refuses_at_once_and_holds_the_others() {
    let server = RedisProcess::start();
    let limiter = limiter(&server, Policy::new("leaky").limit(Limit::leaky_bucket(Rate::per_second(4), 4)));
    let start = Instant::now();
    let answers = at_once(&limiter, 12, Duration::ZERO).await;
    assert_eq!(granted(&answers), 5, "one goes, four are held");
    assert!(start.elapsed() >= Duration::from_millis(990), "the last was held for four turns");
    for refused in answers.into_iter().filter_map(Result::err) {
        assert_eq!(refused.kind(), RefusedKind::QueueFull);
        assert!(refused.retry_after().is_some_and(|wait| wait <= Duration::from_secs(1)));
    }
    // Who comes while others are held still gets its answer at once.
    let (_held, start) = (at_once(&limiter, 2, Duration::ZERO), Instant::now());
    _ = soon("a refusal", limiter.try_acquire("k")).await;
    assert!(start.elapsed() < SOON);
}

#[tokio::test]
async fn several_limits_are_charged_together_or_not_at_all_in_one_trip() {
    let server = RedisProcess::start();
    let tokens = bucket(1_000).unit("tokens").named("tokens");
    let policy = Policy::new("three").limit(bucket(100).named("calls")).limit(tokens).limit("2 at once");
    let limiter = limiter(&server, policy);
    let ask = |tokens| Ask::new("k").cost("tokens", tokens).max_wait(Duration::ZERO);
    let left =
        async |unit: &str| limiter.peek("k").await.limit(unit).expect("it is in the policy").remaining();

    // Once the first heartbeat is over, which reports seats too.
    _ = limiter.peek("k").await;
    sleep(Duration::from_millis(200)).await;
    let before = server.calls("mget");
    let first = limiter.acquire(ask(600)).await.expect("there is enough of all");
    assert_eq!(server.calls("mget") - before, 1, "one trip decides over all three");
    let refused = limiter.acquire(ask(600)).await.expect_err("400 tokens are left");
    assert_eq!(refused.limit(), Some("tokens"));
    assert_eq!((left("calls").await, left("tokens").await), (99, 400), "a refusal charges nothing");

    let second = limiter.acquire(ask(100)).await.expect("there is enough of all");
    let refused = limiter.acquire(ask(100)).await.expect_err("both seats are taken");
    assert_eq!(refused.kind(), RefusedKind::NoSeat);
    assert_eq!((left("calls").await, left("tokens").await), (98, 300), "nor does one that finds no seat");

    // An estimate is corrected down, and up.
    first.settle("tokens", 100);
    second.settle("tokens", 200);
    soon("settling", async {
        while left("tokens").await != 700 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    drop((first, second));
    soon("seats coming back", async {
        while left("at-once").await != 2 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn those_who_wait_go_by_the_new_numbers() {
    let server = RedisProcess::start();
    let limiter = limiter(&server, Policy::new("changing").limit(bucket(1).named("calls")));
    let _first = limiter.acquire("k").await.expect("the first goes");
    let mut waiting = JoinSet::new();
    for _ in 0..20 {
        let limiter = limiter.clone();
        waiting.spawn(async move { limiter.acquire(Ask::new("k").max_wait(2 * SOON)).await });
    }
    // A day away is further than anyone waits, so some are refused already: those who came with patience for a
    // pause are not.
    let answers = soon("refusing", waiting.join_all()).await;
    assert_eq!(granted(&answers), 0);

    limiter
        .set_policy(
            Policy::new("changing").limit(Limit::token_bucket(Rate::new(1, 8 * SOON), 1).named("calls")),
        )
        .expect("a good policy");
    let waiting = twenty_wait(&limiter).await;
    limiter
        .set_policy(
            Policy::new("changing").limit(Limit::token_bucket(Rate::per_second(1_000), 1_000).named("calls")),
        )
        .expect("a good policy");
    assert_eq!(granted(&soon("going", waiting.join_all()).await), 20);
}

#[tokio::test]
async fn those_who_wait_are_refused_when_it_is_closed() {
    let server = RedisProcess::start();
    let limiter = limiter(&server, Policy::new("closing").limit(Limit::token_bucket(Rate::new(1, SOON), 1)));
    let _first = limiter.acquire("k").await.expect("the first goes");
    let waiting = twenty_wait(&limiter).await;
    limiter.close();
    for answer in soon("closing", waiting.join_all()).await {
        assert_eq!(answer.expect_err("it is closed").kind(), RefusedKind::Closed);
    }
    assert!(limiter.acquire("k").await.is_err());
}

#[tokio::test]
async fn what_one_pauses_is_paused_for_all_until_one_resumes() {
    let server = RedisProcess::start();
    let [one, other] = [(); 2].map(|()| limiter(&server, Policy::new("paused").limit("1000/s burst 100")));
    // Both know the key, and hear of what happens to it.
    _ = (one.acquire("k").await.expect("it goes"), other.acquire("k").await.expect("it goes"));
    one.pause("k", 6 * SOON);
    soon("hearing of the pause", async {
        while other.peek("k").await.paused().is_none() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let refused = other.acquire(Ask::new("k").max_wait(SOON)).await.expect_err("nothing goes in a pause");
    assert_eq!(refused.kind(), RefusedKind::Paused);
    let patient = other.clone();
    let waiting = tokio::spawn(async move { patient.acquire(Ask::new("k").max_wait(20 * SOON)).await });
    sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    one.resume("k");
    _ = soon("going on", waiting).await.expect("no panic").expect("it is over");
    assert_eq!(one.peek("k").await.paused(), None);
}

#[tokio::test]
async fn two_limiters_on_one_store_share_what_there_is() {
    let server = RedisProcess::start();
    let store = Redis::new(server.url()).expect("a good URL");
    let policy = Policy::new("twice").limit(bucket(10)).limit("3 at once");
    let [one, other] = [(); 2].map(|()| Limiter::new(policy.clone(), store.clone()).expect("a good policy"));
    let mut held = Vec::new();
    for limiter in [&one, &other, &one] {
        held.push(limiter.try_acquire("k").await.expect("a seat is free"));
    }
    for limiter in [&one, &other] {
        assert_eq!(
            limiter.try_acquire("k").await.expect_err("all three are taken").kind(),
            RefusedKind::NoSeat
        );
    }
    drop(held.pop());
    _ = soon("a seat of the one", other.acquire("k")).await.expect("for the other");
    drop(held);
    let mut went = 4;
    while one.acquire(Ask::new("k").max_wait(Duration::from_secs(1))).await.is_ok() {
        went += 1;
    }
    assert_eq!(went, 10);
}

/// However much there is, and whether anybody waits: a client asks Redis, and nothing that is only here.
#[tokio::test]
async fn clients_of_one_redis_share_what_there_is() {
    let server = RedisProcess::start();
    let service = httpmock::MockServer::start_async().await;
    let mock = service.mock_async(|_, then| _ = then.status(200)).await;
    let three = bucket(3).jitter_margin(Duration::ZERO);
    let policy = || Policy::new("clients").limit(three.clone()).max_wait(Duration::ZERO);
    let client = || {
        let store = Redis::new(server.url()).expect("a good URL");
        let builder = Builder::new(reqwest::Client::new()).policy(policy());
        builder.store(store).build().expect("a good policy")
    };
    for client in [client(), client()] {
        for _ in 0..3 {
            _ = soon("a call", client.get(service.url("/")).send()).await;
        }
    }
    assert_eq!(mock.calls_async().await, 3);
}

/// One goes at once, and as many wait as the queue holds, whoever of the fleet they come to.
#[tokio::test]
async fn the_queue_of_a_leaky_bucket_is_the_fleets() {
    let server = RedisProcess::start();
    let policy = || Policy::new("leaky").limit(Limit::leaky_bucket(Rate::per_second(10), 5));
    let limiters = [limiter(&server, policy()), limiter(&server, policy())];
    for limiter in &limiters {
        _ = limiter.peek("k").await;
    }
    let (one, other) =
        tokio::join!(at_once(&limiters[0], 8, Duration::ZERO), at_once(&limiters[1], 8, Duration::ZERO));
    // A busy machine may let a slot come before the last of them has asked.
    let granted = granted(&one) + granted(&other);
    assert!((6..=8).contains(&granted), "{granted} of a queue of 5");
}
