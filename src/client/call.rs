//! One call of the user on its way through the middlewares: what all of its attempts share.
//!
//! Lives in the future of the outermost layer; those further in find it by its [marker](super::marker). Most
//! calls are sent once and never wait, so what is only known of the others is made when there is something to
//! note.

use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Next, Result};
use tokio::time::Instant;

use crate::client::Attempts;
use crate::client::attempts::{Attempt, Cause, Outcome, Stop};
use crate::client::error::TimedOut;
use crate::client::marker::Posts;
use crate::client::receipt::{self, Receipt};
use crate::client::request_ext::Options;
use crate::clock::{self, at_us, now_us};

const NONE: u64 = u64::MAX;

/// What all attempts of a call share.
#[derive(Debug, Default)]
pub(crate) struct Call {
    /// The caller's, or made for the first thing to note beside an only attempt.
    attempts: OnceLock<Attempts>,
    deadline_us: AtomicU64,
    /// The shortest of those stated.
    max_wait_us: AtomicU64,
    held_us: AtomicU64,
    /// The part of it since the attempt before.
    queued_us: AtomicU64,
    /// Until when a key of the call is paused.
    paused_until_us: AtomicU64,
    /// Whether those who come back stand in one queue, wherever they wait.
    in_order: AtomicBool,
    /// Whether an attempt is just being handed on.
    hands_on: AtomicBool,
    /// Whether the attempt under way has left every limit behind.
    goes: AtomicBool,
    /// Whether a throttle has ever let the call go.
    is_let_go: AtomicBool,
    pub(crate) posts: Posts,
}

impl Call {
    /// Of a new one, or of one that [can be used again](Self::is_spare).
    pub(crate) fn begin(&self, started: Instant, options: Option<&Options>) {
        for bound_us in [&self.deadline_us, &self.max_wait_us] {
            bound_us.store(NONE, Ordering::Relaxed);
        }
        for so_far_us in [&self.held_us, &self.queued_us, &self.paused_until_us] {
            so_far_us.store(0, Ordering::Relaxed);
        }
        self.goes.store(false, Ordering::Relaxed);
        self.is_let_go.store(false, Ordering::Relaxed);
        self.in_order.store(false, Ordering::Relaxed);
        let Some(options) = options else { return };
        if let Some(attempts) = &options.attempts {
            attempts.begin();
            _ = self.attempts.set(attempts.clone());
        }
        if let Some(max_wait) = options.max_wait {
            self.bound_wait(max_wait);
        }
        if let Some(deadline) = options.deadline {
            self.bound_time(started, deadline.saturating_duration_since(started));
        }
    }

    /// Whether nobody has, or was given, anything of it.
    pub(crate) fn is_spare(&self) -> bool {
        self.attempts.get().is_none()
    }

    /// The call has `time` from its start to its head.
    pub(crate) fn bound_time(&self, started: Instant, time: Duration) {
        self.deadline_us.fetch_min(at_us(started).saturating_add(us(time)), Ordering::Relaxed);
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.deadline_us.load(Ordering::Relaxed) {
            NONE => None,
            us => Some(clock::instant(us)),
        }
    }

    /// The call is held back for at most `max_wait` in all.
    pub(crate) fn bound_wait(&self, max_wait: Duration) {
        let max_wait_us = us(max_wait).min(NONE - 1);
        // Looks before it writes: a shorter one is news only once.
        if max_wait_us < self.max_wait_us.load(Ordering::Relaxed) {
            self.max_wait_us.fetch_min(max_wait_us, Ordering::Relaxed);
        }
    }

    /// How much longer the call may be held back; `default` is the whole where nobody said.
    pub(crate) fn wait_left(&self, default: Duration) -> Duration {
        let max = match self.max_wait_us.load(Ordering::Relaxed) {
            NONE => default,
            max => Duration::from_micros(max),
        };
        max.saturating_sub(Duration::from_micros(self.held_us.load(Ordering::Relaxed)))
    }

    /// Notes that the attempt under way asks a limiter, and is not sent until it [goes](Self::goes).
    pub(crate) fn asks(&self) {
        self.goes.store(false, Ordering::Relaxed);
    }

    /// Notes that a throttle lets the attempt go.
    pub(crate) fn let_go(&self) {
        self.is_let_go.store(true, Ordering::Relaxed);
        self.goes();
    }

    /// Whether one did, in this or an earlier attempt.
    pub(crate) fn is_let_go(&self) -> bool {
        self.is_let_go.load(Ordering::Relaxed)
    }

    /// Notes that nothing of ours holds the attempt under way any more.
    pub(crate) fn goes(&self) {
        self.goes.store(true, Ordering::Relaxed);
    }

    /// A wait, noted when this is dropped, also with a call that is given up: between two attempts for a cause, in a
    /// limiter's queue without one.
    pub(crate) fn waits(&self, since: Instant, cause: Option<Cause>) -> Waits<'_> {
        Waits { call: self, since, cause }
    }

    fn queued(&self, time: Duration) {
        if !time.is_zero() {
            self.held_us.fetch_add(us(time), Ordering::Relaxed);
            self.queued_us.fetch_add(us(time), Ordering::Relaxed);
            self.attempts().held_by_limits(time);
        }
    }

    fn waited(&self, time: Duration, cause: Cause) {
        self.held_us.fetch_add(us(time), Ordering::Relaxed);
        self.attempts().waited(time, cause);
    }

    /// Notes that a key of the call is paused for so long from now.
    pub(crate) fn paused(&self, time: Duration) {
        self.paused_until_us.fetch_max(now_us().saturating_add(us(time)), Ordering::Relaxed);
    }

    /// Notes that all who wait for one of the call's keys stand in one queue.
    pub(crate) fn stands_in_order(&self) {
        self.in_order.store(true, Ordering::Relaxed);
    }

    /// Whether they do, as far as a throttle has noted.
    pub(crate) fn is_in_order(&self) -> bool {
        self.in_order.load(Ordering::Relaxed)
    }

    /// How much longer the call's keys are paused, as far as it knows.
    pub(crate) fn pause_left(&self) -> Duration {
        match self.paused_until_us.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            until_us => Duration::from_micros(until_us.saturating_sub(now_us())),
        }
    }

    /// Notes how an attempt ended after which another is sent.
    pub(crate) fn ended(&self, receipt: &Receipt) {
        let (attempt, sends) = self.end(receipt);
        self.attempts().ended(attempt, sends);
    }

    /// What the outermost layer does with the result of the last attempt: closes the record, and leaves it in
    /// the response, if that does not tell all by itself.
    pub(crate) fn close(&self, why: Stop, receipt: &Receipt, result: &mut Result<Response>) {
        let noted = self.attempts.get();
        let tells_all = self.goes.load(Ordering::Relaxed) && receipt.is_answer();
        if noted.is_none() && (tells_all || result.is_err()) {
            // A response that was kept somewhere may carry the record of an earlier call.
            if let Ok(response) = result {
                response.extensions_mut().remove::<Attempts>();
            }
            return;
        }
        let (attempt, sends) = self.end(receipt);
        let attempts = noted.cloned().unwrap_or_default();
        attempts.ended(attempt, sends);
        attempts.stop(why);
        if let Ok(response) = result {
            response.extensions_mut().insert(attempts);
        }
    }

    /// Leaves the record in the response to the attempt under way, if there is more to tell than of its only one.
    pub(crate) fn leave(&self, response: &mut Response) {
        if let Some(attempts) = self.attempts.get() {
            response.extensions_mut().insert(attempts.clone());
        }
    }

    /// For a call without retries: closes it with its only attempt.
    pub(crate) fn close_only(&self, started: Instant, result: &mut Result<Response>) {
        let receipt = receipt::of(result, started);
        self.close(receipt.judgement.err().unwrap_or(Stop::NoRetry), &receipt, result);
    }

    /// The attempt under way, and how often it was sent. By the outermost layer, when nothing is further in.
    fn end(&self, receipt: &Receipt) -> (Attempt, u32) {
        let held = Duration::from_micros(self.queued_us.load(Ordering::Relaxed));
        let sent = self.goes.load(Ordering::Relaxed) && !matches!(receipt.outcome, Outcome::Refused(_));
        self.queued_us.store(0, Ordering::Relaxed);
        self.goes.store(false, Ordering::Relaxed);
        (receipt.attempt(held), sent.into())
    }

    fn attempts(&self) -> &Attempts {
        self.attempts.get_or_init(Attempts::new)
    }

    /// Hands an attempt on to what is further in, for the caller to poll at once.
    pub(crate) fn sends<'a>(
        &self,
        request: Request,
        extensions: &'a mut Extensions,
        next: Next<'a>,
    ) -> BoxFuture<'a> {
        self.goes();
        self.hands_on.store(true, Ordering::Relaxed);
        let sending = next.run(request, extensions);
        self.hands_on.store(false, Ordering::Relaxed);
        sending
    }

    /// Whether the attempt is just being handed on: a layer further in need not wait for its first poll.
    pub(crate) fn is_handed_on(&self) -> bool {
        self.hands_on.load(Ordering::Relaxed)
    }

    /// Fails if no time is left: then nothing is sent.
    pub(crate) fn check_time(&self, started: Instant) -> Result<()> {
        match self.deadline() {
            Some(deadline) if Instant::now() >= deadline => Err(TimedOut::new(started.elapsed()).into()),
            _ => Ok(()),
        }
    }

    /// Runs an attempt up to its head, within the deadline.
    pub(crate) async fn in_time<F>(&self, started: Instant, attempt: F) -> Result<Response>
    where
        F: Future<Output = Result<Response>>,
    {
        let Some(deadline) = self.deadline() else { return attempt.await };
        let in_time = Box::pin(tokio::time::timeout_at(deadline, attempt)).await;
        in_time.unwrap_or_else(|_| Err(TimedOut::new(started.elapsed()).into()))
    }
}

/// A wait that is noted when this is dropped.
pub(crate) struct Waits<'a> {
    call: &'a Call,
    since: Instant,
    cause: Option<Cause>,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let time = self.since.elapsed();
        match self.cause {
            Some(cause) => self.call.waited(time, cause),
            None => self.call.queued(time),
        }
    }
}

/// What is further in, as `reqwest_middleware` gives and takes it.
pub(crate) type BoxFuture<'a> = Pin<Box<dyn Future<Output = Result<Response>> + Send + 'a>>;

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Says something once.
#[derive(Debug, Default)]
pub(crate) struct Once(AtomicBool);

impl Once {
    pub(crate) fn warn(&self, text: &'static str) {
        if !self.0.swap(true, Ordering::Relaxed) {
            tracing::warn!("{text}");
        }
    }
}
