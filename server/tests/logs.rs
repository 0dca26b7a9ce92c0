//! What the layer logs. Alone in its process: subscribers are found by thread, and callers by line.

mod support;

use forbear::{Policy, store::Local};
use forbear_server::{Key, LimitLayer};
use support::{service, to};
use tower::ServiceExt;

fn limited(key: Key) -> LimitLayer {
    LimitLayer::new(Policy::new("address").limit("5/min"), key, Local::new()).build().expect("a layer")
}

/// The one line that is logged names the mend, once.
#[test]
fn a_missing_peer_is_one_error_line() {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("nobody panicked").extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let layer = limited(Key::peer());
            for _ in 0..10 {
                let response = service(&layer).oneshot(to("/")).await.expect("an answer");
                assert_eq!(response.status(), 500);
            }
            let layer = limited(Key::extension::<String>());
            for _ in 0..2_000 {
                let response = service(&layer).oneshot(to("/")).await.expect("an answer");
                assert_eq!(response.status(), 200);
            }
        });
    });
    let text = String::from_utf8(lines.0.lock().expect("nobody panicked").clone()).expect("text");
    assert_eq!(text.matches("ERROR").count(), 1, "{text}");
    assert!(text.contains("into_make_service_with_connect_info"), "{text}");
    assert_eq!(text.matches("limits nobody").count(), 1, "{text}");
}
