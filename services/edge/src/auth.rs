//! Who sends a request: API keys `sk-wp-<public id>-<secret>`.
//!
//! Only the sha256 of the secret part is known here. The comparison takes the same steps for a
//! known id, an unknown id and a malformed key, and every refusal looks alike.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use credentials::{key, presented};
use domain::TenantId;
use http::header::{AUTHORIZATION, HeaderName};
use http::{HeaderMap, HeaderValue};
use subtle::ConstantTimeEq;

/// Longer credentials are refused unread: a minted key has 85 characters, and an id from the
/// config file may be longer than a minted one.
const MAX_CREDENTIAL_BYTES: usize = 512;

/// Where Anthropic's clients put their key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The known keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keyring {
    by_id: HashMap<Box<str>, StoredKey>,
}

#[derive(Debug, Clone)]
struct StoredKey {
    tenant: TenantId,
    digest: [u8; 32],
    source: KeySource,
}

/// Where a key is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeySource {
    /// The config file: valid as long as the process runs.
    File,
    /// The desired state: valid until it is revoked there.
    Feed,
}

/// The credentials were missing, malformed, unknown or wrong: nobody is told which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused;

impl Keyring {
    /// Adds a key; `false`, and nothing is changed, if its id is taken.
    pub(crate) fn insert(
        &mut self,
        id: &str,
        tenant: TenantId,
        digest: [u8; 32],
        source: KeySource,
    ) -> bool {
        match self.by_id.entry(id.into()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(StoredKey { tenant, digest, source });
                true
            }
        }
    }

    /// Keys that are known.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether no key is known, so that requests are not identified at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The tenant whose key the request carries. `Authorization: Bearer` wins over `x-api-key`.
    pub(crate) fn identify(&self, headers: &HeaderMap) -> Result<(&TenantId, KeySource), Refused> {
        let given = credential(headers).unwrap_or_default();
        let (id, secret) = key::split(given).unwrap_or_default();
        let stored = self.by_id.get(id);
        // An unknown id is compared too, with a digest that no secret is known for.
        let expected = stored.map_or([0; 32], |s| s.digest);
        let equal = bool::from(key::digest(secret).ct_eq(&expected));
        stored.filter(|_| equal).map(|s| (&s.tenant, s.source)).ok_or(Refused)
    }
}

/// The presented key, if there is exactly one that could be read.
fn credential(headers: &HeaderMap) -> Option<&str> {
    let values = |name| headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let text = if headers.contains_key(AUTHORIZATION) {
        presented::bearer(values(AUTHORIZATION))?
    } else {
        presented::only(values(X_API_KEY))?
    };
    (text.len() <= MAX_CREDENTIAL_BYTES).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use credentials::GeneratedKey;

    fn ring() -> (Keyring, String) {
        let key = GeneratedKey::generate("acme").unwrap();
        let mut ring = Keyring::default();
        let (id, secret) = key::split(key.secret_text()).unwrap();
        let digest = key::digest(secret);
        assert!(ring.insert(id, TenantId::from("acme"), digest, KeySource::File));
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
            assert_eq!(ring.identify(&headers).unwrap().0.as_str(), "acme");
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
    fn the_stored_digest_makes_the_printed_key_valid() {
        let minted = GeneratedKey::generate("acme").unwrap();
        let digest = credentials::bytes_from_hex(&minted.digest_hex()).unwrap();
        let mut ring = Keyring::default();
        ring.insert(minted.id(), TenantId::from("acme"), digest, KeySource::File);
        assert!(ring.identify(&with("x-api-key", minted.secret_text())).is_ok());
    }
}
