//! Keys whose hashes are the same: they share nothing but a place in the table of lines.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::{Ask, Limiter};
use crate::algorithm::State;
use crate::policy::Policy;
use crate::store::{
    Answer, AnyStore, Charge, Forecast, Grant, Home, Local, Part, PauseAsk, Space, Standing, Store, Ticket,
    When,
};

/// A store to which all keys look alike.
struct OneHash {
    inner: Arc<dyn Store>,
    /// The true hashes, by the number of the key's budget.
    hashes: Mutex<HashMap<u64, u64>>,
}

impl OneHash {
    fn charge_of<'a>(&self, charge: Charge<'a>) -> Charge<'a> {
        let hash = self.hashes.lock()[&charge.ticket.id];
        Charge { ticket: Ticket { hash, ..charge.ticket }, ..charge }
    }
}

impl Store for OneHash {
    fn open(&self, policy: &str) -> Space {
        self.inner.open(policy)
    }

    fn hash(&self, _: &Part<'_>) -> u64 {
        7
    }

    fn leave(&self, space: Space) {
        self.inner.leave(space);
    }

    fn bound_keys(&self, keys: usize) {
        self.inner.bound_keys(keys);
    }

    fn decide(&self, parts: &[Part<'_>], when: When) -> Answer {
        let mut answer = self.inner.decide(parts, when);
        for part in &mut answer.parts {
            self.hashes.lock().insert(part.ticket.id, part.ticket.hash);
            part.ticket.hash = 7;
        }
        answer
    }

    fn try_now(&self, _: &Part<'_>, _: Option<u64>, _: &mut Grant) -> bool {
        false
    }

    fn free_seats(&self, charge: Charge<'_>) {
        self.inner.free_seats(self.charge_of(charge));
    }

    fn charge(&self, part: Part<'_>) {
        self.inner.charge(part);
    }

    fn take_back(&self, charge: Charge<'_>, before: Option<&[Option<State>]>) {
        self.inner.take_back(self.charge_of(charge), before);
    }

    fn release(&self, charge: Charge<'_>) {
        self.inner.release(self.charge_of(charge));
    }

    fn settle(&self, charge: Charge<'_>, index: usize, used: u64) {
        self.inner.settle(self.charge_of(charge), index, used);
    }

    fn pause(&self, part: Part<'_>, pause: PauseAsk) {
        self.inner.pause(part, pause);
    }

    fn drain(&self, part: Part<'_>) {
        self.inner.drain(part);
    }

    fn resume(&self, part: Part<'_>, answered: Option<u64>) {
        self.inner.resume(part, answered);
    }

    fn peek(&self, part: Part<'_>) -> Standing {
        self.inner.peek(part)
    }

    fn forecast(&self, part: Part<'_>) -> Forecast {
        self.inner.forecast(part)
    }
}

#[tokio::test(start_paused = true)]
async fn keys_that_share_a_hash_share_nothing_else() {
    let store = OneHash { inner: Local::new().table(), hashes: Mutex::default() };
    let policy = Policy::new("one hash").limit("1/s burst 1").limit("2 at once").max_waiting(5);
    let limiter = Limiter::new(policy, AnyStore(Home::Here(Arc::new(store)))).unwrap();
    let start = Instant::now();
    let calls = (0..12).map(|i| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            drop(limiter.acquire(["a", "b"][i % 2]).await.unwrap());
            start.elapsed()
        })
    });
    let calls = calls.collect::<Vec<_>>();
    sleep(Duration::from_millis(500)).await;
    assert_eq!((limiter.waiting("a"), limiter.waiting("b")), (5, 5));
    assert!(limiter.acquire("b").await.is_err(), "its own line is full");
    // Whoever gives up, whatever is paused: the other key does not notice.
    calls[3].abort();
    limiter.pause("b", Duration::from_secs(60));
    let _other = limiter.try_acquire("c").await.unwrap();
    for (i, call) in calls.into_iter().enumerate() {
        match (i % 2, call.await) {
            (0, time) => assert_eq!(time.unwrap().as_secs(), i as u64 / 2),
            (_, Err(_)) => assert_eq!(i, 3),
            (_, Ok(time)) => assert!(i == 1 || time >= Duration::from_secs(60)),
        }
    }
    assert_eq!((limiter.waiting("a"), limiter.waiting("b")), (0, 0));
    _ = limiter.try_acquire(Ask::new("a")).await;
    assert!(limiter.core.shared.queue.has_no_line(), "no line is left behind");
}
