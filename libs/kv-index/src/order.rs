//! The free order of a rank: a list through the holders of the nodes, one element per run of
//! blocks that were freed together.

use crate::index::KvIndex;
use crate::node::{Links, NodeId, Place, Target};
use crate::rank::ExtraKind;

impl KvIndex {
    fn links_mut(&mut self, slot: u32, place: Place) -> Option<&mut Links> {
        match place.target() {
            Target::Nothing => None,
            Target::Node(id) => {
                let holder = self.tree.node_mut(id).holder_mut(slot);
                Some(&mut holder.expect("a queued node has the rank as a holder").links)
            }
            Target::Extra(n) => Some(&mut self.ranks[slot as usize].extras[n as usize].links),
        }
    }

    /// Gives `place` these links and makes its neighbours, or the ends, point at it.
    pub(crate) fn put(&mut self, slot: u32, place: Place, links: Links) {
        if let Some(own) = self.links_mut(slot, place) {
            *own = links;
        }
        self.set_next(slot, links.prev, place);
        self.set_prev(slot, links.next, place);
    }

    /// What stands before `place`: it was freed earlier.
    pub(crate) fn before(&self, slot: u32, place: Place) -> Place {
        match place.target() {
            Target::Nothing => Place::NONE,
            Target::Node(id) => {
                self.tree.node(id).holder(slot).map_or(Place::NONE, |holder| holder.links.prev)
            }
            Target::Extra(n) => self.ranks[slot as usize].extras[n as usize].links.prev,
        }
    }

    /// Appends: freed last, evicted last.
    pub(crate) fn push_back(&mut self, slot: u32, place: Place) {
        let rank = &mut self.ranks[slot as usize];
        rank.outlook.add_behind();
        let prev = rank.tail;
        self.put(slot, place, Links { prev, next: Place::NONE });
    }

    /// Puts `place` directly behind `anchor`.
    pub(crate) fn insert_behind(&mut self, slot: u32, place: Place, anchor: Place) {
        let Some(links) = self.links_mut(slot, anchor) else { return };
        let next = links.next;
        self.put(slot, place, Links { prev: anchor, next });
    }

    /// Takes `place` out of the order.
    pub(crate) fn unlink(&mut self, slot: u32, place: Place) {
        self.ranks[slot as usize].outlook.forget();
        let Some(links) = self.links_mut(slot, place) else { return };
        let Links { prev, next } = std::mem::replace(links, Links::NONE);
        self.set_next(slot, prev, next);
        self.set_prev(slot, next, prev);
    }

    fn set_next(&mut self, slot: u32, place: Place, next: Place) {
        match self.links_mut(slot, place) {
            Some(links) => links.next = next,
            None => self.ranks[slot as usize].head = next,
        }
    }

    fn set_prev(&mut self, slot: u32, place: Place, prev: Place) {
        match self.links_mut(slot, place) {
            Some(links) => links.prev = prev,
            None => self.ranks[slot as usize].tail = prev,
        }
    }

    /// Pops up to `want` blocks off the front. Returns how many.
    pub(crate) fn evict(&mut self, slot: u32, want: u64) -> u64 {
        if self.ranks[slot as usize].is_radix() {
            return self.evict_leaves(slot, want);
        }
        let mut left = want;
        let mut was_known = self.ranks[slot as usize].outlook.is_known();
        while left > 0 {
            let popped = match self.ranks[slot as usize].head.target() {
                Target::Nothing => break,
                Target::Node(id) => {
                    // Another copy may take its part, elsewhere in the order.
                    was_known &= self.tree.node(id).copies == 0;
                    self.evict_holder(slot, id, left)
                }
                Target::Extra(number) => self.evict_extra(slot, number, left),
            };
            self.ranks[slot as usize].queued -= popped;
            left -= popped;
        }
        self.ranks[slot as usize].outlook.eat(want - left, was_known);
        want - left
    }

    pub(crate) fn evict_holder(&mut self, slot: u32, id: NodeId, want: u64) -> u64 {
        if self.tree.node(id).copies > 0
            && let Some(number) = self.ranks[slot as usize].take_oldest_copy(id)
        {
            #[cfg(test)]
            self.evicted.push((slot, Some(self.tree.node(id).label[0])));
            self.promote(slot, id, number);
            return 1;
        }
        let holder = self.tree.node(id).holder(slot).expect("queued, so held");
        let popped = want.min(u64::from(holder.len)) as u32;
        let keep = holder.len - popped;
        #[cfg(test)]
        for at in (keep..holder.len).rev() {
            self.evicted.push((slot, Some(self.tree.node(id).label[at as usize])));
        }
        self.cut_holder(slot, id, keep);
        u64::from(popped)
    }

    /// Leaves the rank the first `keep` blocks of a queued node's label.
    pub(crate) fn cut_holder(&mut self, slot: u32, id: NodeId, keep: u32) {
        if keep == 0 {
            self.unlink(slot, Place::node(id));
        }
        let mut cut = 0;
        self.tree.node_mut(id).change(slot, |holder| {
            cut = holder.len - keep;
            holder.len = keep;
        });
        self.ranks[slot as usize].resident -= u64::from(cut);
        self.residencies -= cut as usize;
        self.tidy(id);
    }

    /// The node's own copy of its block goes; a further copy takes its part.
    pub(crate) fn promote(&mut self, slot: u32, id: NodeId, number: u32) {
        self.unlink(slot, Place::node(id));
        let extra = self.ranks[slot as usize].extras[number as usize];
        if let ExtraKind::Copy { pinned: true, .. } = extra.kind {
            self.tree.node_mut(id).change(slot, |holder| holder.pins = 1);
        } else {
            // Read the links again: the unlinking may have changed them.
            let links = self.ranks[slot as usize].extras[number as usize].links;
            self.put(slot, Place::node(id), links);
        }
        self.ranks[slot as usize].drop_extra(number);
        self.forget_copy(id);
    }

    pub(crate) fn evict_extra(&mut self, slot: u32, number: u32, want: u64) -> u64 {
        let rank = &mut self.ranks[slot as usize];
        match &mut rank.extras[number as usize].kind {
            ExtraKind::Output { blocks, .. } => {
                let popped = want.min(*blocks);
                rank.anonymous -= popped;
                #[cfg(test)]
                self.evicted.extend((0..popped).map(|_| (slot, None)));
                self.cut_output(slot, number, popped);
                popped
            }
            ExtraKind::Copy { .. } => {
                #[cfg(test)]
                if let ExtraKind::Copy { node, .. } = rank.extras[number as usize].kind {
                    self.evicted.push((slot, Some(self.tree.node(node).label[0])));
                }
                self.drop_copy(slot, number);
                1
            }
        }
    }

    /// Takes a further copy out of the order and out of being.
    pub(crate) fn drop_copy(&mut self, slot: u32, number: u32) {
        let rank = &mut self.ranks[slot as usize];
        let ExtraKind::Copy { node, .. } = rank.extras[number as usize].kind else { return };
        rank.unlist_copy(node, number);
        self.unlink(slot, Place::extra(number));
        self.ranks[slot as usize].drop_extra(number);
        self.forget_copy(node);
    }

    fn forget_copy(&mut self, id: NodeId) {
        let node = self.tree.node_mut(id);
        node.copies -= 1;
        if node.copies == 0 {
            self.mergeable.push(id);
            self.mergeable.extend(self.tree.only_child(id));
        }
    }

    /// Takes `blocks` blocks for a request, evicting what stands in the way.
    pub(crate) fn allocate(&mut self, slot: u32, blocks: u64) -> u64 {
        let shortage = self.ranks[slot as usize].shortage(blocks);
        let evicted = self.evict(slot, shortage);
        self.ranks[slot as usize].pinned += blocks;
        evicted
    }

    /// Evicts what stands above the capacity.
    pub(crate) fn settle(&mut self, slot: u32) {
        let excess = self.ranks[slot as usize].excess();
        self.evict(slot, excess);
    }
}
