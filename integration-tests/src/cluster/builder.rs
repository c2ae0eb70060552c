//! How a cluster is put together.

use std::net::SocketAddr;
use std::sync::Arc;

use domain::BackendState;
use tokio::net::TcpListener;
use warmpath::config::{Config, RawConfig};
use warmpath::double::{Double, DoubleHandle};
use warmpath::gateway::Gateway;

use super::{Cluster, MODEL};
use crate::wait::PATIENCE;

/// What every test needs: ports that are free, probes that are fast, answers that tell who gave
/// them, and a drain that does not wait for a load balancer.
const BASE: &str = r#"
    [edge]
    listen = "127.0.0.1:0"
    drain_notice = "0s"
    [admin]
    listen = "127.0.0.1:0"
    [telemetry]
    probe_interval = "100ms"
    metrics_interval = "50ms"
    listing_interval = "1s"
    timeout = "2s"
    [[tenants]]
    id = "anonymous"
    debug_headers = true
"#;

type Shape = Arc<dyn Fn(usize, Double) -> Double + Send + Sync>;

/// Builds a [`Cluster`].
#[derive(Clone)]
pub struct ClusterBuilder {
    engines: usize,
    blocks: u32,
    model_folder: bool,
    shape: Shape,
    further: Vec<(String, String, bool)>,
    config: toml::Table,
    folder: Option<Arc<tempfile::TempDir>>,
}

impl Default for ClusterBuilder {
    fn default() -> Self {
        Self {
            engines: 3,
            blocks: 600,
            model_folder: true,
            shape: Arc::new(|_, double| double),
            further: Vec::new(),
            config: BASE.parse().expect("the base is valid"),
            folder: None,
        }
    }
}

impl ClusterBuilder {
    /// So many doubles, called `engine-0` and so on.
    pub fn engines(mut self, engines: usize) -> Self {
        self.engines = engines;
        self
    }

    /// KV-cache blocks of each double.
    pub fn blocks(mut self, blocks: u32) -> Self {
        self.blocks = blocks;
        self
    }

    /// Changes the doubles, by their number. Each keeps its last 10,000 requests as they came.
    pub fn double(
        mut self,
        shape: impl Fn(usize, Double) -> Double + Send + Sync + 'static,
    ) -> Self {
        self.shape = Arc::new(shape);
        self
    }

    /// One more backend, that the test runs itself and that answers probes.
    pub fn backend(mut self, id: &str, url: &str) -> Self {
        self.further.push((id.to_owned(), url.to_owned(), true));
        self
    }

    /// One more backend that never becomes ready.
    pub fn absent_backend(mut self, id: &str, address: SocketAddr) -> Self {
        self.further.push((id.to_owned(), format!("http://{address}"), false));
        self
    }

    /// Without a tokenizer for the doubles' model: it is routed by its text.
    pub fn without_tokenizer(mut self) -> Self {
        self.model_folder = false;
        self
    }

    /// Sets keys over those there are. Tables are merged, lists replaced.
    ///
    /// # Panics
    /// It is no TOML.
    #[track_caller]
    pub fn config(mut self, fragment: &str) -> Self {
        let fragment: toml::Table = fragment.parse().unwrap_or_else(|e| panic!("{e}"));
        merge(&mut self.config, fragment);
        self
    }

    /// With a store and the admin API: see [`Cluster::desired`].
    ///
    /// # Panics
    /// There is no folder for them.
    pub fn admin_api(mut self) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        merge(&mut self.config, crate::desired::Desired::section(folder.path()));
        self.folder = Some(Arc::new(folder));
        self
    }

    /// Starts everything and waits until the backends are ready.
    ///
    /// # Panics
    /// Something does not start, or not in time.
    pub async fn build(self) -> Cluster {
        let mut doubles = Vec::new();
        for number in 0..self.engines {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            doubles.push(self.double_number(number, listener));
        }
        let config = Config::from_raw(self.raw_config(&doubles)).unwrap_or_else(|e| panic!("{e}"));
        let gateway = Gateway::start(config).await.unwrap_or_else(|e| panic!("{e:#}"));
        self.await_ready(&gateway).await;
        Cluster { gateway, doubles, builder: self }
    }

    pub(super) fn double_number(&self, number: usize, listener: TcpListener) -> DoubleHandle {
        let double = Double::builder().model(MODEL).blocks(self.blocks).keep_requests(10_000);
        let double = (self.shape)(number, double);
        double.spawn(listener).unwrap_or_else(|e| panic!("engine-{number}: {e}"))
    }

    fn raw_config(&self, doubles: &[DoubleHandle]) -> RawConfig {
        let mut config = self.config.clone();
        let backend = |id: &str, url: &str| {
            toml::Value::from(toml::Table::from_iter([
                ("id".to_owned(), id.into()),
                ("url".to_owned(), url.into()),
            ]))
        };
        let own = doubles.iter().enumerate();
        let own = own.map(|(n, double)| backend(&format!("engine-{n}"), &double.url()));
        let further = self.further.iter().map(|(id, url, _)| backend(id, url));
        config.insert("backends".to_owned(), own.chain(further).collect::<Vec<_>>().into());
        if self.model_folder && !config.contains_key("models") {
            let models = format!("[[models]]\nid = \"{MODEL}\"\nfolder = \"builtin\"");
            merge(&mut config, models.parse().expect("valid TOML"));
        }
        config.try_into().unwrap_or_else(|e| panic!("{e}"))
    }

    async fn await_ready(&self, gateway: &Gateway) {
        let absent = |id: &str| self.further.iter().any(|(other, _, ready)| other == id && !ready);
        let mut fleet = gateway.fleet();
        let named = self.engines + self.further.len();
        let ready = fleet.wait_for(|fleet| {
            let mut expected = fleet.backends.iter().filter(|b| !absent(b.id.as_str()));
            fleet.backends.len() >= named && expected.all(|b| b.state == BackendState::Ready)
        });
        let ready = tokio::time::timeout(PATIENCE, ready).await;
        assert!(ready.is_ok_and(|seen| seen.is_ok()), "not ready: {:?}", gateway.fleet().borrow());
    }
}

pub(crate) fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(into)), toml::Value::Table(from)) => merge(into, from),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}
