//! The store when its index is gone, damaged, older or newer than the journal.

use std::fs;
use std::path::Path;

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use tempfile::TempDir;

use super::support::change;
use crate::shared::Fault;
use crate::{
    ConfigStore, EmbeddedConfig, EmbeddedStore, Entry, Metrics, Revision, Scope, StoreError,
};

struct Setting {
    folder: TempDir,
    metrics: Metrics,
}

impl Setting {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), metrics: Metrics::default() }
    }

    fn open(&self) -> EmbeddedStore {
        let config = EmbeddedConfig::new(self.folder.path());
        EmbeddedStore::open(config, self.metrics.clone()).unwrap()
    }

    fn rebuilds(&self) -> u64 {
        self.metrics.index_rebuilds.get()
    }

    fn index(&self) -> std::path::PathBuf {
        self.folder.path().join("index")
    }
}

async fn fill(store: &EmbeddedStore, round: u32) -> Vec<Entry> {
    for at in 0..20 {
        let document = format!("{round}.{at}");
        store.commit(change(&format!("k{}", at % 7), Some(&document))).await.unwrap();
    }
    store.commit(change("k3", None)).await.unwrap();
    content(store).await
}

async fn content(store: &EmbeddedStore) -> Vec<Entry> {
    store.list(Scope::All).await.unwrap().entries
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[tokio::test]
async fn a_sound_index_is_used_as_it_is() {
    let setting = Setting::new();
    let before = fill(&setting.open(), 1).await;
    for _ in 0..3 {
        assert_eq!(content(&setting.open()).await, before);
    }
    assert_eq!(setting.rebuilds(), 0);
    assert!(!setting.folder.path().join("index.aside").exists());
}

#[tokio::test]
async fn a_deleted_index_is_made_anew() {
    let setting = Setting::new();
    let before = fill(&setting.open(), 1).await;
    fs::remove_dir_all(setting.index()).unwrap();
    assert_eq!(content(&setting.open()).await, before);
    assert_eq!(setting.rebuilds(), 1);
}

#[tokio::test]
async fn an_older_index_is_brought_up_to_the_journal() {
    let setting = Setting::new();
    fill(&setting.open(), 1).await;
    let older = setting.folder.path().join("older");
    copy(&setting.index(), &older);
    let before = fill(&setting.open(), 2).await;
    fs::remove_dir_all(setting.index()).unwrap();
    copy(&older, &setting.index());
    assert_eq!(content(&setting.open()).await, before);
    assert_eq!(content(&setting.open()).await, before);
}

#[tokio::test]
async fn an_index_that_knows_more_than_the_journal_is_set_aside() {
    let setting = Setting::new();
    let before = fill(&setting.open(), 1).await;
    let name = "journal-00000000000000000000.log";
    let older = fs::read(setting.folder.path().join(name)).unwrap();
    fill(&setting.open(), 2).await;
    fs::write(setting.folder.path().join(name), older).unwrap();
    assert_eq!(content(&setting.open()).await, before);
    assert_eq!(setting.rebuilds(), 1);
    assert!(setting.folder.path().join("index.aside").exists());
}

#[tokio::test]
async fn the_index_of_another_store_is_set_aside() {
    let (setting, other) = (Setting::new(), Setting::new());
    let before = fill(&setting.open(), 1).await;
    fill(&other.open(), 2).await;
    fs::remove_dir_all(setting.index()).unwrap();
    copy(&other.index(), &setting.index());
    assert_eq!(content(&setting.open()).await, before);
    assert_eq!(setting.rebuilds(), 1);
}

#[tokio::test]
async fn an_index_overwritten_with_garbage_costs_nothing_but_itself() {
    let mut rng = SmallRng::seed_from_u64(1);
    for round in 0..24 {
        let setting = Setting::new();
        let before = fill(&setting.open(), round).await;
        let files = files(&setting.index());
        assert!(!files.is_empty());
        // One file, or all of them; all of its bytes, some of them, or nothing left.
        let all = round % 4 == 0;
        let chosen = rng.random_range(0..files.len());
        for (at, file) in files.iter().enumerate().filter(|(at, _)| all || *at == chosen) {
            let mut bytes = fs::read(file).unwrap();
            match (round + at as u32) % 3 {
                0 => rng.fill_bytes(&mut bytes),
                1 => bytes.clear(),
                _ if bytes.is_empty() => {}
                _ => {
                    for _ in 0..=bytes.len() / 16 {
                        let at = rng.random_range(0..bytes.len());
                        bytes[at] ^= rng.random_range(1..=u8::MAX);
                    }
                }
            }
            fs::write(file, bytes).unwrap();
        }
        let store = setting.open();
        assert_eq!(content(&store).await, before, "round {round}");
        let entry = store.commit(change("more", Some("x"))).await.unwrap();
        assert_eq!(entry.revision, Revision(22), "round {round}");
    }
}

#[tokio::test]
async fn an_index_that_is_a_file_is_set_aside() {
    let setting = Setting::new();
    let before = fill(&setting.open(), 1).await;
    fs::remove_dir_all(setting.index()).unwrap();
    fs::write(setting.index(), b"nothing of ours").unwrap();
    assert_eq!(content(&setting.open()).await, before);
}

#[tokio::test]
async fn an_index_that_fails_while_it_is_used_is_made_anew_once() {
    let setting = Setting::new();
    let store = setting.open();
    let before = fill(&store, 1).await;
    store.shared.retire("a test");
    assert_eq!(content(&store).await, before);
    assert_eq!(setting.rebuilds(), 1);
    // Whoever saw the same fault finds it put right.
    let late = Fault { generation: 0, reason: "a test".to_owned() };
    crate::shared::Repair::repair(&store.commands(), late).await.unwrap();
    assert_eq!(setting.rebuilds(), 1);
    store.shared.retire("a test");
    let entry = store.commit(change("more", Some("x"))).await.unwrap();
    assert_eq!(store.get(&entry.key).await.unwrap(), Some(entry));
    assert_eq!(setting.rebuilds(), 2);
}

#[tokio::test]
async fn an_index_that_the_disk_does_not_take_is_kept_in_memory() {
    let setting = Setting::new();
    let store = setting.open();
    let before = fill(&store, 1).await;
    assert_eq!(setting.metrics.index_on_disk.get(), 1);
    // The place of the index is a link to nowhere, where nothing can be made.
    store.shared.retire("a test");
    fs::remove_dir_all(setting.index()).unwrap();
    std::os::unix::fs::symlink(setting.folder.path().join("no/where"), setting.index()).unwrap();
    assert_eq!(content(&store).await, before);
    assert_eq!(setting.metrics.index_on_disk.get(), 0);
    let entry = store.commit(change("more", Some("x"))).await.unwrap();
    assert_eq!(store.get(&entry.key).await.unwrap(), Some(entry.clone()));
    let gone = store.commit(change("k1", None)).await.unwrap();
    assert_eq!(store.get(&gone.key).await.unwrap(), None);
    let now = content(&store).await;
    drop(store);
    let again = setting.open();
    assert_eq!((content(&again).await, setting.metrics.index_on_disk.get()), (now.clone(), 0));
    drop(again);
    fs::remove_file(setting.index()).unwrap();
    let again = setting.open();
    assert_eq!((content(&again).await, setting.metrics.index_on_disk.get()), (now, 1));
}

/// Makes a folder's journal absent in some way.
type Loss = fn(&Path);

#[tokio::test]
async fn a_store_whose_journal_is_gone_does_not_open_as_an_empty_one() {
    let journal = "journal-00000000000000000000.log";
    let losses: [(&str, Loss); 5] = [
        ("index", |file| fs::remove_file(file).unwrap()),
        ("index", |file| fs::rename(file, file.with_extension("moved")).unwrap()),
        ("index.aside", |file| {
            let folder = file.parent().unwrap();
            fs::rename(folder.join("index"), folder.join("index.aside")).unwrap();
            fs::remove_file(file).unwrap();
        }),
        ("journal-00000000000000000000.log.bak", |file| {
            fs::rename(file, format!("{}.bak", file.display())).unwrap();
            fs::remove_dir_all(file.with_file_name("index")).unwrap();
        }),
        (journal, |file| {
            fs::rename(file, file.with_extension("moved")).unwrap();
            std::os::unix::fs::symlink("/no/where", file).unwrap();
        }),
    ];
    for (trace, lose) in losses {
        let setting = Setting::new();
        fill(&setting.open(), 1).await;
        lose(&setting.folder.path().join(journal));
        let names = files(setting.folder.path());
        let config = EmbeddedConfig::new(setting.folder.path());
        let error = EmbeddedStore::open(config, Metrics::default()).err().expect(trace);
        let text = error.to_string();
        assert!(text.contains(trace) && text.contains("journal"), "{text}");
        assert_eq!(files(setting.folder.path()), names, "{trace}: something was changed");
    }
}

#[tokio::test]
async fn a_lost_journal_that_is_put_back_is_the_store_again() {
    let setting = Setting::new();
    let before = fill(&setting.open(), 1).await;
    let file = setting.folder.path().join("journal-00000000000000000000.log");
    let away = setting.folder.path().join("elsewhere");
    fs::rename(&file, &away).unwrap();
    let config = EmbeddedConfig::new(setting.folder.path());
    let error = EmbeddedStore::open(config, Metrics::default()).err().unwrap();
    assert!(matches!(error, StoreError::Missing { .. }), "{error}");
    fs::rename(&away, &file).unwrap();
    assert_eq!(content(&setting.open()).await, before);
    assert_eq!(setting.rebuilds(), 0, "the index was left as it is");
}

#[tokio::test]
async fn a_journal_behind_a_link_is_the_journal() {
    let (setting, disk) = (Setting::new(), tempfile::tempdir().unwrap());
    let before = fill(&setting.open(), 1).await;
    let name = "journal-00000000000000000000.log";
    let (file, moved) = (setting.folder.path().join(name), disk.path().join(name));
    fs::copy(&file, &moved).unwrap();
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&moved, &file).unwrap();
    let store = setting.open();
    assert_eq!(content(&store).await, before);
    let length = fs::metadata(&moved).unwrap().len();
    let entry = store.commit(change("more", Some("x"))).await.unwrap();
    drop(store);
    assert!(fs::metadata(&moved).unwrap().len() > length, "changes go to where the link leads");
    assert_eq!(setting.open().get(&entry.key).await.unwrap(), Some(entry));
}

#[tokio::test]
async fn a_second_process_is_kept_out() {
    let setting = Setting::new();
    let store = setting.open();
    let config = EmbeddedConfig::new(setting.folder.path());
    let error = EmbeddedStore::open(config, Metrics::default()).err().unwrap();
    let text = error.to_string();
    assert!(matches!(error, StoreError::Locked { .. }), "{text}");
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    drop(store);
    setting.open();
}
