//! Room for prompts that wait: engines take them in order, and none before its blocks fit beside
//! those that running requests hold.

use crate::booking::Booking;
use crate::index::KvIndex;
use crate::node::NO_NODE;

impl KvIndex {
    /// Whether the rank's engine can start the prompt now: its blocks that no running request
    /// holds, cached ones included, fit what is not held. A rank that holds nothing takes any.
    pub fn has_room(&self, booking: &Booking) -> bool {
        let Some(slot) = self.live(booking.slot()) else { return true };
        let rank = &self.ranks[slot as usize];
        if rank.slots().is_some() || rank.pinned == 0 {
            return true;
        }
        let mut held = 0;
        let mut id = booking.tail();
        while id != NO_NODE {
            let node = self.tree.node(id);
            held += node.holder(slot).filter(|h| h.pins > 0).map_or(0, |h| u64::from(h.len));
            id = node.parent;
        }
        let needed = booking.prompt_blocks().saturating_sub(held);
        rank.pinned + needed <= rank.capacity
    }
}
