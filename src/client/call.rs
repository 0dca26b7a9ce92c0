//! One call of the user on its way through the middlewares.
//!
//! `reqwest_middleware` hides the chain from its links, so each layer leaves a mark in the extensions that
//! those further in can see. A mark points weakly at something that lives in the layer's own future: it is
//! gone with the future, however that ended, and extensions that are used again carry no stale ones.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::Extensions;
use reqwest::Response;
use reqwest_middleware::{Error, Result};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::client::attempts::{Outcome, Stop};
use crate::client::error::TimedOut;
use crate::client::request_ext::Options;
use crate::client::{Attempts, receipt};
use crate::limiter::Limiter;

/// What all attempts of a call share.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) attempts: Attempts,
    pub(crate) started: Instant,
    /// Until the deadline, from the start; `u64::MAX` while there is none.
    time_us: AtomicU64,
    /// The shortest of those stated, `u64::MAX` while there is none.
    max_wait_us: AtomicU64,
    held_us: AtomicU64,
    /// The part of it since the attempt before.
    queued_us: AtomicU64,
    /// Until when a key of the call is paused, from the start.
    paused_us: AtomicU64,
    /// Whether the attempt under way has left every limit behind.
    goes: AtomicBool,
}

impl Call {
    fn new(extensions: &Extensions) -> Self {
        let options = extensions.get::<Options>();
        let attempts = options.and_then(|options| options.attempts.clone()).unwrap_or_default();
        attempts.begin();
        let call = Self {
            attempts,
            started: Instant::now(),
            time_us: AtomicU64::new(u64::MAX),
            max_wait_us: AtomicU64::new(u64::MAX),
            held_us: AtomicU64::new(0),
            queued_us: AtomicU64::new(0),
            paused_us: AtomicU64::new(0),
            goes: AtomicBool::new(false),
        };
        if let Some(max_wait) = options.and_then(|options| options.max_wait) {
            call.bound_wait(max_wait);
        }
        if let Some(deadline) = options.and_then(|options| options.deadline) {
            call.bound_time(deadline.saturating_duration_since(call.started));
        }
        call
    }

    /// The call has `time` from its start to its head.
    pub(crate) fn bound_time(&self, time: Duration) {
        self.time_us.fetch_min(us(time), Ordering::Relaxed);
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.time_us.load(Ordering::Relaxed) {
            u64::MAX => None,
            us => self.started.checked_add(Duration::from_micros(us)),
        }
    }

    /// The call is held back for at most `max_wait` in all.
    pub(crate) fn bound_wait(&self, max_wait: Duration) {
        self.max_wait_us.fetch_min(us(max_wait).min(u64::MAX - 1), Ordering::Relaxed);
    }

    /// How much longer the call may be held back; `default` is the whole where nobody said.
    pub(crate) fn wait_left(&self, default: Duration) -> Duration {
        let max = match self.max_wait_us.load(Ordering::Relaxed) {
            u64::MAX => default,
            max => Duration::from_micros(max),
        };
        max.saturating_sub(Duration::from_micros(self.held_us.load(Ordering::Relaxed)))
    }

    /// Notes a wait between two attempts.
    pub(crate) fn held(&self, time: Duration) {
        self.held_us.fetch_add(us(time), Ordering::Relaxed);
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
            self.held(time);
            self.queued_us.fetch_add(us(time), Ordering::Relaxed);
            self.attempts.held_by_limits(time);
        }
    }

    /// Notes that a key of the call is paused for so long from now.
    pub(crate) fn paused(&self, time: Duration) {
        self.paused_us.fetch_max(us(self.started.elapsed().saturating_add(time)), Ordering::Relaxed);
    }

    /// How much longer the call's keys are paused, as far as it knows.
    pub(crate) fn pause_left(&self) -> Duration {
        Duration::from_micros(self.paused_us.load(Ordering::Relaxed)).saturating_sub(self.started.elapsed())
    }

    /// Notes how an attempt ended.
    pub(crate) fn ended(&self, outcome: Outcome, server_wait: Option<Duration>) {
        let queued = Duration::from_micros(self.queued_us.swap(0, Ordering::Relaxed));
        let sent = self.goes.swap(false, Ordering::Relaxed) && !matches!(outcome, Outcome::Refused(_));
        self.attempts.ended(outcome, u32::from(sent), queued, server_wait);
    }

    /// Runs an attempt up to its head, within the deadline. Without time left nothing is sent.
    pub(crate) async fn in_time<F>(&self, attempt: Pin<&mut F>) -> Result<Response>
    where
        F: Future<Output = Result<Response>>,
    {
        let deadline = self.deadline();
        let late = || Error::from(TimedOut::new(self.started.elapsed()));
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(late());
        }
        self.goes();
        let Some(deadline) = deadline else { return attempt.await };
        tokio::time::timeout_at(deadline, attempt).await.unwrap_or_else(|_| Err(late()))
    }

    /// What the outermost layer does with the result of a call: closes the record, and hands it on with the
    /// response.
    pub(crate) fn close(&self, why: Stop, mut result: Result<Response>) -> Result<Response> {
        self.attempts.stop(why);
        if let Ok(response) = &mut result {
            response.extensions_mut().insert(self.attempts.clone());
        }
        result
    }

    /// For a call without retries: notes its only attempt, and closes it.
    pub(crate) fn close_only(&self, result: Result<Response>) -> Result<Response> {
        let receipt = receipt::of(&result);
        self.ended(receipt.outcome, receipt.server_wait());
        let why = receipt.judgement.err().unwrap_or(Stop::NoRetry);
        self.close(why, result)
    }
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A layer that marks the extensions.
#[derive(Debug)]
pub(crate) enum Layer {
    Retry,
    Throttle(SmallVec<[Limiter; 1]>),
}

/// A layer's presence around what runs further in. Lives in that layer's future.
#[derive(Debug)]
pub(crate) struct Inside {
    layer: Layer,
    pub(crate) call: Arc<Call>,
    pub(crate) place: Place,
}

/// Where in the call a layer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Outermost,
    Within,
}

#[derive(Clone, Default)]
struct Marks(SmallVec<[Weak<Inside>; 3]>);

impl Inside {
    /// Marks the extensions. `None` if the layer must let the call pass through: a second retry, a retry
    /// inside a throttle (a seat would be held over its sleeps), or a second throttle of one limiter.
    pub(crate) fn enter(extensions: &mut Extensions, layer: Layer) -> Option<Arc<Self>> {
        let marks = extensions.get_or_insert_default::<Marks>();
        marks.0.retain(|mark| mark.strong_count() > 0);
        let outer: SmallVec<[Arc<Inside>; 3]> = marks.0.iter().filter_map(Weak::upgrade).collect();
        let repeated = outer.iter().any(|outer| match (&outer.layer, &layer) {
            (_, Layer::Retry) => true,
            (Layer::Throttle(outer), Layer::Throttle(inner)) => {
                inner.iter().any(|inner| outer.iter().any(|outer| outer.is_same(inner)))
            }
            (Layer::Retry, Layer::Throttle(_)) => false,
        });
        if repeated {
            return None;
        }
        let (call, place) = match outer.first() {
            Some(outer) => (outer.call.clone(), Place::Within),
            None => (Arc::new(Call::new(extensions)), Place::Outermost),
        };
        let inside = Arc::new(Self { layer, call, place });
        extensions.get_or_insert_default::<Marks>().0.push(Arc::downgrade(&inside));
        Some(inside)
    }
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
