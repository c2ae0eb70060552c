//! What a prompt will find that has to wait, for its turn or until there is room for it.
//!
//! While it waits, the requests before it start, run and end. Their blocks are the ones used last
//! when its turn comes, and the least recently used ones are gone by then: so what it will find is
//! what the requests before it use, the last one first, up to as many different blocks as the
//! cache holds; and then, if there is room left, what was freed last.

use std::collections::HashMap;

use crate::booking::Booking;
use crate::index::KvIndex;
use crate::node::{Holder, NO_NODE, NodeId, Place, Target};

impl KvIndex {
    /// Whether bookings that wait as this one does, and the answers of all that there are, may
    /// evict something that this one would find now. It costs a walk over what would go.
    pub fn may_lose(&self, booking: &Booking) -> bool {
        let Some(slot) = self.live(booking.slot()) else { return false };
        let rank = &self.ranks[slot as usize];
        if rank.slots().is_some() {
            return false;
        }
        let answers = f64::from(rank.answer_blocks) * f64::from(rank.bookings);
        let going = (rank.awaited + answers as u64).saturating_sub(rank.blank());
        if going > rank.queued {
            return true;
        }
        let own: Vec<NodeId> = self.path_up(booking.tail()).collect();
        let (mut place, mut gone) = (rank.head, 0);
        while gone < going && place != Place::NONE {
            if matches!(place.target(), Target::Node(id) if own.contains(&id)) {
                return true;
            }
            let (blocks, _, next) = self.run_at(slot, place);
            gone += blocks;
            place = next;
        }
        false
    }

    /// Leading full blocks of a booked prompt that its rank will hold when it starts, after the
    /// bookings of that rank which were made `before` it and have not ended: the last one first,
    /// started ones included. They are asked for only as far as the cache's size reaches.
    pub fn found_after<'a>(
        &self,
        booking: &Booking,
        before: impl Iterator<Item = &'a Booking>,
    ) -> u32 {
        let Some(slot) = self.live(booking.slot()) else { return 0 };
        let rank = &self.ranks[slot as usize];
        // Those that run then are half way through their answers, on average.
        let answer = (rank.answer_blocks / 2.0) as u64;
        let mut kept = Kept { nodes: HashMap::new(), room: rank.capacity };
        let mut fresh = Vec::new();
        for other in before {
            let is_new = |id: &NodeId| !kept.nodes.contains_key(id);
            fresh.clear();
            fresh.extend(self.path_up(other.tail()).take_while(is_new));
            // Of a prompt the end goes first.
            for id in fresh.iter().rev() {
                kept.add(*id, self.tree.node(*id).label.len() as u64);
            }
            kept.take(u64::from(other.extra()) + answer.max(u64::from(other.generated_blocks())));
            if kept.room == 0 || kept.nodes.contains_key(&booking.tail()) {
                break;
            }
        }
        let own: Vec<NodeId> = self.path_up(booking.tail()).collect();
        self.keep_freed(slot, &own, &mut kept);
        let mut found = 0;
        for id in own.iter().rev() {
            let blocks = kept.nodes.get(id).copied().unwrap_or(0);
            found += blocks;
            if (blocks as usize) < self.tree.node(*id).label.len() {
                break;
            }
        }
        found
    }

    /// What was freed last is kept, as far as there is room; asked of the prompt's `own` nodes.
    fn keep_freed(&self, slot: u32, own: &[NodeId], kept: &mut Kept) {
        let is_queued =
            |id: &NodeId| self.tree.node(*id).holder(slot).is_some_and(Holder::is_queued);
        let sought = |id: &&NodeId| !kept.nodes.contains_key(id) && is_queued(id);
        let mut sought = own.iter().filter(sought).count();
        let mut place = self.ranks[slot as usize].tail;
        while sought > 0 && kept.room > 0 && place != Place::NONE {
            let (blocks, _, _) = self.run_at(slot, place);
            match place.target() {
                Target::Node(id) if !kept.nodes.contains_key(&id) => {
                    kept.add(id, blocks);
                    sought -= usize::from(own.contains(&id));
                }
                Target::Node(_) | Target::Nothing => {}
                Target::Extra(_) => kept.take(blocks),
            }
            place = self.before(slot, place);
        }
    }

    /// A node and those above it.
    fn path_up(&self, tail: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let exists = |id: NodeId| (id != NO_NODE).then_some(id);
        std::iter::successors(exists(tail), move |id| exists(self.tree.node(*id).parent))
    }
}

/// What a cache will hold.
struct Kept {
    /// Leading blocks of each node's label.
    nodes: HashMap<NodeId, u32>,
    /// Blocks that may still be added.
    room: u64,
}

impl Kept {
    fn take(&mut self, blocks: u64) {
        self.room = self.room.saturating_sub(blocks);
    }

    /// Adds as many of the leading blocks as there is room for.
    fn add(&mut self, node: NodeId, blocks: u64) {
        let blocks = blocks.min(self.room);
        if blocks > 0 {
            self.nodes.insert(node, blocks as u32);
            self.take(blocks);
        }
    }
}
