//! The owner's side of the deltas: numbers them, keeps the last ones, makes snapshots.

use std::collections::VecDeque;
use std::time::Duration;

use domain::Moment;

use crate::message::{Heartbeat, MessageOf, PoolMessage};
use crate::ownership::{Reign, Stream};
use crate::state::{Position, Replicated};

/// The owner tells this often that it lives and how far it is.
pub const HEARTBEAT_EVERY: Duration = Duration::from_millis(200);

/// Changes that one [`PoolMessage::Repair`] is answered with at most. The follower asks for the
/// next when it has them, so that it is never sent more than it takes.
pub const REPAIR_BATCH: u64 = 256;

/// A snapshot that nobody fetched a part of for so long is dropped.
const SNAPSHOT_KEPT: Duration = Duration::from_secs(5);

/// Who begins to fetch is given a snapshot that was made for another within this time.
const SNAPSHOT_SHARED: Duration = Duration::from_secs(1);

/// How much an owner keeps for followers that missed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLimits {
    /// Changes.
    pub deltas: usize,
    /// Their weight in bytes.
    pub bytes: usize,
}

impl Default for RingLimits {
    /// A prompt of 32k tokens is 2,000 keys, 16 KB: 64 MB are some seconds of the busiest pool,
    /// which is more than a standby may be away without a snapshot being cheaper.
    fn default() -> Self {
        Self { deltas: 65_536, bytes: 64 << 20 }
    }
}

pub(crate) struct Publisher<S: Replicated> {
    pub(crate) reign: Reign,
    since: Option<Position>,
    /// The last change; the ring holds those up to it.
    seq: u64,
    ring: VecDeque<S::Delta>,
    ring_bytes: usize,
    limits: RingLimits,
    snapshot: Option<Snapshot<S>>,
    next_heartbeat: Moment,
}

struct Snapshot<S: Replicated> {
    seq: u64,
    chunks: Vec<S::Chunk>,
    made: Moment,
    fetched: Moment,
}

impl<S: Replicated> Publisher<S> {
    pub(crate) fn new(reign: Reign, since: Option<Position>, limits: RingLimits) -> Self {
        Self {
            reign,
            since,
            seq: 0,
            ring: VecDeque::new(),
            ring_bytes: 0,
            limits,
            snapshot: None,
            next_heartbeat: Moment::ZERO,
        }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.reign.stream
    }

    pub(crate) fn position(&self) -> Position {
        Position { stream: self.reign.stream.clone(), seq: self.seq }
    }

    /// Numbers a change that was made, and keeps it.
    pub(crate) fn publish(&mut self, delta: S::Delta) -> MessageOf<S> {
        self.seq += 1;
        self.ring_bytes += S::weight(&delta);
        self.ring.push_back(delta.clone());
        while self.ring.len() > self.limits.deltas || self.ring_bytes > self.limits.bytes {
            let Some(oldest) = self.ring.pop_front() else { break };
            self.ring_bytes -= S::weight(&oldest);
        }
        PoolMessage::Delta { stream: self.reign.stream.clone(), seq: self.seq, delta }
    }

    pub(crate) fn heartbeat(&self, state: &S) -> MessageOf<S> {
        PoolMessage::Heartbeat(Heartbeat {
            reign: self.reign.clone(),
            since: self.since.clone(),
            seq: self.seq,
            checksums: state.checksums(),
        })
    }

    /// Returns the heartbeat that is due.
    pub(crate) fn tick(&mut self, state: &S, now: Moment) -> Option<MessageOf<S>> {
        if self.snapshot.as_ref().is_some_and(|s| now.since(s.fetched) >= SNAPSHOT_KEPT) {
            self.snapshot = None;
        }
        if now < self.next_heartbeat {
            return None;
        }
        self.next_heartbeat = now + HEARTBEAT_EVERY;
        Some(self.heartbeat(state))
    }

    /// The oldest change that is kept, or the next one if none is.
    fn ring_start(&self) -> u64 {
        self.seq + 1 - self.ring.len() as u64
    }

    /// Whether every change after `seq` can be sent.
    fn reaches(&self, seq: u64) -> bool {
        (self.ring_start()..=self.seq + 1).contains(&(seq + 1))
    }

    /// Changes from `from` on, a batch at most; or that they are no longer kept.
    pub(crate) fn repair(&self, from: u64) -> Vec<MessageOf<S>> {
        let stream = &self.reign.stream;
        if from == 0 || !self.reaches(from - 1) {
            return vec![PoolMessage::PastRing { stream: stream.clone() }];
        }
        let skip = (from - self.ring_start()) as usize;
        let batch = self.ring.iter().skip(skip).take(REPAIR_BATCH as usize);
        let message = |(at, delta): (u64, &S::Delta)| PoolMessage::Delta {
            stream: stream.clone(),
            seq: at,
            delta: delta.clone(),
        };
        (from..).zip(batch).map(message).collect()
    }

    /// Whether one batch brings a state at `position` up to ours.
    pub(crate) fn is_nearly_at(&self, position: &Position) -> bool {
        position.stream == self.reign.stream
            && self.reaches(position.seq)
            && self.seq - position.seq <= REPAIR_BATCH
    }

    /// A part of the snapshot at `wanted`, or the first part of the newest one.
    pub(crate) fn fetch(
        &mut self,
        wanted: Option<u64>,
        index: u32,
        state: &S,
        now: Moment,
    ) -> MessageOf<S> {
        let usable = self.snapshot.as_ref().is_some_and(|s| match wanted {
            Some(seq) => s.seq == seq,
            None => self.reaches(s.seq) && now.since(s.made) < SNAPSHOT_SHARED,
        });
        if !usable {
            let chunks = state.snapshot();
            self.snapshot = Some(Snapshot { seq: self.seq, chunks, made: now, fetched: now });
        }
        let stream = self.reign.stream.clone();
        let Some(snapshot) = &mut self.snapshot else {
            return PoolMessage::PastRing { stream };
        };
        snapshot.fetched = now;
        let count = snapshot.chunks.len() as u32;
        let index = if wanted == Some(snapshot.seq) && index < count { index } else { 0 };
        let chunk = snapshot.chunks.get(index as usize).cloned();
        PoolMessage::Chunk { stream, snapshot: snapshot.seq, index, count, chunk }
    }
}
