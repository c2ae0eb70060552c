//! What is stored: keys, revisions, documents, and the changes that make them.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use crate::StoreError;

/// Longest kind in bytes. Kinds are words such as `backends`.
const MAX_KIND_BYTES: usize = 32;
/// Longest name in bytes: model names with their owners and paths have some 100.
const MAX_NAME_BYTES: usize = 256;
/// Longest author in bytes: a user name, a token's id, a host.
pub(crate) const MAX_AUTHOR_BYTES: usize = 256;

/// Names one document: a kind and a name, written `backends/gpu-0`. Ordered by its text.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// The key of the document `name` of `kind`.
    ///
    /// # Errors
    /// The kind is not 1 to 32 lower-case letters and dashes, or the name not 1 to 256 bytes
    /// without control characters.
    pub fn new(kind: &str, name: &str) -> Result<Self, StoreError> {
        let plain = kind.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
        if kind.is_empty() || kind.len() > MAX_KIND_BYTES || !plain {
            let reason = format!("1 to {MAX_KIND_BYTES} lower-case letters and dashes are allowed");
            return Err(StoreError::Invalid { what: "kind", reason });
        }
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
            let reason =
                format!("1 to {MAX_NAME_BYTES} bytes without control characters are allowed");
            return Err(StoreError::Invalid { what: "name", reason });
        }
        Ok(Self(format!("{kind}/{name}").into()))
    }

    /// Reads the written form. The name may hold further slashes.
    ///
    /// # Errors
    /// As [`Key::new`]; or there is no slash.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        let (kind, name) = text.split_once('/').ok_or_else(|| StoreError::Invalid {
            what: "key",
            reason: "KIND/NAME is allowed".to_owned(),
        })?;
        Self::new(kind, name)
    }

    /// What is before the first slash.
    pub fn kind(&self) -> &str {
        self.0.split_once('/').map_or("", |(kind, _)| kind)
    }

    /// What is behind it.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, name)| name)
    }

    /// The written form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// Counts the changes of one store, all keys together. The first change makes revision 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision(pub u64);

impl Revision {
    /// Before the first change.
    pub const ZERO: Revision = Revision(0);

    /// That of the change after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names one store for all its life. Revisions of different stores cannot be compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId(pub [u8; 16]);

impl StoreId {
    /// A new one from the system's random source.
    ///
    /// # Errors
    /// That source is not available.
    pub(crate) fn draw() -> Result<Self, StoreError> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|e| StoreError::Io {
            path: "random source".into(),
            action: "read",
            source: std::io::Error::other(e.to_string()),
        })?;
        Ok(Self(id))
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Wall-clock time in milliseconds since 1970, for people who read the audit log. Nothing is
/// ordered by it: revisions order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The system's clock. Zero when that stands before 1970.
    pub fn now() -> Self {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// The version of a document's form. Versions of one major number read each other's documents
/// and keep the fields that they do not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SchemaVersion {
    /// Differs where older code would misread a document.
    pub major: u16,
    /// Grows with every field that older code may ignore.
    pub minor: u16,
}

/// A document as it is kept: bytes of a named form.
#[derive(Clone, PartialEq, Eq)]
pub struct Document {
    /// The form of the bytes.
    pub schema: SchemaVersion,
    /// The content; JSON for all kinds of [`domain::desired`].
    pub bytes: Bytes,
}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Documents hold hashes of keys: they do not print by the way.
        write!(f, "Document({}.{}, ", self.schema.major, self.schema.minor)?;
        write!(f, "{} bytes)", self.bytes.len())
    }
}

/// One change of one key as it was made: its state from then on, and the line in the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What was changed.
    pub key: Key,
    /// Which change of the store it was.
    pub revision: Revision,
    /// The revision since which the key exists without a break. A key that is deleted and made
    /// again has another. For a deletion it is that of what was deleted.
    pub created: Revision,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub author: Arc<str>,
    /// The state; `None` when it was deleted.
    pub document: Option<Document>,
    /// Fields of a later version's journal, as they were found.
    pub(crate) extra: Bytes,
}

/// What a change expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Anything, also nothing.
    Any,
    /// No such key.
    Absent,
    /// The state of that revision.
    At(Revision),
}

impl fmt::Display for Precondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Precondition::Any => f.write_str("any state"),
            Precondition::Absent => f.write_str("it to be absent"),
            Precondition::At(revision) => write!(f, "revision {revision}"),
        }
    }
}

/// A wish to change one key.
#[derive(Clone, Debug)]
pub struct Change {
    /// Which.
    pub key: Key,
    /// What must stand there, else nothing is changed. To delete what is absent is a conflict.
    pub expected: Precondition,
    /// The new state; `None` deletes.
    pub document: Option<Document>,
    /// Who wants it: at most 256 bytes.
    pub author: Arc<str>,
    /// When it was asked for.
    pub at: Timestamp,
}

/// Which keys a list or a watch is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All.
    All,
    /// Those of one kind.
    Kind(Arc<str>),
}

impl Scope {
    /// The keys of one kind.
    pub fn kind(kind: &str) -> Self {
        Self::Kind(kind.into())
    }

    pub(crate) fn covers(&self, key: &Key) -> bool {
        match self {
            Scope::All => true,
            Scope::Kind(kind) => key.kind() == &**kind,
        }
    }
}

/// The keys that exist, all as of one revision.
#[derive(Clone, Debug)]
pub struct Listing {
    /// Where a watch that goes on from this list begins.
    pub revision: Revision,
    /// By key.
    pub entries: Vec<Entry>,
}

/// A page of the audit log.
#[derive(Clone, Debug)]
pub struct History {
    /// The changes, by revision without a gap.
    pub changes: Vec<Entry>,
    /// The oldest change that is still kept; `None` when there is none.
    pub oldest: Option<Revision>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_kind_and_a_name_that_may_hold_slashes() {
        let key = Key::parse("models/meta/llama 3").unwrap();
        assert_eq!((key.kind(), key.name()), ("models", "meta/llama 3"));
        assert_eq!(Key::new("models", "meta/llama 3").unwrap(), key);
    }

    #[test]
    fn odd_keys_are_refused() {
        for text in ["", "/", "a/", "/b", "A/b", "a1/b", "a b/c", "a/b\n", "ab"] {
            assert!(Key::parse(text).is_err(), "{text:?}");
        }
        assert!(Key::new(&"a".repeat(33), "b").is_err());
        assert!(Key::new("a", &"b".repeat(257)).is_err());
        assert!(Key::new(&"a".repeat(32), &"b".repeat(256)).is_ok());
    }

    #[test]
    fn a_document_does_not_print_its_content() {
        let schema = SchemaVersion { major: 1, minor: 2 };
        let document = Document { schema, bytes: Bytes::from_static(b"hunter2") };
        assert_eq!(format!("{document:?}"), "Document(1.2, 7 bytes)");
    }
}
