//! API keys `sk-wp-<public id>-<secret>`.
//!
//! Only the sha256 of the secret part is ever stored. A secret has 256 bits from the system's
//! random source, so a plain hash is enough: there is nothing to guess.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::{CredentialError, hex};

/// What every key begins with.
const PREFIX: &str = "sk-wp-";
/// Random bytes in a secret.
const SECRET_BYTES: usize = 32;
/// Random bytes in a public id.
const PUBLIC_ID_BYTES: usize = 8;

/// Public id and secret of a key. Ids may hold dashes; secrets never do.
pub fn split(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix(PREFIX)?.rsplit_once('-')
}

/// What is stored of a secret part.
pub fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// A newly minted key. Its secret is shown once and stored nowhere.
pub struct GeneratedKey {
    public_id: String,
    tenant: String,
    text: String,
}

impl GeneratedKey {
    /// Mints a key of `tenant` from the system's random source.
    ///
    /// # Errors
    /// When that source is not available.
    pub fn generate(tenant: &str) -> Result<Self, CredentialError> {
        let mut random = [0; PUBLIC_ID_BYTES + SECRET_BYTES];
        getrandom::fill(&mut random).map_err(|_| CredentialError::NoRandomness)?;
        let (id, secret) = random.split_at(PUBLIC_ID_BYTES);
        let public_id = hex(id);
        let text = format!("{PREFIX}{public_id}-{}", hex(secret));
        Ok(Self { public_id, tenant: tenant.to_owned(), text })
    }

    /// The public part.
    pub fn id(&self) -> &str {
        &self.public_id
    }

    /// The whole key as a client sends it: for the holder's eyes only.
    pub fn secret_text(&self) -> &str {
        &self.text
    }

    /// The sha256 of the secret part, in hex digits: what is stored.
    pub fn digest_hex(&self) -> String {
        let secret = split(&self.text).map_or("", |(_, secret)| secret);
        hex(&digest(secret))
    }

    /// The lines for a config file that make its tenant one.
    pub fn tenant_lines(&self) -> String {
        format!("[[tenants]]\nid = \"{}\"\n", self.quoted_tenant())
    }

    fn quoted_tenant(&self) -> String {
        self.tenant.replace('\\', "\\\\").replace('"', "\\\"")
    }

    /// The lines for a config file that make this key valid.
    pub fn config_lines(&self) -> String {
        let tenant = self.quoted_tenant();
        let (id, digest) = (&self.public_id, self.digest_hex());
        format!("[[keys]]\nid = \"{id}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\n")
    }
}

impl fmt::Debug for GeneratedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GeneratedKey").field("public_id", &self.public_id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_tells_no_secret() {
        let key = GeneratedKey::generate("acme").unwrap();
        let (id, secret) = split(key.secret_text()).unwrap();
        assert_eq!(id, key.id());
        assert_eq!(key.digest_hex(), hex(&digest(secret)));
        let lines = key.config_lines();
        assert!(lines.contains(&key.digest_hex()) && !lines.contains(secret), "{lines}");
        assert!(!format!("{key:?}").contains(secret));
    }

    #[test]
    fn an_id_may_hold_dashes() {
        assert_eq!(split("sk-wp-team-a-00ff"), Some(("team-a", "00ff")));
        for text in ["", "sk-wp-", "sk-wp-a", "a-b", "sk-a-b"] {
            assert_eq!(split(text), None, "{text}");
        }
    }

    #[test]
    fn no_two_keys_are_alike() {
        let (a, b) = (GeneratedKey::generate("t").unwrap(), GeneratedKey::generate("t").unwrap());
        assert!(a.id() != b.id() && a.secret_text() != b.secret_text());
    }
}
