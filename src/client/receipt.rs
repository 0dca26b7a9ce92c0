//! What an attempt brought back, read once and stamped with the instant of receipt.
//!
//! The only place of the client that looks at the wall clock, which headers with dates need. Whoever is
//! nearest the wire reads; the facts travel in the response's extensions, and those further out find them
//! there.

use std::time::{Duration, SystemTime};

use reqwest::Response;
use reqwest_middleware::Result;
use tokio::time::Instant;

use crate::client::attempts::{Outcome, Stop};
use crate::client::classify::{self, Judgement};
use crate::client::error::Ours;
use crate::client::gather;
use crate::signals::{Profile, Signals};

/// Reads what a response says about limits and leaves it in the extensions, unless it is there already.
pub(crate) fn read(response: &mut Response, sent: Instant) -> Signals {
    if let Some(signals) = response.extensions().get::<Signals>() {
        return signals.clone();
    }
    leave(parse(response), response, sent, Instant::now())
}

/// The same as `profile` means it, and with what the body says, where that is asked for.
pub(crate) async fn read_as(reading: Reading, mut response: Response, sent: Instant) -> (Response, Signals) {
    if let Some(signals) = response.extensions().get::<Signals>() {
        let signals = signals.clone();
        return (response, signals);
    }
    let received = Instant::now();
    let mut signals = parse_as(reading.profile, &response);
    let may_refuse = classify::is_error(response.status()) || reading.profile.refuses_with_success();
    if reading.bodies == ReadBodies::OfRefusals && may_refuse {
        let (whole, text) = Box::pin(gather::json(response)).await;
        response = whole;
        if let Some(text) = text {
            signals = signals.with_body(&text);
        }
    }
    let signals = leave(signals, &mut response, sent, received);
    (response, signals)
}

fn leave(signals: Signals, response: &mut Response, sent: Instant, received: Instant) -> Signals {
    let signals = signals.stamped(sent, received);
    response.extensions_mut().insert(signals.clone());
    signals
}

/// How a throttle reads responses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) profile: Profile,
    pub(crate) bodies: ReadBodies,
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

fn parse_as(profile: Profile, response: &Response) -> Signals {
    #[allow(clippy::disallowed_methods)] // Dates in headers are read against the wall clock.
    let now = SystemTime::now();
    Signals::read_as(profile, response.status(), response.headers(), now)
}

/// The result of an attempt, judged.
#[derive(Debug)]
pub(crate) struct Receipt {
    pub(crate) outcome: Outcome,
    pub(crate) judgement: Judgement,
    pub(crate) signals: Option<Signals>,
}

impl Receipt {
    pub(crate) fn server_wait(&self) -> Option<Duration> {
        self.signals.as_ref().and_then(Signals::wait)
    }

    /// When the response came; for an error, now.
    pub(crate) fn received(&self) -> Instant {
        self.signals.as_ref().and_then(Signals::received_at).unwrap_or_else(Instant::now)
    }
}

pub(crate) fn of(result: &Result<Response>) -> Receipt {
    match result {
        Ok(response) => {
            let signals = response.extensions().get().cloned().unwrap_or_else(|| parse(response));
            let judgement = classify::response(response.status(), &signals);
            Receipt { outcome: Outcome::Status(response.status()), judgement, signals: Some(signals) }
        }
        Err(error) => {
            let (outcome, judgement) = match Ours::of(error) {
                Some(Ours::Refused(refused)) => (Outcome::Refused(refused.kind()), Err(Stop::Refused)),
                Some(Ours::TimedOut(_)) => (Outcome::TimedOut, Err(Stop::OutOfTime)),
                None => (Outcome::Error(classify::error_kind(error)), classify::error(error)),
            };
            Receipt { outcome, judgement, signals: None }
        }
    }
}
