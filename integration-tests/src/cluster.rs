//! A whole gateway and its engines in this process, on ports that the system chose.

mod builder;
mod idle;

use std::net::SocketAddr;
use std::time::Duration;

use lifecycle::ShutdownOutcome;
use serde_json::Value;
use warmpath::double::{DoubleHandle, Stats};
use warmpath::gateway::Gateway;

pub use self::builder::ClusterBuilder;
pub(crate) use self::builder::merge;
pub use self::idle::OpenCounts;
use crate::client::Client;
use crate::desired::Desired;
use crate::metrics::Metrics;
use crate::wait::{PATIENCE, eventually};

/// The model that doubles serve unless told otherwise.
pub const MODEL: &str = "warmpath-double";

/// A running gateway with the engine doubles behind it.
pub struct Cluster {
    gateway: Gateway,
    doubles: Vec<DoubleHandle>,
    /// How a double is started again.
    builder: ClusterBuilder,
}

impl Cluster {
    /// Three doubles of 600 blocks, fast probes, debug headers, no keys; change what you like.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// Where clients connect.
    pub fn edge(&self) -> SocketAddr {
        self.gateway.edge()
    }

    /// Where operators connect.
    pub fn admin(&self) -> SocketAddr {
        self.gateway.admin()
    }

    /// A client of the gateway.
    pub fn client(&self) -> Client {
        Client::new(self.edge())
    }

    /// What operators want of it.
    ///
    /// # Panics
    /// It was built without the admin API.
    pub fn desired(&self) -> Desired {
        Desired::new(self.gateway.admin_api().expect("the admin API is served"))
    }

    /// Waits until the router can choose from these backends and no others.
    ///
    /// # Panics
    /// It is not so in time.
    pub async fn await_choice(&self, backends: &[&str]) {
        let chosen = || async {
            let page = self.operator("/admin/v1/backends").await;
            let ranks = page["ranks"].as_array().into_iter().flatten();
            let ready = ranks.filter(|rank| rank["state"] == "ready");
            let mut names: Vec<&str> = ready.filter_map(|rank| rank["backend"].as_str()).collect();
            names.sort_unstable();
            names.dedup();
            names == backends
        };
        eventually(PATIENCE, "the router's choice", chosen).await;
    }

    /// Requests that the router counts at a backend.
    pub async fn in_flight(&self, backend: &str) -> f64 {
        let labels = [("backend", backend)];
        self.metrics().await.sum("warmpath_router_in_flight_requests", &labels)
    }

    /// The doubles; number `n` is the backend `engine-n`.
    pub fn doubles(&self) -> &[DoubleHandle] {
        &self.doubles
    }

    /// The double behind a backend's name.
    ///
    /// # Panics
    /// It is no name of a double.
    #[track_caller]
    pub fn double(&self, backend: &str) -> &DoubleHandle {
        &self.doubles[number(backend)]
    }

    /// Inference requests that each double has read.
    pub fn requests(&self) -> Vec<u64> {
        self.doubles.iter().map(|double| double.stats().requests).collect()
    }

    /// The doubles' totals.
    pub fn stats(&self) -> Vec<Stats> {
        self.doubles.iter().map(DoubleHandle::stats).collect()
    }

    /// The page of metrics.
    pub async fn metrics(&self) -> Metrics {
        Metrics::new(Client::new(self.admin()).get("/metrics").await.text())
    }

    /// What the admin port answers to a `GET`, as JSON.
    pub async fn operator(&self, path: &str) -> Value {
        Client::new(self.admin()).get(path).await.json()
    }

    /// Why a request went where it went.
    pub async fn explain(&self, request: &str) -> Value {
        self.operator(&format!("/admin/v1/explain/{request}")).await
    }

    /// The state that telemetry has published of a backend, with its incarnation.
    pub fn published(&self, backend: &str) -> Option<(domain::BackendState, u64)> {
        let fleet = self.gateway.fleet();
        let fleet = fleet.borrow();
        fleet.backend(&backend.into()).map(|b| (b.state, b.incarnation.0))
    }

    /// Ends a double as a killed process ends.
    ///
    /// # Panics
    /// It is no name of a double.
    pub async fn kill(&self, backend: &str) {
        self.double(backend).kill().await;
    }

    /// Starts a killed double again, on the port it had, with nothing in its cache.
    ///
    /// # Panics
    /// The port is taken.
    pub async fn restart(&mut self, backend: &str) {
        let number = number(backend);
        let address = self.doubles[number].addr();
        let listener = tokio::net::TcpListener::bind(address).await.expect("the port is free");
        self.doubles[number] = self.builder.double_number(number, listener);
    }

    /// Waits until nothing of any request is left anywhere, and returns how long that took.
    ///
    /// # Panics
    /// Something is left after a while; the message says what.
    pub async fn assert_idle(&self) -> Duration {
        self.idle_within(PATIENCE).await
    }

    /// Stops the gateway and fails unless every task of it ended by itself.
    ///
    /// # Panics
    /// A task had to be aborted.
    pub async fn stop(self) {
        let outcome = self.gateway.stop(PATIENCE).await;
        assert_eq!(outcome, ShutdownOutcome::Clean);
        for double in &self.doubles {
            let closed = || async { double.stats().open_sockets == 0 };
            eventually(PATIENCE, "the gateway left a connection open", closed).await;
        }
    }
}

#[track_caller]
fn number(backend: &str) -> usize {
    let number = backend.strip_prefix("engine-").and_then(|n| n.parse().ok());
    number.unwrap_or_else(|| panic!("`{backend}` is no double's name"))
}
