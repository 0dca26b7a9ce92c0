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
use crate::signals::Signals;

/// Reads what a response says about limits and leaves it in the extensions, unless it is there already.
pub(crate) fn read(response: &mut Response, sent: Instant) -> Signals {
    if let Some(signals) = response.extensions().get::<Signals>() {
        return signals.clone();
    }
    let signals = parse(response).stamped(sent, Instant::now());
    response.extensions_mut().insert(signals.clone());
    signals
}

/// The same without a trace.
pub(crate) fn parse(response: &Response) -> Signals {
    #[allow(clippy::disallowed_methods)] // Dates in headers are read against the wall clock.
    let now = SystemTime::now();
    Signals::read(response.status(), response.headers(), now)
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
