//! What telemetry tells edges and routers: the store's documents and the fleet, into the hub that
//! they watch.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use config_feed::{Document, Hub, Position};
use config_store::{ConfigStore, Entry, Scope, StoreError};
use domain::Fleet;
use futures_util::StreamExt;
use lifecycle::Drain;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::metrics::Families;

/// How often the hub is told of time: five times a heartbeat.
const TICK: Duration = Duration::from_millis(50);

/// The pause before a store that cannot be read is read again.
const RETRY: Duration = Duration::from_millis(500);

/// What is told, and to whom.
pub(crate) struct Outwards {
    pub(crate) hub: Arc<Hub>,
    pub(crate) store: Arc<dyn ConfigStore>,
    pub(crate) fleet: watch::Receiver<Arc<Fleet>>,
    pub(crate) whole: watch::Receiver<bool>,
    pub(crate) families: Arc<Families>,
}

impl Outwards {
    /// Tells everything until the drain.
    pub(crate) async fn run(self, drain: &Drain) {
        let documents = async {
            loop {
                let Err(error) = self.follow_store().await else { return };
                tracing::warn!(%error, "the desired state is read again from its beginning");
                tokio::time::sleep(RETRY).await;
            }
        };
        tokio::select! {
            () = drain.signaled() => {}
            () = documents => {}
            () = self.follow_fleet() => {}
            () = self.tick() => {}
        }
    }

    /// The documents there are, then every change. Returns when the store cannot be followed.
    async fn follow_store(&self) -> Result<(), StoreError> {
        let store = self.store.id().to_string();
        let listing = self.store.list(Scope::All).await?;
        let position = Position { store: store.into(), revision: listing.revision.0 };
        self.hub.replace(position, listing.entries.iter().map(document));
        let mut changes = pin!(self.store.watch(Scope::All, listing.revision));
        while let Some(entry) = changes.next().await {
            self.hub.document(document(&entry?));
        }
        // The store is closed: what was told stands.
        std::future::pending().await
    }

    /// The fleet, once everything in it was probed: until then others know more of it.
    async fn follow_fleet(&self) {
        let (mut whole, mut fleet) = (self.whole.clone(), self.fleet.clone());
        if whole.wait_for(|whole| *whole).await.is_err() {
            return std::future::pending().await;
        }
        loop {
            let newest = fleet.borrow_and_update().clone();
            self.hub.fleet(&newest);
            if fleet.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    async fn tick(&self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.hub.tick(lifecycle::monotonic());
            let watchers = self.hub.watchers();
            self.families.watchers.set(i64::try_from(watchers).unwrap_or(i64::MAX));
        }
    }
}

/// An entry of the store as it is told.
fn document(entry: &Entry) -> Document {
    let schema = entry.document.as_ref().map_or((0, 0), |d| (d.schema.major, d.schema.minor));
    Document {
        kind: entry.key.kind().into(),
        id: entry.key.name().into(),
        revision: entry.revision.0,
        schema,
        json: entry.document.as_ref().map(|d| d.bytes.clone()),
    }
}
