//! Sections that the config files of several processes share.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use domain::ModelId;
use serde::{Deserialize, Serialize};
use settings::{HumanDuration, Redacted, SecretRef, SettingsError};
use tokenization::ModelFolder;

/// The name that stands for the tokenizer built into this binary, in place of a folder.
const BUILTIN_FOLDER: &str = "builtin";
/// What a stream in progress is given at the end, before it is cut with an error event.
const DRAIN_TIMEOUT: HumanDuration = HumanDuration::from_secs(30);
/// Random bytes of a secret that is drawn at start.
const SECRET_BYTES: usize = 32;

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
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawRegion {
    /// Its name on the bus: 1 to 32 lower-case letters, digits and dashes.
    pub name: String,
    /// Goes into every block key, so that nobody outside can guess which prompts share a prefix.
    /// Drawn at start when absent, which suits a single process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretRef>,
}

impl Default for RawRegion {
    fn default() -> Self {
        Self { name: "default".to_owned(), secret: None }
    }
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

/// The secret that a region's block keys begin with; drawn when there is none.
///
/// # Errors
/// The reference leads nowhere, or the system has no randomness.
pub fn region_secret(reference: Option<&SecretRef>) -> Result<Redacted<Vec<u8>>, SettingsError> {
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

/// Loads the folders that the models name, each once.
///
/// # Errors
/// A name that is empty or given twice, or a folder that cannot be used.
pub fn load_models(raw: &[RawModel]) -> Result<Models, SettingsError> {
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
