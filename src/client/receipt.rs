//! What an attempt brought back, read once and stamped with the instant of receipt.
//!
//! The only place of the client that looks at the wall clock, which headers with dates need. Whoever is
//! nearest the wire reads; the facts travel in the response's extensions, and those further out find them
//! there.

use std::time::{Duration, SystemTime};

use http::StatusCode;
use reqwest::Response;
use reqwest_middleware::Result;
use tokio::time::Instant;

use crate::client::attempts::{Attempt, Outcome, Stop};
use crate::client::classify::{self, Judgement, Safe};
use crate::client::error::Ours;
use crate::client::gather;
use crate::signals::{Profile, Signals};

/// What a response says about limits, as `profile` means it. What was read further in stands.
pub(crate) fn read_as(profile: Profile, response: &Response, sent: Instant) -> Signals {
    match response.extensions().get::<Signals>() {
        Some(signals) => signals.clone(),
        None => stamped(profile, response, sent),
    }
}

fn stamped(profile: Profile, response: &Response, sent: Instant) -> Signals {
    let received = Instant::now();
    let mut signals = parse_as(profile, response);
    signals.stamp(sent, received);
    signals
}

/// With what the body says, as far as it comes before the deadline. The response keeps it.
pub(crate) async fn with_body(
    response: Response,
    signals: Signals,
    deadline: Option<Instant>,
) -> (Response, Signals) {
    let (response, text) = gather::json(response, deadline).await;
    let signals = match text {
        Some(text) => signals.with_body(&text),
        None => signals,
    };
    (response, signals)
}

#[inline]
pub(crate) fn leave(signals: Signals, response: &mut Response) {
    response.extensions_mut().insert(signals);
}

/// How a throttle reads responses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) profile: Profile,
    pub(crate) bodies: ReadBodies,
}

impl Reading {
    /// Whether the body of this response may say something.
    pub(crate) fn asks_for_body(self, response: &Response) -> bool {
        let may_refuse = || {
            let path = response.url().path();
            classify::is_error(response.status()) || self.profile.refuses_with_success(path)
        };
        self.bodies == ReadBodies::OfRefusals
            && may_refuse()
            && response.extensions().get::<Signals>().is_none()
    }
}

/// Whether bodies are read for signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadBodies {
    Never,
    /// Of error responses, and of all from a service that may refuse with a success.
    OfRefusals,
}

/// What the headers say, without a trace.
pub(crate) fn parse(response: &Response) -> Signals {
    parse_as(Profile::Generic, response)
}

#[inline]
fn parse_as(profile: Profile, response: &Response) -> Signals {
    #[allow(clippy::disallowed_methods)] // Dates in headers are read against the wall clock.
    Signals::read_at(profile, response.status(), response.headers(), SystemTime::now)
}

/// Whether the head of a response decides about another send, whatever becomes of its body.
pub(crate) fn is_fault(response: &Response) -> bool {
    let judgement = match response.extensions().get() {
        Some(signals) => classify::response(response.status(), signals),
        None => classify::response(response.status(), &parse(response)),
    };
    !matches!(judgement, Err(Stop::Answered | Stop::Final))
}

/// The result of an attempt, judged.
#[derive(Debug)]
pub(crate) struct Receipt {
    pub(crate) outcome: Outcome,
    pub(crate) judgement: Judgement,
    pub(crate) server_wait: Option<Duration>,
    /// When the response came.
    received: Option<Instant>,
}

impl Receipt {
    #[inline]
    fn of_response(status: StatusCode, signals: &Signals) -> Self {
        Self {
            outcome: Outcome::Status(status),
            judgement: classify::response(status, signals),
            server_wait: signals.wait(),
            received: signals.received_at(),
        }
    }

    /// Whether it is a response that ends the call well, and was read as it came.
    #[inline]
    pub(crate) fn is_answer(&self) -> bool {
        self.received.is_some() && matches!(self.judgement, Err(Stop::Answered))
    }

    /// A redirect led to who answered: whoever was asked first may have acted on the call.
    pub(crate) fn is_of_another(&mut self) {
        self.judgement = self.judgement.map(|(fault, _)| (fault, Safe::Idempotent));
    }

    /// The attempt, which was held back for so long and is the last.
    pub(crate) fn attempt(&self, held: Duration) -> Attempt {
        let (outcome, server_wait) = (self.outcome, self.server_wait);
        Attempt { outcome, held, server_wait, wait: Duration::ZERO }
    }

    /// When the response came; for an error, now.
    pub(crate) fn received(&self) -> Instant {
        self.received.unwrap_or_else(Instant::now)
    }
}

/// That of a call of which there is no more to tell: a response that ends it well and carries no record.
pub(crate) fn of_only(response: &Response) -> Option<Receipt> {
    let receipt = Receipt::of_response(response.status(), response.extensions().get()?);
    Some(receipt).filter(Receipt::is_answer)
}

/// Judges the result of an attempt that began then, and leaves what a response says in it.
pub(crate) fn of(result: &mut Result<Response>, sent: Instant) -> Receipt {
    match result {
        Ok(response) => {
            if let Some(signals) = response.extensions().get() {
                return Receipt::of_response(response.status(), signals);
            }
            let signals = stamped(Profile::Generic, response, sent);
            let receipt = Receipt::of_response(response.status(), &signals);
            leave(signals, response);
            receipt
        }
        Err(error) => {
            let (outcome, judgement) = match Ours::of(error) {
                Some(Ours::Refused(refused)) => (Outcome::Refused(refused.kind()), Err(Stop::Refused)),
                Some(Ours::TimedOut(_)) => (Outcome::TimedOut, Err(Stop::OutOfTime)),
                None => (Outcome::Error(classify::error_kind(error)), classify::error(error)),
            };
            Receipt { outcome, judgement, server_wait: None, received: None }
        }
    }
}
