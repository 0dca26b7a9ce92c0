//! Do: the loop that sends a call again.
//!
//! Reads as: send; is the outcome one to try again; may this call; how long; is there time; then free what
//! the old response holds, sleep, and send anew through everything further in, so that each attempt is
//! limited like any other. Giving up is decided before the old body is read out, and then returns the
//! outcome untouched. Never retries a refusal of our own, and never holds a permit while it sleeps.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use http::Extensions;
use parking_lot::Mutex;
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};
use tokio::time::Instant;

use crate::client::attempts::{Cause, Stop};
use crate::client::backoff::{Backoff, Spread};
use crate::client::budget::RetryBudget;
use crate::client::call::{BoxFuture, Call, Once};
use crate::client::classify::{self, Fault, Safe};
use crate::client::error::Ours;
use crate::client::marker::{self, Inside, Layer};
use crate::client::receipt::{self, Receipt};
use crate::client::request_ext::{Options, Twice};
use crate::client::terms::{Faults, Pending, Terms, forget_charges};
use crate::client::{gather, route};
use crate::limiter::Last;
use crate::policy::MAX_WAIT;

const REPEATED: &str =
    "a second retry around a call, or one inside a throttle, does nothing; install one, outside";

const KEPT: &str = "the request is kept until it is sent";

type Idempotent = Box<dyn Fn(&Request) -> bool + Send + Sync>;

/// Sends a call again when that is safe and useful, no earlier than the service asked.
///
/// Tried again are throttles (429; 403 and 413 that carry a wait or an exhausted budget) and failures to
/// connect, whatever the method; for idempotent requests also 503, 529, 408, 425, 500, 502, 504, 509, 512 to
/// 599 and connections that broke or timed out. Idempotent are GET, HEAD, OPTIONS, TRACE, PUT and DELETE, requests
/// with an `Idempotency-Key`, and those that are [marked](crate::RequestExt::idempotent). A verdict of the
/// service (`x-should-retry`) decides over both lists. A body that is a stream is sent once.
///
/// An answer from where a redirect led says nothing of whoever sent the call there, so only idempotent requests are
/// sent again after it. It is told by the URL of the response, apart from its query: a middleware further in that
/// changes a request's host or path looks like a redirect, and one that fails to connect after a redirect cannot be
/// told from one that did at once. A client for calls that must not run twice is best built with
/// `reqwest::redirect::Policy::none()`.
///
/// The wait is the service's or our own backoff, whichever is longer, counted from the receipt of the
/// response; jitter never makes a service's wait shorter. A wait that is longer than
/// [`max_server_wait`](Self::max_server_wait) or than what is left of the call's time is not begun: the
/// response is returned as it is.
///
/// The outcome is the last response or error, untouched; [`Attempts`](crate::Attempts) tells the rest. A
/// response's body is not part of the call: when it breaks on the way that is the reader's error, and
/// nothing is sent again, unless the request is [buffered](crate::RequestExt::buffered).
pub struct Retry {
    attempts: Option<u32>,
    transient_attempts: Option<u32>,
    throttled_attempts: Option<u32>,
    total_timeout: Option<Duration>,
    max_wait: Option<Duration>,
    max_server_wait: Duration,
    spread: Option<Spread>,
    transient: Backoff,
    throttle: Backoff,
    idempotent: Option<Idempotent>,
    budget: RetryBudget,
    rng: Mutex<Rng>,
    repeated: Once,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: None,
            transient_attempts: None,
            throttled_attempts: None,
            total_timeout: None,
            max_wait: None,
            max_server_wait: Duration::from_secs(120),
            spread: None,
            transient: Backoff::new(Duration::from_millis(50), Duration::from_secs(20)),
            throttle: Backoff::new(Duration::from_millis(500), Duration::from_secs(30)),
            idempotent: None,
            budget: RetryBudget::new(0.2, 10),
            rng: Mutex::new(Rng::new()),
            repeated: Once::default(),
        }
    }
}

impl Retry {
    /// How often one call is sent at most, the first time included. By default 4 times through transient
    /// faults and 10 times through throttles, counted apart; a number here is the bound for both kinds and
    /// for all sends together. 0 counts as 1.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = Some(attempts);
        self
    }

    /// How often one call is sent at most through transient faults: the statuses above that are no throttle, and
    /// connections that broke or were not made.
    /// By default [`attempts`](Self::attempts), else 4.
    pub fn transient_attempts(mut self, attempts: u32) -> Self {
        self.transient_attempts = Some(attempts);
        self
    }

    /// How often one call is sent at most through throttles (429 and the like). By default
    /// [`attempts`](Self::attempts), else 10.
    pub fn throttled_attempts(mut self, attempts: u32) -> Self {
        self.throttled_attempts = Some(attempts);
        self
    }

    /// How long a call may take in all, from its start to its response's head: queues, waits and sends. A
    /// timer of our own, apart from those of `reqwest`, which hold for each send anew. A send that it ends
    /// is a [`TimedOut`](crate::TimedOut). None by default.
    pub fn total_timeout(mut self, timeout: Duration) -> Self {
        self.total_timeout = Some(timeout);
        self
    }

    /// How long a call is held back in all, over all its attempts: queues, pauses and backoff. By default
    /// the policy's `max_wait`, else 120 s; of several the shortest holds.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// The longest wait that is accepted from a service. A response that asks for more is returned at once.
    /// 120 s by default.
    pub fn max_server_wait(mut self, max: Duration) -> Self {
        self.max_server_wait = max;
        self
    }

    /// How much jitter is added to a service's wait: up to `share` of it, and up to `most`. By default 0.1
    /// and 5 s; and none where the throttle's limits are shared in Redis, for then all who come back, from every
    /// process, stand in one queue.
    pub fn server_jitter(mut self, share: f64, most: Duration) -> Self {
        self.spread = Some(Spread { share, most });
        self
    }

    /// The backoff after transient faults: 50 ms, doubling to 20 s by default. With jitter a wait is
    /// anywhere between nothing and its step.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.transient = backoff;
        self
    }

    /// The backoff after throttles: 0.5 s, doubling to 30 s by default. With jitter a wait is its step and
    /// up to half of it more, within the longest: a service that is out of budget is never called sooner than that,
    /// whether it states a wait of nothing or none at all. Where steps would be longer than the longest, the last third
    /// of that is jitter. Where the limits are shared in Redis all who come back stand in one queue: there is no jitter,
    /// and where the service states a wait, no doubling.
    pub fn throttle_backoff(mut self, backoff: Backoff) -> Self {
        self.throttle = backoff;
        self
    }

    /// Requests for which this is true may run twice, whatever their method. Runs with no lock held.
    pub fn idempotent_if(mut self, idempotent: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Self {
        self.idempotent = Some(Box::new(idempotent));
        self
    }

    /// How many retries of transient faults a service gets: each call adds `share` of one, each second
    /// `per_second`. At most a second's worth is saved up (10 where that is less), and a service starts
    /// with it. By default 0.2 and 10. Throttles and successes take nothing.
    pub fn budget(mut self, share: f64, per_second: u32) -> Self {
        self.budget = RetryBudget::new(share, per_second);
        self
    }

    /// Seeds the jitter, for tests. Random by default.
    pub fn seed(self, seed: u64) -> Self {
        *self.rng.lock() = Rng::with_seed(seed);
        self
    }

    /// The call. What only those need that are sent again is apart, so that the future of the others is small.
    #[allow(clippy::manual_async_fn, reason = "an async fn copies what it is given")]
    fn run<'a>(
        &'a self,
        request: Request,
        extensions: &'a mut Extensions,
        next: Next<'a>,
    ) -> impl Future<Output = Result<Response>> + Send + 'a {
        // A copy is sent, so that there is room for one request only.
        let mut kept = Some(request);
        async move {
            let Some(Inside::Outermost { call, started }) = marker::enter(extensions, Layer::Retry) else {
                self.repeated.warn(REPEATED);
                return next.run(kept.take().expect(KEPT), extensions).await;
            };
            let request = kept.as_ref().expect(KEPT);
            let terms = self.begin(request, marker::stated(extensions), &call, started);
            if self.idempotent.is_some() {
                // The closure may have taken its time.
                marker::begins(extensions, Instant::now());
            }
            let again = {
                let sending = match terms.replica(request) {
                    Some(copy) => terms.first(&call, started, copy, extensions, next.clone()),
                    None => {
                        let request = kept.take().expect(KEPT);
                        terms.first(&call, started, request, extensions, next.clone())
                    }
                };
                let mut result = sending.await;
                let receipt = receipt::of(&mut result, started);
                if let Err(why) = receipt.judgement {
                    call.close(why, &receipt, &mut result);
                    marker::end(call, extensions);
                    return result;
                }
                let fault = Ended { replica: kept, result, receipt };
                Box::pin(self.again(fault, terms, extensions, next, call, started))
            };
            again.await
        }
    }

    /// Notes what holds for the call as a whole.
    fn begin(&self, request: &Request, options: Option<&Options>, call: &Call, started: Instant) -> Terms {
        if let Some(max_wait) = self.max_wait {
            call.bound_wait(max_wait);
        }
        if let Some(timeout) = self.total_timeout {
            call.bound_time(started, timeout);
        }
        if !self.budget.is_full() {
            self.budget.deposit(&route::authority(request.url()), started);
        }
        let (twice, reach) = options.map_or_else(Default::default, |options| (options.twice, options.reach));
        forget_charges(options);
        let marked = twice == Twice::Idempotent
            || classify::is_idempotent(request)
            || self.idempotent.as_ref().is_some_and(|idempotent| idempotent(request));
        Terms { twice, reach, safe: if marked { Safe::Idempotent } else { Safe::AnyMethod } }
    }

    /// What happens after an attempt that ended with a fault, until the call ends.
    async fn again(
        &self,
        fault: Ended,
        terms: Terms,
        extensions: &mut Extensions,
        next: Next<'_>,
        call: Arc<Call>,
        started: Instant,
    ) -> Result<Response> {
        let Ended { mut replica, mut result, mut receipt } = fault;
        let mut faults = Faults::default();
        let mut last = None;
        loop {
            if was_redirected(&result, replica.as_ref()) {
                receipt.is_of_another();
            }
            let plan = self.plan(&receipt, &mut faults, terms.safe, &call);
            let service = replica.as_ref().map(|replica| route::authority(replica.url()));
            let (request, service, plan) = match (plan, replica, service) {
                (Ok(plan), Some(replica), Some(service)) if self.affords(&plan, &service) => {
                    (replica, service, plan)
                }
                (plan, replica, _) => {
                    let why = match (plan, terms.twice, replica) {
                        (Err(why), ..) => why,
                        (Ok(_), Twice::No, _) => Stop::NoRetry,
                        (Ok(_), _, None) => Stop::NotReplayable,
                        (Ok(_), _, Some(_)) => Stop::RetryBudget,
                    };
                    if let Some(last) = last {
                        result = result.map_err(|error| Ours::after(error, last));
                    }
                    call.close(why, &receipt, &mut result);
                    marker::end(call, extensions);
                    return result;
                }
            };
            call.ended(&receipt);
            if let Ok(response) = result {
                let signals = response.extensions().get().cloned();
                last = signals.map(|signals| Last { status: response.status(), signals });
                gather::drain(response, call.deadline()).await;
            } else {
                last = None;
            }
            plan.wait(&service, receipt.outcome, &call).await;
            forget_charges(extensions.get());
            replica = terms.replica(&request);
            let sent = Instant::now();
            marker::begins(extensions, sent);
            result = terms.attempt(&call, started, request, extensions, next.clone()).await;
            receipt = receipt::of(&mut result, sent);
        }
    }

    /// Whether and until when to wait; `twice` is the most that the request allows.
    fn plan(
        &self,
        receipt: &Receipt,
        faults: &mut Faults,
        twice: Safe,
        call: &Call,
    ) -> std::result::Result<Pending, Stop> {
        let (fault, safe) = receipt.judgement?;
        let (number, most) = match fault {
            Fault::Throttled => {
                (&mut faults.throttled, self.throttled_attempts.or(self.attempts).unwrap_or(10))
            }
            Fault::Transient => {
                (&mut faults.transient, self.transient_attempts.or(self.attempts).unwrap_or(4))
            }
        };
        *number = number.saturating_add(1);
        let number = *number;
        if safe == Safe::Idempotent && twice == Safe::AnyMethod {
            return Err(Stop::NotIdempotent);
        }
        if number >= most || faults.all() >= self.attempts.unwrap_or(u32::MAX) {
            return Err(Stop::AttemptsUsedUp);
        }
        let server = receipt.server_wait.unwrap_or_default();
        if server > self.max_server_wait {
            return Err(Stop::WaitTooLong);
        }
        // All who come back stand in one queue, which paces them, and a row of 429s holds everyone: what is refused
        // again is put off by as much as the service asks, not by more each time.
        let is_in_order = call.is_in_order();
        let number = match fault {
            Fault::Throttled if is_in_order && !server.is_zero() => 1,
            _ => number,
        };
        let (own, least) = match fault {
            Fault::Throttled => (&self.throttle, self.throttle.least_after_throttle(number)),
            Fault::Transient => (&self.transient, self.transient.least_after_transient(number)),
        };
        let (step, backoff, jitter) = {
            let rng = &mut *self.rng.lock();
            let backoff = match fault {
                Fault::Throttled if is_in_order => least,
                Fault::Throttled => own.after_throttle(number, rng),
                Fault::Transient => own.after_transient(number, rng),
            };
            let spread = self.spread.unwrap_or(if is_in_order { Spread::NONE } else { Spread::USUAL });
            (own.step(number), backoff, spread.of(server, rng))
        };
        // The longer decides.
        let (floor, wait, cause) = match server >= step {
            true => (server, server.saturating_add(jitter), Cause::Server),
            false => (least.max(server), backoff.max(server.saturating_add(jitter)), Cause::Backoff),
        };
        let received = receipt.received();
        let passed = received.elapsed();
        let may_wait = call.wait_left(MAX_WAIT);
        let left = may_wait.saturating_add(passed);
        if may_wait.is_zero() || floor.max(call.pause_left().saturating_add(passed)) > left {
            return Err(Stop::MaxWait);
        }
        // Jitter is ours to cut to half of the time that is left, for the attempt needs some; the floor is not.
        let wait = wait.min(floor + (left - floor.min(left)) / 2);
        let mut until = received.checked_add(wait).ok_or(Stop::MaxWait)?;
        let resumes = Instant::now().checked_add(call.pause_left()).ok_or(Stop::MaxWait)?;
        if let Some(deadline) = call.deadline() {
            let soonest = received + floor;
            let room = deadline.saturating_duration_since(soonest.max(resumes));
            if room.is_zero() {
                return Err(Stop::OutOfTime);
            }
            until = until.min(soonest + room / 2);
        }
        Ok(Pending { fault, until, cause })
    }

    fn affords(&self, plan: &Pending, service: &str) -> bool {
        plan.fault == Fault::Throttled || self.budget.withdraw(service, Instant::now())
    }
}

/// Whether a redirect led elsewhere, so that the answer says nothing of what the first request did. Where the
/// response does not say what was asked, nothing is known of it.
fn was_redirected(result: &Result<Response>, replica: Option<&Request>) -> bool {
    let (Ok(response), Some(replica)) = (result, replica) else { return false };
    route::is_other(replica.url(), response.url())
}

/// An attempt that has ended.
struct Ended {
    /// The request once more, if it can be sent again.
    replica: Option<Request>,
    result: Result<Response>,
    receipt: Receipt,
}

/// As `async_trait` would have it, but for one copy of the request.
impl Middleware for Retry {
    fn handle<'a, 'b, 'c, 'all>(
        &'a self,
        request: Request,
        extensions: &'b mut Extensions,
        next: Next<'c>,
    ) -> BoxFuture<'all>
    where
        'a: 'all,
        'b: 'all,
        'c: 'all,
        Self: 'all,
    {
        // `Box::pin` would copy it once more.
        let run = Box::write(Box::new_uninit(), self.run(request, extensions, next));
        Box::into_pin(run)
    }
}

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry").finish_non_exhaustive()
    }
}
