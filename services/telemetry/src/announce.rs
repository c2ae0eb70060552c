//! Engines that announce themselves over the bus.
//!
//! An announcement is signed with a join token. Telemetry checks the signature, the token's scope
//! and time, and that it was not heard before; it probes an engine that it does not know before it
//! stores it as a backend. From then on the engine says every few seconds that it is there. One
//! that says farewell, or is not heard for [`SILENT_AFTER`], is drained, and removed once it is
//! idle or down, [`LONGEST_DRAIN`] later at the latest.
//!
//! - `check`: whether an announcement may be acted on; pure
//! - `lifetimes`: who was heard when, and who is to go; pure
//! - `probe`: whether an engine is there and serves what its token allows
//! - `desk`: announcements in, documents and answers out

mod check;
mod desk;
mod lifetimes;
mod probe;

use std::sync::Arc;
use std::time::Duration;

use bus::Bus;
use config_store::ConfigStore;
use domain::Fleet;
use events::{Region, Verdict};
use prometheus::{IntCounterVec, Opts, Registry};
use tokio::sync::watch;

use crate::{Error, FileBackends};

pub use desk::Announcements;
pub use lifetimes::{LONGEST_DRAIN, SHORTEST_DRAIN, SILENT_AFTER};

/// How often an engine says that it is there: twice may be lost before it counts as silent.
pub const ANNOUNCE_EVERY: Duration = Duration::from_secs(5);

/// What announcements need from outside.
pub struct Deps {
    /// Where their metrics are registered.
    pub registry: Registry,
    /// Where they are heard and answered.
    pub bus: Arc<dyn Bus>,
    /// The region that they are to be for.
    pub region: Region,
    /// Where the tokens are, and the backends that are made of them.
    pub store: Arc<dyn ConfigStore>,
    /// What is seen of the backends, to know when a drained one is idle.
    pub fleet: watch::Receiver<Arc<Fleet>>,
    /// The backends whose names and addresses no engine can take by its own word.
    pub file: FileBackends,
}

/// Announcements by what became of them.
#[derive(Clone)]
struct Metrics(IntCounterVec);

impl Metrics {
    fn register(registry: &Registry) -> Result<Self, Error> {
        let announcements = IntCounterVec::new(
            Opts::new(
                "warmpath_telemetry_announcements_total",
                "Announcements of engines, by what became of them.",
            ),
            &["verdict"],
        )?;
        for verdict in Verdict::ALL {
            announcements.with_label_values(&[verdict.as_str()]);
        }
        registry.register(Box::new(announcements.clone()))?;
        Ok(Self(announcements))
    }

    fn judged(&self, verdict: Verdict) {
        self.0.with_label_values(&[verdict.as_str()]).inc();
    }
}

#[cfg(test)]
mod tests;
