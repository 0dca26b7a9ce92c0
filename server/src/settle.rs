//! Corrects what a request was charged, from inside of the service that knows what it really used.

use std::fmt;
use std::sync::{Arc, Weak};

use forbear::Permit;

/// Corrects the estimated cost of a request: in the extensions of each request that a layer with a
/// [`cost`](crate::LimitLayerBuilder::cost) lets through.
///
/// Cheap to clone. Works for as long as it is kept, except where the layer has a limit of seats, too: then
/// until the response's body has ended, so that it never holds a seat itself.
///
/// ```
/// use forbear_server::Settle;
///
/// async fn complete(request: http::Request<()>) {
///     let used = 380; // as the model reports it
///     if let Some(charge) = request.extensions().get::<Settle>() {
///         charge.settle("tokens", used);
///     }
/// }
/// ```
#[derive(Clone, Default)]
pub struct Settle {
    permits: Charged,
    /// What layers further out have charged.
    outer: Option<Arc<Settle>>,
}

#[derive(Clone, Default)]
enum Charged {
    #[default]
    Nothing,
    Owned(Arc<[Permit]>),
    Riding(Weak<[Permit]>),
}

impl Settle {
    /// Settles charges that nothing else keeps.
    pub(crate) fn owning(permits: Arc<[Permit]>, outer: Option<Settle>) -> Self {
        Self { permits: Charged::Owned(permits), outer: outer.map(Arc::new) }
    }

    /// Settles charges that ride on a response.
    pub(crate) fn riding(permits: &Arc<[Permit]>, outer: Option<Settle>) -> Self {
        Self { permits: Charged::Riding(Arc::downgrade(permits)), outer: outer.map(Arc::new) }
    }

    /// States that the request really used this many units: 0 gives all back. Every policy that charged the
    /// unit is corrected, those of layers further out too; a unit that nothing was charged for is ignored.
    /// Stated again, the later statement holds.
    pub fn settle(&self, unit: &str, used: u64) {
        let kept = match &self.permits {
            Charged::Nothing => None,
            Charged::Owned(permits) => Some(permits.clone()),
            Charged::Riding(permits) => permits.upgrade(),
        };
        for permit in kept.iter().flat_map(|permits| permits.iter()) {
            permit.settle(unit, used);
        }
        if let Some(outer) = &self.outer {
            outer.settle(unit, used);
        }
    }
}

impl fmt::Debug for Settle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Settle")
    }
}
