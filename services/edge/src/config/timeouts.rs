//! How long each phase of a request may take.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use settings::{HumanDuration, SettingsError};

/// Section `[edge.timeouts]`. A stream has no limit over all of it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawTimeouts {
    /// Making a connection to an engine, TLS included.
    pub connect: HumanDuration,
    /// From sending a streaming request to its first content.
    pub first_token: HumanDuration,
    /// Between two events of a stream.
    pub idle: HumanDuration,
    /// All of a request that does not stream.
    pub total: HumanDuration,
    /// A client that reads nothing.
    pub write_stall: HumanDuration,
    /// For 16 KiB more of a request's body, or its end. What is read before it is sent on may take
    /// ten times as long in all.
    pub body: HumanDuration,
    /// A realtime session in which neither side says anything.
    pub session_idle: HumanDuration,
}

impl Default for RawTimeouts {
    fn default() -> Self {
        Self {
            connect: HumanDuration::from_secs(2),
            first_token: HumanDuration::from_secs(120),
            idle: HumanDuration::from_secs(120),
            // What the OpenAI SDKs wait for by default.
            total: HumanDuration::from_secs(600),
            write_stall: HumanDuration::from_secs(60),
            body: HumanDuration::from_secs(30),
            // People pause; the libraries of most clients ask every half minute whether the other
            // side is there, which counts.
            session_idle: HumanDuration::from_secs(900),
        }
    }
}

/// How long each phase may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) first_token: Duration,
    pub(crate) idle: Duration,
    pub(crate) total: Duration,
    pub(crate) write_stall: Duration,
    pub(crate) body: Duration,
    pub(crate) session_idle: Duration,
}

pub(super) fn read_timeouts(raw: &RawTimeouts) -> Result<Timeouts, SettingsError> {
    let read = |value: HumanDuration, key: &str| match value.get() {
        Duration::ZERO => {
            Err(SettingsError::new(key, "must be longer than zero").under("edge.timeouts"))
        }
        duration => Ok(duration),
    };
    Ok(Timeouts {
        connect: read(raw.connect, "connect")?,
        first_token: read(raw.first_token, "first_token")?,
        idle: read(raw.idle, "idle")?,
        total: read(raw.total, "total")?,
        write_stall: read(raw.write_stall, "write_stall")?,
        body: read(raw.body, "body")?,
        session_idle: read(raw.session_idle, "session_idle")?,
    })
}
