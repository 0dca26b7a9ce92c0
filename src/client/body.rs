//! The response's body with a permit riding on it, until it has ended or was dropped.
//!
//! A service is busy with a call until its body is through, so that is how long a seat is held. The
//! response is rebuilt to be what `reqwest` gave: url, version, remote address, extensions and length are
//! the same, and errors of the body keep their kind. Where nothing rides, nothing is wrapped.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use reqwest::{Response, ResponseBuilderExt};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::limiter::Permit;

/// A body that nobody read for so long keeps others waiting for no reason.
pub(crate) const UNREAD: Duration = Duration::from_secs(30);

const READING: u64 = u64::MAX;

/// The permits of an attempt.
pub(crate) type Permits = SmallVec<[Permit; 1]>;

/// What an attempt holds while it is under way.
#[derive(Debug)]
pub(crate) enum Holds {
    /// None for a call that is exempt.
    Permits(Permits),
    /// Those whose cost can be corrected later.
    Ride(Aboard),
}

impl Holds {
    pub(crate) fn permits(&self) -> &[Permit] {
        match self {
            Self::Permits(permits) => permits,
            Self::Ride(aboard) => &aboard.0.permits,
        }
    }

    /// Whether any of them is held until the response's body has ended, and there may be one to come.
    #[inline]
    pub(crate) fn ride_on(&self, response: &Response) -> bool {
        self.permits().iter().any(Permit::rides)
            && !matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
            && response.content_length() != Some(0)
    }
}

/// The permits of an attempt, on their way with it.
#[derive(Debug)]
pub(crate) struct Ride {
    permits: Permits,
    service: Box<str>,
    since: Instant,
    /// When the body last gave something, from `since`; `READING` while someone waits for it.
    touched_ms: AtomicU64,
}

impl Ride {
    pub(crate) fn new(permits: Permits, service: &str) -> Arc<Self> {
        Arc::new(Self {
            permits,
            service: service.into(),
            since: Instant::now(),
            touched_ms: AtomicU64::new(0),
        })
    }

    /// The seats go back; what was charged can still be settled.
    fn end(&self) {
        self.permits.iter().for_each(Permit::free_seats);
    }

    /// What was estimated goes back.
    pub(crate) fn unspent(&self) {
        self.permits.iter().for_each(Permit::unspent);
    }

    pub(crate) fn settle(&self, unit: &str, used: u64) {
        self.permits.iter().for_each(|permit| permit.settle(unit, used));
    }

    fn touch(&self) {
        self.touched_ms.store(self.since.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn lies_unread(&self) -> bool {
        let touched = Duration::from_millis(self.touched_ms.load(Ordering::Relaxed));
        self.since.elapsed().saturating_sub(touched) >= UNREAD
    }
}

/// Gives its seat back when it is dropped: with the future of an attempt, with an error, with the body.
#[derive(Debug)]
pub(crate) struct Aboard(pub(crate) Arc<Ride>);

impl Drop for Aboard {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The bodies of one throttle that hold seats.
#[derive(Debug, Default)]
pub(crate) struct Bodies(Mutex<Vec<Weak<Ride>>>);

impl Bodies {
    fn add(&self, ride: &Arc<Ride>) {
        let mut rides = self.0.lock();
        if rides.len() == rides.capacity() {
            // Tidies before it would grow: amortised, and bounded by the bodies alive.
            rides.retain(|ride| ride.strong_count() > 0);
        }
        rides.push(Arc::downgrade(ride));
    }

    /// Whether a body of this service lies unread.
    pub(crate) fn lie_unread(&self, service: &str) -> bool {
        let alive: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        alive.iter().any(|ride| *ride.service == *service && ride.lies_unread())
    }
}

/// Lets the permits ride on the response, or drops them if there is no body to come.
pub(crate) fn carry(response: Response, holds: Holds, service: &str, bodies: &Bodies) -> Response {
    let (parts, body) = split(response);
    if body.is_end_stream() {
        return http::Response::from_parts(parts, body).into();
    }
    let aboard = match holds {
        Holds::Permits(permits) => Aboard(Ride::new(permits, service)),
        Holds::Ride(aboard) => aboard,
    };
    aboard.0.touch();
    bodies.add(&aboard.0);
    let body = Carried { body, aboard: Some(aboard) };
    http::Response::from_parts(parts, reqwest::Body::wrap(body)).into()
}

/// Takes a response apart such that it can be put together again.
pub(crate) fn split(response: Response) -> (http::response::Parts, reqwest::Body) {
    let url = response.url().clone();
    let (mut parts, body) = http::Response::<reqwest::Body>::from(response).into_parts();
    // The url travels in an extension that only `reqwest` can name.
    let carrier = http::Response::builder().url(url).body(()).expect("no part of it can be invalid");
    parts.extensions.extend(carrier.into_parts().0.extensions);
    (parts, body)
}

struct Carried {
    body: reqwest::Body,
    aboard: Option<Aboard>,
}

impl Body for Carried {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, reqwest::Error>>> {
        let this = self.get_mut();
        if let Some(aboard) = &this.aboard {
            aboard.0.touched_ms.store(READING, Ordering::Relaxed);
        }
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        match (&frame, &this.aboard) {
            (Some(Ok(_)), Some(aboard)) if !this.body.is_end_stream() => aboard.0.touch(),
            _ => this.aboard = None,
        }
        Poll::Ready(frame)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
