//! The client side: limits and retries around a `reqwest` client, and the only folder that knows `reqwest`.
//!
//! A call goes through [`Retry`], then for each attempt through one or more [`Throttle`]s, then to
//! `reqwest`. [`wrap`] puts them in that order for one policy, [`Builder`] for several. What one request
//! says about itself is in [`RequestExt`]; what became of it in [`Attempts`]. Responses and errors of the
//! transport pass through untouched; what this side adds are [`Refused`] and [`TimedOut`].
//!
//! The files: `retry` does, on its `terms`, `classify` says what, `backoff` and `budget` when; `throttle`
//! holds back, `route` says under which key, `body` until when; `receipt` is what came back, `gather` reads
//! ahead where that is asked for; `call` is what all attempts of a call share, `marker` how the layers find
//! it; `builder` puts them together, `request_ext` is what a request states, `attempts` and `settle` what it leaves,
//! `error` what may end it on this side.

mod attempts;
mod backoff;
mod body;
mod budget;
mod builder;
mod call;
mod classify;
mod error;
mod gather;
mod marker;
mod receipt;
mod request_ext;
mod retry;
mod route;
mod settle;
mod terms;
mod throttle;

use std::time::Duration;

use reqwest::Response;

pub use attempts::{Attempt, Attempts, ErrorKind, Held, Outcome, Stop};
pub use backoff::Backoff;
pub use builder::{Builder, Limits};
pub use error::TimedOut;
pub use request_ext::RequestExt;
pub use retry::Retry;
pub use settle::Settle;
pub use throttle::Throttle;

use crate::limiter::Refused;
use crate::policy::ConfigError;
use crate::signals::Signals;

/// A `reqwest` client with our middlewares around it.
pub type Client = reqwest_middleware::ClientWithMiddleware;

/// Holds everything that `client` sends to `limits`, one budget for each service, and sends again what a
/// service asks to be sent later.
///
/// # Errors
///
/// The first fault of the policy.
///
/// ```
/// # fn build() -> Result<(), forbear::ConfigError> {
/// let policy = forbear::Policy::new("api.example.com").limit("500/min");
/// let client = forbear::wrap(reqwest::Client::new(), policy)?;
/// # Ok(()) }
/// ```
pub fn wrap(client: reqwest::Client, limits: impl Into<Limits>) -> Result<Client, ConfigError> {
    Builder::new(client).policy(limits).build()
}

/// How long to wait before calling again, whoever said no: the service with its response, or our own limits
/// with a [`Refused`]. `None` where nobody said.
///
/// A service's wait counts from the receipt of its response.
pub fn retry_after(result: &Result<Response, reqwest_middleware::Error>) -> Option<Duration> {
    match result {
        Ok(response) => match response.extensions().get::<Signals>() {
            Some(signals) => signals.wait(),
            None => receipt::parse(response).wait(),
        },
        Err(error) => Refused::of(error)?.retry_after(),
    }
}
