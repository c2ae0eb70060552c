//! Documents of [`domain::desired`] in and out of a store.

use std::sync::Arc;

use bytes::Bytes;
use domain::desired;

use crate::{
    Change, Document, Entry, Key, Precondition, Revision, SchemaVersion, StoreError, Timestamp,
};

/// A document with where it stands in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored<D> {
    /// The document.
    pub document: D,
    /// The form that it was stored in; a later one than ours has fields that we only keep.
    pub schema: SchemaVersion,
    /// The revision of this state.
    pub revision: Revision,
    /// The revision since which it exists.
    pub created: Revision,
}

const fn ours<D: desired::Document>() -> SchemaVersion {
    SchemaVersion { major: D::SCHEMA.0, minor: D::SCHEMA.1 }
}

/// The key of a document.
///
/// # Errors
/// Its id cannot stand in a key.
pub fn key<D: desired::Document>(id: &str) -> Result<Key, StoreError> {
    Key::new(D::KIND, id)
}

/// Reads the document of an entry; `None` if the entry is a deletion.
///
/// # Errors
/// [`StoreError::Document`]: another kind, another major version, or not of its form.
pub fn read<D: desired::Document>(entry: &Entry) -> Result<Option<Stored<D>>, StoreError> {
    let fault = |reason: String| StoreError::Document { key: entry.key.clone(), reason };
    if entry.key.kind() != D::KIND {
        return Err(fault(format!("it is not of kind `{}`", D::KIND)));
    }
    let Some(Document { schema, bytes }) = &entry.document else { return Ok(None) };
    let known = ours::<D>();
    if schema.major != known.major {
        let SchemaVersion { major, minor } = schema;
        return Err(fault(format!("schema {major}.{minor} is not known, {}.x is", known.major)));
    }
    // serde's message may quote a value, and the values here include hashes of keys.
    let document: D = serde_json::from_slice(bytes)
        .map_err(|e| fault(format!("it is not of its form (column {})", e.column())))?;
    if document.id() != entry.key.name() {
        return Err(fault("it has another id than its key".to_owned()));
    }
    let (revision, created) = (entry.revision, entry.created);
    Ok(Some(Stored { document, schema: *schema, revision, created }))
}

/// Who changes something, and when.
#[derive(Clone, Debug)]
pub struct Signature {
    /// Who, as the audit log shows it.
    pub author: Arc<str>,
    /// When.
    pub at: Timestamp,
}

/// The change that makes a new document.
///
/// # Errors
/// It is not valid.
pub fn create<D: desired::Document>(document: &D, by: Signature) -> Result<Change, StoreError> {
    write(document, ours::<D>(), Precondition::Absent, by)
}

/// The change that puts a document in place of one that was read. The form of the one that was
/// read is kept if it is later than ours: so are its fields.
///
/// # Errors
/// It is not valid.
pub fn replace<D: desired::Document>(
    read: &Stored<D>,
    document: &D,
    by: Signature,
) -> Result<Change, StoreError> {
    let schema = ours::<D>().max(read.schema);
    write(document, schema, Precondition::At(read.revision), by)
}

/// The change that deletes a document that was read.
///
/// # Errors
/// None for what was read from a store.
pub fn delete<D: desired::Document>(read: &Stored<D>, by: Signature) -> Result<Change, StoreError> {
    Ok(Change {
        key: key::<D>(read.document.id())?,
        expected: Precondition::At(read.revision),
        document: None,
        author: by.author,
        at: by.at,
    })
}

fn write<D: desired::Document>(
    document: &D,
    schema: SchemaVersion,
    expected: Precondition,
    by: Signature,
) -> Result<Change, StoreError> {
    let invalid = |reason| StoreError::Invalid { what: "document", reason };
    document.validate().map_err(|error| invalid(error.to_string()))?;
    let bytes = serde_json::to_vec(document).map_err(|error| invalid(error.to_string()))?;
    let document_bytes = Bytes::from(bytes);
    Ok(Change {
        key: key::<D>(document.id())?,
        expected,
        document: Some(Document { schema, bytes: document_bytes }),
        author: by.author,
        at: by.at,
    })
}

#[cfg(test)]
mod tests {
    use domain::desired::{ApiKey, Tenant};
    use serde_json::json;

    use super::*;

    fn by() -> Signature {
        Signature { author: "root".into(), at: Timestamp(1) }
    }

    fn entry(change: Change, revision: u64) -> Entry {
        let Change { key, document, author, at, .. } = change;
        let revision = Revision(revision);
        Entry { key, revision, created: Revision(1), at, author, document, extra: Bytes::new() }
    }

    fn tenant(value: serde_json::Value) -> Tenant {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn an_older_version_changes_a_document_of_a_later_one_and_keeps_its_fields() {
        let mut change = create(&tenant(json!({"id": "acme"})), by()).unwrap();
        let later = SchemaVersion { major: 1, minor: 7 };
        let bytes = Bytes::from_static(br#"{"id":"acme","shade":"blue"}"#);
        change.document = Some(Document { schema: later, bytes });
        let read = read::<Tenant>(&entry(change, 1)).unwrap().unwrap();
        let changed = Tenant { debug_headers: true, ..read.document.clone() };
        let change = replace(&read, &changed, by()).unwrap();
        let document = change.document.unwrap();
        assert_eq!((document.schema, change.expected), (later, Precondition::At(Revision(1))));
        let value: serde_json::Value = serde_json::from_slice(&document.bytes).unwrap();
        assert_eq!(value, json!({"id": "acme", "debug_headers": true, "shade": "blue"}));
    }

    #[test]
    fn another_major_version_is_not_read() {
        let mut change = create(&tenant(json!({"id": "acme"})), by()).unwrap();
        change.document.as_mut().unwrap().schema.major = 2;
        let error = read::<Tenant>(&entry(change, 1)).unwrap_err().to_string();
        assert!(error.contains("schema 2.0 is not known"), "{error}");
    }

    #[test]
    fn a_document_that_cannot_be_read_is_not_quoted() {
        let key: ApiKey =
            serde_json::from_value(json!({"id": "k", "tenant": "acme", "sha256": "ab".repeat(32)}))
                .unwrap();
        let mut change = create(&key, by()).unwrap();
        let bytes = Bytes::from_static(br#"{"id":"k","tenant":"acme","sha256":1234567}"#);
        change.document.as_mut().unwrap().bytes = bytes;
        let error = read::<ApiKey>(&entry(change, 1)).unwrap_err().to_string();
        assert!(error.contains("keys/k") && !error.contains("1234567"), "{error}");
    }

    #[test]
    fn an_entry_of_another_kind_or_id_is_not_mixed_up() {
        let change = create(&tenant(json!({"id": "acme"})), by()).unwrap();
        assert!(read::<ApiKey>(&entry(change.clone(), 1)).is_err());
        let renamed = Change { key: Key::new("tenants", "other").unwrap(), ..change };
        assert!(read::<Tenant>(&entry(renamed, 1)).is_err());
    }

    #[test]
    fn a_deletion_has_no_document() {
        let made = entry(create(&tenant(json!({"id": "acme"})), by()).unwrap(), 1);
        let read_back = read::<Tenant>(&made).unwrap().unwrap();
        let deletion = delete(&read_back, by()).unwrap();
        assert_eq!(deletion.expected, Precondition::At(Revision(1)));
        assert_eq!(read::<Tenant>(&entry(deletion, 2)).unwrap(), None);
    }

    #[test]
    fn an_invalid_document_is_not_written() {
        let error = create(&tenant(json!({"id": ""})), by()).unwrap_err();
        assert!(error.to_string().starts_with("document: id: "), "{error}");
    }
}
