//! Several limiters for one call: all of their permits or none, and what waiting for one of them means to the others.
//! On a paused clock.

mod kit;

use std::time::Duration;

use forbear::store::Local;
use forbear::{Ask, Limiter, Permit, Policy, Refused, RefusedKind};
use kit::{limiter, most_in, ms, secs, signals};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn a_chain_is_decided_in_one_step() {
    let store = Local::new();
    let each = Limiter::new(Policy::new("each").limit("5/s burst 5"), &store).unwrap();
    let all = Limiter::new(Policy::new("all").limit("1 at once"), &store).unwrap();
    let chain = || [(&each, Ask::new("k")), (&all, Ask::new("all"))];
    let permits = Limiter::acquire_all(&chain()).await.unwrap();
    assert_eq!(permits.len(), 2);
    assert_eq!(
        permits.iter().map(|permit| permit.decision().policy().to_owned()).collect::<Vec<_>>(),
        ["each", "all"]
    );
    let hurried = || {
        [(&each, Ask::new("k").max_wait(Duration::ZERO)), (&all, Ask::new("all").max_wait(Duration::ZERO))]
    };
    let refused = Limiter::acquire_all(&hurried()).await.unwrap_err();
    assert_eq!((refused.kind(), refused.policy()), (RefusedKind::NoSeat, "all"));
    assert_eq!(each.peek("k").await.remaining(), 4, "refused: charged nowhere");
    drop(permits);
    assert!(Limiter::acquire_all(&hurried()).await.is_ok());
}

async fn both(each: &Limiter, all: &Limiter, max_wait: Duration) -> Result<Vec<Permit>, Refused> {
    Limiter::acquire_all(&[(each, Ask::new("k")), (all, Ask::new("k").max_wait(max_wait))]).await
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_waits_gives_back_what_it_took() {
    for one_store in [0, 1] {
        let stores = [Local::new(), Local::new()];
        let each = Policy::new(format!("each {one_store}")).limit("5/min burst 5").limit("4 at once");
        let each = Limiter::new(each, &stores[0]).unwrap();
        let all = Policy::new(format!("all {one_store}")).limit("1 at once");
        let all = Limiter::new(all, &stores[one_store]).unwrap();
        let left = async || {
            let peek = each.peek("k").await;
            Vec::from_iter(peek.limits().map(|limit| limit.remaining()))
        };
        let permits = both(&each, &all, secs(1)).await.unwrap();
        assert_eq!(left().await, [4, 3]);
        // Refused after a wait.
        let refused = both(&each, &all, ms(100)).await.unwrap_err();
        assert_eq!(refused.kind(), RefusedKind::NoSeat);
        assert_eq!(left().await, [4, 3]);
        // Given up while it waits.
        let given_up = tokio::time::timeout(ms(100), both(&each, &all, secs(1))).await;
        assert!(given_up.is_err());
        assert_eq!(left().await, [4, 3]);
        drop(permits);
        drop(both(&each, &all, secs(1)).await.unwrap());
        assert_eq!((left().await[1], all.waiting("k")), (4, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_waits_for_its_last_looks_at_the_pauses_of_the_others_again() {
    let store = Local::new();
    let each = Limiter::new(Policy::new("each").limit("50/s burst 50").limit("40 at once"), &store).unwrap();
    let all = Limiter::new(Policy::new("all").limit("1 at once"), &store).unwrap();
    let busy = all.acquire("k").await.unwrap();
    let start = Instant::now();
    let calls = (0..20).map(|_| {
        let (each, all) = (each.clone(), all.clone());
        tokio::spawn(async move {
            drop(both(&each, &all, secs(60)).await.unwrap());
            start.elapsed()
        })
    });
    let calls = calls.collect::<Vec<_>>();
    tokio::time::sleep(ms(500)).await;
    // All of them hold a permit for it.
    each.pause("k", secs(30));
    drop(busy);
    for call in calls {
        assert!(call.await.unwrap() >= ms(30_500));
    }
    assert_eq!(each.peek("k").await.limit("at-once").unwrap().remaining(), 40);
}

/// Calls under a rate of 10 a second that go when a cap of four lets them: the instants at which they go.
async fn paced_under_a_cap(each: &Limiter, all: &Limiter, calls: usize) -> Vec<Duration> {
    let start = Instant::now();
    let calls = (0..calls).map(|_| {
        let (each, all) = (each.clone(), all.clone());
        tokio::spawn(async move {
            let permits = both(&each, &all, secs(60)).await.unwrap();
            let went = start.elapsed();
            tokio::time::sleep(ms(5)).await;
            drop(permits);
            went
        })
    });
    let mut went = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        went.push(call.await.unwrap());
    }
    went.sort_unstable();
    went
}

#[tokio::test(start_paused = true)]
async fn calls_that_a_cap_held_go_as_their_rate_allows() {
    let store = Local::new();
    let each = Limiter::new(Policy::new("each").limit("10/s burst 1").max_wait(secs(60)), &store).unwrap();
    let all = Limiter::new(Policy::new("all").limit("4 at once"), &store).unwrap();
    let mut busy = Vec::new();
    for _ in 0..4 {
        busy.push(all.acquire("k").await.unwrap());
    }
    let calls = tokio::spawn({
        let (each, all) = (each.clone(), all.clone());
        async move { paced_under_a_cap(&each, &all, 40).await }
    });
    tokio::time::sleep(secs(10)).await;
    drop(busy);
    let went = calls.await.unwrap();
    assert!(went[0] >= secs(10) && *went.last().unwrap() < secs(15), "{went:?}");
    assert!(most_in(&went, secs(1)) <= 11, "{went:?}");
}

/// Others take the cap's seats again and again, so each call waits for one for a second or so.
#[tokio::test(start_paused = true)]
async fn a_cap_that_is_always_busy_starves_no_rate() {
    let store = Local::new();
    let each = Limiter::new(Policy::new("each").limit("10/s burst 1").max_wait(secs(60)), &store).unwrap();
    let all = Limiter::new(Policy::new("all").limit("4 at once").max_wait(secs(60)), &store).unwrap();
    let others = (0..40).map(|_| {
        let all = all.clone();
        tokio::spawn(async move {
            loop {
                let permit = all.acquire("k").await;
                tokio::time::sleep(ms(100)).await;
                drop(permit);
            }
        })
    });
    let others = others.collect::<Vec<_>>();
    tokio::time::sleep(secs(1)).await;
    let went = paced_under_a_cap(&each, &all, 100).await;
    others.iter().for_each(|other| other.abort());
    assert!(*went.last().unwrap() < secs(20), "{went:?}");
}

#[tokio::test(start_paused = true)]
async fn a_chain_may_name_one_budget_twice() {
    let limiter = limiter(Policy::new("twice").limit("4/min burst 4").max_wait(Duration::ZERO));
    let chain = [(&limiter, Ask::new("k")), (&limiter, Ask::new("k"))];
    assert!(Limiter::acquire_all(&chain).await.is_ok());
    assert_eq!(limiter.peek("k").await.remaining(), 2);
    _ = limiter.acquire("k").await.unwrap();
    assert!(Limiter::acquire_all(&chain).await.is_err());
    assert_eq!(limiter.peek("k").await.remaining(), 1);
    assert!(Limiter::acquire_all(&[]).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_waits_for_a_seat_is_still_the_probe() {
    let store = Local::new();
    let each = Policy::new("each").limit("10/s burst 10").max_wait(secs(40_000));
    let each = Limiter::new(each, &store).unwrap();
    let all = Limiter::new(Policy::new("all").limit("1 at once").max_wait(secs(40_000)), &store).unwrap();
    each.observe("k", &signals(429, &[("retry-after", "36000")]));
    let busy = all.acquire("k").await.unwrap();
    let start = Instant::now();
    let probe = tokio::spawn({
        let (each, all) = (each.clone(), all.clone());
        async move { both(&each, &all, secs(40_000)).await.map(|permits| (permits, start.elapsed())) }
    });
    tokio::time::sleep(secs(3_601)).await;
    drop(busy);
    let (permits, took) = probe.await.unwrap().unwrap();
    assert!((secs(3_600)..secs(3_602)).contains(&took), "{took:?}");
    assert!(each.try_acquire("k").await.is_err(), "one an hour");
    drop(permits);
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_seat_does_not_come_leaves_its_turn_to_the_next() {
    let store = Local::new();
    let each = Policy::new("each").limit("10/s burst 10").max_wait(Duration::ZERO);
    let each = Limiter::new(each, &store).unwrap();
    let all = Limiter::new(Policy::new("all").limit("1 at once"), &store).unwrap();
    each.observe("k", &signals(429, &[("retry-after", "36000")]));
    let _busy = all.acquire("k").await.unwrap();
    tokio::time::sleep(secs(3_600)).await;
    let refused = both(&each, &all, ms(500)).await.unwrap_err();
    assert_eq!((refused.policy(), refused.kind()), ("all", RefusedKind::NoSeat));
    drop(each.acquire("k").await.unwrap());
    assert!(each.acquire("k").await.is_err(), "one an hour");
}

#[tokio::test(start_paused = true)]
async fn a_chain_whose_seat_is_taken_says_how_long_its_rate_takes_at_least() {
    let store = Local::new();
    let each = Limiter::new(Policy::new("each").limit(kit::bucket(secs(60), 1)), &store).unwrap();
    let all = Limiter::new(Policy::new("all").limit("1 at once"), &store).unwrap();
    let _held = both(&each, &all, Duration::ZERO).await.unwrap();
    let hurried = |limiter| (limiter, Ask::new("k").max_wait(Duration::ZERO));
    let refused = Limiter::acquire_all(&[hurried(&each), hurried(&all)]).await.unwrap_err();
    assert_eq!((refused.kind(), refused.policy()), (RefusedKind::RateLimited, "each"));
    assert_eq!(refused.retry_after(), Some(secs(60)));
}

#[tokio::test(start_paused = true)]
async fn a_chain_names_the_policy_whose_key_is_paused_and_no_other_stands_empty_for_it() {
    let store = Local::new();
    let each = Limiter::new(Policy::new("each").limit("10/s burst 10"), &store).unwrap();
    // After a pause a budget begins empty.
    let counts = Policy::new("counts").limit("10/min burst 10");
    for (all, wait) in [(Policy::new("follows"), secs(30)), (counts, secs(36))] {
        let name = all.name().to_owned();
        let all = Limiter::new(all, &store).unwrap();
        all.pause("k", secs(30));
        let refused = both(&each, &all, Duration::ZERO).await.unwrap_err();
        assert_eq!((refused.kind(), refused.policy()), (RefusedKind::Paused, &*name));
        assert_eq!(refused.retry_after(), Some(wait));
        assert_eq!(each.peek("k").await.remaining(), 10);
    }
}

/// B124: what cannot come in time is refused at once, whichever of the limits holds the call.
#[tokio::test(start_paused = true)]
async fn b124_a_chain_that_cannot_make_it_in_time_fails_at_once() {
    let store = Local::new();
    let each = Limiter::new(Policy::new("each").limit(kit::bucket(secs(60), 1)), &store).unwrap();
    let all = Limiter::new(Policy::new("all").limit(kit::bucket(secs(3_600), 1)), &store).unwrap();
    drop(both(&each, &all, secs(100)).await.unwrap());
    let start = Instant::now();
    let refused = both(&each, &all, secs(100)).await.unwrap_err();
    assert_eq!((refused.policy(), start.elapsed()), ("all", Duration::ZERO));
    assert_eq!(refused.retry_after(), Some(secs(3_600)));
}
