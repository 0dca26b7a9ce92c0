//! Keeps HTTP callers inside the limits of the services they call, and does what those services ask when
//! they answer 429.
//!
//! The modules, in the order of the layers: a [`Limit`] is one rule, a [`Policy`] the limits of one service,
//! a [`Decision`] the one answer; [`signals`] reads what responses say; [`store`] is where state lives; a
//! [`Limiter`] turns an ask into a permit; [`client`] puts all of it around `reqwest`.
//!
//! Features: `client`, on by default; `json`, `form`, `query`, `multipart` and `stream`, for what `reqwest` has
//! by the same names; `governor`, for a store over a limiter of that crate; `redis`, for budgets shared by a fleet;
//! `metrics`, for counts of what was granted and refused, and of stores that are away.
//!
//! With `metrics`: `forbear_granted_total` (counter, by `policy`), `forbear_refused_total` (counter, by `policy`,
//! `limit` and `kind`), both for a call that a policy would refuse if it did not only observe; and with `redis` too
//! `forbear_store_away` (gauge by `prefix`: 1 while it is away). Never a key. A call under several limiters that has to
//! wait may ask one of them again, and counts again.

mod algorithm;
#[cfg(feature = "client")]
pub mod client;
mod clock;
mod decision;
mod limit;
mod limiter;
#[cfg(feature = "metrics")]
mod metrics;
mod policy;
pub mod signals;
pub mod store;

#[cfg(feature = "client")]
pub use client::{
    Attempts, Builder, Client, RequestExt, Retry, Settle, Throttle, TimedOut, retry_after, wrap,
};
pub use decision::{Decision, LimitStatus};
pub use limit::{Limit, LimitError, Rate};
pub use limiter::{Ask, Last, Limiter, Peek, Permit, Refused, RefusedKind};
pub use policy::{ConfigError, Policy};
pub use signals::{Budget, Class, Profile, Signals, Source};

/// The README's code, as tests.
#[cfg(all(doctest, feature = "client", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
