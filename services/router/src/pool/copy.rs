//! A pool's state as one router keeps it for another.
//!
//! The owner's calls leave [`Change`]s behind, in their order; on a copy the same changes make
//! the same mirrors, bookings and leases. What depends on a clock or on chance is an owner's
//! alone and begins anew at a takeover: whose session lives, breakers, queue delays of what is
//! booked, what answers have shown of beliefs.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use domain::{BackendId, BlockUnit, KeyList, LeaseId, Moment, Prompt, RankId, Route};
use kv_index::feedback::{Feedback, Sample};
use kv_index::{Booked, Eviction, Slot};
use replication::{Lease as Held, LeaseChange, LeaseKey, Replicated, Sessions};
use scheduling::PrefillFit;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::change::{Change, Left, OpenBlocks, Opening, Progress};
use super::lease::{BookedBlocks, Forecast, Lease, Size, lease_id};
use super::measure::Measure;
use super::rank::Rank;
use super::reconcile::Seat;
use super::{State, start};
use crate::metrics::Families;

/// Changes in one part of a snapshot, in bytes, so that a part stays well below a message.
const CHUNK_BYTES: usize = 256 << 10;

impl Replicated for State {
    type Delta = Arc<Change>;
    type Chunk = Arc<Vec<Arc<Change>>>;

    fn apply(&mut self, change: &Arc<Change>) {
        let now = self.now;
        match &**change {
            Change::Seated { backend, model } => {
                if let Some(model) = backend.models.iter().find(|m| m.id == *model) {
                    self.reconcile(&[], &[Seat { backend, model }]);
                }
            }
            Change::Unseated { backend } => self.reconcile(std::slice::from_ref(backend), &[]),
            Change::Booked(opening) => self.open(opening, now),
            Change::Started { lease } => {
                if let Some(lease) = self.remote.id(lease).and_then(|id| self.leases.get_mut(&id)) {
                    start(&mut self.mirrors, lease, &mut self.told);
                }
            }
            Change::Progressed(progress) => self.go_on(progress, now),
            Change::Closed { lease, left } => self.shut(lease, left.as_deref(), now),
            Change::Capacity { rank, unit, blocks } => {
                if let Some((mirror, slot)) = self.place_of(rank, *unit) {
                    self.mirrors[mirror].index.set_capacity(slot, *blocks);
                }
            }
            Change::Cached { rank, unit, content } => {
                if let Some((mirror, slot)) = self.place_of(rank, *unit) {
                    self.mirrors[mirror].index.restore(slot, content);
                }
            }
            Change::Learned { rank, coefficients, samples } => {
                let at = self.ranks.iter().position(|r| r.id == *rank);
                if let Some(at) = at {
                    self.ranks[at].fit = PrefillFit::resumed(*coefficients, *samples);
                }
            }
        }
    }

    fn weight(change: &Arc<Change>) -> usize {
        change.weight()
    }

    fn snapshot(&self) -> Vec<Self::Chunk> {
        let mut chunks = Vec::new();
        let (mut chunk, mut bytes) = (Vec::new(), 0);
        self.describe(&mut |change: Change| {
            bytes += change.weight();
            chunk.push(Arc::new(change));
            if bytes >= CHUNK_BYTES {
                chunks.push(Arc::new(std::mem::take(&mut chunk)));
                bytes = 0;
            }
        });
        if !chunk.is_empty() {
            chunks.push(Arc::new(chunk));
        }
        chunks
    }

    fn empty(&self) -> Self {
        let hidden = self.hidden.clone();
        let mut state = State::new(self.model.clone(), self.number, self.config, hidden);
        state.now = self.now;
        state.is_copy = true;
        state
    }

    fn load(&mut self, chunk: Self::Chunk) {
        for change in chunk.iter() {
            self.apply(change);
        }
    }

    /// Of the leases and the sizes of what each rank holds. Two mirrors that differ in what they
    /// hold soon differ in how much.
    fn checksums(&self) -> Vec<(RankId, u64)> {
        let book = self.remote.book.checksums();
        let mut sums: BTreeMap<RankId, u64> = book.map(|(id, sum)| (id.clone(), sum)).collect();
        for rank in self.ranks.iter() {
            let sum = sums.entry(rank.id.clone()).or_default();
            *sum = xxh3_64_with_seed(&self.outline(rank), *sum);
        }
        sums.into_iter().collect()
    }
}

impl State {
    /// Sizes of what a rank holds, by unit.
    fn outline(&self, rank: &Rank) -> Vec<u8> {
        // A snapshot has nothing of what slots hold.
        if matches!(rank.profile.eviction, Eviction::Slots(_)) {
            return Vec::new();
        }
        let mut sizes = Vec::new();
        for (mirror, slot) in rank.slots() {
            let mirror = &self.mirrors[*mirror];
            let Some(stats) = mirror.index.rank_stats(*slot) else { continue };
            let held = [
                stats.pinned_blocks,
                stats.resident_keyed_blocks,
                stats.anonymous_blocks,
                stats.bookings,
            ];
            // A slot that was made for a request that came to nothing is no difference.
            if held != [0; 4] {
                sizes.push((mirror.unit, stats.capacity, held));
            }
        }
        sizes.sort_by_key(|(unit, ..)| (matches!(unit, BlockUnit::Bytes(_)), unit.size()));
        let numbers = sizes
            .into_iter()
            .flat_map(|(unit, capacity, held)| [unit.size(), capacity].into_iter().chain(held));
        numbers.flat_map(u32::to_le_bytes).collect()
    }

    /// Everything, as changes that make it from nothing.
    fn describe(&self, out: &mut dyn FnMut(Change)) {
        for rank in self.ranks.iter().filter(|rank| rank.is_first_of_its_backend()) {
            let (backend, model) = (rank.seen.clone(), rank.model.clone());
            out(Change::Seated { backend, model });
        }
        for rank in self.ranks.iter() {
            if rank.fit.samples() > 0 {
                out(rank.learned());
            }
            for (mirror, slot) in rank.slots() {
                let (unit, index) = (self.mirrors[*mirror].unit, &self.mirrors[*mirror].index);
                let Some(stats) = index.rank_stats(*slot) else { continue };
                let blocks = stats.capacity;
                out(Change::Capacity { rank: rank.id.clone(), unit, blocks });
                for content in index.contents(*slot) {
                    out(Change::Cached { rank: rank.id.clone(), unit, content });
                }
            }
        }
        for lease in self.leases.values() {
            let Some(key) = &lease.key else { continue };
            let Some(held) = self.remote.book.get(key) else { continue };
            let opening = match self.ranks.position(lease.rank) {
                Some(_) => self.opening(key, held, lease),
                None => self.homeless(key, held),
            };
            out(Change::Booked(Box::new(opening)));
        }
        for (key, held) in self.remote.book.iter().filter(|(k, _)| self.remote.id(k).is_none()) {
            out(Change::Booked(Box::new(self.homeless(key, held))));
        }
    }

    /// A lease as it is.
    fn opening(&self, key: &LeaseKey, held: &Held, lease: &Lease) -> Opening {
        let blocks = lease.blocks.as_ref().map(|blocks| {
            let mirror = &self.mirrors[blocks.mirror];
            let booked = mirror.index.booked(&blocks.booking);
            OpenBlocks {
                keys: KeyList { unit: mirror.unit, keys: booked.keys.into() },
                extra: booked.extra_blocks,
                generated: booked.generated_blocks,
                counts_on_answer: booked.counts_on_answer,
                started: booked.started,
                holds_copy: booked.holds_copy,
            }
        });
        Opening { blocks, ..self.outset(key, held, lease) }
    }

    /// A lease that was just booked.
    pub(super) fn outset_of(
        &self,
        key: &LeaseKey,
        held: &Held,
        lease: &Lease,
        route: Option<&Route>,
    ) -> Opening {
        let blocks = lease.blocks.as_ref().map(|blocks| {
            let unit = self.mirrors[blocks.mirror].unit;
            let prompt = route.and_then(|route| route.prompt.as_ref());
            let list = prompt.and_then(|p| p.keys.iter().find(|list| list.unit == unit));
            let list = list.filter(|_| blocks.keyed > 0).cloned();
            OpenBlocks {
                keys: list.unwrap_or_else(|| KeyList { unit, keys: [].into() }),
                extra: match lease.adopted {
                    true => 0,
                    false => blocks.measure.prompt_blocks().saturating_sub(blocks.keyed),
                },
                generated: 0,
                counts_on_answer: blocks.booking.counts_on_answer(),
                started: None,
                holds_copy: false,
            }
        });
        Opening { blocks, ..self.outset(key, held, lease) }
    }

    fn outset(&self, key: &LeaseKey, held: &Held, lease: &Lease) -> Opening {
        Opening {
            lease: key.clone(),
            held: held.clone(),
            blocks: None,
            prompt_tokens: lease.size.tokens,
            text_bytes: lease.size.text_bytes,
            uncached_tokens: lease.size.uncached_tokens,
            cached_tokens: lease.forecast.cached_tokens,
            ttft_seconds: lease.forecast.ttft_seconds,
            grain: lease.forecast.grain,
            stream: lease.stream,
            bytes_per_token: self.bytes_per_token,
            first_token: lease.first_token,
            generated: lease.generated,
            adopted: lease.adopted,
            homeless: false,
        }
    }

    /// A lease on a rank that is not here.
    pub(super) fn homeless(&self, key: &LeaseKey, held: &Held) -> Opening {
        Opening {
            lease: key.clone(),
            held: held.clone(),
            blocks: None,
            prompt_tokens: 0,
            text_bytes: 0,
            uncached_tokens: 0,
            cached_tokens: 0,
            ttft_seconds: 0.0,
            grain: 1,
            stream: true,
            bytes_per_token: self.bytes_per_token,
            first_token: false,
            generated: 0,
            adopted: true,
            homeless: true,
        }
    }

    /// A rank's slot in the index of a unit, made if it has none.
    fn place_of(&mut self, rank: &RankId, unit: BlockUnit) -> Option<(usize, Slot)> {
        let at = self.ranks.iter().position(|r| r.id == *rank)?;
        let mirror = self.mirror(unit);
        self.ensure_slot(at, mirror);
        Some((mirror, self.ranks[at].slot(mirror)?))
    }

    fn open(&mut self, opening: &Opening, now: Moment) {
        let Opening { lease: key, held, .. } = opening;
        self.remote.book.apply(&LeaseChange::Opened { key: key.clone(), lease: held.clone() });
        self.bytes_per_token = opening.bytes_per_token.clamp(0.1, 100.0);
        let at = self.ranks.iter().position(|r| r.id == held.rank);
        let Some(at) = at.filter(|_| !opening.homeless) else {
            self.remote.is_homeless(key.clone());
            return;
        };
        let blocks = opening.blocks.as_ref().and_then(|b| self.open_blocks(opening, b));
        let id = lease_id(self.number, self.next_lease);
        self.next_lease += 1;
        let rank = &mut self.ranks[at];
        if opening.adopted {
            rank.load.adopt(id, held.blocks, now);
        } else {
            let found = scheduling::Prompt {
                uncached_tokens: opening.uncached_tokens,
                cached_tokens: opening.cached_tokens,
                blocks: blocks.as_ref().map_or(0, |b| b.measure.prompt_blocks()),
            };
            let network = rank.seen.network.as_secs_f64();
            let work = rank.load.work(&rank.fit, found, network, now);
            rank.load.book(id, work, opening.stream, now);
            if opening.first_token {
                rank.load.first_token(id, now);
            }
        }
        rank.show_in_flight();
        let lease = Lease {
            rank: rank.key,
            at: now,
            heard: now,
            blocks,
            forecast: Forecast {
                cached_tokens: opening.cached_tokens,
                ttft_seconds: opening.ttft_seconds,
                grain: opening.grain,
                text_bytes: if opening.adopted { 0 } else { opening.text_bytes },
            },
            size: Size {
                tokens: opening.prompt_tokens,
                text_bytes: opening.text_bytes,
                uncached_tokens: opening.uncached_tokens,
            },
            stream: opening.stream,
            trial: false,
            first_token: opening.first_token,
            generated: opening.generated,
            key: Some(key.clone()),
            adopted: opening.adopted,
        };
        self.leases.insert(id, lease);
        self.remote.name(key.clone(), id, None);
        self.metrics.leases.set(self.leases.len() as i64);
    }

    fn open_blocks(&mut self, opening: &Opening, blocks: &OpenBlocks) -> Option<BookedBlocks> {
        let unit = blocks.keys.unit;
        let (mirror, slot) = self.place_of(&opening.held.rank, unit)?;
        let prompt = Prompt {
            tokens: opening.prompt_tokens,
            text_bytes: opening.text_bytes,
            keys: Vec::new(),
        };
        let booked = Booked {
            keys: blocks.keys.keys.to_vec(),
            extra_blocks: blocks.extra,
            generated_blocks: blocks.generated,
            counts_on_answer: blocks.counts_on_answer,
            started: blocks.started,
            holds_copy: blocks.holds_copy,
        };
        let booking = self.mirrors[mirror].index.restore_booking(slot, &booked);
        Some(BookedBlocks {
            mirror,
            started: booking.is_started(),
            booking,
            sample: Sample::default(),
            measure: Measure::new(unit, &prompt, self.bytes_per_token),
            keyed: u32::try_from(blocks.keys.keys.len()).unwrap_or(u32::MAX),
        })
    }

    fn go_on(&mut self, progress: &Progress, now: Moment) {
        let Progress { lease: key, blocks, phase, first_token, generated, output_blocks } =
            progress.clone();
        self.remote.book.apply(&LeaseChange::Progressed { key: key.clone(), phase, blocks });
        let Some(id) = self.remote.id(&key) else { return };
        let Some(lease) = self.leases.get_mut(&id) else { return };
        lease.generated = lease.generated.max(generated);
        let is_first = first_token && !std::mem::replace(&mut lease.first_token, true);
        if let Some(booked) = &mut lease.blocks {
            self.mirrors[booked.mirror].index.grow(&mut booked.booking, output_blocks);
        }
        if is_first && let Some(rank) = self.ranks.by_key_mut(lease.rank) {
            rank.load.first_token(id, now);
        }
    }

    fn shut(&mut self, key: &LeaseKey, left: Option<&Left>, now: Moment) {
        self.remote.book.apply(&LeaseChange::Ended { key: key.clone() });
        let Some(id) = self.remote.forget(key) else { return };
        let Some(lease) = self.leases.remove(&id) else { return };
        self.metrics.leases.set(self.leases.len() as i64);
        if let Some(rank) = self.ranks.by_key_mut(lease.rank) {
            rank.end(id, now);
        }
        let Some(BookedBlocks { mirror, mut booking, .. }) = lease.blocks else { return };
        let index = &mut self.mirrors[mirror].index;
        let (Some(left), true) = (left, booking.is_started()) else {
            return index.rollback(booking);
        };
        let slot = booking.slot();
        index.grow(&mut booking, left.output_blocks);
        if let Some(keep) = left.keep_blocks {
            index.purge_booked(&booking, keep);
        }
        index.finish_with_answer(booking, left.cached_blocks, &left.answer_keys);
        if left.emptied {
            index.purge_rank(slot);
        }
        if let Some(blocks) = left.capacity {
            index.set_capacity(slot, blocks);
        }
    }

    /// This router serves from now on, by the backends as seen here.
    pub(super) fn begin(&mut self, families: &Arc<Families>, seats: &[Seat<'_>], now: Moment) {
        self.is_copy = false;
        self.show_in(families);
        self.scaled_by = self.bytes_per_token;
        for mirror in &mut self.mirrors {
            mirror.feedback = Feedback::default();
        }
        for rank in self.ranks.iter() {
            for &(mirror, slot) in rank.slots() {
                let mirror = &mut self.mirrors[mirror];
                mirror.feedback.set_told(slot, rank.profile.told(mirror.unit, self.scaled_by));
                if let Some(stats) = mirror.index.rank_stats(slot) {
                    mirror.feedback.follow_capacity(slot, stats.capacity);
                }
            }
        }
        self.remote.sessions = Sessions::take_over(&self.remote.book, now);
        self.told.listen(true);
        let there: HashSet<&BackendId> = seats.iter().map(|seat| &seat.backend.id).collect();
        let is_gone = |id: &&BackendId| !there.contains(id);
        let gone: Vec<BackendId> = self.by_backend.keys().filter(is_gone).cloned().collect();
        self.reconcile(&gone, seats);
    }

    /// Another router serves from now on, and this is a copy.
    pub(super) fn rest(&mut self) {
        self.told.listen(false);
        self.is_copy = true;
        self.remote.sessions = Sessions::default();
        for rank in self.ranks.iter() {
            self.families.remove_rank(&self.model, &rank.id);
        }
        self.metrics.leases.set(0);
        let hidden = self.hidden.clone();
        self.show_in(&hidden);
    }

    fn show_in(&mut self, families: &Arc<Families>) {
        self.families = families.clone();
        self.metrics = families.pool(&self.model);
        self.metrics.leases.set(self.leases.len() as i64);
        for at in 0..self.ranks.len() {
            let rank = &mut self.ranks[at];
            rank.metrics = families.rank(&self.model, &rank.id);
            rank.metrics.evidence(rank.level);
            rank.metrics.breaker(rank.breaker.gate(self.now));
            rank.show_in_flight();
        }
    }

    pub(super) fn lease_named(&self, key: &LeaseKey) -> Option<(LeaseId, &Lease)> {
        let id = self.remote.id(key)?;
        Some((id, self.leases.get(&id)?))
    }
}
