//! What is logged while a test runs.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use tracing::subscriber::DefaultGuard;

/// Everything that this thread logs from its start on.
pub(crate) struct Log {
    sink: Sink,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    pub(crate) fn start() -> Self {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || writer.clone())
            .finish();
        Self { sink, _guard: tracing::subscriber::set_default(subscriber) }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.sink.0.lock().clone()).unwrap()
    }

    /// The fields of the lines that requests end in.
    pub(crate) fn requests(&self) -> Vec<Value> {
        let lines = self.text();
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["level"] == "INFO").map(|line| line["fields"].clone()).collect()
    }
}
