//! Whether two ends have the same secret.

use std::fmt;

use settings::Redacted;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// SHA-256's block: what HMAC pads a key to (RFC 2104).
const BLOCK: usize = 64;

/// What a secret is hashed with here, so that the result is of no use anywhere else.
const PURPOSE: &[u8] = b"warmpath region fingerprint v1";

/// A keyed hash of a secret: HMAC-SHA256 with the secret as the key. Equal secrets have equal
/// fingerprints, and a fingerprint tells nothing of a secret that cannot be guessed. It finds
/// services that were set up for different regions; who may connect at all is TLS's part.
#[derive(Clone, Copy)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// That of a region's secret.
    pub fn of(secret: &Redacted<Vec<u8>>) -> Self {
        Self(hmac(secret.expose(), PURPOSE))
    }

    /// As it is sent.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether a peer sent the same. Takes equally long wherever they differ.
    pub fn matches(&self, theirs: &[u8]) -> bool {
        self.0.ct_eq(theirs).into()
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint")
    }
}

fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut block = [0; BLOCK];
    if key.len() > BLOCK {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let pad = |with: u8| block.map(|byte| byte ^ with);
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(secret: &[u8]) -> Fingerprint {
        Fingerprint::of(&Redacted::new(secret.to_vec()))
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_keyed_hash_is_that_of_the_standard() {
        // RFC 4231, test cases 1, 2 and 6.
        let first = hmac(&[0x0b; 20], b"Hi There");
        assert_eq!(hex(&first), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
        let short = hmac(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(hex(&short), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        let long = hmac(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First");
        assert_eq!(hex(&long), "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    }

    #[test]
    fn equal_secrets_match_and_others_do_not() {
        let ours = of(b"secret");
        assert!(ours.matches(of(b"secret").as_bytes()));
        assert!(!ours.matches(of(b"Secret").as_bytes()));
        assert!(!ours.matches(b""));
        assert!(!ours.matches(&ours.as_bytes()[..31]));
    }

    #[test]
    fn it_does_not_print() {
        assert_eq!(format!("{:?}", of(b"secret")), "Fingerprint");
    }
}
