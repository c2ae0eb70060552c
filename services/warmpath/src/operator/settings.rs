//! Where the admin API is, and with what token.

use std::path::PathBuf;

use serde::Deserialize;
use settings::{Layers, SecretRef, SettingsError};
use toml::Value;

use super::Format;
use super::client::Client;

/// How to reach the region, and how to print. Flags win over the environment
/// (`WARMPATH_CLI__ADMIN`, …), that over the file.
#[derive(Debug, clap::Args)]
pub struct Connection {
    /// The admin API [default: http://127.0.0.1:9091]
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// File with the token, readable by its owner alone
    #[arg(long, value_name = "FILE", conflicts_with = "token_env")]
    token_file: Option<PathBuf>,
    /// Environment variable with the token
    #[arg(long, value_name = "NAME")]
    token_env: Option<String>,
    /// TOML file with `admin`, `token` and `routers`
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Table for people or JSON for scripts
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Format,
    /// Routers that a command names by itself.
    #[arg(skip)]
    pub(super) routers: Vec<String>,
}

/// The settings as they stand.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Raw {
    /// The admin API.
    admin: String,
    /// What it asks for.
    token: Option<SecretRef>,
    /// The routers' ports for operators: they explain.
    routers: Vec<String>,
}

impl Default for Raw {
    fn default() -> Self {
        Self {
            admin: "http://127.0.0.1:9091".to_owned(),
            token: None,
            routers: vec!["http://127.0.0.1:9090".to_owned()],
        }
    }
}

impl Connection {
    /// A client of the API that these settings name.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub(super) fn client(&self) -> Result<Client, SettingsError> {
        let layers = Layers::gather(self.config.as_deref(), "WARMPATH_CLI", &self.overrides())?;
        let raw: Raw = layers.read()?;
        let token = raw.token.as_ref().map(SecretRef::resolve).transpose();
        let token = token.map_err(|error| layers.explain(error.under("token")))?;
        Client::new(&raw.admin, token, raw.routers).map_err(|error| layers.explain(error))
    }

    fn overrides(&self) -> Vec<(String, Value)> {
        let reference = |kind: &str, value: String| {
            Value::Table(toml::Table::from_iter([(kind.to_owned(), Value::String(value))]))
        };
        let admin = self.admin.clone().map(|url| ("admin", Value::String(url)));
        let file = self.token_file.as_ref().map(|path| path.display().to_string());
        let file = file.map(|path| ("token", reference("file", path)));
        let variable = self.token_env.clone().map(|name| ("token", reference("env", name)));
        let routers = self.routers.iter().cloned().map(Value::String).collect::<Vec<_>>();
        let routers = (!routers.is_empty()).then_some(("routers", Value::Array(routers)));
        let set = admin.into_iter().chain(file).chain(variable).chain(routers);
        set.map(|(key, value)| (key.to_owned(), value)).collect()
    }
}
