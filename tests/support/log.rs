//! A log that is kept: for tests that count lines, or look for secrets in them.
//!
//! One subscriber for the whole process, which hands a line to the log of the thread that wrote it: what is
//! logged where nobody listens is remembered by `tracing` for all threads.

use std::cell::RefCell;
use std::fmt::Write;
use std::sync::{Arc, Once};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<(Level, String)>>>);

thread_local! {
    static KEPT: RefCell<Option<Log>> = const { RefCell::new(None) };
}

/// Until it is dropped, this thread's lines are kept.
pub struct Keeps;

impl Drop for Keeps {
    fn drop(&mut self) {
        KEPT.set(None);
    }
}

impl Log {
    /// Keeps what this thread logs until the guard is dropped.
    pub fn keep(&self) -> Keeps {
        static GLOBAL: Once = Once::new();
        GLOBAL.call_once(|| tracing::subscriber::set_global_default(ByThread).expect("the only one"));
        KEPT.set(Some(self.clone()));
        Keeps
    }

    pub fn lines(&self) -> Vec<(Level, String)> {
        self.0.lock().clone()
    }

    /// Lines of `level` that contain `text`.
    pub fn count(&self, level: Level, text: &str) -> usize {
        self.lines().iter().filter(|(at, line)| *at == level && line.contains(text)).count()
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{}={value:?} ", field.name()).expect("a String takes everything");
    }
}

struct ByThread;

impl Subscriber for ByThread {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("forbear")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let Some(log) = KEPT.with_borrow(Clone::clone) else { return };
        let mut text = Text(String::new());
        event.record(&mut text);
        log.0.lock().push((*event.metadata().level(), text.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
