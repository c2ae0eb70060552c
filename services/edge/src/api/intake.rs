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
    /// A body in one piece, as most are, is not copied. Its room is what its connection was read
    /// into, which that has in any case.
    first: Bytes,
    joined: BytesMut,
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
        Ok(Self { intake, memory, ahead, first: Bytes::new(), joined: BytesMut::new() })
    }

    /// Bytes that have come.
    pub(super) fn len(&self) -> usize {
        self.first.len() + self.joined.len()
    }

    /// Adds a piece.
    pub(super) fn take(&mut self, piece: Bytes) -> Result<(), Refusal> {
        let length = self.len() + piece.len();
        if length > self.intake.limit {
            return Err(payload::refusal(BodyFault::TooLarge, self.intake.limit));
        }
        if self.len() == 0 {
            reserve(&mut self.memory, length, self.intake.memory)?;
            self.first = piece;
            return Ok(());
        }
        if !self.first.is_empty() || length > self.joined.capacity() {
            self.make_room(length)?;
        }
        self.joined.extend_from_slice(&piece);
        Ok(())
    }

    /// Moves what is there to where so many bytes have room. Both are there while it is copied,
    /// on as many threads at once as there are.
    fn make_room(&mut self, length: usize) -> Result<(), Refusal> {
        let room = if length <= self.ahead {
            self.ahead
        } else {
            length.max(FIRST_ROOM).next_power_of_two().min(self.intake.limit)
        };
        reserve(&mut self.memory, room, self.intake.memory)?;
        let mut joined = BytesMut::with_capacity(room);
        joined.extend_from_slice(&std::mem::take(&mut self.first));
        joined.extend_from_slice(&self.joined);
        self.joined = joined;
        Ok(())
    }

    /// All of it, and the memory that it holds.
    pub(super) fn finish(self) -> (Bytes, Memory) {
        let whole = if self.joined.is_empty() { self.first } else { self.joined.freeze() };
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
            assert!(now * BODY_STEP >= body.joined.capacity().max(body.len()));
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
                    let room = body.joined.capacity().max(body.len());
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
