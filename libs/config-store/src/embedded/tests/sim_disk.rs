//! A disk in memory that remembers every operation, and can be found after a crash in every
//! state that a real disk might be in.
//!
//! It is as unkind as the rules allow: until a file is synced, any of its pages may be there or
//! not, its length may have grown without its content, and until the names are synced, any
//! change of a name may be there or not, independently of all others.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::embedded::disk::{Disk, DiskFile};

/// Small, so that one record spans several.
const PAGE: u64 = 32;
/// Up to this many pending operations, every subset of them is tried.
const EXHAUSTIVE: usize = 9;
/// Subsets drawn at random beyond.
const DRAWN: usize = 64;

#[derive(Clone, Debug)]
enum Op {
    Create { name: String, inode: usize },
    Write { inode: usize, offset: u64, bytes: Vec<u8> },
    Truncate { inode: usize, length: u64 },
    Sync { inode: usize },
    Rename { from: String, to: String, inode: usize },
    Remove { name: String },
    SyncNames,
}

/// Files by number, and names of some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Content {
    files: Vec<Vec<u8>>,
    names: BTreeMap<String, usize>,
}

impl Content {
    /// The bytes of a file.
    pub(super) fn file_mut(&mut self, name: &str) -> &mut Vec<u8> {
        &mut self.files[self.names[name]]
    }

    /// The names of all files.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.names.remove(name).unwrap();
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Create { name, inode } => {
                self.grow(*inode);
                self.names.insert(name.clone(), *inode);
            }
            Op::Write { inode, offset, bytes } => {
                self.grow(*inode);
                let (file, from) = (&mut self.files[*inode], *offset as usize);
                let end = from + bytes.len();
                file.resize(file.len().max(end), 0);
                file[from..end].copy_from_slice(bytes);
            }
            Op::Truncate { inode, length } => self.files[*inode].resize(*length as usize, 0),
            Op::Rename { from, to, inode } => {
                self.names.remove(from);
                self.names.insert(to.clone(), *inode);
            }
            Op::Remove { name } => drop(self.names.remove(name)),
            Op::Sync { .. } | Op::SyncNames => {}
        }
    }

    fn grow(&mut self, inode: usize) {
        let length = self.files.len().max(inode + 1);
        self.files.resize(length, Vec::new());
    }
}

#[derive(Debug, Default)]
struct Sim {
    start: Content,
    now: Content,
    log: Vec<Op>,
    /// Operations until one fails, once.
    fails_in: Option<usize>,
}

/// The disk. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub(super) struct SimDisk(Arc<Mutex<Sim>>);

impl SimDisk {
    /// A disk that holds this, all of it synced.
    pub(super) fn holding(content: Content) -> Self {
        let sim = Sim { start: content.clone(), now: content, ..Sim::default() };
        Self(Arc::new(Mutex::new(sim)))
    }

    /// The operation that comes after `operations` others fails, and has no effect.
    pub(super) fn fail_after(&self, operations: usize) {
        self.0.lock().fails_in = Some(operations);
    }

    /// Whether the failure has happened.
    pub(super) fn has_failed(&self) -> bool {
        self.0.lock().fails_in.is_none()
    }

    /// Operations so far.
    pub(super) fn operations(&self) -> usize {
        self.0.lock().log.len()
    }

    /// The disk as it was behind the first `operations`, with what was not synced by then.
    pub(super) fn as_of(&self, operations: usize) -> Self {
        let sim = self.0.lock();
        let (start, log) = (sim.start.clone(), sim.log[..operations].to_vec());
        let mut now = start.clone();
        log.iter().for_each(|op| now.apply(op));
        Self(Arc::new(Mutex::new(Sim { start, now, log, fails_in: None })))
    }

    /// What a process sees that opens the files now.
    pub(super) fn content(&self) -> Content {
        self.0.lock().now.clone()
    }

    /// Every state that the disk may be in after a loss of power behind the first `operations`.
    pub(super) fn crashes(&self, operations: usize) -> Vec<Content> {
        let sim = self.0.lock();
        let mut durable = sim.start.clone();
        let mut pending: Vec<Op> = Vec::new();
        for op in &sim.log[..operations] {
            match op {
                Op::Sync { inode } => settle(&mut durable, &mut pending, |op| is_of(op, *inode)),
                Op::SyncNames => settle(&mut durable, &mut pending, is_name),
                Op::Write { inode, offset, bytes } => {
                    pending.extend(pages(*inode, *offset, bytes));
                }
                op => pending.push(op.clone()),
            }
        }
        let mut states: Vec<_> = subsets(pending.len(), operations as u64)
            .into_iter()
            .map(|kept| {
                let mut content = durable.clone();
                let kept = pending.iter().zip(kept).filter(|(_, kept)| *kept);
                kept.for_each(|(op, _)| content.apply(op));
                content
            })
            .collect();
        states.sort_unstable();
        states.dedup();
        states
    }

    fn act(&self, op: Op) -> io::Result<()> {
        let mut sim = self.0.lock();
        match sim.fails_in {
            Some(0) => {
                sim.fails_in = None;
                return Err(io::ErrorKind::StorageFull.into());
            }
            Some(left) => sim.fails_in = Some(left - 1),
            None => {}
        }
        sim.now.apply(&op);
        sim.log.push(op);
        Ok(())
    }

    fn inode(&self, name: &str) -> io::Result<usize> {
        self.0.lock().now.names.get(name).copied().ok_or(io::ErrorKind::NotFound.into())
    }
}

/// Makes those of the pending operations durable that `chosen` says.
fn settle(durable: &mut Content, pending: &mut Vec<Op>, chosen: impl Fn(&Op) -> bool) {
    let (done, left) = pending.drain(..).partition(|op| chosen(op));
    *pending = left;
    let done: Vec<Op> = done;
    done.iter().for_each(|op| durable.apply(op));
}

fn is_of(op: &Op, file: usize) -> bool {
    matches!(op, Op::Write { inode, .. } | Op::Truncate { inode, .. } if *inode == file)
}

fn is_name(op: &Op) -> bool {
    matches!(op, Op::Create { .. } | Op::Rename { .. } | Op::Remove { .. })
}

/// A write as the pages that may be lost one by one, and the length that may come without them.
fn pages(inode: usize, offset: u64, bytes: &[u8]) -> Vec<Op> {
    let mut ops = Vec::new();
    let mut from = 0;
    while from < bytes.len() {
        let at = offset + from as u64;
        let to = bytes.len().min(from + (PAGE - at % PAGE) as usize);
        ops.push(Op::Write { inode, offset: at, bytes: bytes[from..to].to_vec() });
        from = to;
    }
    let end = offset + bytes.len() as u64;
    ops.push(Op::Write { inode, offset: end, bytes: Vec::new() });
    ops
}

/// Which of `count` operations are kept: all ways if they are few, else those that find most
/// faults and some at random.
fn subsets(count: usize, seed: u64) -> Vec<Vec<bool>> {
    if count <= EXHAUSTIVE {
        return (0..1_usize << count)
            .map(|bits| (0..count).map(|at| bits >> at & 1 == 1).collect())
            .collect();
    }
    let mut kept = Vec::new();
    for one in 0..count {
        kept.push((0..count).map(|at| at < one).collect());
        kept.push((0..count).map(|at| at > one).collect());
        kept.push((0..count).map(|at| at == one).collect());
        kept.push((0..count).map(|at| at != one).collect());
    }
    kept.push(vec![true; count]);
    let mut rng = SmallRng::seed_from_u64(seed);
    kept.extend((0..DRAWN).map(|_| (0..count).map(|_| rng.random()).collect()));
    kept
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().now.names.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let inode = self.inode(name)?;
        Ok(self.0.lock().now.files[inode].clone())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let inode = self.0.lock().now.files.len();
        self.act(Op::Create { name: name.to_owned(), inode })?;
        Ok(Box::new(SimFile { disk: self.clone(), inode }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(SimFile { disk: self.clone(), inode: self.inode(name)? }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let inode = self.inode(from)?;
        self.act(Op::Rename { from: from.to_owned(), to: to.to_owned(), inode })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.act(Op::Remove { name: name.to_owned() })
    }

    fn sync_names(&self) -> io::Result<()> {
        self.act(Op::SyncNames)
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("sim").join(name)
    }
}

struct SimFile {
    disk: SimDisk,
    inode: usize,
}

impl DiskFile for SimFile {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        // A write that fails may have written its first half.
        let half = bytes.len() / 2;
        let inode = self.inode;
        self.disk.act(Op::Write { inode, offset, bytes: bytes[..half].to_vec() })?;
        let (offset, bytes) = (offset + half as u64, bytes[half..].to_vec());
        self.disk.act(Op::Write { inode, offset, bytes })
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.disk.act(Op::Truncate { inode: self.inode, length })
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.act(Op::Sync { inode: self.inode })
    }
}

#[test]
fn what_was_not_synced_may_be_lost_in_any_part_and_what_was_synced_may_not() {
    let disk = SimDisk::default();
    let mut file = disk.create("a").unwrap();
    file.write_at(&[1; 100], 0).unwrap();
    // Lost or kept: the name, the pages of both halves, the length.
    assert!(disk.crashes(disk.operations()).len() > 8);
    file.sync().unwrap();
    let names = |content: &Content| content.names().map(str::to_owned).collect::<Vec<_>>();
    let states = disk.crashes(disk.operations());
    assert_eq!(states.iter().map(names).collect::<Vec<_>>(), [vec![], vec!["a".to_owned()]]);
    disk.sync_names().unwrap();
    let states = disk.crashes(disk.operations());
    assert_eq!(states, [disk.content()]);
}
