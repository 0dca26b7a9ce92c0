//! The one thing by which the layers of a call know of each other.
//!
//! `reqwest_middleware` hides the chain from its links, so the outermost layer leaves a marker in the
//! extensions. It points weakly at the call, which lives in that layer's own future: it is dead with the
//! future, however that ended, and extensions that are used again or copied carry no stale ones. A throttle
//! further in adds itself, for as long as it is around something.
//!
//! A thread keeps the last calls that ended on it, each with the extensions that hold its marker.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use http::Extensions;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::client::call::Call;
use crate::client::request_ext::Options;

/// The most calls that a thread keeps.
const SPARE: usize = 64;

thread_local! {
    /// Of a kept call its own marker is all that is in the extensions, and all that points at it.
    static SPARES: RefCell<Vec<(Arc<Call>, Extensions)>> = const { RefCell::new(Vec::new()) };
}

#[derive(Clone)]
struct Marker {
    call: Weak<Call>,
    /// When the attempt under way began.
    began: Instant,
    marks: SmallVec<[Mark; 2]>,
}

/// A limiter, by the number that tells it apart while it lives, and where its throttle stands.
#[derive(Clone, Copy)]
struct Mark {
    limiter: usize,
    post: Post,
}

impl Marker {
    fn mark(&mut self, post: Post, limiters: &[usize]) {
        for limiter in limiters {
            self.marks.push(Mark { limiter: *limiter, post });
        }
    }
}

/// Where the throttles of a call stand that are around something: more at once than any chain has.
///
/// A post counts who comes and who goes, so that it is odd while it is taken, and no mark of one who left
/// fits again. The first is the outermost layer's, which is there for as long as the call.
#[derive(Debug, Default)]
pub(crate) struct Posts([AtomicU64; 8]);

#[derive(Debug, Clone, Copy)]
struct Post {
    index: usize,
    count: u64,
}

const OUTERMOST: Post = Post { index: 0, count: 0 };

impl Posts {
    fn take(&self) -> Option<Post> {
        self.0.iter().enumerate().skip(1).find_map(|(index, counter)| {
            let free = counter.load(Ordering::Relaxed);
            let count = free + 1;
            let is_taken = free % 2 == 1
                || counter.compare_exchange(free, count, Ordering::Relaxed, Ordering::Relaxed).is_err();
            (!is_taken).then_some(Post { index, count })
        })
    }

    fn holds(&self, post: Post) -> bool {
        self.0[post.index].load(Ordering::Relaxed) == post.count
    }

    fn leave(&self, post: Post) {
        self.0[post.index].store(post.count + 1, Ordering::Relaxed);
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
    Outermost {
        call: Arc<Call>,
        started: Instant,
    },
    Within(Within),
}

/// A throttle further in, until it is dropped.
#[derive(Debug)]
pub(crate) struct Within {
    call: Arc<Call>,
    /// When the attempt began of which it is a part.
    began: Instant,
    /// `None` of one too many, which what is further in cannot see.
    post: Option<Post>,
}

impl Within {
    /// When the attempt began, if that is just now and nothing can have waited since.
    pub(crate) fn began_now(&self) -> Option<Instant> {
        self.call.is_handed_on().then_some(self.began)
    }
}

impl Deref for Within {
    type Target = Call;

    fn deref(&self) -> &Call {
        &self.call
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        if let Some(post) = self.post {
            self.call.posts.leave(post);
        }
    }
}

/// Marks the extensions. `None` if the layer must let the call pass through: a second retry, a retry inside a
/// throttle (a seat would be held over its sleeps), or a second throttle of one limiter.
#[inline(always)]
pub(crate) fn enter(extensions: &mut Extensions, layer: Layer<'_>) -> Option<Inside> {
    if let Some(marker) = extensions.get_mut::<Marker>()
        && let Some(call) = marker.call.upgrade()
    {
        let Layer::Throttle(limiters) = layer else { return None };
        if !marker.marks.is_empty() {
            marker.marks.retain(|mark| call.posts.holds(mark.post));
        }
        if marker.marks.iter().any(|mark| limiters.contains(&mark.limiter)) {
            return None;
        }
        let post = call.posts.take();
        if let Some(post) = post {
            marker.mark(post, limiters);
        }
        return Some(Inside::Within(Within { call, began: marker.began, post }));
    }
    let started = Instant::now();
    let call = begin(extensions, started);
    if let Some(marker) = extensions.get_mut::<Marker>() {
        marker.began = started;
        marker.marks.clear();
        if let Layer::Throttle(limiters) = layer {
            marker.mark(OUTERMOST, limiters);
        }
    }
    Some(Inside::Outermost { call, started })
}

/// A call whose marker is in the extensions.
fn begin(extensions: &mut Extensions, started: Instant) -> Arc<Call> {
    if extensions.is_empty()
        && let Some((call, marked)) = spares(Vec::pop).flatten()
    {
        *extensions = marked;
        call.begin(started, None);
        return call;
    }
    let call = Arc::new(Call::default());
    call.begin(started, extensions.get());
    extensions.insert(Marker { call: Arc::downgrade(&call), began: started, marks: SmallVec::new() });
    call
}

/// What the request states. Of most calls the marker is all that is in the extensions.
pub(crate) fn stated(extensions: &Extensions) -> Option<&Options> {
    if extensions.len() > 1 { extensions.get() } else { None }
}

/// Notes when another attempt begins.
pub(crate) fn begins(extensions: &mut Extensions, now: Instant) {
    // Who took it out is marked anew.
    if let Some(marker) = extensions.get_mut::<Marker>() {
        marker.began = now;
    }
}

/// Ends a call whose future has run to its end, and keeps it if it can be used again.
pub(crate) fn end(call: Arc<Call>, extensions: &mut Extensions) {
    let is_own = |marker: &Marker| marker.call.as_ptr() == Arc::as_ptr(&call);
    if !extensions.get::<Marker>().is_some_and(is_own) {
        return;
    }
    let is_spare = extensions.len() == 1
        && (Arc::strong_count(&call), Arc::weak_count(&call)) == (1, 1)
        && call.is_spare();
    if is_spare {
        let marked = std::mem::take(extensions);
        spares(|spares| {
            if spares.len() < SPARE {
                spares.push((call, marked));
            }
        });
    } else {
        // Somebody further in may hold the call for longer.
        extensions.remove::<Marker>();
    }
}

/// What a thread keeps; nothing on one that ends.
fn spares<T>(then: impl FnOnce(&mut Vec<(Arc<Call>, Extensions)>) -> T) -> Option<T> {
    SPARES.try_with(|spares| then(&mut spares.borrow_mut())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_fits_only_whom_it_was_made_for() {
        let posts = Posts::default();
        let first = posts.take().expect("a free post");
        assert!(posts.holds(first) && posts.holds(OUTERMOST));
        posts.leave(first);
        let second = posts.take().expect("the same post");
        assert_eq!(second.index, first.index);
        assert!(posts.holds(second) && !posts.holds(first));
        let others = std::iter::from_fn(|| posts.take()).count();
        assert_eq!(others, 6, "one is taken, and one is the outermost layer's");
    }

    #[test]
    fn a_call_is_used_again_only_if_nobody_else_can_find_it() {
        let mut extensions = Extensions::new();
        let run = |extensions: &mut Extensions| match enter(extensions, Layer::Retry) {
            Some(Inside::Outermost { call, .. }) => call,
            _ => panic!("no other layer is around it"),
        };
        let first = run(&mut extensions);
        let pointer = Arc::as_ptr(&first);
        assert!(enter(&mut extensions, Layer::Retry).is_none(), "a second retry");
        end(first, &mut extensions);
        assert!(extensions.is_empty());
        let again = run(&mut extensions);
        assert_eq!(Arc::as_ptr(&again), pointer);
        let mut copied = extensions.clone();
        end(again, &mut extensions);
        assert!(extensions.is_empty(), "its marker is gone");
        let (one, other) = (run(&mut extensions), run(&mut copied));
        assert!(!Arc::ptr_eq(&one, &other), "not kept, for a copy points at it");
    }

    #[test]
    fn a_call_that_has_ended_is_not_in_the_way_of_the_next_whoever_still_holds_it() {
        let mut extensions = Extensions::new();
        let Some(Inside::Outermost { call, .. }) = enter(&mut extensions, Layer::Retry) else {
            panic!("no other layer is around it");
        };
        let mut copied = extensions.clone();
        let background = enter(&mut copied, Layer::Throttle(&[1]));
        assert!(matches!(background, Some(Inside::Within(_))));
        end(call, &mut extensions);
        let next = enter(&mut extensions, Layer::Retry);
        assert!(matches!(next, Some(Inside::Outermost { .. })), "a call with retries of its own: {next:?}");
        drop(background);
    }
}
