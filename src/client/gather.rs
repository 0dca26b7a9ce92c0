//! Reading a response's body ahead of its reader, and giving it back as it was, or in place of one.
//!
//! For two opt-ins: signals that stand in the body, and calls whose body is part of what may be tried
//! again. What was read is replayed frame by frame, and an error comes at its place. Never reads more than
//! it is told to, unless the caller asked for the whole.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use reqwest::Response;
use tokio::time::Instant;

use crate::client::{body, receipt};

/// The most that is read of a body for the sake of its signals, in bytes and in time.
const SIGNALS_BYTES: usize = 64 * 1024;
const SIGNALS_TIME: Duration = Duration::from_secs(1);

/// How much of an old body is read out to keep its connection, and for how long.
const DRAIN_BYTES: usize = 64 * 1024;
const DRAIN_TIME: Duration = Duration::from_millis(100);

/// Reads the whole body, within the attempt; not that of a fault, whose head decides what comes next.
///
/// # Errors
/// The body's own, as `reqwest` gave it.
pub(crate) async fn whole(response: Response) -> reqwest::Result<Response> {
    if receipt::is_fault(&response) {
        return Ok(response);
    }
    let (parts, body) = body::split(response);
    let mut gathered = Gathered::new(body);
    gathered.read(usize::MAX).await;
    match gathered.frames.pop_back() {
        Some(Err(error)) => Err(error),
        last => {
            gathered.frames.extend(last);
            Ok(http::Response::from_parts(parts, reqwest::Body::wrap(gathered)).into())
        }
    }
}

/// Reads a small JSON body; `None` where it is not one, too long, too slow or broken. The response is whole
/// in any case, and not held beyond the deadline.
pub(crate) async fn json(response: Response, deadline: Option<Instant>) -> (Response, Option<Vec<u8>>) {
    let is_json = response
        .headers()
        .get(http::header::CONTENT_TYPE)
        .is_some_and(|value| value.to_str().is_ok_and(|value| value.to_ascii_lowercase().contains("json")));
    if !is_json || response.content_length().is_some_and(|length| length > SIGNALS_BYTES as u64) {
        return (response, None);
    }
    let (parts, body) = body::split(response);
    let mut gathered = Gathered::new(body);
    let until = within(SIGNALS_TIME, deadline);
    let in_time = tokio::time::timeout_at(until, gathered.read(SIGNALS_BYTES)).await.is_ok();
    let text = (in_time && gathered.ended).then(|| gathered.bytes());
    (http::Response::from_parts(parts, reqwest::Body::wrap(gathered)).into(), text)
}

/// Reads out what is left of a body, so that its connection can be used again; not for long, and not beyond the
/// deadline.
pub(crate) async fn drain(mut response: Response, deadline: Option<Instant>) {
    if response.content_length().is_some_and(|length| length > DRAIN_BYTES as u64) {
        return;
    }
    let read = async {
        let mut bytes = 0;
        while let Ok(Some(chunk)) = response.chunk().await {
            bytes += chunk.len();
            if bytes > DRAIN_BYTES {
                break;
            }
        }
    };
    // Out of time or not, the response goes.
    let _ = tokio::time::timeout_at(within(DRAIN_TIME, deadline), read).await;
}

fn within(time: Duration, deadline: Option<Instant>) -> Instant {
    let until = Instant::now() + time;
    deadline.map_or(until, |deadline| deadline.min(until))
}

/// A body of which the first frames were read.
struct Gathered {
    frames: VecDeque<reqwest::Result<Frame<Bytes>>>,
    body: reqwest::Body,
    /// Without an error.
    ended: bool,
}

impl Gathered {
    fn new(body: reqwest::Body) -> Self {
        Self { frames: VecDeque::new(), ended: body.is_end_stream(), body }
    }

    /// Reads until the end, an error, or more than `most` bytes. Can be dropped at any time.
    async fn read(&mut self, most: usize) {
        let mut read = 0;
        while !self.ended && read <= most {
            let frame = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await;
            let Some(frame) = frame else {
                self.ended = true;
                return;
            };
            read += frame.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len);
            let failed = frame.is_err();
            self.frames.push_back(frame);
            if failed {
                return;
            }
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let frames = self.frames.iter().filter_map(|frame| frame.as_ref().ok()?.data_ref());
        frames.flatten().copied().collect()
    }
}

impl Body for Gathered {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<reqwest::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        match this.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(frame)),
            None if this.ended => Poll::Ready(None),
            None => Pin::new(&mut this.body).poll_frame(context),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let here = self.frames.iter().filter_map(|frame| frame.as_ref().ok()?.data_ref());
        let here = here.map(|bytes| bytes.len() as u64).sum::<u64>();
        if self.ended {
            return SizeHint::with_exact(here);
        }
        let rest = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + here);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(here));
        }
        hint
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && (self.ended || self.body.is_end_stream())
    }
}
