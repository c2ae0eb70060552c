//! Subjects: `warmpath.v1.<region>.<what>.<of whom>`.

use std::sync::Arc;

use bus::{Pattern, Subject};
use sha2::{Digest, Sha256};

use crate::EventError;

/// Longest name of a region, in bytes.
const MAX_REGION: usize = 32;

/// Longest name in a subject that is written out; a longer one is shortened.
const MAX_TOKEN: usize = 64;

/// Bytes of its hash that stand behind a name that was shortened.
const HASH_BYTES: usize = 8;

/// The subjects of one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region(Arc<str>);

impl Region {
    /// The region of that name.
    ///
    /// # Errors
    /// The name is not 1 to 32 lower-case letters, digits and dashes.
    pub fn new(name: &str) -> Result<Self, EventError> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if name.is_empty() || name.len() > MAX_REGION || !name.bytes().all(plain) {
            return Err(EventError::Region);
        }
        Ok(Self(name.into()))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Where changes of a backend's state are told.
    pub fn backend(&self, id: &str) -> Subject {
        self.subject("backends", &[id])
    }

    /// Where readings of a backend's load are told.
    pub fn load(&self, backend: &str) -> Subject {
        self.subject("loads", &[backend])
    }

    /// Where decisions about requests for a model are told.
    pub fn decisions(&self, model: &str) -> Subject {
        self.subject("decisions", &[model])
    }

    /// Where the holder of a join token announces backends.
    pub fn announce(&self, token: &str) -> Subject {
        self.subject("announce", &[token])
    }

    /// Where the holder of a join token hears what became of it.
    pub fn answers(&self, token: &str, backend: &str) -> Subject {
        self.subject("answers", &[token, backend])
    }

    /// Where the owner of a pool tells its copies what it does.
    pub fn pool(&self, pool: &str) -> Subject {
        self.subject("pools", &[pool])
    }

    /// All pools.
    pub fn pools(&self) -> Pattern {
        self.pattern("pools")
    }

    /// All announcements.
    pub fn announcements(&self) -> Pattern {
        self.pattern("announce")
    }

    /// All of one kind: `backends`, `loads`, `decisions`, `announce`, `answers`, `pools`.
    fn pattern(&self, kind: &str) -> Pattern {
        Pattern::new(&format!("warmpath.v1.{}.{kind}.>", self.0)).expect("plain tokens")
    }

    fn subject(&self, kind: &str, names: &[&str]) -> Subject {
        let mut text = format!("warmpath.v1.{}.{kind}", self.0);
        for name in names {
            text.push('.');
            text.push_str(&token(name));
        }
        Subject::new(&text).expect("plain tokens of bounded length")
    }
}

/// A name as one token of a subject: letters, digits, `-` and `_` stand for themselves, any other
/// byte is `%` and two hex digits. What is longer than 64 bytes then is cut there, with `~` and a
/// hash of the whole name behind it.
fn token(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    if out.len() > MAX_TOKEN {
        let hash = Sha256::digest(name.as_bytes());
        out.truncate(MAX_TOKEN);
        out.push('~');
        out.push_str(&credentials::hex(&hash[..HASH_BYTES]));
    }
    if out.is_empty() { "%".to_owned() } else { out }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn subjects_tell_version_region_and_name() {
        let region = Region::new("eu-1").unwrap();
        assert_eq!(region.backend("gpu-0").as_str(), "warmpath.v1.eu-1.backends.gpu-0");
        let model = region.decisions("meta/llama.3");
        assert_eq!(model.as_str(), "warmpath.v1.eu-1.decisions.meta%2Fllama%2E3");
        assert!(region.announcements().matches(&region.announce("rack-1")));
        assert!(!region.announcements().matches(&region.answers("rack-1", "a")));
    }

    #[test]
    fn odd_regions_are_refused() {
        for odd in ["", "EU", "a.b", "a b", "*", ">", &"a".repeat(33)] {
            assert_eq!(Region::new(odd), Err(EventError::Region), "{odd}");
        }
    }

    proptest! {
        #[test]
        fn any_two_names_have_two_subjects(a in "\\PC{0,300}", b in "\\PC{0,300}") {
            let region = Region::new(&"r".repeat(MAX_REGION)).unwrap();
            prop_assert_eq!(region.answers(&a, &b) == region.answers(&b, &a), a == b);
        }
    }
}
