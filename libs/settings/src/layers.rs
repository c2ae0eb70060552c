//! The layers, merged key by key, and the way back from a key to the layer that set it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::SettingsError;
use crate::locate;
use crate::suspects::complaint;

/// Loads settings in one go: defaults of `T`, then `file`, then the environment variables that
/// begin with `env_prefix` and two underscores, then `overrides` (dotted key, value).
///
/// # Errors
/// The file cannot be read or is no TOML; a key is unknown, missing or of the wrong type or form.
pub fn load<T: DeserializeOwned>(
    file: Option<&Path>,
    env_prefix: &str,
    overrides: &[(String, Value)],
) -> Result<T, SettingsError> {
    Layers::gather(file, env_prefix, overrides)?.read()
}

/// Loads settings from TOML text alone, named `place` in errors. For tests and built-in files.
///
/// # Errors
/// As [`load`].
pub fn load_str<T: DeserializeOwned>(place: &str, text: &str) -> Result<T, SettingsError> {
    Layers::from_str(place, text)?.read()
}

/// Settings as TOML, for `--print-config`. Give it the struct after loading, so that defaults
/// show too. [`crate::SecretRef`] prints where the secret is; [`crate::Redacted`] cannot be
/// serialised at all; a URL's user and password become `[redacted]`.
///
/// # Errors
/// A value that TOML cannot hold, such as an integer above 2^63 - 1.
pub fn to_toml<T: Serialize>(settings: &T) -> Result<String, SettingsError> {
    let failed = |error: toml::ser::Error| SettingsError::new("", error);
    let mut value = Value::try_from(settings).map_err(failed)?;
    hide_url_credentials(&mut value);
    toml::to_string(&value).map_err(failed)
}

/// Reads a flag of the form `edge.listen=127.0.0.1:8080`. The value is a TOML literal where it
/// is one, else a string.
///
/// # Errors
/// There is no `=`, or the key is empty or has an empty part.
pub fn parse_override(flag: &str) -> Result<(String, Value), SettingsError> {
    let (key, value) = flag.split_once('=').ok_or_else(|| {
        SettingsError::new("", format!("`{flag}` is not of the form key.path=value"))
    })?;
    let key = key.trim();
    split_key(key)?;
    Ok((key.to_owned(), literal(value)))
}

/// The merged layers below the defaults. Keep it to say where a faulty key was set.
#[derive(Clone, Debug)]
pub struct Layers {
    merged: Table,
    /// Name and text of the file.
    file: Option<(String, String)>,
    /// Which environment variable or flag set a key, by dotted key.
    origins: BTreeMap<String, String>,
    /// What begins the names of variables, and those that have only one underscore behind it.
    suspects: (String, Vec<String>),
}

impl Layers {
    /// Merges file, environment and flags; see [`load`].
    ///
    /// # Errors
    /// The file cannot be read or is no TOML; a variable or flag names no possible key.
    pub fn gather(
        file: Option<&Path>,
        env_prefix: &str,
        overrides: &[(String, Value)],
    ) -> Result<Self, SettingsError> {
        let mut layers = match file {
            Some(path) => Self::from_file(path)?,
            None => Self::of(Table::new(), None),
        };
        layers.add_environment(env_prefix, std::env::vars_os())?;
        for (key, value) in overrides {
            layers.set(key, value.clone(), format!("flag {key}"))?;
        }
        Ok(layers)
    }

    fn of(merged: Table, file: Option<(String, String)>) -> Self {
        Self { merged, file, origins: BTreeMap::new(), suspects: Default::default() }
    }

    fn from_file(path: &Path) -> Result<Self, SettingsError> {
        let place = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            SettingsError::new("", format!("cannot be read: {error}")).at(place.clone())
        })?;
        Self::from_str(&place, &text)
    }

    fn from_str(place: &str, text: &str) -> Result<Self, SettingsError> {
        let merged = text.parse::<Table>().map_err(|error| {
            let line = error.span().map_or(1, |span| locate::line_of_offset(text, span.start));
            SettingsError::new("", format!("line {line}: {}", error.message())).at(place)
        })?;
        let file = Some((place.to_owned(), text.to_owned()));
        Ok(Self::of(merged, file))
    }

    fn add_environment(
        &mut self,
        prefix: &str,
        variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<(), SettingsError> {
        let alone = format!("{prefix}_");
        // Sorted, so that a variable for a table comes before those for its keys.
        let like_ours: BTreeMap<String, OsString> = variables
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| name.starts_with(&alone))
            .collect();
        let prefix = format!("{prefix}__");
        let (mine, suspects): (BTreeMap<_, _>, BTreeMap<_, _>) =
            like_ours.into_iter().partition(|(name, _)| name.starts_with(&prefix));
        self.suspects = (alone, suspects.into_keys().collect());
        for (name, value) in mine {
            let place = format!("environment {name}");
            let key = name[prefix.len()..].to_lowercase().replace("__", ".");
            let value = value
                .into_string()
                .map_err(|_| SettingsError::new(key.as_str(), "is not UTF-8").at(place.as_str()))?;
            self.set(&key, literal(&value), place)?;
        }
        Ok(())
    }

    /// Sets one dotted key. Tables merge, everything else replaces.
    fn set(&mut self, key: &str, value: Value, place: String) -> Result<(), SettingsError> {
        let parts = split_key(key).map_err(|error| error.at(place.as_str()))?;
        let nested = parts.iter().rev().fold(value, |inner, part| {
            Value::Table(Table::from_iter([((*part).to_owned(), inner)]))
        });
        let Value::Table(nested) = nested else {
            return Err(SettingsError::new(key, "names no key").at(place));
        };
        merge(&mut self.merged, nested);
        self.origins.insert(key.to_owned(), place);
        Ok(())
    }

    /// Reads the layers into `T`, whose defaults are the lowest layer.
    ///
    /// # Errors
    /// A key is unknown, missing or of the wrong type or form; or an environment variable was
    /// meant to set one and does not.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, SettingsError> {
        let (alone, suspects) = &self.suspects;
        let prefix = alone.trim_end_matches('_');
        // A variable that some key refers to is there for that.
        let meant = suspects.iter().filter(|name| !refers_to(&self.merged, name));
        if let Some(complaint) = meant.filter_map(|name| complaint::<T>(prefix, name)).next() {
            return Err(complaint);
        }
        let value = Value::Table(self.merged.clone());
        serde_path_to_error::deserialize(value).map_err(|error| {
            // serde_path_to_error calls the root `.`.
            let path = error.path().to_string();
            let key = if path == "." { "" } else { path.as_str() };
            self.explain(SettingsError::from_serde(key, error.inner().message()))
        })
    }

    /// Adds to an error where its key was set: the variable, the flag, or the file and line.
    /// For checks that are made after reading, such as two backends with one id.
    #[must_use]
    pub fn explain(&self, mut error: SettingsError) -> SettingsError {
        if error.place().is_some() {
            return error;
        }
        if let Some(place) = self.origin_of(error.key()) {
            return error.at(place);
        }
        let Some((place, text)) = &self.file else {
            return error.at("settings");
        };
        if let Some(line) = locate::line_of_key(text, error.key()) {
            error.add_note(&format!(" (line {line})"));
        }
        error.at(place.as_str())
    }

    /// The variable or flag that set the key or, failing that, the nearest table or array over it.
    fn origin_of(&self, key: &str) -> Option<String> {
        let mut end = key.len();
        loop {
            if let Some(place) = self.origins.get(&key[..end]) {
                return Some(place.clone());
            }
            end = key[..end].rfind(['.', '['])?;
        }
    }
}

/// Whether a secret's reference anywhere names this variable.
fn refers_to(table: &Table, variable: &str) -> bool {
    table.iter().any(|(key, value)| match value {
        Value::String(text) => key == "env" && text == variable,
        Value::Table(inner) => refers_to(inner, variable),
        Value::Array(items) => {
            items.iter().filter_map(Value::as_table).any(|inner| refers_to(inner, variable))
        }
        _ => false,
    })
}

fn split_key(key: &str) -> Result<Vec<&str>, SettingsError> {
    let parts: Vec<&str> = key.split('.').collect();
    if parts.iter().any(|part| part.is_empty()) {
        return Err(SettingsError::new(key, "is no key: a part of it is empty"));
    }
    Ok(parts)
}

/// A TOML literal (`true`, `8`, `["a"]`, `{ env = "A" }`), else the text itself as a string.
fn literal(text: &str) -> Value {
    text.trim().parse::<Value>().unwrap_or_else(|_| Value::String(text.to_owned()))
}

fn merge(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => merge(old, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

/// Replaces `user:password@` in anything that looks like a URL.
fn hide_url_credentials(value: &mut Value) {
    match value {
        Value::String(text) => {
            let Some(scheme_end) = text.find("://").map(|at| at + 3) else { return };
            let authority_end =
                text[scheme_end..].find(['/', '?', '#']).map_or(text.len(), |at| scheme_end + at);
            if let Some(at) = text[scheme_end..authority_end].rfind('@') {
                text.replace_range(scheme_end..scheme_end + at, "[redacted]");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide_url_credentials),
        Value::Table(table) => table.iter_mut().for_each(|(_, item)| hide_url_credentials(item)),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
