//! The `[admin_api]` section.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rpc::RawTls;
use rpc::https::ServerTls;
use serde::{Deserialize, Serialize};
use settings::{SecretRef, SettingsError};

use super::auth::Tokens;

/// Shortest token that is taken, in bytes: 24 characters of any alphabet cannot be tried through.
const SHORTEST_TOKEN: usize = 24;

/// Longest name of a token: it stands in the audit log.
const LONGEST_NAME: usize = 64;

/// The section as it stands in a file. Every key may be absent; without tokens nothing is served.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawConfig {
    /// Where the admin API is served.
    pub listen: SocketAddr,
    /// Serve without TLS on an address that is not loopback: something in front has it.
    pub allow_plaintext: bool,
    /// Its certificate, and the authority of clients if they must show one too.
    pub tls: RawTls,
    /// Who may use it. Nobody if empty.
    pub tokens: Vec<RawToken>,
}

/// One `[[admin_api.tokens]]`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawToken {
    /// Whose it is, as the audit log shows it.
    pub name: String,
    /// What its holder sends as `Authorization: Bearer …`.
    pub token: SecretRef,
}

impl Default for RawConfig {
    fn default() -> Self {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 9091));
        Self { listen, allow_plaintext: false, tls: RawTls::default(), tokens: Vec::new() }
    }
}

/// The section, checked, with its tokens fetched.
#[derive(Clone, Debug)]
pub struct Config {
    pub(super) listen: SocketAddr,
    pub(super) tls: Option<ServerTls>,
    pub(super) tokens: Tokens,
}

impl Config {
    /// Checks the section and fetches the tokens. `None` where nobody may use the API.
    ///
    /// # Errors
    /// A name that is empty, too long or given twice; a token that cannot be fetched, is short or
    /// given twice; certificates that cannot be used; an address beyond loopback without TLS or
    /// `allow_plaintext`; settings of an API that nobody may use. The error has the key in full.
    pub fn new(raw: RawConfig) -> Result<Option<Self>, SettingsError> {
        if raw.tokens.is_empty() {
            return if raw.is_touched() { Err(nobody()) } else { Ok(None) };
        }
        let tls = ServerTls::new(&raw.tls).map_err(|e| e.under("admin_api.tls"))?;
        if tls.is_none() && !raw.listen.ip().is_loopback() && !raw.allow_plaintext {
            let message = "without TLS only a loopback address is allowed; set admin_api.tls.cert \
                           and admin_api.tls.key, or admin_api.allow_plaintext = true where a proxy \
                           with TLS is in front";
            return Err(SettingsError::new("admin_api.listen", message));
        }
        let (mut tokens, mut names) = (Tokens::default(), HashSet::new());
        for (n, RawToken { name, token }) in raw.tokens.into_iter().enumerate() {
            let under = format!("admin_api.tokens[{n}]");
            check_name(&name).map_err(|e| e.under(&under))?;
            if !names.insert(name.clone()) {
                return Err(SettingsError::new("name", "it is given twice").under(&under));
            }
            let secret = token.resolve().map_err(|e| e.under("token").under(&under))?;
            if secret.expose().len() < SHORTEST_TOKEN {
                let message = format!("it is short: at least {SHORTEST_TOKEN} bytes are needed");
                return Err(SettingsError::new("token", message).under(&under));
            }
            if !tokens.insert(Arc::from(name), secret.expose()) {
                let message = "another name has the same token";
                return Err(SettingsError::new("token", message).under(&under));
            }
        }
        Ok(Some(Self { listen: raw.listen, tls, tokens }))
    }

    /// Whether it has TLS of its own.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Where to listen.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }
}

impl RawConfig {
    /// Where it is served, if anybody may use it.
    pub fn served_at(&self) -> Option<SocketAddr> {
        (!self.tokens.is_empty()).then_some(self.listen)
    }

    /// Whether anything was set, so that somebody expects it to be served.
    fn is_touched(&self) -> bool {
        let tls = &self.tls;
        let has_tls = tls.cert.is_some() || tls.key.is_some() || tls.ca.is_some();
        self.listen != Self::default().listen || self.allow_plaintext || has_tls
    }
}

fn nobody() -> SettingsError {
    let message = "without a token nobody may use the API, and it is not served; add an entry: \
                   [[admin_api.tokens]] with name = \"ops\" and token = { file = \"PATH\" } or \
                   { env = \"NAME\" }; `openssl rand -hex 32` makes one";
    SettingsError::new("admin_api.tokens", message)
}

fn check_name(name: &str) -> Result<(), SettingsError> {
    let plain = name.bytes().all(|b| b.is_ascii_graphic());
    if name.is_empty() || name.len() > LONGEST_NAME || !plain {
        let message = format!("1 to {LONGEST_NAME} visible ASCII characters are allowed");
        return Err(SettingsError::new("name", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn token(name: &str, text: &str) -> (tempfile::NamedTempFile, RawToken) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o600)).unwrap();
        let token = SecretRef::File(file.path().to_owned());
        (file, RawToken { name: name.to_owned(), token })
    }

    fn fault(raw: RawConfig) -> String {
        Config::new(raw).unwrap_err().to_string()
    }

    #[test]
    fn without_a_token_nothing_is_served() {
        assert!(Config::new(RawConfig::default()).unwrap().is_none());
        // Whoever sets something of it expects it to be there.
        let moved = RawConfig { listen: "127.0.0.1:9".parse().unwrap(), ..RawConfig::default() };
        let error = fault(moved);
        assert!(error.starts_with("admin_api.tokens: ") && error.contains("openssl"), "{error}");
    }

    #[test]
    fn a_token_does_not_show() {
        let (_file, token) = token("ops", "a-token-that-is-long-enough");
        let raw = RawConfig { tokens: vec![token], ..RawConfig::default() };
        let config = Config::new(raw).unwrap().unwrap();
        assert!(!format!("{config:?}").contains("long-enough"));
    }

    #[test]
    fn what_would_be_unsafe_is_refused() {
        let (_a, good) = token("ops", "a-token-that-is-long-enough");
        let (_b, short) = token("ops", "short");
        let (_c, same) = token("ci", "a-token-that-is-long-enough");
        let raw = |tokens: Vec<RawToken>| RawConfig { tokens, ..RawConfig::default() };
        assert!(fault(raw(vec![short])).starts_with("admin_api.tokens[0].token: it is short"));
        let twice = fault(raw(vec![good.clone(), good.clone()]));
        assert_eq!(twice, "admin_api.tokens[1].name: it is given twice");
        let same = fault(raw(vec![good.clone(), same]));
        assert_eq!(same, "admin_api.tokens[1].token: another name has the same token");
        let unnamed = RawToken { name: "a b".to_owned(), ..good.clone() };
        assert!(fault(raw(vec![unnamed])).starts_with("admin_api.tokens[0].name: "));
        let open = RawConfig { listen: "0.0.0.0:9091".parse().unwrap(), ..raw(vec![good]) };
        assert!(fault(open.clone()).starts_with("admin_api.listen: without TLS only a loopback"));
        let allowed = RawConfig { allow_plaintext: true, ..open };
        assert!(Config::new(allowed).unwrap().is_some());
    }
}
