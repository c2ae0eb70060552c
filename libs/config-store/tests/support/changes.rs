//! Short ways to write changes.

use bytes::Bytes;
use config_store::{Change, Document, Entry, Key, Precondition, SchemaVersion, Timestamp};

pub(crate) fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

pub(crate) fn document(text: &str) -> Document {
    let schema = SchemaVersion { major: 1, minor: 0 };
    Document { schema, bytes: Bytes::copy_from_slice(text.as_bytes()) }
}

pub(crate) fn put(name: &str, expected: Precondition, text: &str) -> Change {
    let document = Some(document(text));
    Change { key: key(name), expected, document, author: "root".into(), at: Timestamp(5) }
}

pub(crate) fn delete(name: &str, expected: Precondition) -> Change {
    Change { document: None, ..put(name, expected, "") }
}

/// The text of a document; `None` for a deletion.
pub(crate) fn text(entry: &Entry) -> Option<String> {
    let document = entry.document.as_ref()?;
    Some(String::from_utf8(document.bytes.to_vec()).unwrap())
}
