//! Bringing up a folder and its index.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::disk::Disk;
use super::files::{TORN, base_of};
use super::index::Index;
use crate::metrics::Metrics;
use crate::table::{MemoryTable, Table, TableFault};
use crate::{Entry, Key, Revision, StoreError, StoreId};

const INDEX: &str = "index";
const ASIDE: &str = "index.aside";

fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> StoreError + use<> {
    let path = path.to_owned();
    move |source| StoreError::Io { path, action, source }
}

/// Makes a folder with what is missing above it, each of them durable.
pub(super) fn prepare(folder: &Path) -> Result<(), StoreError> {
    let missing: Vec<_> = folder.ancestors().take_while(|path| !is_folder(path)).collect();
    for path in missing.into_iter().rev() {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(io(path, "made")(error));
            }
            _ => {}
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        File::open(parent).and_then(|file| file.sync_all()).map_err(io(parent, "synced"))?;
    }
    Ok(())
}

fn is_folder(path: &Path) -> bool {
    // The empty path is what is left above a relative one.
    path.as_os_str().is_empty() || path.is_dir()
}

/// Refuses a folder that has no journal and yet traces of one: a new, empty store in its place
/// would let every tenant and key be forgotten.
pub(super) fn refuse_lost_journal(folder: &Path, disk: &dyn Disk) -> Result<(), StoreError> {
    let names = disk.list().map_err(io(folder, "listed"))?;
    if names.iter().any(|name| base_of(name).is_some()) {
        return Ok(());
    }
    // It is made after the first segment has its name, so no crash leaves it alone.
    let of_index =
        [INDEX, ASIDE].into_iter().find(|name| folder.join(name).symlink_metadata().is_ok());
    let renamed = |name: &&str| name.starts_with("journal-") || *name == TORN;
    let trace = of_index.or_else(|| names.iter().map(String::as_str).find(renamed));
    match trace {
        None => Ok(()),
        Some(trace) => {
            Err(StoreError::Missing { folder: folder.to_owned(), trace: trace.to_owned() })
        }
    }
}

/// Opens the index and puts it right. One that is damaged, or of another store, or ahead of the
/// journal, is set aside and made anew: it may hold what somebody is looking for.
pub(super) fn index(
    folder: &Path,
    id: StoreId,
    states: &HashMap<Key, Entry>,
    revision: Revision,
    metrics: &Metrics,
) -> Box<dyn Table> {
    let path = folder.join(INDEX);
    let is_new = !path.exists();
    match try_index(&path, id, states, revision) {
        Ok(index) => {
            if is_new && revision > Revision::ZERO {
                metrics.index_rebuilds.inc();
                tracing::warn!(store.revision = revision.0, "the index was missing: made anew");
            }
            metrics.index_on_disk.set(1);
            Box::new(index)
        }
        Err(TableFault(reason)) => rebuild(folder, id, states, revision, &reason, metrics),
    }
}

/// Sets the index aside and makes another: on disk, or in memory where the disk takes none. What
/// is in the journal is read in either case.
pub(super) fn rebuild(
    folder: &Path,
    id: StoreId,
    states: &HashMap<Key, Entry>,
    revision: Revision,
    reason: &str,
    metrics: &Metrics,
) -> Box<dyn Table> {
    metrics.index_rebuilds.inc();
    let (path, aside) = (folder.join(INDEX), folder.join(ASIDE));
    tracing::warn!(
        store.index = %path.display(),
        aside = %aside.display(),
        reason,
        "the index is set aside and made anew from the journal"
    );
    let made = set_aside(&path, &aside)
        .map_err(|error| error.to_string())
        .and_then(|()| try_index(&path, id, states, revision).map_err(|fault| fault.0));
    metrics.index_on_disk.set(i64::from(made.is_ok()));
    match made {
        Ok(index) => Box::new(index),
        Err(reason) => {
            tracing::error!(
                store.index = %path.display(),
                reason,
                "the index cannot be made anew: it is kept in memory until the next start"
            );
            Box::new(MemoryTable::holding(states.values()))
        }
    }
}

fn set_aside(path: &Path, aside: &Path) -> io::Result<()> {
    if aside.exists() {
        remove(aside)?;
    }
    if path.exists() { fs::rename(path, aside) } else { Ok(()) }
}

fn remove(path: &Path) -> io::Result<()> {
    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

fn try_index(
    path: &Path,
    id: StoreId,
    states: &HashMap<Key, Entry>,
    revision: Revision,
) -> Result<Index, TableFault> {
    let mut index = Index::open(path, id)?;
    let position = index.position()?;
    if let Some((other, _)) = position.filter(|(other, _)| *other != id) {
        return Err(TableFault(format!("it is the index of store {other}, not of {id}")));
    }
    if let Some((_, ahead)) = position.filter(|(_, at)| *at > revision) {
        return Err(TableFault(format!(
            "it knows revision {ahead}, and the journal ends at {revision}: later changes are lost \
             from the journal"
        )));
    }
    let corrections = index.correct(states, revision)?;
    if position.is_some() && corrections != Default::default() {
        tracing::info!(
            written = corrections.written,
            removed = corrections.removed,
            "the index was behind the journal and was brought up"
        );
    }
    Ok(index)
}
