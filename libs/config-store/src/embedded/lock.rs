//! Keeps two processes out of one store.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::StoreError;

/// A locked file. The system unlocks it when the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Locks `path`, and writes into it who holds it.
    pub(crate) fn take(path: &Path) -> Result<Self, StoreError> {
        let io = |action| {
            let path = path.to_owned();
            move |source| StoreError::Io { path, action, source }
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(path).map_err(io("opened"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // A message without the number is still a message.
                let _ = file.take(20).read_to_string(&mut holder);
                holder.retain(|c| c.is_ascii_digit());
                return Err(StoreError::Locked { path: path.to_owned(), holder });
            }
            Err(TryLockError::Error(error)) => return Err(io("locked")(error)),
        }
        file.set_len(0).map_err(io("written"))?;
        write!(file, "{}", std::process::id()).map_err(io("written"))?;
        Ok(Self { _file: file })
    }
}
