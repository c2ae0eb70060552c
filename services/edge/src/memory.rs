//! The memory for requests' bodies, and for what is made of them.
//!
//! It is reserved before it is used. What is reserved for bytes is given back with the last of
//! them. Large ones have pages of their own: the system gives these when they are written to and
//! has them back as soon as they are not needed, while an allocator would keep them for the next
//! ones of that size.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use domain::ErrorCode;
use memmap2::{MmapMut, MmapOptions};
use openai_api::ApiError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::refusal::Refusal;

/// Bytes that one permit of the memory stands for.
pub(crate) const STEP: usize = 1024;
/// Longer bytes have pages of their own: below, the system's calls and the faults for each page
/// cost more than what the allocator keeps.
pub(crate) const MOST_ON_HEAP: usize = 1024 * 1024;

/// When to come back if there was no memory.
const NO_ROOM_WAIT: Duration = Duration::from_secs(1);

/// There is no memory left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl From<Full> for Refusal {
    fn from(_: Full) -> Self {
        let message = "the gateway holds too many requests; try again shortly";
        let error = ApiError::new(ErrorCode::Overloaded, message);
        Refusal::new(error).retry_after(Some(NO_ROOM_WAIT))
    }
}

/// Part of the memory, given back when dropped.
#[derive(Debug, Default)]
pub(crate) struct Memory(Option<OwnedSemaphorePermit>);

impl Memory {
    /// For so many bytes.
    pub(crate) fn reserved(bytes: usize, all: &Arc<Semaphore>) -> Result<Self, Full> {
        let mut memory = Self::default();
        memory.reserve(bytes, all)?;
        Ok(memory)
    }

    /// Makes sure that it is for so many bytes.
    pub(crate) fn reserve(&mut self, bytes: usize, all: &Arc<Semaphore>) -> Result<(), Full> {
        let wanted = bytes.div_ceil(STEP).saturating_sub(self.steps());
        let wanted = u32::try_from(wanted).map_err(|_| Full)?;
        if wanted == 0 {
            return Ok(());
        }
        let more = Arc::clone(all).try_acquire_many_owned(wanted).map_err(|_| Full)?;
        match &mut self.0 {
            Some(held) => held.merge(more),
            None => self.0 = Some(more),
        }
        Ok(())
    }

    /// Gives back what is more than so many bytes.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let more = self.steps().saturating_sub(bytes.div_ceil(STEP));
        drop(self.0.as_mut().and_then(|held| held.split(more)));
    }

    /// Bytes that hold it until the last of them is gone.
    pub(crate) fn with(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(Held { bytes, _memory: self })
    }

    fn steps(&self) -> usize {
        self.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }
}

struct Held<B> {
    bytes: B,
    _memory: Memory,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Held<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// Pieces as one, with memory of its own.
pub(crate) fn joined(pieces: &[Bytes], all: &Arc<Semaphore>) -> Result<Bytes, Full> {
    let length = pieces.iter().map(Bytes::len).sum();
    let memory = Memory::reserved(length, all)?;
    if length <= MOST_ON_HEAP {
        let mut whole = BytesMut::with_capacity(length);
        pieces.iter().for_each(|piece| whole.extend_from_slice(piece));
        return Ok(memory.with(whole));
    }
    let (mut whole, mut at) = (pages(length)?, 0);
    for piece in pieces {
        whole[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
    Ok(memory.with(whole))
}

/// Pages for so many bytes. They take memory when they are written to.
pub(crate) fn pages(bytes: usize) -> Result<MmapMut, Full> {
    let pages = MmapOptions::new().len(bytes).no_reserve_swap().map_anon().map_err(|error| {
        tracing::warn!(bytes, %error, "the system gives no pages for a request's body");
        Full
    })?;
    // A huge page would be taken at the first byte, and is more than was reserved. Where there are
    // none the advice is refused, and not needed.
    #[cfg(target_os = "linux")]
    let _ = pages.advise(memmap2::Advice::NoHugePage);
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_for_bytes_comes_back_with_the_last_of_them() {
        let all = Arc::new(Semaphore::new(10));
        let bytes = Memory::reserved(5 * STEP - 1, &all).unwrap().with(vec![1; 5000]);
        assert_eq!(all.available_permits(), 5);
        let part = bytes.slice(10..20);
        drop(bytes);
        assert_eq!(all.available_permits(), 5);
        drop(part);
        assert_eq!(all.available_permits(), 10);
        let mut memory = Memory::reserved(9 * STEP, &all).unwrap();
        memory.shrink(20 * STEP);
        assert_eq!(all.available_permits(), 1);
        memory.shrink(STEP + 1);
        assert_eq!(all.available_permits(), 8);
        assert_eq!(memory.reserve(11 * STEP, &all), Err(Full));
        memory.shrink(0);
        assert_eq!(all.available_permits(), 10);
    }

    #[test]
    fn pieces_are_joined_only_where_there_is_room_for_the_whole() {
        for length in [0, 10, MOST_ON_HEAP / 2, MOST_ON_HEAP] {
            let pieces = [Bytes::from(vec![1; length]), Bytes::from(vec![2; length])];
            let steps = (2 * length).div_ceil(STEP);
            let all = Arc::new(Semaphore::new(steps));
            let whole = joined(&pieces, &all).unwrap();
            assert!(whole == pieces.concat());
            assert_eq!(all.available_permits(), 0);
            assert_eq!(joined(&pieces, &all).is_err(), length > 0);
            drop(whole);
            assert_eq!(all.available_permits(), steps);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_body_never_takes_a_huge_page() {
        let pages = pages(4 << 20).unwrap();
        let from = format!("{:x}-", pages.as_ptr() as usize);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let own = maps.lines().skip_while(|line| !line.starts_with(&from));
        let flags = own.skip(1).find(|line| line.starts_with("VmFlags")).unwrap();
        let has_huge = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        assert_eq!(flags.split_whitespace().any(|flag| flag == "nh"), has_huge, "{flags}");
    }
}
