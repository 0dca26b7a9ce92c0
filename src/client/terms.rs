//! What a retry knows of a call from one attempt to the next: its terms, its faults, the wait it is in.
//!
//! Terms are stated by the request, its client or its method, and are the same for each attempt.

use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Next, Result};
use tokio::time::Instant;

use crate::client::attempts::{Cause, Outcome};
use crate::client::call::{BoxFuture, Call};
use crate::client::classify::{Fault, Safe};
use crate::client::gather;
use crate::client::request_ext::{Options, Reach, Twice};

/// What holds for all attempts of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) twice: Twice,
    pub(crate) reach: Reach,
    /// The most that the request allows.
    pub(crate) safe: Safe,
}

impl Terms {
    /// The request once more, if it may and can be sent again.
    pub(crate) fn replica(self, request: &Request) -> Option<Request> {
        if self.twice == Twice::No { None } else { request.try_clone() }
    }

    /// The first attempt, which goes on at once where there is nothing to do around it.
    #[inline]
    pub(crate) fn first<'a>(
        self,
        call: &'a Call,
        started: Instant,
        request: Request,
        extensions: &'a mut Extensions,
        next: Next<'a>,
    ) -> BoxFuture<'a> {
        if self.reach == Reach::Head && call.deadline().is_none() {
            call.sends(request, extensions, next)
        } else {
            Box::pin(self.attempt(call, started, request, extensions, next))
        }
    }

    /// Runs an attempt as far as the call reaches.
    pub(crate) async fn attempt(
        self,
        call: &Call,
        started: Instant,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        call.check_time(started)?;
        let sending = call.sends(request, extensions, next);
        match self.reach {
            Reach::Head => call.in_time(started, sending).await,
            Reach::Body => call.in_time(started, async { Ok(gather::whole(sending.await?).await?) }).await,
        }
    }
}

/// What an attempt before was charged is not to be corrected any more.
pub(crate) fn forget_charges(options: Option<&Options>) {
    options.and_then(|options| options.settle.as_ref()).inspect(|settle| settle.clear());
}

/// How many faults a call has met, by kind.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) throttled: u32,
    pub(crate) transient: u32,
}

impl Faults {
    pub(crate) fn all(&self) -> u32 {
        self.throttled.saturating_add(self.transient)
    }
}

/// A wait that was decided on.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) fault: Fault,
    pub(crate) until: Instant,
    pub(crate) cause: Cause,
}

impl Pending {
    pub(crate) async fn wait(&self, service: &str, outcome: Outcome, call: &Call) {
        let since = Instant::now();
        let wait = self.until.saturating_duration_since(since);
        tracing::debug!(service, outcome = %outcome, ?wait, cause = %self.cause, "waits before it sends a call again");
        let _noted = call.waits(since, Some(self.cause));
        tokio::time::sleep_until(self.until).await;
    }
}
