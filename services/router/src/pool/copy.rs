//! A pool's state as one router keeps it for another.
//!
//! The owner's calls leave [`Change`]s behind, in their order; on a copy the same changes make
//! the same mirrors, bookings and leases. What depends on a clock or on chance is an owner's
//! alone and begins anew at a takeover: whose session lives, breakers, queue delays of what is
//! booked, what answers have shown of beliefs.
//!
//! - [`follow`]: leases are opened, go on and end
//! - [`turn`]: it becomes the owner's own, and a copy again

mod follow;
mod turn;

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::{BlockUnit, KeyList, RankId, Route};
use kv_index::Eviction;
use replication::{Lease as EdgeLease, LeaseKey, Replicated};
use scheduling::PrefillFit;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::change::{Change, OpenBlocks, Opening};
use super::lease::Lease;
use super::rank::Rank;
use super::reconcile::Seat;
use super::{State, start};

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
                    start(&mut self.mirrors, lease, &mut self.changes);
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
        let mut state = State::new(self.model.clone(), self.number, self.config.clone(), hidden);
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
                out(rank.learned_change());
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
            let Some(edge_lease) = self.remote.book.get(key) else { continue };
            let opening = match self.ranks.position(lease.rank) {
                Some(_) => self.opening(key, edge_lease, lease),
                None => self.without_rank(key, edge_lease),
            };
            out(Change::Booked(Box::new(opening)));
        }
        for (key, edge_lease) in self.remote.without_rank() {
            out(Change::Booked(Box::new(self.without_rank(key, edge_lease))));
        }
    }

    /// A lease as it is.
    fn opening(&self, key: &LeaseKey, edge_lease: &EdgeLease, lease: &Lease) -> Opening {
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
        Opening { blocks, ..self.outset(key, edge_lease, lease) }
    }

    /// A lease that was just booked.
    pub(super) fn outset_of(
        &self,
        key: &LeaseKey,
        edge_lease: &EdgeLease,
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
        Opening { blocks, ..self.outset(key, edge_lease, lease) }
    }

    fn outset(&self, key: &LeaseKey, edge_lease: &EdgeLease, lease: &Lease) -> Opening {
        Opening {
            lease: key.clone(),
            edge_lease: edge_lease.clone(),
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
            without_rank: false,
        }
    }

    /// A lease on a rank that is not here.
    pub(super) fn without_rank(&self, key: &LeaseKey, edge_lease: &EdgeLease) -> Opening {
        Opening {
            lease: key.clone(),
            edge_lease: edge_lease.clone(),
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
            without_rank: true,
        }
    }
}
