//! A log that is kept: for tests that count lines, or look for secrets in them.

use std::fmt::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<(Level, String)>>>);

impl Log {
    /// Keeps what this thread logs until the guard is dropped.
    pub fn keep(&self) -> tracing::subscriber::DefaultGuard {
        tracing::subscriber::set_default(self.clone())
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

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("forbear")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().push((*event.metadata().level(), text.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
