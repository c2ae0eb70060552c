//! Credentials that clients and engines present.

use credentials::{JoinKey, key, presented};

/// A header gives at most what stands in it, and no text is read as a key by its parts alone.
///
/// # Panics
/// Where that does not hold. Line feeds part the values of one header.
pub fn check(data: &[u8]) {
    let values = || data.split(|byte| *byte == b'\n');
    if let Some(credential) = presented::bearer(values()) {
        assert_eq!(values().count(), 1, "two headers are none");
        assert!(data.ends_with(credential.as_bytes()));
        assert!(credential.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        split(credential);
    }
    if let Some(value) = presented::only(values()) {
        assert_eq!(value.as_bytes(), data);
        split(value);
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(join) = JoinKey::parse(text)
    {
        assert!(text.contains(join.id()));
        assert_eq!(join.sign(b"message"), join.sign(b"message"), "signing is pure");
    }
}

fn split(credential: &str) {
    if let Some((id, secret)) = key::split(credential) {
        assert!(credential.contains(id) && credential.ends_with(secret));
    }
}
