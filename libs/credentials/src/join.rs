//! Join tokens `wp-join-<id>-<seed>`: whoever holds one can announce engines.
//!
//! The seed is that of an Ed25519 key. The holder signs with it; what is stored is the public
//! half, so that neither the store nor whoever reads it could announce anything.

use std::fmt;

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use crate::{CredentialError, bytes_from_hex, hex};

/// What every token begins with.
const PREFIX: &str = "wp-join-";
/// Bytes of an Ed25519 seed.
const SEED_BYTES: usize = 32;

/// A newly minted token. It is shown once; its public key is what is stored.
pub struct MintedToken {
    text: String,
    public_key: String,
}

impl MintedToken {
    /// Mints the token of that id from the system's random source.
    ///
    /// # Errors
    /// When that source is not available.
    pub fn generate(id: &str) -> Result<Self, CredentialError> {
        let mut seed = [0; SEED_BYTES];
        getrandom::fill(&mut seed).map_err(|_| CredentialError::NoRandomness)?;
        let pair = pair(&seed).ok_or(CredentialError::NoRandomness)?;
        let public_key = hex(pair.public_key().as_ref());
        Ok(Self { text: format!("{PREFIX}{id}-{}", hex(&seed)), public_key })
    }

    /// The whole token: for the holder's eyes only.
    pub fn secret_text(&self) -> &str {
        &self.text
    }

    /// The public key in hex digits: what is stored.
    pub fn public_key_hex(&self) -> &str {
        &self.public_key
    }
}

impl fmt::Debug for MintedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MintedToken").field("public_key", &self.public_key).finish_non_exhaustive()
    }
}

/// The holder's side of a token.
pub struct JoinKey {
    id: String,
    pair: Ed25519KeyPair,
}

impl JoinKey {
    /// Reads a token.
    ///
    /// # Errors
    /// The text is none. It is not quoted.
    pub fn parse(text: &str) -> Result<Self, CredentialError> {
        let wrong = CredentialError::NoJoinToken;
        let (id, seed) = text.strip_prefix(PREFIX).and_then(|t| t.rsplit_once('-')).ok_or(wrong)?;
        let seed: [u8; SEED_BYTES] = bytes_from_hex(seed).ok_or(wrong)?;
        if id.is_empty() {
            return Err(wrong);
        }
        Ok(Self { id: id.to_owned(), pair: pair(&seed).ok_or(wrong)? })
    }

    /// The token's name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The signature of some bytes, 128 hex digits.
    pub fn sign(&self, message: &[u8]) -> String {
        hex(self.pair.sign(message).as_ref())
    }
}

impl fmt::Debug for JoinKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Whether the holder of the token with this public key signed these bytes. Both in hex digits.
pub fn verify(public_key: &str, message: &[u8], signature: &str) -> bool {
    let Some(key) = bytes_from_hex::<32>(public_key) else { return false };
    let Some(signature) = bytes_from_hex::<64>(signature) else { return false };
    UnparsedPublicKey::new(&ED25519, key).verify(message, &signature).is_ok()
}

fn pair(seed: &[u8; SEED_BYTES]) -> Option<Ed25519KeyPair> {
    Ed25519KeyPair::from_seed_unchecked(seed).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_holder_signs_is_verified_with_the_stored_half() {
        let token = MintedToken::generate("rack-1").unwrap();
        let key = JoinKey::parse(token.secret_text()).unwrap();
        assert_eq!(key.id(), "rack-1");
        let signature = key.sign(b"hello");
        assert!(verify(token.public_key_hex(), b"hello", &signature));
        assert!(!verify(token.public_key_hex(), b"hallo", &signature));
        let other = MintedToken::generate("rack-1").unwrap();
        assert!(!verify(other.public_key_hex(), b"hello", &signature));
    }

    #[test]
    fn odd_signatures_and_keys_are_refused() {
        let token = MintedToken::generate("a").unwrap();
        let signature = JoinKey::parse(token.secret_text()).unwrap().sign(b"m");
        for odd in ["", "00", &signature[2..], &format!("{signature}00"), &"zz".repeat(64)] {
            assert!(!verify(token.public_key_hex(), b"m", odd), "{odd}");
        }
        assert!(!verify("", b"m", &signature));
    }

    #[test]
    fn only_tokens_are_read_and_none_is_quoted() {
        let seed = "0f".repeat(32);
        assert_eq!(JoinKey::parse(&format!("wp-join-a-b-{seed}")).unwrap().id(), "a-b");
        for odd in [
            "",
            "wp-join-",
            &format!("wp-join-{seed}"),
            &format!("wp-join--{seed}"),
            &format!("wp-join-a-{}", &seed[1..]),
            &format!("sk-wp-a-{seed}"),
        ] {
            let error = JoinKey::parse(odd).unwrap_err().to_string();
            assert!(!error.contains(&seed), "{error}");
        }
    }

    #[test]
    fn neither_side_prints_its_secret() {
        let token = MintedToken::generate("a").unwrap();
        let (_, seed) = token.secret_text().rsplit_once('-').unwrap();
        let key = JoinKey::parse(token.secret_text()).unwrap();
        assert!(!format!("{token:?} {key:?}").contains(seed));
    }
}
