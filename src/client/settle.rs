//! The handle that corrects what a call was charged, once it is known.
//!
//! The cost of a call is often an estimate (tokens above all), and the truth stands in the response's body,
//! which is read when the response is gone. So the handle outlives the response and the body, and must
//! never keep a seat: seats go back with the body.

use std::sync::Arc;

use http::Extensions;
use parking_lot::Mutex;
use reqwest::Response;
use smallvec::SmallVec;

use crate::client::body::Ride;

/// Corrects the estimate of a call's cost. Cheap to clone; clones are the same handle.
///
/// ```no_run
/// # use forbear::{RequestExt, Settle};
/// # async fn call(client: forbear::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let response = client.post("https://api.example.com").cost("tokens", 4_000).send().await?;
/// let settle = Settle::of(&response);
/// let used = response.bytes().await?.len() as u64;
/// settle.settle("tokens", used);
/// # Ok(()) }
/// ```
///
/// For a call that may end without a response, attach a fresh one to the request with
/// [`RequestExt::settle`](crate::RequestExt::settle): it then holds what the last attempt was charged.
#[derive(Debug, Clone, Default)]
pub struct Settle(Arc<Mutex<SmallVec<[Arc<Ride>; 2]>>>);

impl Settle {
    /// A handle that holds nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The handle for the attempt that `response` answered. Where the call stated no cost there is nothing
    /// to correct, and the handle does nothing.
    pub fn of(response: &Response) -> Self {
        response.extensions().get().cloned().unwrap_or_default()
    }

    /// Says that the call used `used` of `unit`, whatever was charged. A unit that was not charged is left
    /// alone.
    pub fn settle(&self, unit: &str, used: u64) {
        // Cloned out: a limiter is never called with this lock held.
        let rides = self.0.lock().clone();
        rides.iter().for_each(|ride| ride.settle(unit, used));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Puts the handle into a response, with what a throttle further in has put there.
    pub(crate) fn join(self, extensions: &mut Extensions) {
        if let Some(inner) = extensions.insert(self.clone())
            && !Arc::ptr_eq(&inner.0, &self.0)
        {
            let inner = inner.0.lock().clone();
            self.0.lock().extend(inner);
        }
    }

    pub(crate) fn add(&self, ride: Arc<Ride>) {
        self.0.lock().push(ride);
    }

    pub(crate) fn clear(&self) {
        let before = std::mem::take(&mut *self.0.lock());
        drop(before);
    }
}
