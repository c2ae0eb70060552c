//! Setting up `tracing`: filter, format, and the buffered way out.

use std::fmt;
use std::str::FromStr;
use std::thread::JoinHandle;
use std::time::Duration;

use prometheus::{IntCounter, Registry};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tracing_subscriber::filter::{FilterExt, LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry as Spans, fmt as format, reload};

use crate::buffer::LineBuffer;

/// How long the end of a process waits for a stalled reader of its logs.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// Libraries that log what goes over the wire, with keys and prompts, below the level `info`. No
/// setting lets that through.
const WIRE_LIBRARIES: [&str; 5] = ["h2", "hyper", "hyper_util", "rustls", "tokio_rustls"];

/// What can fail while setting up.
#[derive(Debug, thiserror::Error)]
pub enum InstrumentationError {
    /// Logs are set up once per process.
    #[error("the logs of this process are set up already")]
    AlreadySetUp,
    /// The thread that writes the logs could not be started.
    #[error("the log writer cannot be started: {0}")]
    Writer(#[source] std::io::Error),
    /// A metric clashes with one that is registered already.
    #[error("a metric cannot be registered: {0}")]
    Metric(#[from] prometheus::Error),
}

/// The `[log]` section.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// What is logged. Default `info`.
    pub level: LogFilter,
    /// How a line looks. Default `json`.
    pub format: LogFormat,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One JSON object per line: `timestamp` (RFC 3339, UTC), `level`, `target`, `message` and
    /// the event's own fields side by side.
    #[default]
    Json,
    /// For eyes at a terminal.
    Text,
}

/// A level (`error`, `warn`, `info`, `debug`, `trace`, `off`), optionally followed by other
/// levels for parts of the program: `info,router=debug`.
#[derive(Clone, PartialEq)]
pub struct LogFilter {
    text: String,
    targets: Targets,
}

impl FromStr for LogFilter {
    type Err = String;

    /// # Errors
    /// The text is no list of levels.
    fn from_str(text: &str) -> Result<Self, String> {
        // An empty filter would silently log nothing.
        let targets = text.parse::<Targets>().ok().filter(|_| !text.trim().is_empty());
        // `Targets` reads an unknown level as the name of a target and lets all of it through.
        let misspelt = text
            .split(',')
            .map(str::trim)
            .find(|part| !part.contains('=') && part.parse::<LevelFilter>().is_err());
        match (targets, misspelt) {
            (Some(targets), None) => Ok(Self { text: text.to_owned(), targets }),
            _ => Err(format!(
                "`{text}` is not a log level (off, error, warn, info, debug, trace), optionally \
                 with others for parts as in `info,router=debug`"
            )),
        }
    }
}

impl Default for LogFilter {
    fn default() -> Self {
        let targets = Targets::new().with_default(LevelFilter::INFO);
        Self { text: "info".to_owned(), targets }
    }
}

impl fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for LogFilter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for LogFilter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

/// Keeps the logs flowing; dropped last in `main`, it writes what is still waiting, for at most
/// two seconds.
#[must_use = "logs end when the guard is dropped"]
pub struct LogGuard {
    buffer: LineBuffer,
    dropped: IntCounter,
    level: LogLevel,
    writer: Option<JoinHandle<()>>,
}

/// What is logged, while the process runs. A cheap handle.
#[derive(Clone, Debug)]
pub struct LogLevel(reload::Handle<Targets, Spans>);

impl LogLevel {
    /// From now on this is logged.
    pub fn set(&self, filter: &LogFilter) {
        // It fails when the logs have ended, and with them whatever the level was for.
        let _ = self.0.reload(filter.targets.clone());
    }
}

impl LogGuard {
    /// What is logged.
    pub fn level(&self) -> LogLevel {
        self.level.clone()
    }

    /// Adds `warmpath_log_dropped_lines_total` to the registry.
    ///
    /// # Errors
    /// The registry has a metric of that name.
    pub fn register(&self, registry: &Registry) -> Result<(), InstrumentationError> {
        Ok(registry.register(Box::new(self.dropped.clone()))?)
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.buffer.close();
        // Joined only when it is sure to end: a stalled reader must not hold the process.
        if self.buffer.flush(FLUSH_LIMIT)
            && let Some(writer) = self.writer.take()
        {
            let _ = writer.join();
        }
    }
}

impl fmt::Debug for LogGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogGuard").field("dropped_lines", &self.dropped.get()).finish()
    }
}

/// Sends the `tracing` events of this process to standard error.
///
/// # Errors
/// The process has a subscriber already, or the writing thread cannot be started.
pub fn init_logs(config: &LogConfig) -> Result<LogGuard, InstrumentationError> {
    let dropped = IntCounter::new(
        "warmpath_log_dropped_lines_total",
        "Log lines lost because the reader of the logs did not keep up.",
    )?;
    let buffer = LineBuffer::new(dropped.clone());
    let (subscriber, level) = subscriber(config, buffer.clone());
    subscriber.try_init().map_err(|_| InstrumentationError::AlreadySetUp)?;
    let thread_buffer = buffer.clone();
    let writer = std::thread::Builder::new()
        .name("log-writer".to_owned())
        .spawn(move || thread_buffer.write_to(std::io::stderr()))
        .map_err(InstrumentationError::Writer)?;
    Ok(LogGuard { buffer, dropped, level, writer: Some(writer) })
}

fn subscriber(
    config: &LogConfig,
    buffer: LineBuffer,
) -> (impl SubscriberInitExt + use<>, LogLevel) {
    let to_buffer = move || buffer.clone();
    let lines = match config.format {
        LogFormat::Json => format::layer()
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .with_writer(to_buffer)
            .boxed(),
        LogFormat::Text => format::layer().with_ansi(false).with_writer(to_buffer).boxed(),
    };
    let wire = WIRE_LIBRARIES.map(|library| (library, LevelFilter::INFO));
    let wire = Targets::new().with_default(LevelFilter::TRACE).with_targets(wire);
    let (level, handle) = reload::Layer::new(config.level.targets.clone());
    let subscriber = tracing_subscriber::registry().with(lines.with_filter(level.and(wire)));
    (subscriber, LogLevel(handle))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

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

    /// What `events` logs under `config`.
    fn logged(config: &LogConfig, events: impl FnOnce()) -> String {
        logged_with(config, |_| events())
    }

    fn logged_with(config: &LogConfig, events: impl FnOnce(LogLevel)) -> String {
        let buffer = LineBuffer::new(IntCounter::new("dropped", "test").unwrap());
        let (subscriber, level) = subscriber(config, buffer.clone());
        let guard = subscriber.set_default();
        events(level);
        drop(guard);
        buffer.close();
        let sink = Sink::default();
        buffer.write_to(sink.clone());
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_json_line_has_its_fields_side_by_side_and_a_utc_timestamp() {
        let text = logged(&LogConfig::default(), || {
            tracing::info!(tenant.id = "acme", attempts = 2, "request\nserved");
        });
        assert_eq!(text.lines().count(), 1, "line breaks in values are escaped: {text}");
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["message"], "request\nserved");
        assert_eq!(line["tenant.id"], "acme");
        assert_eq!(line["attempts"], 2);
        assert_eq!(line["level"], "INFO");
        let timestamp = line["timestamp"].as_str().unwrap();
        assert!(timestamp.len() >= 20 && timestamp.ends_with('Z'), "{timestamp}");
        assert_eq!(timestamp.as_bytes()[10], b'T');
    }

    #[test]
    fn the_filter_sets_levels_for_the_whole_and_for_parts() {
        let config =
            LogConfig { level: "warn,router=debug".parse().unwrap(), format: LogFormat::Text };
        let text = logged(&config, || {
            tracing::info!(target: "edge", "hidden");
            tracing::warn!(target: "edge", "shown one");
            tracing::debug!(target: "router", "shown two");
            tracing::trace!(target: "router", "hidden");
        });
        assert_eq!(text.matches("shown").count(), 2, "{text}");
        assert!(!text.contains("hidden"), "{text}");
    }

    #[test]
    fn the_level_can_be_changed_and_lets_the_wire_through_never() {
        let config = LogConfig { level: "warn".parse().unwrap(), format: LogFormat::Text };
        let text = logged_with(&config, |level| {
            let speak = |what: &str| {
                tracing::debug!(target: "edge", "{what}");
                tracing::debug!(target: "h2::codec", "hidden");
            };
            speak("hidden");
            level.set(&"trace".parse().unwrap());
            speak("shown");
            level.set(&"error".parse().unwrap());
            speak("hidden");
        });
        assert_eq!(text.matches("shown").count(), 1, "{text}");
        assert!(!text.contains("hidden"), "{text}");
    }

    #[test]
    fn what_goes_over_the_wire_is_never_logged() {
        for level in ["trace", "info,h2=trace,h2::codec=trace,hyper=debug"] {
            let config = LogConfig { level: level.parse().unwrap(), format: LogFormat::Text };
            let text = logged(&config, || {
                tracing::debug!(target: "h2::codec::framed_write", "authorization: hidden");
                tracing::trace!(target: "hyper::proto", "hidden");
                tracing::warn!(target: "hyper", "shown");
            });
            assert!(text.contains("shown") && !text.contains("hidden"), "{text}");
        }
    }

    #[test]
    fn a_misspelt_level_is_refused() {
        for wrong in ["", "inof", "info,debgu", "router=loud"] {
            let error = wrong.parse::<LogFilter>().unwrap_err();
            assert!(error.contains("is not a log level"), "{wrong:?}: {error}");
        }
        assert_eq!("info".parse::<LogFilter>().unwrap(), LogFilter::default());
    }
}
