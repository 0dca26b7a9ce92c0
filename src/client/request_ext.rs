//! What one request says about itself, on top of what its client does.
//!
//! Reaches the middlewares through the request's extensions, which exist only for a `RequestBuilder` and
//! for `execute_with_extensions`. A library that hands plain requests to the client cannot set them: for it
//! the builder takes a closure for each.

use std::time::Duration;

use reqwest_middleware::RequestBuilder;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::client::{Attempts, Settle};

/// What a request states.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    pub(crate) costs: SmallVec<[(String, u64); 2]>,
    pub(crate) key: Option<String>,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) attempts: Option<Attempts>,
    pub(crate) settle: Option<Settle>,
    pub(crate) twice: Twice,
    pub(crate) pass: Pass,
    pub(crate) reach: Reach,
}

/// What of a response belongs to the call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Reach {
    #[default]
    Head,
    Body,
}

/// Whether it may be sent again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Twice {
    /// As its method and its client say.
    #[default]
    Unsaid,
    /// It may run twice.
    Idempotent,
    /// Never.
    No,
}

/// Whether limits hold for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Pass {
    #[default]
    Limited,
    Exempt,
}

impl Options {
    fn change(mut request: RequestBuilder, change: impl FnOnce(&mut Self)) -> RequestBuilder {
        change(request.extensions().get_or_insert_default());
        request
    }
}

/// Statements of one request, for a client made by [`wrap`](crate::wrap) or
/// [`Builder`](crate::Builder).
///
/// ```no_run
/// # use std::time::Duration;
/// # use forbear::RequestExt;
/// # async fn call(client: forbear::Client) -> Result<(), reqwest_middleware::Error> {
/// let response = client
///     .post("https://api.example.com/v1/complete")
///     .cost("tokens", 1_200)
///     .max_wait(Duration::from_secs(10))
///     .send()
///     .await?;
/// # Ok(()) }
/// ```
pub trait RequestExt: Sized {
    /// What the call costs in `unit`. A policy that counts a unit other than requests and seats must be
    /// told. Stated again, the later statement holds; it also holds over the client's own closures. A unit that no
    /// limit counts, or one whose cost nobody states, is a [`Refused`](crate::Refused).
    fn cost(self, unit: &str, n: u64) -> Self;

    /// Whose budget it is, instead of the service's. Does not touch an overall cap.
    fn limit_key(self, key: impl Into<String>) -> Self;

    /// How long the call is held back in all: in queues, by pauses and between attempts, over all its
    /// attempts. By default the policy's; of the two the shorter holds. Zero means: now or not at all.
    /// Never cuts a request under way.
    fn max_wait(self, max_wait: Duration) -> Self;

    /// When the call must have its response's head, with all waits and sends. Ends a send under way with a
    /// [`TimedOut`](crate::TimedOut). None by default. A std `Instant` fits as well.
    fn deadline(self, deadline: impl Into<Instant>) -> Self;

    /// The request may run twice, whatever its method: it is then tried again like a GET.
    fn idempotent(self) -> Self;

    /// The request is sent once, even if it is [idempotent](Self::idempotent). Limits and pauses still hold for it.
    fn no_retry(self) -> Self;

    /// No limit, pause or seat holds for the request. For streams that last for hours and for health
    /// checks. What its response says about limits still counts.
    fn exempt(self) -> Self;

    /// Reads the response's body, all of it into memory, as part of the call: a body that breaks on the way
    /// is then tried again like a connection that broke. Otherwise a call ends with the head, and what
    /// happens to the body is the reader's affair; so it is with the body of a fault, which counts by its head.
    fn buffered(self) -> Self;

    /// Fills `attempts` as the call goes, whatever its outcome. A record is for one call at a time.
    fn attempts(self, attempts: &Attempts) -> Self;

    /// Fills `settle` with what the call is charged, so that its cost can be corrected even where there is
    /// no response. See [`Settle`].
    fn settle(self, settle: &Settle) -> Self;
}

impl RequestExt for RequestBuilder {
    fn cost(self, unit: &str, n: u64) -> Self {
        Options::change(self, |options| match options.costs.iter_mut().find(|(stated, _)| stated == unit) {
            Some(stated) => stated.1 = n,
            None => options.costs.push((unit.to_owned(), n)),
        })
    }

    fn limit_key(self, key: impl Into<String>) -> Self {
        Options::change(self, |options| options.key = Some(key.into()))
    }

    fn max_wait(self, max_wait: Duration) -> Self {
        Options::change(self, |options| options.max_wait = Some(max_wait))
    }

    fn deadline(self, deadline: impl Into<Instant>) -> Self {
        Options::change(self, |options| options.deadline = Some(deadline.into()))
    }

    fn idempotent(self) -> Self {
        Options::change(self, |options| {
            if options.twice != Twice::No {
                options.twice = Twice::Idempotent;
            }
        })
    }

    fn no_retry(self) -> Self {
        Options::change(self, |options| options.twice = Twice::No)
    }

    fn exempt(self) -> Self {
        Options::change(self, |options| options.pass = Pass::Exempt)
    }

    fn buffered(self) -> Self {
        Options::change(self, |options| options.reach = Reach::Body)
    }

    fn attempts(self, attempts: &Attempts) -> Self {
        Options::change(self, |options| options.attempts = Some(attempts.clone()))
    }

    fn settle(self, settle: &Settle) -> Self {
        Options::change(self, |options| options.settle = Some(settle.clone()))
    }
}
