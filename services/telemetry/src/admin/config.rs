//! The `[admin_api]` section.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

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
        Self { listen, allow_plaintext: false, tokens: Vec::new() }
    }
}

/// The section, checked, with its tokens fetched.
#[derive(Clone, Debug)]
pub struct Config {
    pub(super) listen: SocketAddr,
    pub(super) tokens: Tokens,
}

impl Config {
    /// Checks the section and fetches the tokens. `None` where nobody may use the API.
    ///
    /// # Errors
    /// A name that is empty, too long or given twice; a token that cannot be fetched, is short or
    /// given twice; an address beyond loopback without `allow_plaintext`. The error has the key in
    /// full.
    pub fn new(raw: RawConfig) -> Result<Option<Self>, SettingsError> {
        if raw.tokens.is_empty() {
            return Ok(None);
        }
        if !raw.listen.ip().is_loopback() && !raw.allow_plaintext {
            let message = "the API has no TLS of its own, so only a loopback address is allowed; \
                           put a proxy with TLS in front and set admin_api.allow_plaintext = true";
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
        Ok(Some(Self { listen: raw.listen, tokens }))
    }

    /// Where to listen.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }
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
        assert!(fault(open.clone()).starts_with("admin_api.listen: the API has no TLS"));
        let allowed = RawConfig { allow_plaintext: true, ..open };
        assert!(Config::new(allowed).unwrap().is_some());
    }
}
