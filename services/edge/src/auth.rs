//! Who sends a request: API keys `sk-wp-<public id>-<secret>`.
//!
//! Only the sha256 of the secret part is ever stored. A secret has 256 bits from the system's
//! random source, so a plain hash is enough: there is nothing to guess. The comparison takes the
//! same steps for a known id, an unknown id and a malformed key, and every refusal looks alike.

use std::collections::HashMap;
use std::fmt;

use domain::TenantId;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// What every key begins with.
const PREFIX: &str = "sk-wp-";
/// Random bytes in a secret.
const SECRET_BYTES: usize = 32;
/// Random bytes in a public id.
const PUBLIC_ID_BYTES: usize = 8;
/// Longer credentials are refused unread: a minted key has 85 characters, and an id from the
/// config file may be longer than a minted one.
const MAX_CREDENTIAL_BYTES: usize = 512;

/// The known keys.
#[derive(Debug, Default)]
pub(crate) struct Keyring {
    by_id: HashMap<Box<str>, StoredKey>,
}

#[derive(Debug, Clone)]
struct StoredKey {
    tenant: TenantId,
    digest: [u8; 32],
}

/// The credentials were missing, malformed, unknown or wrong: nobody is told which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused;

impl Keyring {
    /// Adds a key; `false` if its id is taken.
    pub(crate) fn insert(&mut self, id: &str, tenant: TenantId, digest: [u8; 32]) -> bool {
        self.by_id.insert(id.into(), StoredKey { tenant, digest }).is_none()
    }

    /// Whether no key is known, so that requests are not identified at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The tenant whose key the request carries. `Authorization: Bearer` wins over `x-api-key`.
    pub(crate) fn identify(&self, headers: &HeaderMap) -> Result<TenantId, Refused> {
        let key = credential(headers).unwrap_or_default();
        let (id, secret) = split(key).unwrap_or_default();
        let stored = self.by_id.get(id);
        // An unknown id is compared too, with a digest that no secret is known for.
        let expected = stored.map_or([0; 32], |s| s.digest);
        let given: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
        let equal = bool::from(given.ct_eq(&expected));
        stored.filter(|_| equal).map(|s| s.tenant.clone()).ok_or(Refused)
    }
}

/// The presented key, if there is exactly one that could be read.
fn credential(headers: &HeaderMap) -> Option<&str> {
    let text = if headers.contains_key(AUTHORIZATION) {
        let value = only(headers, AUTHORIZATION.as_str())?;
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key)?
    } else {
        only(headers, "x-api-key")?
    };
    (text.len() <= MAX_CREDENTIAL_BYTES).then_some(text)
}

fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok(),
        _ => None,
    }
}

/// Public id and secret of a key. Ids may hold dashes; secrets never do.
fn split(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix(PREFIX)?.rsplit_once('-')
}

/// Reads the 64 hex digits of a stored digest.
pub(crate) fn digest_from_hex(text: &str) -> Option<[u8; 32]> {
    let bytes = text.as_bytes();
    if bytes.len() != 64 {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(bytes.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(digest)
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
    pub fn generate(tenant: &str) -> Result<Self, getrandom::Error> {
        let mut random = [0; PUBLIC_ID_BYTES + SECRET_BYTES];
        getrandom::fill(&mut random)?;
        let (id, secret) = random.split_at(PUBLIC_ID_BYTES);
        let public_id = hex(id);
        let text = format!("{PREFIX}{public_id}-{}", hex(secret));
        Ok(Self { public_id, tenant: tenant.to_owned(), text })
    }

    /// The whole key as a client sends it: for the holder's eyes only.
    pub fn secret_text(&self) -> &str {
        &self.text
    }

    /// The lines for the config file that make this key valid.
    pub fn config_lines(&self) -> String {
        let secret = split(&self.text).map_or("", |(_, secret)| secret);
        let digest = hex(&Sha256::digest(secret.as_bytes()));
        let tenant = self.tenant.replace('\\', "\\\\").replace('"', "\\\"");
        format!(
            "[[keys]]\nid = \"{}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\n",
            self.public_id
        )
    }
}

impl fmt::Debug for GeneratedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GeneratedKey").field("public_id", &self.public_id).finish_non_exhaustive()
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]])
        .map(char::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn ring() -> (Keyring, String) {
        let key = GeneratedKey::generate("acme").unwrap();
        let mut ring = Keyring::default();
        let (id, secret) = split(key.secret_text()).unwrap();
        let digest = Sha256::digest(secret.as_bytes()).into();
        assert!(ring.insert(id, TenantId::from("acme"), digest));
        (ring, key.secret_text().to_owned())
    }

    fn with(name: &'static str, value: impl AsRef<[u8]>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_bytes(value.as_ref()).unwrap());
        headers
    }

    #[test]
    fn a_key_is_taken_from_either_header() {
        let (ring, key) = ring();
        for headers in [
            with("authorization", format!("Bearer {key}")),
            with("authorization", format!("bearer {key}")),
            with("x-api-key", &key),
        ] {
            assert_eq!(ring.identify(&headers).unwrap().as_str(), "acme");
        }
    }

    #[test]
    fn the_bearer_token_wins_over_the_api_key_header() {
        let (ring, key) = ring();
        let mut headers = with("x-api-key", &key);
        headers.insert("authorization", HeaderValue::from_static("Bearer sk-wp-x-y"));
        assert_eq!(ring.identify(&headers), Err(Refused));
    }

    #[test]
    fn odd_credentials_are_all_refused() {
        let (ring, key) = ring();
        let mut two = with("authorization", format!("Bearer {key}"));
        two.append("authorization", HeaderValue::from_str(&format!("Bearer {key}")).unwrap());
        let id = key.rsplit_once('-').unwrap().0.to_owned();
        let cases = [
            HeaderMap::new(),
            two,
            with("authorization", ""),
            with("authorization", "Bearer"),
            with("authorization", "Bearer "),
            with("authorization", format!("Bearer {key} ")),
            with("authorization", format!("Bearer  {key}")),
            with("authorization", format!("Basic {key}")),
            with("authorization", format!("Bearer {key}x")),
            with("authorization", format!("Bearer {id}-")),
            with("authorization", format!("Bearer {id}")),
            with("authorization", format!("Bearer {}", "a".repeat(100_000))),
            with("authorization", b"Bearer \xff\xfe"),
            with("x-api-key", "sk-wp--"),
            with("x-api-key", format!("{key}\t")),
        ];
        for headers in cases {
            assert_eq!(ring.identify(&headers), Err(Refused), "{headers:?}");
        }
    }

    #[test]
    fn the_config_lines_make_the_printed_key_valid() {
        let minted = GeneratedKey::generate("acme").unwrap();
        let lines = minted.config_lines();
        let (_, secret) = split(minted.secret_text()).unwrap();
        assert!(!lines.contains(secret));
        let digest = lines.rsplit_once("sha256 = \"").unwrap().1.trim_end().trim_end_matches('"');
        let mut ring = Keyring::default();
        ring.insert(&minted.public_id, TenantId::from("acme"), digest_from_hex(digest).unwrap());
        assert!(ring.identify(&with("x-api-key", minted.secret_text())).is_ok());
        assert!(!format!("{minted:?}").contains(secret));
    }

    #[test]
    fn a_digest_is_sixty_four_hex_digits() {
        assert!(digest_from_hex(&"aF".repeat(32)).is_some());
        assert!(digest_from_hex("ab").is_none());
        assert!(digest_from_hex(&"zz".repeat(32)).is_none());
        assert!(digest_from_hex(&"é".repeat(32)).is_none());
    }
}
