//! The memory that requests' bodies are read into.
//!
//! It is reserved before there is room: all that was announced before the first byte is read, and
//! of a body that does not tell its length each step of its room. So what is allocated is never
//! more than what is reserved. Counting what came instead would let more bodies begin than fit:
//! those that are refused in the midst leave pages behind that the allocator keeps for a while.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use domain::ErrorCode;
use openai_api::ApiError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::gateway::BODY_STEP;
use crate::payload;
use crate::refusal::Refusal;
use crate::upstream::BodyFault;

/// The first room for a body of unknown length that does not come in one piece.
const FIRST_ROOM: usize = 64 * 1024;
/// Further room is as much as there was, but no more than this.
const LARGEST_STEP: usize = 1024 * 1024;

/// When to come back if there was no memory for the body.
const NO_ROOM_WAIT: Duration = Duration::from_secs(1);

/// Part of the memory for bodies, given back when dropped.
pub(super) type Memory = Option<OwnedSemaphorePermit>;

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
    /// For all of the room.
    memory: Memory,
    /// Bytes that are reserved from the start.
    ahead: usize,
    /// Bytes that have come.
    length: usize,
    /// A body in one piece, as most are, is not copied. Its room is what its connection was read
    /// into, which that has in any case.
    first: Bytes,
    /// Parts that are full. A part that grew would leave behind what is too small for the next.
    full: Vec<BytesMut>,
    last: BytesMut,
    /// Bytes that the parts have room for.
    room: usize,
}

impl<'a> Gathered<'a> {
    /// Reserves memory for as much as will be held, where that is known.
    pub(super) fn new(intake: Intake<'a>, ahead: Option<u64>) -> Result<Self, Refusal> {
        let ahead = match ahead.map(usize::try_from) {
            Some(Ok(length)) if length <= intake.limit => length,
            Some(_) => return Err(payload::refusal(BodyFault::TooLarge, intake.limit)),
            None => 0,
        };
        let mut memory = None;
        reserve(&mut memory, ahead, intake.memory)?;
        Ok(Self {
            intake,
            memory,
            ahead,
            length: 0,
            first: Bytes::new(),
            full: Vec::new(),
            last: BytesMut::new(),
            room: 0,
        })
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
            reserve(&mut self.memory, length, self.intake.memory)?;
            self.first = piece;
        } else {
            let first = std::mem::take(&mut self.first);
            self.append(&first)?;
            self.append(&piece)?;
        }
        self.length = length;
        Ok(())
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<(), Refusal> {
        while !bytes.is_empty() {
            if self.last.len() == self.last.capacity() {
                self.make_room()?;
            }
            let room = self.last.capacity() - self.last.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.last.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// Begins another part.
    fn make_room(&mut self) -> Result<(), Refusal> {
        let more = if self.room < self.ahead {
            self.ahead - self.room
        } else {
            self.room.clamp(FIRST_ROOM, LARGEST_STEP).min(self.intake.limit - self.room)
        };
        reserve(&mut self.memory, self.room + more, self.intake.memory)?;
        let part = std::mem::replace(&mut self.last, BytesMut::with_capacity(more));
        if !part.is_empty() {
            self.full.push(part);
        }
        self.room += more;
        Ok(())
    }

    /// All of it, and the memory that it holds. Parts are joined: of as many bodies at once as
    /// there are threads there is more for that moment.
    pub(super) fn finish(self) -> (Bytes, Memory) {
        let whole = if !self.full.is_empty() {
            let mut whole = BytesMut::with_capacity(self.length);
            for part in self.full.into_iter().chain([self.last]) {
                whole.extend_from_slice(&part);
            }
            whole.freeze()
        } else if !self.last.is_empty() {
            self.last.freeze()
        } else {
            self.first
        };
        (whole, self.memory)
    }
}

/// Makes sure that memory for so many bytes is reserved.
fn reserve(memory: &mut Memory, bytes: usize, all: &Arc<Semaphore>) -> Result<(), Refusal> {
    let held = memory.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
    let wanted = bytes.div_ceil(BODY_STEP).saturating_sub(held);
    let wanted = u32::try_from(wanted).map_err(|_| no_room())?;
    if wanted == 0 {
        return Ok(());
    }
    let more = Arc::clone(all).try_acquire_many_owned(wanted).map_err(|_| no_room())?;
    match memory {
        Some(held) => held.merge(more),
        None => *memory = Some(more),
    }
    Ok(())
}

fn no_room() -> Refusal {
    let message = "the gateway holds too many requests; try again shortly";
    Refusal::new(ApiError::new(ErrorCode::Overloaded, message)).retry_after(Some(NO_ROOM_WAIT))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        let (bytes, held) = body.finish();
        assert_eq!((bytes.len(), all.available_permits()), (60_000, 100 - 59));
        drop(held);
        assert_eq!(all.available_permits(), 100);
        let larger = Gathered::new(intake(&all, 100_000), Some(100_001));
        assert_eq!(code(larger), Some(ErrorCode::RequestTooLarge));
    }

    #[test]
    fn without_a_length_all_of_the_room_is_reserved_step_by_step() {
        let all = memory(1000);
        let mut body = Gathered::new(intake(&all, 300 * 1024), None).unwrap();
        let mut held = vec![0];
        for _ in 0..30 {
            body.take(piece(10 * 1024)).unwrap();
            let now = 1000 - all.available_permits();
            assert!(now * BODY_STEP >= body.room.max(body.len()));
            if held.last() != Some(&now) {
                held.push(now);
            }
        }
        // One piece; the first room; twice as much each time; no more than may come.
        assert_eq!(held, [0, 10, 64, 128, 256, 300]);
        assert_eq!(code(body.take(piece(1))), Some(ErrorCode::RequestTooLarge));
    }

    #[test]
    fn a_body_of_unknown_length_that_is_alone_may_have_all_of_the_memory() {
        let all = memory(1000);
        let limit = 1000 * BODY_STEP;
        let mut body = Gathered::new(intake(&all, limit), None).unwrap();
        for _ in 0..100 {
            body.take(piece(limit / 100)).unwrap();
        }
        assert_eq!(body.finish().0.len(), limit);
    }

    proptest! {
        #[test]
        fn a_body_is_its_pieces_or_is_refused_and_all_memory_comes_back(
            lengths in prop::collection::vec(0_usize..50_000, 0..20),
            announced in any::<bool>(),
            limit in 1_usize..400_000,
            steps in 0_usize..600,
        ) {
            let all = memory(steps);
            let pieces: Vec<_> = lengths
                .iter()
                .enumerate()
                .map(|(at, length)| Bytes::from(vec![at as u8; *length]))
                .collect();
            let whole = pieces.concat();
            let length = announced.then_some(whole.len() as u64);
            let gathered = Gathered::new(intake(&all, limit), length).and_then(|mut body| {
                for piece in &pieces {
                    body.take(piece.clone())?;
                    let room = body.room.max(body.len());
                    let reserved = (steps - all.available_permits()) * BODY_STEP;
                    assert!(room <= reserved, "{room} of {reserved}");
                }
                Ok(body.finish())
            });
            match gathered {
                Ok((bytes, memory)) => {
                    prop_assert!(bytes == whole);
                    prop_assert!(whole.len() <= limit);
                    drop(memory);
                }
                Err(refusal) if refusal.error.code == ErrorCode::RequestTooLarge => {
                    prop_assert!(whole.len() > limit);
                }
                // Room is at most twice what came, but for the first.
                Err(_) => prop_assert!(2 * whole.len().max(FIRST_ROOM) > steps * BODY_STEP),
            }
            prop_assert_eq!(all.available_permits(), steps);
        }
    }
}
