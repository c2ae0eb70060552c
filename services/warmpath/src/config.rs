//! The config file of the single process: the sections of all services in one.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use domain::{BackendId, ModelId};
use instrumentation::LogConfig;
use serde::{Deserialize, Serialize};
use settings::{HumanDuration, Layers, Redacted, SecretRef, SettingsError};
use tokenization::ModelFolder;

/// The name that stands for the tokenizer built into this binary, in place of a folder.
const BUILTIN_FOLDER: &str = "builtin";
/// What a stream in progress is given at the end, before it is cut with an error event.
const DRAIN_TIMEOUT: HumanDuration = HumanDuration::from_secs(30);
/// The edge cuts what is still open so long before the process gives up on it, so that the error
/// event reaches its client.
const CUT_MARGIN: Duration = Duration::from_secs(1);
/// Random bytes of a secret that is drawn at start.
const SECRET_BYTES: usize = 32;

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
    /// What all services of a region share.
    pub region: RawRegion,
    /// Logs.
    pub log: LogConfig,
    /// The engines.
    pub backends: Vec<telemetry::RawBackend>,
    /// Models with their tokenizers.
    pub models: Vec<RawModel>,
    /// Who shares limits.
    pub tenants: Vec<edge::RawTenant>,
    /// API keys.
    pub keys: Vec<edge::RawKey>,
}

/// Section `[admin]`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawAdmin {
    /// Where `/healthz`, `/readyz`, `/metrics` and `/admin/v1` are served. Whoever reaches it can
    /// read who asked what when, though never content: keep it inside.
    pub listen: SocketAddr,
    /// How long open streams may go on after SIGTERM.
    pub drain_timeout: HumanDuration,
}

impl Default for RawAdmin {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9090)), drain_timeout: DRAIN_TIMEOUT }
    }
}

/// Section `[region]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawRegion {
    /// Goes into every block key, so that nobody outside can guess which prompts share a prefix.
    /// Drawn at start when absent, which suits a single process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretRef>,
}

/// One `[[models]]`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawModel {
    /// The model's name, as the engines serve it.
    pub id: String,
    /// Folder with `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`, or
    /// `builtin`.
    pub folder: PathBuf,
}

/// The tokenizers of the configured models.
pub type Models = HashMap<ModelId, Arc<ModelFolder>>;

/// The file, checked.
pub struct Config {
    pub(crate) edge: edge::Config,
    pub(crate) router: router::Config,
    pub(crate) telemetry: telemetry::Config,
    pub(crate) admin: SocketAddr,
    pub(crate) drain_timeout: Duration,
    pub(crate) log: LogConfig,
    pub(crate) region_secret: Redacted<Vec<u8>>,
    pub(crate) engine_keys: HashMap<BackendId, Redacted<String>>,
    pub(crate) models: Models,
}

impl Config {
    /// Reads and checks the layers, and loads the model folders.
    ///
    /// # Errors
    /// The first thing that is wrong, with the place and the key.
    pub fn read(layers: &Layers) -> Result<Self, SettingsError> {
        let raw: RawConfig = layers.read()?;
        Self::from_raw(raw).map_err(|error| layers.explain(error))
    }

    /// Checks a config, and loads the model folders.
    ///
    /// # Errors
    /// The first thing that is wrong, with its key.
    pub fn from_raw(raw: RawConfig) -> Result<Self, SettingsError> {
        let models = load_models(&raw.models)?;
        Self::with_models(raw, models)
    }

    /// Checks a config whose models are loaded already.
    ///
    /// # Errors
    /// The first thing that is wrong, with its key.
    pub fn with_models(raw: RawConfig, models: Models) -> Result<Self, SettingsError> {
        if raw.backends.is_empty() {
            return Err(SettingsError::new(
                "backends",
                "no engine is configured; add at least one [[backends]] with id and url",
            ));
        }
        let mut engine_keys = HashMap::new();
        for (n, backend) in raw.backends.iter().enumerate() {
            if let Some(reference) = &backend.api_key {
                let key =
                    reference.resolve().map_err(|e| e.under(&format!("backends[{n}].api_key")))?;
                engine_keys.insert(BackendId::new(backend.id.as_str()), key);
            }
        }
        let drain_timeout = raw.admin.drain_timeout.get();
        let edge = edge::Config::new(raw.edge, raw.tenants, raw.keys)?
            .drain_within(drain_timeout.saturating_sub(CUT_MARGIN));
        Ok(Self {
            edge,
            router: router::Config::new(raw.router)?,
            telemetry: telemetry::Config::new(raw.telemetry, raw.backends)?,
            admin: raw.admin.listen,
            drain_timeout,
            log: raw.log,
            region_secret: region_secret(raw.region.secret.as_ref())?,
            engine_keys,
            models,
        })
    }
}

fn region_secret(reference: Option<&SecretRef>) -> Result<Redacted<Vec<u8>>, SettingsError> {
    match reference {
        Some(reference) => {
            let secret = reference.resolve().map_err(|e| e.under("region.secret"))?;
            Ok(Redacted::new(secret.expose().clone().into_bytes()))
        }
        None => {
            let mut secret = vec![0; SECRET_BYTES];
            getrandom::fill(&mut secret).map_err(|e| {
                SettingsError::new("region.secret", format!("the system has no randomness: {e}"))
            })?;
            Ok(Redacted::new(secret))
        }
    }
}

fn load_models(raw: &[RawModel]) -> Result<Models, SettingsError> {
    let mut models = Models::new();
    // Several names may share one folder; it is loaded once.
    let mut loaded: HashMap<&PathBuf, Arc<ModelFolder>> = HashMap::new();
    let mut seen = HashSet::new();
    for (n, model) in raw.iter().enumerate() {
        let error =
            |key: &str, message: String| SettingsError::new(format!("models[{n}].{key}"), message);
        if model.id.is_empty() {
            return Err(error("id", "is empty".to_owned()));
        }
        if !seen.insert(&model.id) {
            return Err(error("id", format!("`{}` is given twice", model.id)));
        }
        let folder = match loaded.get(&model.folder) {
            Some(folder) => folder.clone(),
            None if model.folder.as_os_str() == BUILTIN_FOLDER => ModelFolder::builtin(),
            None => ModelFolder::load(&model.folder).map_err(|e| error("folder", e.to_string()))?,
        };
        loaded.insert(&model.folder, folder.clone());
        models.insert(ModelId::new(model.id.as_str()), folder);
    }
    Ok(models)
}
