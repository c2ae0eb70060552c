//! The panic hook belongs to the whole process, so this test has a process of its own.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lifecycle::{Lifecycle, ShutdownOutcome, log_panics};

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_panic_is_one_line_with_its_task_and_without_the_users_text() {
    let sink = Sink::default();
    let writer = sink.clone();
    tracing_subscriber::fmt().json().with_writer(move || writer.clone()).init();
    log_panics();

    let lifecycle = Lifecycle::new();
    let prompt = "näive secret".to_owned();
    lifecycle.spawn("splitter", async move {
        // Cuts a character in two: the standard message quotes the text.
        let _ = &prompt[..2];
    });
    lifecycle.spawn("fixed", async { panic!("a fixed message") });
    assert_eq!(lifecycle.shutdown(Duration::from_secs(10)).await, ShutdownOutcome::Clean);

    let logged = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
    assert_eq!(logged.lines().count(), 2, "{logged}");
    assert!(!logged.contains("secret"), "{logged}");
    assert!(logged.contains("splitter") && logged.contains("[withheld]"), "{logged}");
    assert!(logged.contains("a fixed message") && logged.contains("panics.rs:"), "{logged}");
}
