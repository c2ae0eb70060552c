//! Sections that the config files of several processes share.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use domain::ModelId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use settings::{HumanDuration, Redacted, SecretRef, SettingsError};
use tokenization::ModelFolder;

/// The name that stands for the tokenizer built into this binary, in place of a folder.
const BUILTIN_FOLDER: &str = "builtin";
/// What a stream in progress is given at the end, before it is cut with an error event.
const DRAIN_TIMEOUT: HumanDuration = HumanDuration::from_secs(30);
/// Random bytes of a secret that is drawn at start.
const SECRET_BYTES: usize = 32;
/// Shortest secret of a region that is taken, in bytes: what nobody tries through.
const SHORTEST_SECRET: usize = 16;

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
/// The reference leads nowhere or to a secret that is short, or the system has no randomness.
pub fn region_secret(reference: Option<&SecretRef>) -> Result<Redacted<Vec<u8>>, SettingsError> {
    match reference {
        Some(reference) => read_secret(reference),
        None => {
            let mut secret = vec![0; SECRET_BYTES];
            getrandom::fill(&mut secret).map_err(|e| {
                SettingsError::new("region.secret", format!("the system has no randomness: {e}"))
            })?;
            Ok(Redacted::new(secret))
        }
    }
}

/// A region's secret by its reference.
///
/// # Errors
/// The reference leads nowhere, or to a secret that is short.
pub(crate) fn read_secret(reference: &SecretRef) -> Result<Redacted<Vec<u8>>, SettingsError> {
    let secret = reference.resolve().map_err(|e| e.under("region.secret"))?;
    if secret.expose().len() < SHORTEST_SECRET {
        let message = format!(
            "{reference} holds a short secret: at least {SHORTEST_SECRET} bytes are needed; \
             `openssl rand -hex 32` makes a good one"
        );
        return Err(SettingsError::new("region.secret", message));
    }
    Ok(Redacted::new(secret.expose().clone().into_bytes()))
}

/// Refuses two listeners of one process at one address. Each is given with its key; port 0 is a
/// free one, which no other has.
///
/// # Errors
/// The later of the two.
pub fn distinct_listeners(listeners: &[(&str, SocketAddr)]) -> Result<(), SettingsError> {
    let meet = |a: SocketAddr, b: SocketAddr| {
        let (one, other) = (a.ip(), b.ip());
        let all = one.is_unspecified() || other.is_unspecified();
        a.port() == b.port() && a.port() != 0 && (one == other || all)
    };
    for (n, (key, address)) in listeners.iter().enumerate() {
        if let Some((first, _)) = listeners[..n].iter().find(|(_, other)| meet(*other, *address)) {
            let message = format!("{address} is taken by {first}: give one of them another port");
            return Err(SettingsError::new(*key, message));
        }
    }
    Ok(())
}

/// Model folders as long as somebody has them. To load one takes a second, and what is remembered
/// of its texts would be lost: a config that is read again finds those of the one in force.
#[derive(Debug, Default)]
pub struct Folders(Mutex<HashMap<PathBuf, Weak<ModelFolder>>>);

impl Folders {
    fn get(&self, path: &Path) -> Result<Arc<ModelFolder>, String> {
        let mut known = self.0.lock();
        if let Some(folder) = known.get(path).and_then(Weak::upgrade) {
            return Ok(folder);
        }
        let folder = match path {
            path if path.as_os_str() == BUILTIN_FOLDER => ModelFolder::builtin(),
            path => ModelFolder::load(path).map_err(|e| e.to_string())?,
        };
        known.retain(|_, folder| folder.strong_count() > 0);
        known.insert(path.to_owned(), Arc::downgrade(&folder));
        Ok(folder)
    }
}

/// Loads the folders that the models name, each once: several names may share one.
///
/// # Errors
/// A name that is empty or given twice, or a folder that cannot be used.
pub fn load_models(raw: &[RawModel], folders: &Folders) -> Result<Models, SettingsError> {
    let mut models = Models::new();
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
        let folder = folders.get(&model.folder).map_err(|message| error("folder", message))?;
        models.insert(ModelId::new(model.id.as_str()), folder);
    }
    Ok(models)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_short_secret_is_refused_with_how_to_make_one_and_never_shown() {
        let with = |text: &str| {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file.as_file().set_permissions(std::fs::Permissions::from_mode(0o600)).unwrap();
            region_secret(Some(&SecretRef::File(file.path().to_owned())))
        };
        let error = with("fifteen-letters").unwrap_err().to_string();
        assert!(error.starts_with("region.secret: ") && error.contains("openssl rand"), "{error}");
        assert!(!error.contains("fifteen-letters"), "{error}");
        assert_eq!(with("sixteen--letters").unwrap().expose(), b"sixteen--letters");
    }

    #[test]
    fn a_folder_is_loaded_once_for_all_its_names_and_for_every_reading_of_the_config() {
        let model = |id: &str| RawModel { id: id.to_owned(), folder: BUILTIN_FOLDER.into() };
        let (folders, names) = (Folders::default(), [model("a"), model("b")]);
        let first = load_models(&names, &folders).unwrap();
        let again = load_models(&names[1..], &folders).unwrap();
        let of = |models: &Models, id: &str| Arc::as_ptr(&models[&ModelId::from(id)]);
        assert_eq!(of(&first, "a"), of(&first, "b"));
        assert_eq!(of(&first, "a"), of(&again, "b"));
        drop((first, again));
        assert!(folders.0.lock().values().all(|folder| folder.upgrade().is_none()));
    }

    #[test]
    fn one_port_is_not_given_twice() {
        let check = |a: &str, b: &str| {
            let listeners =
                [("edge.listen", a.parse().unwrap()), ("admin.listen", b.parse().unwrap())];
            distinct_listeners(&listeners).map_err(|e| e.to_string())
        };
        for (a, b) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("0.0.0.0:80", "127.0.0.1:80"),
            ("[::1]:80", "[::]:80"),
        ] {
            let error = check(a, b).unwrap_err();
            assert!(
                error.starts_with("admin.listen: ") && error.contains("edge.listen"),
                "{error}"
            );
        }
        for (a, b) in [
            ("127.0.0.1:80", "127.0.0.1:81"),
            ("127.0.0.1:80", "127.0.0.2:80"),
            ("127.0.0.1:0", "127.0.0.1:0"),
        ] {
            check(a, b).unwrap();
        }
    }
}
