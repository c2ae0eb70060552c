//! The files of a journal: their names, how a whole one is put in place, and what to say of one
//! that cannot be read.

use std::io;

use super::disk::{Disk, DiskFile};
use super::journal::WriteFault;
use super::record::{self, FIRST, Place, Record, SegmentHead};
use super::segment::SegmentFault;
use crate::{Entry, Revision, StoreError};

/// A segment before it has its name.
pub(super) const UNFINISHED: &str = "journal.tmp";
/// What was cut off last, for whoever wants to look at it.
pub(super) const TORN: &str = "torn.bytes";

/// Writes a segment under another name, then gives it its own.
pub(super) fn write_segment(
    disk: &dyn Disk,
    head: SegmentHead,
    states: &[Entry],
) -> Result<(Box<dyn DiskFile>, u64), WriteFault> {
    let place = Place::of_segment(head.id, head.base);
    let name = name_of(head.base);
    let mut bytes = Vec::new();
    record::write(&mut bytes, FIRST, 0, &Record::Segment(head));
    for entry in states {
        let offset = bytes.len() as u64;
        record::write(&mut bytes, place.at(offset), 0, &Record::Entry(entry.clone()));
    }
    let written = disk.create(UNFINISHED).and_then(|mut file| {
        file.write_at(&bytes, 0)?;
        file.sync()?;
        Ok(file)
    });
    let file = written.map_err(|error| {
        // It is in nobody's way: the next attempt writes over it.
        let _ = disk.remove(UNFINISHED);
        WriteFault::NotWritten(error)
    })?;
    disk.rename(UNFINISHED, &name)
        .and_then(|()| disk.sync_names())
        .map_err(|e| WriteFault::Broken(format!("{name} could not be put in place: {e}")))?;
    Ok((file, bytes.len() as u64))
}

/// Keeps what is cut off, as far as the disk lets it: nothing depends on it.
pub(super) fn save_torn(disk: &dyn Disk, bytes: &[u8]) {
    let saved = disk.create(TORN).and_then(|mut file| file.write_at(bytes, 0));
    if let Err(error) = saved {
        tracing::warn!(%error, "the torn bytes of the journal could not be kept aside");
    }
}

pub(super) fn name_of(base: Revision) -> String {
    format!("journal-{:020}.log", base.0)
}

pub(super) fn base_of(name: &str) -> Option<Revision> {
    let digits = name.strip_prefix("journal-")?.strip_suffix(".log")?;
    let plain = digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| plain).map(Revision)
}

pub(super) fn fault(disk: &dyn Disk, name: &str, fault: SegmentFault) -> StoreError {
    let path = disk.path(name);
    match fault {
        SegmentFault::Newer(found) => StoreError::Newer { path, found },
        SegmentFault::Damaged { offset, reason, in_changes } => {
            let mut advice = "Restore the folder from a backup".to_owned();
            if in_changes {
                // The one way to go on that gives changes up: only by hand.
                let shown = path.display();
                advice.push_str(&format!(
                    ". To go on without this change and all that follow it: keep a copy, then \
                     `truncate -s {offset} {shown}`"
                ));
            }
            StoreError::Damaged { path, offset, reason, advice }
        }
    }
}

pub(super) fn io_fault(
    disk: &dyn Disk,
    name: &str,
    action: &'static str,
) -> impl FnOnce(io::Error) -> StoreError + use<> {
    let path = disk.path(name);
    move |source| StoreError::Io { path, action, source }
}
