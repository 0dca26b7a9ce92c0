//! The body of a response: the service's own with what rides on it, or the text of a refusal.
//!
//! A seat is held until the body has ended, failed or was dropped, for that is how long the work lasts.
//! Where nothing rides, and where a body is empty from the start, the inner body is passed on as it is.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use forbear::Permit;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of a response that went through a limit layer.
    ///
    /// Frames, trailers, errors and the size hint are the inner body's. Seats go back at its end; a
    /// connection that is upgraded gives its body up, and with it its seat.
    pub struct LimitBody<B> {
        #[pin]
        kind: Kind<B>,
        rides: Option<Arc<[Permit]>>,
    }
}

pin_project! {
    #[project = Projected]
    enum Kind<B> {
        Passed { #[pin] inner: B },
        Refused { text: Option<Bytes> },
    }
}

impl<B: Body> LimitBody<B> {
    pub(crate) fn passed(inner: B, rides: Option<Arc<[Permit]>>) -> Self {
        // Nobody has to poll a body that is empty, so the seat would stay for as long as it is kept.
        let rides = rides.filter(|_| !inner.is_end_stream());
        Self { kind: Kind::Passed { inner }, rides }
    }

    pub(crate) fn refused(text: Bytes) -> Self {
        Self { kind: Kind::Refused { text: Some(text).filter(|text| !text.is_empty()) }, rides: None }
    }
}

impl<B: Body<Data = Bytes>> Body for LimitBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        match this.kind.project() {
            Projected::Passed { mut inner } => {
                let frame = ready!(inner.as_mut().poll_frame(context));
                if !matches!(frame, Some(Ok(_))) || inner.is_end_stream() {
                    *this.rides = None;
                }
                Poll::Ready(frame)
            }
            Projected::Refused { text } => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Passed { inner } => inner.is_end_stream(),
            Kind::Refused { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Passed { inner } => inner.size_hint(),
            Kind::Refused { text } => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
        }
    }
}

impl<B> fmt::Debug for LimitBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if matches!(self.kind, Kind::Passed { .. }) { "passed" } else { "refused" };
        f.debug_struct("LimitBody").field("kind", &kind).field("rides", &self.rides.is_some()).finish()
    }
}

/// Layers further out may answer by themselves with an empty body of this type.
impl<B: Default> Default for LimitBody<B> {
    fn default() -> Self {
        Self { kind: Kind::Passed { inner: B::default() }, rides: None }
    }
}
