//! Where the NATS servers are, and who we are to them.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::{ConnectOptions, Event, ServerAddr};
use serde::{Deserialize, Serialize};
use settings::{HumanDuration, Redacted, SecretRef, SettingsError};
use tokio::sync::mpsc;

use super::connection::pause;

/// A connection that is dead without a word is found after two pings without an answer.
const PING: Duration = Duration::from_secs(5);
/// Messages that the client holds for one subscription before its task takes them. The task
/// always does; the room for slow readers is in the subscriber's queue.
const UNTAKEN: usize = 8192;
/// Messages that were handed over and are not written yet. Past that they are dropped.
const UNWRITTEN: usize = 8192;

/// The section as it stands in a file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawNatsConfig {
    /// `nats://HOST:PORT`, or `tls://HOST:PORT` for TLS; any of one cluster.
    pub servers: Vec<String>,
    /// The user, with `password`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The user's password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<SecretRef>,
    /// The seed of an nkey (`SU…`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nkey: Option<SecretRef>,
    /// The content of a credentials file: JWT and seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<SecretRef>,
    /// How the servers are known, and we to them.
    pub tls: RawNatsTls,
    /// How long making a connection may take.
    pub connect_timeout: HumanDuration,
    /// The longest pause between two attempts.
    pub reconnect_limit: HumanDuration,
}

/// The TLS part.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawNatsTls {
    /// Refuse servers without TLS, whatever their addresses say.
    pub required: bool,
    /// Certificates that servers' ones must go back to, in PEM; those of the system if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Our own certificate, in PEM, for servers that ask for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// Its key, in PEM: a file that only we can read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<SecretRef>,
}

impl Default for RawNatsConfig {
    fn default() -> Self {
        Self {
            servers: vec!["nats://127.0.0.1:4222".to_owned()],
            user: None,
            password: None,
            nkey: None,
            credentials: None,
            tls: RawNatsTls::default(),
            // Within a region a connection takes milliseconds.
            connect_timeout: HumanDuration::from_secs(2),
            // Short enough that nobody waits for it, long enough for a server to come up.
            reconnect_limit: HumanDuration::from_secs(5),
        }
    }
}

/// The same, checked, with its secrets fetched.
#[derive(Clone, Debug)]
pub struct NatsConfig {
    servers: Vec<ServerAddr>,
    identity: Identity,
    tls_required: bool,
    ca: Option<PathBuf>,
    cert: Option<(PathBuf, PathBuf)>,
    connect_timeout: Duration,
    reconnect_limit: Duration,
}

#[derive(Clone, Debug)]
enum Identity {
    None,
    User(String, Redacted<String>),
    Nkey(Redacted<String>),
    Credentials(Redacted<String>),
}

impl NatsConfig {
    /// Checks the section and fetches its secrets.
    ///
    /// # Errors
    /// No server, or one that is no address or holds a password; more than one kind of
    /// credentials; a secret that cannot be fetched; a certificate without key; a file that is
    /// missing. The key in the error is relative to the section.
    pub fn new(raw: RawNatsConfig) -> Result<Self, SettingsError> {
        if raw.servers.is_empty() {
            return Err(SettingsError::new("servers", "at least one is needed"));
        }
        let servers = raw.servers.iter().enumerate().map(|(at, text)| {
            server(text).map_err(|message| SettingsError::new(format!("servers[{at}]"), message))
        });
        let servers = servers.collect::<Result<_, _>>()?;
        let limits =
            [("connect_timeout", raw.connect_timeout), ("reconnect_limit", raw.reconnect_limit)];
        for (key, value) in limits {
            if value.get().is_zero() {
                return Err(SettingsError::new(key, "more than zero is needed"));
            }
        }
        Ok(Self {
            servers,
            identity: identity(&raw)?,
            tls_required: raw.tls.required,
            cert: certificate(&raw.tls).map_err(|e| e.under("tls"))?,
            ca: match raw.tls.ca {
                Some(path) => Some(file("tls.ca", path)?),
                None => None,
            },
            connect_timeout: raw.connect_timeout.get(),
            reconnect_limit: raw.reconnect_limit.get(),
        })
    }

    pub(super) fn servers(&self) -> Vec<ServerAddr> {
        self.servers.clone()
    }

    pub(super) fn reconnect_limit(&self) -> Duration {
        self.reconnect_limit
    }

    /// The options of a new client, which tells of its events.
    pub(super) fn options(&self, tell: mpsc::Sender<Event>) -> ConnectOptions {
        let limit = self.reconnect_limit;
        let mut options = ConnectOptions::new()
            .name("warmpath")
            .connection_timeout(self.connect_timeout)
            .ping_interval(PING)
            .subscription_capacity(UNTAKEN)
            .client_capacity(UNWRITTEN)
            .require_tls(self.tls_required)
            .reconnect_delay_callback(move |attempt| pause(attempt, limit))
            .event_callback(move |event| {
                // There is room, as they are read at once; a lost one is made up for by the next.
                let _ = tell.try_send(event);
                std::future::ready(())
            });
        if let Some(ca) = &self.ca {
            options = options.add_root_certificates(ca.clone());
        }
        if let Some((cert, key)) = &self.cert {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        match &self.identity {
            Identity::None => options,
            Identity::User(user, password) => {
                options.user_and_password(user.clone(), password.expose().clone())
            }
            Identity::Nkey(seed) => options.nkey(seed.expose().clone()),
            Identity::Credentials(text) => {
                let with = options.credentials(text.expose());
                with.expect("the credentials were parsed when they were fetched")
            }
        }
    }
}

fn server(text: &str) -> Result<ServerAddr, String> {
    const FORM: &str = "nats://HOST:PORT or tls://HOST:PORT is allowed";
    // The text is not shown: it may hold a password.
    let address: ServerAddr = text.parse().map_err(|_| format!("it is no address, {FORM}"))?;
    if address.has_user_pass() || text.contains('@') {
        return Err(format!("a user or password in it would show in logs, {FORM}"));
    }
    if address.host().is_empty() {
        return Err(format!("it has no host, {FORM}"));
    }
    if !matches!(address.scheme(), "nats" | "tls") {
        return Err(format!("its scheme is not known, {FORM}"));
    }
    Ok(address)
}

fn identity(raw: &RawNatsConfig) -> Result<Identity, SettingsError> {
    let fetch = |key: &'static str, secret: &SecretRef| secret.resolve().map_err(|e| e.under(key));
    match (&raw.user, &raw.password, &raw.nkey, &raw.credentials) {
        (None, None, None, None) => Ok(Identity::None),
        (Some(user), Some(password), None, None) => {
            Ok(Identity::User(user.clone(), fetch("password", password)?))
        }
        (None, None, Some(nkey), None) => Ok(Identity::Nkey(fetch("nkey", nkey)?)),
        (None, None, None, Some(credentials)) => {
            // A secret loses its last line break, and the parser wants one behind the last line.
            let text = fetch("credentials", credentials)?;
            let text = Redacted::new(format!("{}\n", text.expose()));
            ConnectOptions::new().credentials(text.expose()).map_err(|_| {
                SettingsError::new("credentials", "they are not those of a credentials file")
            })?;
            Ok(Identity::Credentials(text))
        }
        (Some(_), None, ..) => Err(SettingsError::new("password", "it is needed with `user`")),
        (None, Some(_), ..) => Err(SettingsError::new("user", "it is needed with `password`")),
        _ => {
            let message = "only one of `user` with `password`, `nkey` and `credentials` is allowed";
            Err(SettingsError::new("user", message))
        }
    }
}

fn certificate(raw: &RawNatsTls) -> Result<Option<(PathBuf, PathBuf)>, SettingsError> {
    match (&raw.cert, &raw.key) {
        (None, None) => Ok(None),
        (Some(cert), Some(SecretRef::File(path))) => {
            // Read here for its checks: that it is there, and that nobody else can read it.
            let key = SecretRef::File(path.clone());
            key.resolve().map_err(|e| e.under("key"))?;
            Ok(Some((file("cert", cert.clone())?, path.clone())))
        }
        (Some(_), Some(SecretRef::Env(_))) => {
            Err(SettingsError::new("key", r#"only { file = "PATH" } is allowed here"#))
        }
        (Some(_), None) => Err(SettingsError::new("key", "it is needed with `cert`")),
        (None, Some(_)) => Err(SettingsError::new("cert", "it is needed with `key`")),
    }
}

/// A file that is there now.
fn file(key: &str, path: PathBuf) -> Result<PathBuf, SettingsError> {
    match std::fs::metadata(&path) {
        Ok(found) if found.is_file() => Ok(path),
        Ok(_) => Err(SettingsError::new(key, format!("{} is no file", path.display()))),
        Err(error) => Err(SettingsError::new(key, format!("{}: {error}", path.display()))),
    }
}

#[cfg(test)]
mod tests;
