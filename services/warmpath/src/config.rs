//! The config file of the single process: the sections of all services in one.

use std::net::SocketAddr;
use std::time::Duration;

use instrumentation::LogConfig;
use launch::sections::{
    Folders, Models, RawAdmin, RawModel, RawRegion, distinct_listeners, load_models, region_secret,
};
use serde::{Deserialize, Serialize};
use settings::{NamedCredential, Redacted, SettingsError};

/// The edge cuts what is still open so long before the process gives up on it, so that the error
/// event reaches its client.
const CUT_MARGIN: Duration = Duration::from_secs(1);

/// The file as it stands.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawConfig {
    /// Where and how clients are served.
    pub edge: edge::RawConfig,
    /// How backends are chosen.
    pub router: router::RawConfig,
    /// How backends are watched.
    pub telemetry: telemetry::RawConfig,
    /// The port for operators.
    pub admin: RawAdmin,
    /// The port on which they change the desired state.
    pub admin_api: telemetry::admin::RawConfig,
    /// What all services of a region share.
    pub region: RawRegion,
    /// Logs.
    pub log: LogConfig,
    /// The engines.
    pub backends: Vec<telemetry::RawBackend>,
    /// Keys of engines, by the names under which backends of the store have them.
    pub credentials: Vec<NamedCredential>,
    /// Models with their tokenizers.
    pub models: Vec<RawModel>,
    /// Who shares limits.
    pub tenants: Vec<edge::RawTenant>,
    /// API keys.
    pub keys: Vec<edge::RawKey>,
    /// Keys that are changed while it runs.
    pub auth: edge::RawAuth,
}

/// The file, checked.
pub struct Config {
    pub(crate) edge: edge::Config,
    pub(crate) router: router::Config,
    pub(crate) telemetry: telemetry::Config,
    pub(crate) admin: SocketAddr,
    pub(crate) admin_api: Option<telemetry::admin::Config>,
    pub(crate) drain_timeout: Duration,
    pub(crate) log: LogConfig,
    pub(crate) region_secret: Redacted<Vec<u8>>,
    pub(crate) models: Models,
}

impl Config {
    /// Checks a config, and loads the model folders.
    ///
    /// # Errors
    /// The first thing that is wrong, with its key.
    pub fn from_raw(raw: RawConfig) -> Result<Self, SettingsError> {
        Self::with_folders(raw, &Folders::default())
    }

    /// The same; of the model folders, those are loaded that are not there yet.
    ///
    /// # Errors
    /// As [`Config::from_raw`].
    pub fn with_folders(raw: RawConfig, folders: &Folders) -> Result<Self, SettingsError> {
        let models = load_models(&raw.models, folders)?;
        Self::with_models(raw, models)
    }

    /// Checks a config whose models are loaded already.
    ///
    /// # Errors
    /// The first thing that is wrong, with its key.
    pub fn with_models(raw: RawConfig, models: Models) -> Result<Self, SettingsError> {
        if raw.backends.is_empty() && raw.telemetry.store.is_none() {
            return Err(SettingsError::new(
                "backends",
                "no engine is configured; add at least one [[backends]] with id and url, or set \
                 telemetry.store and add backends while it runs",
            ));
        }
        let ports = [("edge.listen", raw.edge.listen), ("admin.listen", raw.admin.listen)];
        let api = raw.admin_api.served_at().map(|listen| ("admin_api.listen", listen));
        distinct_listeners(&ports.into_iter().chain(api).collect::<Vec<_>>())?;
        let named = settings::resolve_credentials(&raw.credentials)?;
        let mut credentials = named.clone();
        for (n, backend) in raw.backends.iter().enumerate() {
            if let Some(reference) = &backend.api_key {
                let key =
                    reference.resolve().map_err(|e| e.under(&format!("backends[{n}].api_key")))?;
                // A backend's own key goes by the backend's id; that no other has that name is
                // checked below.
                credentials.insert(backend.id.clone(), key);
            }
        }
        let drain_timeout = raw.admin.drain_timeout.get();
        // A store outlives the process, and so do the keys in it.
        let more = match raw.telemetry.store {
            Some(_) => edge::Keys::OfFeed,
            None => edge::Keys::OfFile,
        };
        let edge = edge::Config::new(raw.edge, &raw.auth, raw.tenants, raw.keys, more)?
            .with_credentials(&credentials)?
            .drain_within(drain_timeout.saturating_sub(CUT_MARGIN));
        Ok(Self {
            edge,
            router: router::Config::new(raw.router)?,
            telemetry: telemetry::Config::new(raw.telemetry, raw.backends)?
                .with_credentials(&named)?,
            admin: raw.admin.listen,
            admin_api: telemetry::admin::Config::new(raw.admin_api)?,
            drain_timeout,
            log: raw.log,
            region_secret: region_secret(raw.region.secret.as_ref())?,
            models,
        })
    }
}
