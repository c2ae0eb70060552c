//! The index of the journal: a sled database with the newest state of each key.
//!
//! Nothing depends on it for durability. At every start it is compared with the journal, state
//! by state, and put right; while it runs, every state that is read is checked, and an index
//! that fails is made anew. sled may panic on files that it did not write: that counts as a
//! fault like any other.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use bytes::{Bytes, BytesMut};
use sled::{Batch, Db, IVec};
use xxhash_rust::xxh3::xxh3_64;

use super::record::{decode_entry, encode_entry};
use crate::ledger::Forgotten;
use crate::table::{Table, TableFault, newest};
use crate::{Entry, Key, Revision, Scope, StoreId};

/// Where the journal stood that the index was last put right with: id, revision, floor.
const POSITION: &[u8] = b"p";
/// Prefix of a key's state.
const STATE: u8 = b'k';
/// Prefix of a revision's key.
const REVISION: u8 = b'r';
/// sled's cache. States are small and the whole store is bounded.
const CACHE_BYTES: u64 = 32 << 20;
/// Changes in one batch when the index is made.
const BATCH: usize = 1024;

type Found<T> = Result<T, TableFault>;

/// An open index.
pub(crate) struct Index {
    db: Db,
    id: StoreId,
}

/// What putting an index right took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Corrections {
    /// States that were missing or others.
    pub(crate) written: usize,
    /// Keys that the journal does not have.
    pub(crate) removed: usize,
}

/// Calls into sled.
fn guarded<T>(call: impl FnOnce() -> Result<T, sled::Error>) -> Found<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| TableFault(error.to_string())),
        Err(_) => Err(TableFault("sled panicked".to_owned())),
    }
}

impl Index {
    /// Opens the database of a folder, or makes one.
    pub(crate) fn open(path: &Path, id: StoreId) -> Found<Self> {
        let config = sled::Config::new()
            .path(path)
            .cache_capacity(CACHE_BYTES)
            // Nothing waits for a flush: what is lost is taken from the journal.
            .flush_every_ms(None);
        Ok(Self { db: guarded(|| config.open())?, id })
    }

    /// The store and the revision that the index was last written for; `None` when it is new.
    pub(crate) fn position(&self) -> Found<Option<(StoreId, Revision)>> {
        let Some(bytes) = guarded(|| self.db.get(POSITION))? else { return Ok(None) };
        let read = || {
            let (id, revision) = bytes.split_first_chunk::<16>()?;
            Some((StoreId(*id), Revision(u64::from_be_bytes(revision.try_into().ok()?))))
        };
        read().map(Some).ok_or_else(|| TableFault("its position cannot be read".to_owned()))
    }

    /// Makes the index hold these states and no others.
    pub(crate) fn correct(
        &mut self,
        states: &HashMap<Key, Entry>,
        revision: Revision,
    ) -> Found<Corrections> {
        let mut corrections = Corrections::default();
        let mut batch = Corrector { db: &self.db, batch: Batch::default(), size: 0 };
        let mut seen = HashSet::with_capacity(states.len());
        for pair in self.db.iter() {
            let (place, value) = guarded(|| pair)?;
            match Stored::of(&place, &value) {
                Stored::Position => {}
                Stored::State(entry) if states.get(&entry.key) == Some(&entry) => {
                    seen.insert(entry.key);
                }
                Stored::Revision(revision, key)
                    if states.get(&key).is_some_and(|state| state.revision == revision) => {}
                _ => {
                    batch.remove(place)?;
                    corrections.removed += 1;
                }
            }
        }
        for (key, entry) in states {
            // The way from the revision is written in any case: it may be what is missing.
            batch.insert(revision_place(entry.revision), key.as_str().as_bytes())?;
            if !seen.contains(key) {
                batch.insert(state_place(key), &sealed(entry))?;
                corrections.written += 1;
            }
        }
        batch.insert(POSITION.to_vec(), &self.position_at(revision))?;
        batch.flush()?;
        Ok(corrections)
    }

    fn position_at(&self, revision: Revision) -> Vec<u8> {
        [&self.id.0[..], &revision.0.to_be_bytes()].concat()
    }

    fn state(&self, key: &Key) -> Found<Option<Entry>> {
        let place = state_place(key);
        let Some(value) = guarded(|| self.db.get(&place))? else { return Ok(None) };
        match unsealed(&value).filter(|entry| entry.key == *key) {
            Some(entry) => Ok(Some(entry)),
            None => Err(TableFault(format!("the state of {key} does not match its checksum"))),
        }
    }
}

impl Table for Index {
    fn get(&self, key: &Key) -> Found<Option<Entry>> {
        self.state(key)
    }

    fn list(&self, scope: &Scope) -> Found<Vec<Entry>> {
        let mut prefix = vec![STATE];
        if let Scope::Kind(kind) = scope {
            prefix.extend_from_slice(kind.as_bytes());
            prefix.push(b'/');
        }
        let mut found = Vec::new();
        let mut pairs = self.db.scan_prefix(&prefix);
        while let Some((_, value)) = guarded(|| pairs.next().transpose())? {
            let entry = unsealed(&value);
            found.push(entry.ok_or_else(|| TableFault("a state cannot be read".to_owned()))?);
        }
        Ok(found)
    }

    fn after(&self, scope: &Scope, revision: Revision) -> Found<Option<Entry>> {
        let mut pairs = self.db.range(revision_place(revision.next())..=revision_place(LAST));
        while let Some((place, value)) = guarded(|| pairs.next().transpose())? {
            let Stored::Revision(revision, key) = Stored::of(&place, &value) else {
                return Err(TableFault("a revision cannot be read".to_owned()));
            };
            if !scope.covers(&key) {
                continue;
            }
            let state = self.state(&key)?.filter(|entry| entry.revision == revision);
            let lost = || TableFault(format!("revision {revision} is not the state of {key}"));
            return state.map(Some).ok_or_else(lost);
        }
        Ok(None)
    }

    fn apply(&mut self, entries: &[Entry], forgotten: &[Forgotten]) -> Found<()> {
        let mut batch = Batch::default();
        let mut revision = Revision::ZERO;
        let newest = newest(entries);
        for (key, entry) in &newest {
            if let Some(before) = self.state(key)? {
                batch.remove(revision_place(before.revision));
            }
            batch.insert(state_place(key), sealed(entry));
            batch.insert(revision_place(entry.revision), key.as_str().as_bytes());
            revision = revision.max(entry.revision);
        }
        for gone in forgotten {
            let state = match newest.get(&gone.key) {
                Some(entry) => Some((*entry).clone()),
                None => self.state(&gone.key)?,
            };
            if state.is_some_and(|entry| entry.revision == gone.revision) {
                batch.remove(state_place(&gone.key));
                batch.remove(revision_place(gone.revision));
            }
        }
        batch.insert(POSITION, self.position_at(revision));
        guarded(|| self.db.apply_batch(batch))
    }
}

/// The last revision there can be.
const LAST: Revision = Revision(u64::MAX);

/// Writes in batches of bounded size.
struct Corrector<'a> {
    db: &'a Db,
    batch: Batch,
    size: usize,
}

impl Corrector<'_> {
    fn insert(&mut self, place: Vec<u8>, value: &[u8]) -> Found<()> {
        self.batch.insert(place, value);
        self.count()
    }

    fn remove(&mut self, place: IVec) -> Found<()> {
        self.batch.remove(place);
        self.count()
    }

    fn count(&mut self) -> Found<()> {
        self.size += 1;
        if self.size >= BATCH { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Found<()> {
        self.size = 0;
        let batch = std::mem::take(&mut self.batch);
        guarded(|| self.db.apply_batch(batch))
    }
}

/// What a pair of the database says.
enum Stored {
    Position,
    State(Entry),
    Revision(Revision, Key),
    Unknown,
}

impl Stored {
    fn of(place: &[u8], value: &[u8]) -> Self {
        let read = || match place.split_first()? {
            _ if place == POSITION => Some(Self::Position),
            (&STATE, key) => {
                let entry = unsealed(value)?;
                (entry.key.as_str().as_bytes() == key).then_some(Self::State(entry))
            }
            (&REVISION, number) => {
                let revision = Revision(u64::from_be_bytes(number.try_into().ok()?));
                let key = Key::parse(std::str::from_utf8(value).ok()?).ok()?;
                Some(Self::Revision(revision, key))
            }
            _ => None,
        };
        read().unwrap_or(Self::Unknown)
    }
}

fn state_place(key: &Key) -> Vec<u8> {
    [&[STATE], key.as_str().as_bytes()].concat()
}

fn revision_place(revision: Revision) -> Vec<u8> {
    [&[REVISION][..], &revision.0.to_be_bytes()].concat()
}

/// A state behind its checksum.
fn sealed(entry: &Entry) -> Vec<u8> {
    let mut body = BytesMut::new();
    encode_entry(&mut body, entry);
    [&xxh3_64(&body).to_le_bytes()[..], &body].concat()
}

fn unsealed(value: &[u8]) -> Option<Entry> {
    let (checksum, body) = value.split_first_chunk()?;
    let matches = xxh3_64(body) == u64::from_le_bytes(*checksum);
    decode_entry(Bytes::copy_from_slice(body)).filter(|_| matches)
}
