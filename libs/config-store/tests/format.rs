//! Journals of every format there ever was are read.

use std::fs;
use std::path::Path;

use config_store::{
    ConfigStore, EmbeddedConfig, EmbeddedStore, Key, Metrics, Precondition, Revision,
    SchemaVersion, Scope, Timestamp,
};

/// Two segments of format 1.0: the first sealed, the second with a snapshot and a change.
/// `backends/gpu-0` was made, changed and deleted, `tenants/acme` made and changed once in each.
const FORMAT_1_0: &str = "tests/fixtures/journal-1.0";

fn store(fixture: &str) -> (EmbeddedStore, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join(fixture);
    for entry in fs::read_dir(fixture).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let config = EmbeddedConfig::new(folder.path());
    (EmbeddedStore::open(config, Metrics::default()).unwrap(), folder)
}

#[tokio::test]
async fn a_journal_of_format_1_0_is_read() {
    let (store, _folder) = store(FORMAT_1_0);
    assert_eq!(store.id().to_string(), "57775cb4c98bb848aa5830ad2166c9e6");
    let listing = store.list(Scope::All).await.unwrap();
    assert_eq!((listing.revision, listing.entries.len()), (Revision(5), 1));
    let acme = &listing.entries[0];
    assert_eq!(acme.key, Key::new("tenants", "acme").unwrap());
    assert_eq!((acme.revision, acme.created), (Revision(5), Revision(2)));
    assert_eq!((&*acme.author, acme.at), ("bob", Timestamp(1_700_000_000_005)));
    let document = acme.document.as_ref().unwrap();
    assert_eq!(document.schema, SchemaVersion { major: 1, minor: 0 });
    assert_eq!(&document.bytes[..], br#"{"id":"acme","debug_headers":true}"#);
    let history = store.history(Revision::ZERO, 10).await.unwrap();
    let told: Vec<_> = history
        .changes
        .iter()
        .map(|e| (e.revision.0, e.key.as_str(), &*e.author, e.document.is_some()))
        .collect();
    assert_eq!(
        told,
        [
            (1, "backends/gpu-0", "alice", true),
            (2, "tenants/acme", "bob", true),
            (3, "backends/gpu-0", "alice", true),
            (4, "backends/gpu-0", "alice", false),
            (5, "tenants/acme", "bob", true),
        ]
    );
    let change = config_store::Change {
        key: acme.key.clone(),
        expected: Precondition::At(Revision(5)),
        document: None,
        author: "carol".into(),
        at: Timestamp(0),
    };
    assert_eq!(store.commit(change).await.unwrap().revision, Revision(6));
}
