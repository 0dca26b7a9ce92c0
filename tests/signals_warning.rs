//! A wait that cannot be read is told to whoever runs the process: once, and without the value.
//!
//! In a process of its own, since "once" is counted for a whole process.

use std::fmt::Write;
use std::sync::Mutex;
use std::time::SystemTime;

use forbear::Signals;
use http::{HeaderMap, HeaderValue, StatusCode};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Notes;

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= &Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                let _ = write!(self.0, "{}={value:?} ", field.name());
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        SEEN.lock().expect("no test panics here").push(text.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn b088_a_parse_warning_is_visible_once() {
    tracing::subscriber::set_global_default(Notes).expect("the first subscriber");
    let mut headers = HeaderMap::new();
    for value in ["30", "120junk", "hunter2"] {
        headers.insert("retry-after", HeaderValue::from_static(value));
        Signals::read(StatusCode::TOO_MANY_REQUESTS, &headers, SystemTime::UNIX_EPOCH);
    }
    let seen = SEEN.lock().expect("no test panics here");
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(seen[0].contains("retry-after"), "{seen:?}");
    assert!(!seen[0].contains("junk"), "{seen:?}");
}
