//! The one thing by which the layers of a call know of each other.
//!
//! `reqwest_middleware` hides the chain from its links, so the outermost layer leaves a marker in the
//! extensions. It points weakly at the call, which lives in that layer's own future: it is dead with the
//! future, however that ended, and extensions that are used again or copied carry no stale ones. A throttle
//! further in adds itself, for as long as it is around something.
//!
//! A thread keeps the extensions and the calls of the last ones that ended on it, for the next ones.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use http::Extensions;
use smallvec::SmallVec;

use crate::client::call::Call;

/// The most that a thread keeps of each.
const SPARE: usize = 64;

thread_local! {
    static SPARES: RefCell<Spares> = const { RefCell::new(Spares { calls: Vec::new(), extensions: Vec::new() }) };
}

struct Spares {
    calls: Vec<Arc<Call>>,
    /// Nothing is in them but a marker that points nowhere.
    extensions: Vec<Extensions>,
}

#[derive(Clone, Default)]
struct Marker {
    call: Weak<Call>,
    throttles: SmallVec<[Mark; 1]>,
}

#[derive(Clone)]
struct Mark {
    throttle: u64,
    limiters: Limiters,
}

/// Which limiters: the numbers that tell them apart while they live.
pub(crate) type Limiters = SmallVec<[usize; 2]>;

/// The throttles of a call that are around something at the moment.
#[derive(Debug, Default)]
pub(crate) struct Throttles {
    entered: u64,
    inside: SmallVec<[u64; 2]>,
}

impl Throttles {
    pub(crate) fn clear(&mut self) {
        (self.entered, self.inside) = (0, SmallVec::new());
    }

    /// `None` if one of the marked ones has a limiter that is among these.
    fn enter(&mut self, marks: &mut SmallVec<[Mark; 1]>, limiters: &[usize]) -> Option<u64> {
        marks.retain(|mark| self.inside.contains(&mark.throttle));
        if marks.iter().any(|mark| limiters.iter().any(|limiter| mark.limiters.contains(limiter))) {
            return None;
        }
        self.entered += 1;
        self.inside.push(self.entered);
        marks.push(Mark { throttle: self.entered, limiters: limiters.into() });
        Some(self.entered)
    }
}

/// A layer that goes around what is further in.
#[derive(Debug)]
pub(crate) enum Layer<'a> {
    Retry,
    /// With its limiters.
    Throttle(&'a [usize]),
}

/// A layer's presence around what is further in, for its future to hold.
#[derive(Debug)]
pub(crate) enum Inside {
    /// Of all layers: the call is its own, and [ends](end) with it.
    Outermost(Arc<Call>),
    Within(Within),
}

/// A throttle further in, until it is dropped.
#[derive(Debug)]
pub(crate) struct Within {
    call: Arc<Call>,
    throttle: u64,
}

impl Deref for Within {
    type Target = Call;

    fn deref(&self) -> &Call {
        &self.call
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        self.call.throttles.lock().inside.retain(|inside| *inside != self.throttle);
    }
}

/// Marks the extensions. `None` if the layer must let the call pass through: a second retry, a retry inside a
/// throttle (a seat would be held over its sleeps), or a second throttle of one limiter.
pub(crate) fn enter(extensions: &mut Extensions, layer: Layer<'_>) -> Option<Inside> {
    if let Some(marker) = extensions.get_mut::<Marker>()
        && let Some(call) = marker.call.upgrade()
    {
        let Layer::Throttle(limiters) = layer else { return None };
        let throttle = call.throttles.lock().enter(&mut marker.throttles, limiters)?;
        return Some(Inside::Within(Within { call, throttle }));
    }
    let call = begin(extensions);
    let marker = extensions.get_or_insert_default::<Marker>();
    marker.call = Arc::downgrade(&call);
    marker.throttles.clear();
    if let Layer::Throttle(limiters) = layer {
        call.throttles.lock().enter(&mut marker.throttles, limiters);
    }
    Some(Inside::Outermost(call))
}

fn begin(extensions: &mut Extensions) -> Arc<Call> {
    let mut call = spares(|spares| {
        if extensions.is_empty()
            && let Some(spare) = spares.extensions.pop()
        {
            *extensions = spare;
        }
        spares.calls.pop()
    })
    .flatten()
    .unwrap_or_default();
    Arc::get_mut(&mut call).expect("a new or spare call is nobody else's").begin(extensions.get());
    call
}

/// Ends a call whose future has run to its end, and keeps what can be used again.
pub(crate) fn end(mut call: Arc<Call>, extensions: &mut Extensions) {
    if let Some(marker) = extensions.get_mut::<Marker>() {
        *marker = Marker::default();
    }
    // Only if the marker is all that is in them.
    let extensions = (extensions.len() == 1).then(|| std::mem::take(extensions));
    let is_alone = Arc::get_mut(&mut call).map(Call::clear).is_some();
    spares(|spares| {
        spares.extensions.extend(extensions.filter(|_| spares.extensions.len() < SPARE));
        spares.calls.extend(Some(call).filter(|_| is_alone && spares.calls.len() < SPARE));
    });
}

/// What a thread keeps; nothing on one that ends.
fn spares<T>(then: impl FnOnce(&mut Spares) -> T) -> Option<T> {
    SPARES.try_with(|spares| then(&mut spares.borrow_mut())).ok()
}
