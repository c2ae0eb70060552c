//! What the journal asks of a disk: one folder of plain files.
//!
//! It is a trait so that tests can put a disk below the journal that loses everything that was
//! not synced, in every way that a real one may.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::files::base_of;

/// One folder.
pub(crate) trait Disk: Send {
    /// The names of its files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// All of a file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// Makes an empty file, in place of an older one.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file that exists, to write to.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Gives a file another name, in place of an older file of that name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Returns when the names of the files are durable.
    fn sync_names(&self) -> io::Result<()>;
    /// For messages.
    fn path(&self, name: &str) -> PathBuf;
}

/// A file to write to.
pub(crate) trait DiskFile: Send {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Cuts the file off at `length`.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
    /// Returns when the content is durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// A folder of the system.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// A folder that exists.
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }
}

impl Disk for Folder {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            // Ours are all ASCII.
            let Ok(name) = entry?.file_name().into_string() else { continue };
            // Links are followed: a journal may have been moved to a larger disk.
            if fs::metadata(self.path(&name)).is_ok_and(|found| found.is_file()) {
                names.push(name);
            } else if base_of(&name).is_some() {
                // What cannot be read is not taken for absent.
                let reason = format!("{name} is no plain file, nor a link that leads to one");
                return Err(io::Error::other(reason));
            }
        }
        Ok(names)
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(name))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        // The hashes of keys are nobody else's business.
        options.write(true).create(true).truncate(true).mode(0o600);
        Ok(Box::new(options.open(self.path(name))?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().write(true).open(self.path(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl DiskFile for File {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&mut self) -> io::Result<()> {
        // fdatasync: it covers the length too, as the content cannot be read without it.
        self.sync_data()
    }
}
