//! One call of the user on its way through the middlewares: what all of its attempts share.
//!
//! Lives in the future of the outermost layer; those further in find it by its [marker](super::marker). Most
//! calls are sent once and never wait, so what is only known of the others is made when there is something to
//! note.

use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Response;
use reqwest_middleware::{Error, Result};
use tokio::time::Instant;

use crate::client::Attempts;
use crate::client::attempts::{Attempt, Cause, Outcome, Stop};
use crate::client::error::TimedOut;
use crate::client::marker::Throttles;
use crate::client::receipt::{self, Receipt};
use crate::client::request_ext::Options;

const NONE: u64 = u64::MAX;

/// What all attempts of a call share.
#[derive(Debug)]
pub(crate) struct Call {
    /// The caller's, or made for the first thing to note before the end.
    attempts: OnceLock<Attempts>,
    pub(crate) started: Instant,
    /// When the attempt began whose first poll is under way, from the start.
    now_us: AtomicU64,
    /// Until the deadline, from the start.
    time_us: AtomicU64,
    /// The shortest of those stated.
    max_wait_us: AtomicU64,
    held_us: AtomicU64,
    /// The part of it since the attempt before.
    queued_us: AtomicU64,
    /// Until when a key of the call is paused, from the start.
    paused_us: AtomicU64,
    /// Whether the attempt under way has left every limit behind.
    goes: AtomicBool,
    pub(crate) throttles: Mutex<Throttles>,
}

impl Default for Call {
    /// One that has not begun.
    fn default() -> Self {
        Self {
            attempts: OnceLock::new(),
            started: Instant::now(),
            now_us: AtomicU64::default(),
            time_us: AtomicU64::default(),
            max_wait_us: AtomicU64::default(),
            held_us: AtomicU64::default(),
            queued_us: AtomicU64::default(),
            paused_us: AtomicU64::default(),
            goes: AtomicBool::default(),
            throttles: Mutex::default(),
        }
    }
}

impl Call {
    /// In place: it is used again.
    pub(crate) fn begin(&mut self, options: Option<&Options>) {
        self.started = Instant::now();
        *self.now_us.get_mut() = 0;
        for bound_us in [&mut self.time_us, &mut self.max_wait_us] {
            *bound_us.get_mut() = NONE;
        }
        for so_far_us in [&mut self.held_us, &mut self.queued_us, &mut self.paused_us] {
            *so_far_us.get_mut() = 0;
        }
        *self.goes.get_mut() = false;
        self.throttles.get_mut().clear();
        let Some(options) = options else { return };
        if let Some(attempts) = &options.attempts {
            attempts.begin();
            _ = self.attempts.set(attempts.clone());
        }
        if let Some(max_wait) = options.max_wait {
            self.bound_wait(max_wait);
        }
        if let Some(deadline) = options.deadline {
            self.bound_time(deadline.saturating_duration_since(self.started));
        }
    }

    /// Lets go of what it shares with others.
    pub(crate) fn clear(&mut self) {
        self.attempts.take();
    }

    /// Now. Within the first poll of an attempt the instant at which that began is as good as a new reading:
    /// nothing has waited since.
    pub(crate) fn now(&self) -> Instant {
        match self.now_us.load(Ordering::Relaxed) {
            NONE => Instant::now(),
            us => self.started + Duration::from_micros(us),
        }
    }

    /// Notes that an attempt begins later than the call was made.
    pub(crate) fn begins(&self, now: Instant) {
        self.now_us.store(us(now.saturating_duration_since(self.started)), Ordering::Relaxed);
    }

    /// The call has `time` from its start to its head.
    pub(crate) fn bound_time(&self, time: Duration) {
        self.time_us.fetch_min(us(time), Ordering::Relaxed);
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.time_us.load(Ordering::Relaxed) {
            NONE => None,
            us => self.started.checked_add(Duration::from_micros(us)),
        }
    }

    /// The call is held back for at most `max_wait` in all.
    pub(crate) fn bound_wait(&self, max_wait: Duration) {
        self.max_wait_us.fetch_min(us(max_wait).min(NONE - 1), Ordering::Relaxed);
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

    /// Notes that nothing of ours holds the attempt under way any more.
    pub(crate) fn goes(&self) {
        self.goes.store(true, Ordering::Relaxed);
    }

    /// Notes a wait in a limiter's queue.
    pub(crate) fn queued(&self, time: Duration) {
        if !time.is_zero() {
            self.held_us.fetch_add(us(time), Ordering::Relaxed);
            self.queued_us.fetch_add(us(time), Ordering::Relaxed);
            self.attempts().held_by_limits(time);
        }
    }

    /// Notes a wait between two attempts.
    pub(crate) fn waited(&self, time: Duration, cause: Cause) {
        self.held_us.fetch_add(us(time), Ordering::Relaxed);
        self.attempts().waited(time, cause);
    }

    /// Notes that a key of the call is paused for so long from now.
    pub(crate) fn paused(&self, time: Duration) {
        self.paused_us.fetch_max(us(self.started.elapsed().saturating_add(time)), Ordering::Relaxed);
    }

    /// How much longer the call's keys are paused, as far as it knows.
    pub(crate) fn pause_left(&self) -> Duration {
        Duration::from_micros(self.paused_us.load(Ordering::Relaxed)).saturating_sub(self.started.elapsed())
    }

    /// Notes how an attempt ended after which another is sent.
    pub(crate) fn ended(&self, receipt: &Receipt) {
        let (attempt, sends) = self.end(receipt);
        self.attempts().ended(attempt, sends);
    }

    /// What the outermost layer does with the result of the last attempt: closes the record, and hands it on
    /// with the response.
    pub(crate) fn close(
        &self,
        why: Stop,
        receipt: &Receipt,
        mut result: Result<Response>,
    ) -> Result<Response> {
        let (attempt, sends) = self.end(receipt);
        let attempts = self.attempts.get();
        if let Some(attempts) = attempts {
            attempts.ended(attempt.clone(), sends);
            attempts.stop(why);
        }
        if let Ok(response) = &mut result {
            let attempts = attempts.cloned().unwrap_or_else(|| Attempts::closed(attempt, sends, why));
            response.extensions_mut().insert(attempts);
        }
        result
    }

    /// For a call without retries: closes it with its only attempt.
    pub(crate) fn close_only(&self, mut result: Result<Response>) -> Result<Response> {
        let receipt = receipt::of(&mut result, self.started);
        self.close(receipt.judgement.err().unwrap_or(Stop::NoRetry), &receipt, result)
    }

    /// The attempt under way, and how often it was sent. By the outermost layer, when nothing is further in.
    fn end(&self, receipt: &Receipt) -> (Attempt, u32) {
        let held = Duration::from_micros(self.queued_us.load(Ordering::Relaxed));
        let sent = self.goes.load(Ordering::Relaxed) && !matches!(receipt.outcome, Outcome::Refused(_));
        self.queued_us.store(0, Ordering::Relaxed);
        self.goes.store(false, Ordering::Relaxed);
        let (outcome, server_wait) = (receipt.outcome, receipt.server_wait);
        (Attempt { outcome, held, server_wait, wait: Duration::ZERO }, sent.into())
    }

    fn attempts(&self) -> &Attempts {
        self.attempts.get_or_init(Attempts::new)
    }

    /// Runs an attempt up to its head, within the deadline. Without time left nothing is sent.
    pub(crate) async fn in_time<F>(&self, attempt: F) -> Result<Response>
    where
        F: Future<Output = Result<Response>>,
    {
        let Some(deadline) = self.deadline() else {
            self.goes();
            return attempt.await;
        };
        let late = || Error::from(TimedOut::new(self.started.elapsed()));
        if Instant::now() >= deadline {
            return Err(late());
        }
        self.goes();
        Box::pin(tokio::time::timeout_at(deadline, attempt)).await.unwrap_or_else(|_| Err(late()))
    }

    /// What is further in, as an attempt of this call.
    pub(crate) fn sends<'a>(&'a self, inner: BoxFuture<'a>) -> Sending<'a> {
        Sending { call: self, inner }
    }
}

/// What is further in, as `reqwest_middleware` gives and takes it.
pub(crate) type BoxFuture<'a> = Pin<Box<dyn Future<Output = Result<Response>> + Send + 'a>>;

/// An attempt under way.
pub(crate) struct Sending<'a> {
    call: &'a Call,
    inner: BoxFuture<'a>,
}

impl Future for Sending<'_> {
    type Output = Result<Response>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Response>> {
        let this = self.get_mut();
        let polled = this.inner.as_mut().poll(context);
        this.call.now_us.store(NONE, Ordering::Relaxed);
        polled
    }
}

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
