//! The standby's side of the deltas: applies them in order, asks for what is missing.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{Moment, RankId};

use crate::message::{Heartbeat, Output, OutputOf, PoolMessage, ResyncReason, To};
use crate::ownership::Stream;
use crate::publisher::REPAIR_BATCH;
use crate::state::{Position, Replicated};

/// A part of a snapshot that did not come is asked for again after this time.
const FETCH_AGAIN: Duration = Duration::from_millis(200);

/// Changes that came before their turn are kept up to this number; the rest is asked for.
const BUFFERED: usize = 4096;

/// A checksum that differs leads to a snapshot at once, but not more often than this: a fault
/// that comes back must not turn into a stream of snapshots.
const CHECKSUM_RESYNC_EVERY: Duration = Duration::from_secs(5);

pub(crate) struct Follower<S: Replicated> {
    /// What the state is, if it is one that an owner had.
    pub(crate) position: Option<Position>,
    loading: Option<Loading<S>>,
    /// Changes of the followed stream that came before their turn.
    early: BTreeMap<u64, S::Delta>,
    /// The last change of the followed stream that is known to exist.
    newest: u64,
    /// The last change of the batch that was asked for.
    repair_until: u64,
    /// The owner's checksums at a change that is still to come.
    expected: Option<(u64, Vec<(RankId, u64)>)>,
    checksum_resync: Option<Moment>,
}

/// A snapshot on its way. The state before stays in use until it is complete.
struct Loading<S> {
    stream: Stream,
    snapshot: Option<u64>,
    next: u32,
    state: S,
    asked: Moment,
}

impl<S: Replicated> Follower<S> {
    pub(crate) fn at(position: Option<Position>) -> Self {
        Self {
            position,
            loading: None,
            early: BTreeMap::new(),
            newest: 0,
            repair_until: 0,
            expected: None,
            checksum_resync: None,
        }
    }

    /// The stream whose changes are taken.
    fn followed(&self) -> Option<&Stream> {
        let loading = self.loading.as_ref().map(|l| &l.stream);
        loading.or(self.position.as_ref().map(|p| &p.stream))
    }

    fn seq_in(&self, stream: &Stream) -> Option<u64> {
        self.position.as_ref().filter(|p| p.stream == *stream).map(|p| p.seq)
    }

    /// The owner's heartbeat: what it has published, and from where its stream began.
    pub(crate) fn on_heartbeat(
        &mut self,
        beat: Heartbeat,
        state: &S,
        now: Moment,
    ) -> Vec<OutputOf<S>> {
        let stream = &beat.reign.stream;
        if self.loading.as_ref().is_some_and(|l| l.stream == *stream) {
            self.newest = self.newest.max(beat.seq);
            return Vec::new();
        }
        if self.seq_in(stream).is_none() {
            // A state that is being replaced may differ from what its position says.
            let is_there = beat.since.is_some() && beat.since == self.position;
            if !is_there || self.loading.is_some() {
                return self.resync(stream.clone(), ResyncReason::NewStream, state, now);
            }
            *self = Self {
                checksum_resync: self.checksum_resync,
                ..Self::at(Some(Position { stream: stream.clone(), seq: 0 }))
            };
        }
        if self.loading.take().is_some() {
            // What was being loaded is another stream's.
            self.early.clear();
            self.newest = 0;
        }
        let applied = self.seq_in(stream).unwrap_or_default();
        self.newest = self.newest.max(beat.seq);
        if beat.seq >= applied {
            self.expected = Some((beat.seq, beat.checksums));
        }
        if beat.seq > applied {
            return vec![self.ask_repair(stream.clone(), applied + 1)];
        }
        self.compare(state, now)
    }

    /// A change, published or in answer to a repair.
    pub(crate) fn on_delta(
        &mut self,
        stream: &Stream,
        seq: u64,
        delta: S::Delta,
        state: &mut S,
        now: Moment,
    ) -> Vec<OutputOf<S>> {
        if self.followed() != Some(stream) {
            return Vec::new();
        }
        self.newest = self.newest.max(seq);
        let applied = self.seq_in(stream).unwrap_or_default();
        if seq > applied && (self.early.len() < BUFFERED || seq == applied + 1) {
            self.early.insert(seq, delta);
        }
        if self.loading.is_some() {
            return Vec::new();
        }
        self.drain(state, now)
    }

    /// Applies the changes whose turn has come.
    fn drain(&mut self, state: &mut S, now: Moment) -> Vec<OutputOf<S>> {
        let Some(position) = &mut self.position else { return Vec::new() };
        let before = position.seq;
        let mut outputs = Vec::new();
        while let Some(entry) = self.early.first_entry() {
            if *entry.key() > position.seq + 1 {
                break;
            }
            let (seq, delta) = entry.remove_entry();
            if seq <= position.seq {
                continue;
            }
            state.apply(&delta);
            position.seq = seq;
            if self.expected.as_ref().is_some_and(|(at, _)| *at == seq) {
                break;
            }
        }
        let (stream, seq) = (position.stream.clone(), position.seq);
        if seq == before {
            return outputs;
        }
        outputs.extend(self.compare(state, now));
        if self.loading.is_some() {
            return outputs;
        }
        if (before + 1..=seq).contains(&self.repair_until) && self.newest > seq {
            outputs.push(self.ask_repair(stream, seq + 1));
        }
        outputs.extend(self.drain(state, now));
        outputs
    }

    /// Holds the checksums against the owner's, once the state is at the change they belong to.
    fn compare(&mut self, state: &S, now: Moment) -> Vec<OutputOf<S>> {
        let Some(position) = &self.position else { return Vec::new() };
        let Some((_, theirs)) = self.expected.take_if(|(at, _)| *at <= position.seq) else {
            return Vec::new();
        };
        let just_did = |at: Moment| now.since(at) < CHECKSUM_RESYNC_EVERY;
        if theirs == state.checksums() || self.checksum_resync.is_some_and(just_did) {
            return Vec::new();
        }
        self.checksum_resync = Some(now);
        self.resync(position.stream.clone(), ResyncReason::Checksum, state, now)
    }

    /// What was missed is no longer kept by the owner.
    pub(crate) fn on_past_ring(
        &mut self,
        stream: &Stream,
        state: &S,
        now: Moment,
    ) -> Vec<OutputOf<S>> {
        if self.loading.is_some() || self.seq_in(stream).is_none() {
            return Vec::new();
        }
        self.resync(stream.clone(), ResyncReason::PastRing, state, now)
    }

    fn resync(
        &mut self,
        stream: Stream,
        reason: ResyncReason,
        state: &S,
        now: Moment,
    ) -> Vec<OutputOf<S>> {
        if self.followed() != Some(&stream) {
            self.early.clear();
            self.newest = 0;
        }
        self.expected = None;
        let loading = Loading { stream, snapshot: None, next: 0, state: state.empty(), asked: now };
        let fetch = loading.fetch();
        self.loading = Some(loading);
        vec![Output::Resync(reason), fetch]
    }

    /// A part of a snapshot.
    pub(crate) fn on_chunk(
        &mut self,
        stream: &Stream,
        part: Part<S::Chunk>,
        state: &mut S,
        now: Moment,
    ) -> Vec<OutputOf<S>> {
        let Some(loading) = self.loading.as_mut().filter(|l| l.stream == *stream) else {
            return Vec::new();
        };
        if loading.snapshot != Some(part.snapshot) {
            // Another snapshot than before: from the start. One that ends before the part that
            // was asked for is a late answer.
            if part.index != 0 || loading.snapshot.is_some_and(|seq| seq > part.snapshot) {
                return Vec::new();
            }
            loading.snapshot = Some(part.snapshot);
            loading.next = 0;
            loading.state = state.empty();
        }
        if part.index != loading.next {
            return Vec::new();
        }
        if let Some(chunk) = part.chunk {
            loading.state.load(chunk);
            loading.next += 1;
        }
        if loading.next < part.count {
            loading.asked = now;
            return vec![loading.fetch()];
        }
        let Some(loading) = self.loading.take() else { return Vec::new() };
        *state = loading.state;
        self.position = Some(Position { stream: loading.stream, seq: part.snapshot });
        self.early = self.early.split_off(&(part.snapshot + 1));
        let mut outputs = self.drain(state, now);
        // What was dropped while it was loaded.
        if let Some(position) = self.position.clone()
            && outputs.is_empty()
            && self.newest > position.seq
        {
            outputs.push(self.ask_repair(position.stream, position.seq + 1));
        }
        outputs
    }

    /// Time has passed: asks again for a part that did not come.
    pub(crate) fn tick(&mut self, now: Moment) -> Option<OutputOf<S>> {
        let loading = self.loading.as_mut()?;
        if now.since(loading.asked) < FETCH_AGAIN {
            return None;
        }
        loading.asked = now;
        Some(loading.fetch())
    }

    fn ask_repair(&mut self, stream: Stream, from: u64) -> OutputOf<S> {
        self.repair_until = from + REPAIR_BATCH - 1;
        let to = To::One(stream.owner.clone());
        Output::Send(to, PoolMessage::Repair { stream, from })
    }

    /// Whether there is a state, or one on its way.
    pub(crate) fn has_anything(&self) -> bool {
        self.position.is_some() || self.loading.is_some()
    }

    /// Whether the state is the owner's, up to changes that are under way.
    pub(crate) fn is_in_step(&self) -> bool {
        self.position.is_some() && self.loading.is_none()
    }
}

impl<S: Replicated> Loading<S> {
    fn fetch(&self) -> OutputOf<S> {
        let (stream, snapshot, index) = (self.stream.clone(), self.snapshot, self.next);
        let to = To::One(self.stream.owner.clone());
        Output::Send(to, PoolMessage::Fetch { stream, snapshot, index })
    }
}

/// A part of a snapshot, as it came.
pub(crate) struct Part<C> {
    pub(crate) snapshot: u64,
    pub(crate) index: u32,
    pub(crate) count: u32,
    pub(crate) chunk: Option<C>,
}
