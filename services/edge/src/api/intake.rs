//! Requests' bodies as they come in.
//!
//! Their memory is reserved before it is used: all that was announced before the first byte is
//! read, and of a body that does not tell its length each step. A body that is large, or may become
//! so, is read into pages of its own.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use memmap2::MmapMut;
use tokio::sync::Semaphore;

use crate::memory::{MOST_ON_HEAP, Memory, pages};
use crate::payload;
use crate::refusal::Refusal;
use crate::upstream::BodyFault;

/// Room from the allocator for a body of unknown length that does not come in one piece, which most
/// such bodies fit in. It is also by how much more is reserved at a time.
const FIRST_ROOM: usize = 64 * 1024;

/// The bounds within which a body is read.
#[derive(Clone, Copy)]
pub(super) struct Intake<'a> {
    /// The memory for all of them.
    pub(super) memory: &'a Arc<Semaphore>,
    /// Its greatest length.
    pub(super) limit: usize,
    /// How long it may make no progress.
    pub(super) patience: Duration,
}

/// What has come of a body.
pub(super) struct Gathered<'a> {
    intake: Intake<'a>,
    memory: Memory,
    /// Bytes that are reserved from the start.
    ahead: usize,
    /// Bytes that have come.
    length: usize,
    /// A body in one piece, as most come, is not copied. Its room is what its connection was read
    /// into, which that has in any case.
    first: Bytes,
    room: Option<Room>,
}

/// Where a body is that came in several pieces.
enum Room {
    Heap(BytesMut),
    /// Pages for as many bytes as may come.
    Pages(MmapMut),
}

impl Room {
    fn capacity(&self) -> usize {
        match self {
            Room::Heap(there) => there.capacity(),
            Room::Pages(pages) => pages.len(),
        }
    }

    /// Adds bytes behind the `at` that are there.
    fn write(&mut self, at: usize, bytes: &[u8]) {
        match self {
            Room::Heap(there) => there.extend_from_slice(bytes),
            Room::Pages(pages) => pages[at..at + bytes.len()].copy_from_slice(bytes),
        }
    }
}

impl<'a> Gathered<'a> {
    /// Reserves memory for as much as will be held, where that is known.
    pub(super) fn new(intake: Intake<'a>, ahead: Option<u64>) -> Result<Self, Refusal> {
        let ahead = match ahead.map(usize::try_from) {
            Some(Ok(length)) if length <= intake.limit => length,
            Some(_) => return Err(payload::refusal(BodyFault::TooLarge, intake.limit)),
            None => 0,
        };
        let memory = Memory::reserved(ahead, intake.memory)?;
        Ok(Self { intake, memory, ahead, length: 0, first: Bytes::new(), room: None })
    }

    /// Bytes that have come.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Adds a piece.
    pub(super) fn take(&mut self, piece: Bytes) -> Result<(), Refusal> {
        let length = self.length + piece.len();
        if length > self.intake.limit {
            return Err(payload::refusal(BodyFault::TooLarge, self.intake.limit));
        }
        if self.length == 0 {
            self.memory.reserve(length, self.intake.memory)?;
            self.first = piece;
        } else if !piece.is_empty() {
            if length > self.ahead {
                let wanted = length.next_multiple_of(FIRST_ROOM).min(self.intake.limit);
                self.memory.reserve(wanted, self.intake.memory)?;
            }
            let mut room = match self.room.take() {
                None => {
                    let first = std::mem::take(&mut self.first);
                    self.room_for(length, &first)?
                }
                Some(room) if length <= room.capacity() => room,
                Some(Room::Heap(full)) => self.room_for(length, &full)?,
                Some(Room::Pages(full)) => self.room_for(length, &full[..self.length])?,
            };
            room.write(self.length, &piece);
            self.room = Some(room);
        }
        self.length = length;
        Ok(())
    }

    /// Room for so many bytes, with what is there `so_far`.
    fn room_for(&self, length: usize, so_far: &[u8]) -> Result<Room, Refusal> {
        let on_heap = if self.ahead > 0 { self.ahead } else { FIRST_ROOM.min(self.intake.limit) };
        let mut room = if length <= on_heap && on_heap <= MOST_ON_HEAP {
            Room::Heap(BytesMut::with_capacity(on_heap))
        } else {
            let most = if length <= self.ahead { self.ahead } else { self.intake.limit };
            Room::Pages(pages(most)?)
        };
        room.write(0, so_far);
        Ok(room)
    }

    /// All of it, which holds its memory.
    pub(super) fn finish(self) -> Bytes {
        match self.room {
            None if self.first.is_empty() => self.first,
            None => self.memory.with(self.first),
            Some(Room::Heap(bytes)) => self.memory.with(bytes),
            Some(Room::Pages(pages)) => self.memory.with(pages).slice(..self.length),
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::ErrorCode;
    use proptest::prelude::*;

    use super::*;
    use crate::memory::STEP;

    fn memory(steps: usize) -> Arc<Semaphore> {
        Arc::new(Semaphore::new(steps))
    }

    fn intake(memory: &Arc<Semaphore>, limit: usize) -> Intake<'_> {
        Intake { memory, limit, patience: Duration::from_secs(1) }
    }

    fn piece(bytes: usize) -> Bytes {
        Bytes::from(vec![7; bytes])
    }

    fn code<T>(result: Result<T, Refusal>) -> Option<ErrorCode> {
        result.err().map(|refusal| refusal.error.code)
    }

    #[test]
    fn what_is_announced_is_reserved_before_anything_comes_and_no_more_after() {
        let all = memory(100);
        let mut body = Gathered::new(intake(&all, 100_000), Some(60_000)).unwrap();
        assert_eq!(all.available_permits(), 100 - 59);
        let second = Gathered::new(intake(&all, 100_000), Some(60_000));
        assert_eq!(code(second), Some(ErrorCode::Overloaded));
        for _ in 0..6 {
            body.take(piece(10_000)).unwrap();
            assert_eq!(all.available_permits(), 100 - 59);
        }
        let bytes = body.finish();
        assert_eq!((bytes.len(), all.available_permits()), (60_000, 100 - 59));
        drop(bytes);
        assert_eq!(all.available_permits(), 100);
        let larger = Gathered::new(intake(&all, 100_000), Some(100_001));
        assert_eq!(code(larger), Some(ErrorCode::RequestTooLarge));
    }

    #[test]
    fn without_a_length_memory_is_reserved_step_by_step() {
        let all = memory(1000);
        let mut body = Gathered::new(intake(&all, 300 * 1024), None).unwrap();
        let mut held = vec![0];
        for _ in 0..30 {
            body.take(piece(10 * 1024)).unwrap();
            let now = 1000 - all.available_permits();
            assert!(now * STEP >= body.len());
            if held.last() != Some(&now) {
                held.push(now);
            }
        }
        // One piece; then steps; no more than may come.
        assert_eq!(held, [0, 10, 64, 128, 192, 256, 300]);
        assert_eq!(code(body.take(piece(1))), Some(ErrorCode::RequestTooLarge));
    }

    #[test]
    fn a_large_body_has_pages_of_its_own_and_a_small_one_has_not() {
        let all = memory(10_000);
        let limit = 4 << 20;
        let read = |length: usize, announced: bool| {
            let ahead = announced.then_some(length as u64);
            let mut body = Gathered::new(intake(&all, limit), ahead).unwrap();
            body.take(piece(length / 2)).unwrap();
            body.take(piece(length - length / 2)).unwrap();
            let has_pages = matches!(body.room, Some(Room::Pages(_)));
            assert_eq!(body.finish(), piece(length));
            has_pages
        };
        for (announced, largest_without) in [(true, MOST_ON_HEAP), (false, FIRST_ROOM)] {
            assert!(!read(10_000, announced));
            assert!(!read(largest_without, announced));
            assert!(read(largest_without + 1, announced));
            assert!(read(limit, announced));
        }
    }

    #[test]
    fn a_body_of_unknown_length_that_is_alone_may_have_all_of_the_memory() {
        let all = memory(1000);
        let limit = 1000 * STEP;
        let mut body = Gathered::new(intake(&all, limit), None).unwrap();
        for _ in 0..100 {
            body.take(piece(limit / 100)).unwrap();
        }
        assert_eq!(body.finish().len(), limit);
    }

    proptest! {
        #[test]
        fn a_body_is_its_pieces_or_is_refused_and_all_memory_comes_back(
            lengths in prop::collection::vec(0_usize..50_000, 0..20),
            // All that comes, a part of it as of a form, or nothing.
            announced in prop::option::of(0.0..=1.0),
            scale in prop::sample::select(vec![1_usize, 40]),
            limit in 1_usize..400_000,
            steps in 0_usize..600,
        ) {
            let (lengths, limit, steps) =
                (lengths.iter().map(|l| l * scale).collect::<Vec<_>>(), limit * scale, steps * scale);
            let all = memory(steps);
            let pieces: Vec<_> = lengths
                .iter()
                .enumerate()
                .map(|(at, length)| Bytes::from(vec![at as u8; *length]))
                .collect();
            let whole = pieces.concat();
            let length = announced.map(|share: f64| (share * whole.len() as f64) as u64);
            let gathered = Gathered::new(intake(&all, limit), length).and_then(|mut body| {
                for piece in &pieces {
                    body.take(piece.clone())?;
                    let reserved = (steps - all.available_permits()) * STEP;
                    assert!(body.len() <= reserved, "{} of {reserved}", body.len());
                }
                Ok(body.finish())
            });
            match gathered {
                Ok(bytes) => {
                    prop_assert!(bytes == whole);
                    prop_assert!(whole.len() <= limit);
                }
                Err(refusal) if refusal.error.code == ErrorCode::RequestTooLarge => {
                    prop_assert!(whole.len() > limit);
                }
                // What is reserved is at most a step more than what came.
                Err(_) => prop_assert!(whole.len() + FIRST_ROOM + STEP > steps * STEP),
            }
            prop_assert_eq!(all.available_permits(), steps);
        }
    }
}
