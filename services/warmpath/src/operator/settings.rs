//! Where the admin API is, and with what token.

use std::path::PathBuf;

use rpc::RawTls;
use serde::Deserialize;
use settings::{Layers, SecretRef, SettingsError};
use toml::Value;

use super::Format;
use super::client::{Client, Tls};

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
    /// Certificates of the authority that the API's own goes back to, in PEM
    /// [default: those of this machine]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Certificate to show to an API that asks for one, in PEM
    #[arg(long, value_name = "FILE", requires = "cert_key")]
    cert: Option<PathBuf>,
    /// The key of that certificate, in PEM, readable by its owner alone
    #[arg(long, value_name = "FILE", requires = "cert")]
    cert_key: Option<PathBuf>,
    /// Send the token without TLS to an address that is not loopback
    #[arg(long)]
    allow_plaintext: bool,
    /// TOML file with `admin`, `token`, `routers`, `tls` and `allow_plaintext`
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
    /// How the API is known, and we to it.
    tls: RawTls,
    /// Send the token without TLS to an address that is not loopback.
    allow_plaintext: bool,
}

impl Default for Raw {
    fn default() -> Self {
        Self {
            admin: "http://127.0.0.1:9091".to_owned(),
            token: None,
            routers: vec!["http://127.0.0.1:9090".to_owned()],
            tls: RawTls::default(),
            allow_plaintext: false,
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
        let fault = |error| layers.explain(error);
        let tls = Tls::new(&raw.tls).map_err(|error| fault(error.under("tls")))?;
        Client::new(&raw.admin, token, raw.routers, tls, raw.allow_plaintext).map_err(fault)
    }

    fn overrides(&self) -> Vec<(String, Value)> {
        let reference = |kind: &str, value: String| {
            Value::Table(toml::Table::from_iter([(kind.to_owned(), Value::String(value))]))
        };
        let admin = self.admin.clone().map(|url| ("admin", Value::String(url)));
        let shown = |path: &PathBuf| path.display().to_string();
        let file = self.token_file.as_ref().map(shown);
        let file = file.map(|path| ("token", reference("file", path)));
        let key = self.cert_key.as_ref().map(shown);
        let key = key.map(|path| ("tls.key", reference("file", path)));
        let ca = self.ca.as_ref().map(shown).map(|path| ("tls.ca", Value::String(path)));
        let cert = self.cert.as_ref().map(shown).map(|path| ("tls.cert", Value::String(path)));
        let plain = self.allow_plaintext.then_some(("allow_plaintext", Value::Boolean(true)));
        let variable = self.token_env.clone().map(|name| ("token", reference("env", name)));
        let routers = self.routers.iter().cloned().map(Value::String).collect::<Vec<_>>();
        let routers = (!routers.is_empty()).then_some(("routers", Value::Array(routers)));
        let tls = [ca, cert, key, plain].into_iter().flatten();
        let set = admin.into_iter().chain(file).chain(variable).chain(routers).chain(tls);
        set.map(|(key, value)| (key.to_owned(), value)).collect()
    }
}
