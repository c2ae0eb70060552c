//! Changes a store until it is killed. A test starts it: `config-store-writer FOLDER ROUND`.
//!
//! Eight writers count, each in documents of its own; every change that was acknowledged is one
//! line on standard output: `WRITER COUNT REVISION`.

use std::io::Write;

use bytes::Bytes;
use config_store::{
    Change, ConfigStore, Document, EmbeddedConfig, EmbeddedStore, Key, Metrics, Precondition,
    SchemaVersion, Timestamp,
};
use futures_util::future::join_all;

/// Documents of each writer, so that keys are both new and old.
const DOCUMENTS: u64 = 5;

async fn count(store: &EmbeddedStore, round: &str, writer: u64) {
    for count in 0.. {
        let name = format!("{round}.{writer}.{}", count % DOCUMENTS);
        let schema = SchemaVersion { major: 1, minor: 0 };
        let change = Change {
            key: Key::new("counts", &name).expect("a plain name"),
            expected: Precondition::Any,
            document: Some(Document { schema, bytes: Bytes::from(count.to_string()) }),
            author: "writer".into(),
            at: Timestamp::now(),
        };
        let made = store.commit(change).await.expect("a change is made");
        let mut out = std::io::stdout().lock();
        // When nobody reads any more, the test is over.
        if writeln!(out, "{writer} {count} {}", made.revision).and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [folder, round] = &arguments[..] else { panic!("FOLDER ROUND are needed") };
    // Short segments, so that new ones are begun under fire.
    let config = EmbeddedConfig { segment_bytes: 16 << 10, ..EmbeddedConfig::new(folder) };
    let store = EmbeddedStore::open(config, Metrics::default()).expect("the store opens");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(join_all((0..8).map(|writer| count(&store, round, writer))));
}
