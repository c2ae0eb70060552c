//! What an owner did to its leases, done again on a copy.

use domain::{BlockUnit, Moment, Prompt, RankId};
use kv_index::feedback::Sample;
use kv_index::{Booked, Slot};
use replication::{LeaseChange, LeaseKey};

use crate::pool::State;
use crate::pool::change::{Left, OpenBlocks, Opening, Progress};
use crate::pool::lease::{BookedBlocks, Forecast, Lease, Size};
use crate::pool::measure::Measure;

impl State {
    /// A rank's slot in the index of a unit, made if it has none.
    pub(super) fn place_of(&mut self, rank: &RankId, unit: BlockUnit) -> Option<(usize, Slot)> {
        let at = self.ranks.iter().position(|r| r.id == *rank)?;
        let mirror = self.mirror(unit);
        self.ensure_slot(at, mirror);
        Some((mirror, self.ranks[at].slot(mirror)?))
    }

    pub(super) fn open(&mut self, opening: &Opening, now: Moment) {
        let Opening { lease: key, edge_lease, .. } = opening;
        self.remote
            .book
            .apply(&LeaseChange::Opened { key: key.clone(), lease: edge_lease.clone() });
        self.bytes_per_token = opening.bytes_per_token.clamp(0.1, 100.0);
        let at = self.ranks.iter().position(|r| r.id == edge_lease.rank);
        let Some(at) = at.filter(|_| !opening.without_rank) else { return };
        let blocks = opening.blocks.as_ref().and_then(|b| self.open_blocks(opening, b));
        let id = self.new_lease();
        let rank = &mut self.ranks[at];
        if opening.adopted {
            rank.load.adopt(id, edge_lease.blocks, now);
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
        self.keep(id, lease);
        self.remote.name(key.clone(), id, None);
    }

    fn open_blocks(&mut self, opening: &Opening, blocks: &OpenBlocks) -> Option<BookedBlocks> {
        let unit = blocks.keys.unit;
        let (mirror, slot) = self.place_of(&opening.edge_lease.rank, unit)?;
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

    pub(super) fn go_on(&mut self, progress: &Progress, now: Moment) {
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

    pub(super) fn shut(&mut self, key: &LeaseKey, left: Option<&Left>, now: Moment) {
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
}
