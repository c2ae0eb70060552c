//! A node of the tree: a run of keys and the ranks that hold it.

use domain::BlockKey;

use crate::asks::Asks;

/// Number of a node. A split leaves it with the deeper half and a merge with the child, so a
/// number that names the end of a booked prompt goes on naming it.
pub(crate) type NodeId = u32;

/// No node: the parent of the first edges.
pub(crate) const NO_NODE: NodeId = u32::MAX;

/// An element of one rank's free order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place(u32);

/// A decoded [`Place`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Nothing,
    /// The rank's blocks of this node.
    Node(NodeId),
    /// Blocks that the tree does not hold, by their number in the rank.
    Extra(u32),
}

impl Place {
    pub(crate) const NONE: Place = Place(u32::MAX);
    const EXTRA: u32 = 1 << 31;

    pub(crate) fn node(id: NodeId) -> Place {
        debug_assert!(id < Self::EXTRA);
        Place(id)
    }

    pub(crate) fn extra(number: u32) -> Place {
        debug_assert!(number < Self::EXTRA - 1);
        Place(number | Self::EXTRA)
    }

    pub(crate) fn target(self) -> Target {
        match self {
            Place::NONE => Target::Nothing,
            Place(n) if n & Self::EXTRA != 0 => Target::Extra(n & !Self::EXTRA),
            Place(n) => Target::Node(n),
        }
    }
}

/// Neighbours in a free order; `prev` is freed earlier and evicted sooner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Links {
    pub(crate) prev: Place,
    pub(crate) next: Place,
}

impl Links {
    pub(crate) const NONE: Links = Links { prev: Place::NONE, next: Place::NONE };
}

/// What one rank holds of one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    /// Index of the rank's slot.
    pub(crate) slot: u32,
    /// Leading blocks of the label that are resident. While pinned: all of them.
    pub(crate) len: u32,
    /// Started requests that hold these blocks.
    pub(crate) pins: u32,
    /// Bookings not started yet that will.
    pub(crate) booked: u32,
    /// Place in the rank's free order; meaningful while queued.
    pub(crate) links: Links,
}

impl Holder {
    pub(crate) fn new(slot: u32) -> Self {
        Holder { slot, len: 0, pins: 0, booked: 0, links: Links::NONE }
    }

    /// Whether it stands in the rank's free order.
    pub(crate) fn is_queued(&self) -> bool {
        self.pins == 0 && self.len > 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0 && self.booked == 0 && self.pins == 0
    }

    /// Whether the whole label counts as the rank's.
    pub(crate) fn is_full(&self, label_len: usize) -> bool {
        self.booked > 0 || self.len as usize == label_len
    }
}

/// A node.
#[derive(Debug)]
pub(crate) struct Node {
    /// The run of keys; empty for a vacant entry of the arena.
    pub(crate) label: Vec<BlockKey>,
    /// Ordered by slot.
    pub(crate) holders: Vec<Holder>,
    pub(crate) parent: NodeId,
    pub(crate) children: u32,
    /// XOR of the children's numbers: with one child left it names it.
    pub(crate) child_mix: u32,
    /// Holders for whom the whole label counts. With no child left, zero means that the
    /// label's end is no one's.
    pub(crate) full: u32,
    /// Holders with at least one resident block.
    pub(crate) confirmed: u32,
    /// Further physical copies of the last block, over all ranks. Not zero: one-block label.
    pub(crate) copies: u32,
    /// Of the label's last block: those above it may be asked for more often.
    pub(crate) asks: Asks,
}

impl Node {
    pub(crate) fn new(parent: NodeId, label: Vec<BlockKey>) -> Self {
        Node {
            label,
            holders: Vec::new(),
            parent,
            children: 0,
            child_mix: 0,
            full: 0,
            confirmed: 0,
            copies: 0,
            asks: Asks::default(),
        }
    }

    pub(crate) fn is_vacant(&self) -> bool {
        self.label.is_empty()
    }

    pub(crate) fn position(&self, slot: u32) -> Result<usize, usize> {
        place_of(&self.holders, slot, |holder| holder.slot)
    }

    pub(crate) fn holder(&self, slot: u32) -> Option<&Holder> {
        self.position(slot).ok().map(|at| &self.holders[at])
    }

    pub(crate) fn holder_mut(&mut self, slot: u32) -> Option<&mut Holder> {
        self.position(slot).ok().map(|at| &mut self.holders[at])
    }

    /// Applies `change` to the slot's holder, made if absent and dropped if empty afterwards.
    pub(crate) fn change(&mut self, slot: u32, change: impl FnOnce(&mut Holder)) {
        let at = self.position(slot).unwrap_or_else(|at| {
            grow_exactly(&mut self.holders);
            self.holders.insert(at, Holder::new(slot));
            at
        });
        let label_len = self.label.len();
        let holder = &mut self.holders[at];
        self.full -= u32::from(holder.is_full(label_len));
        self.confirmed -= u32::from(holder.len > 0);
        change(holder);
        self.full += u32::from(holder.is_full(label_len));
        self.confirmed += u32::from(holder.len > 0);
        if holder.is_empty() {
            self.holders.remove(at);
            shrink(&mut self.holders);
        }
    }

    /// Sets the holders anew, with the counters that follow from them.
    pub(crate) fn set_holders(&mut self, holders: Vec<Holder>) {
        self.holders = holders;
        self.recount();
    }

    pub(crate) fn recount(&mut self) {
        let label_len = self.label.len();
        self.full = self.holders.iter().filter(|h| h.is_full(label_len)).count() as u32;
        self.confirmed = self.holders.iter().filter(|h| h.len > 0).count() as u32;
    }

    /// Leading blocks that some holder has.
    pub(crate) fn held(&self) -> usize {
        self.holders.iter().map(|holder| holder.len).max().unwrap_or(0) as usize
    }

    /// Cuts the label's end that no holder has. Returns the blocks cut.
    pub(crate) fn trim(&mut self) -> usize {
        let keep = self.held();
        let cut = self.label.len() - keep;
        self.label.truncate(keep);
        shrink(&mut self.label);
        self.recount();
        cut
    }
}

/// Where `slot` stands, or would, in a list that is ordered by slot. Slots are distinct, so none
/// stands behind the place of its own number, and where every rank is listed it stands there.
pub(crate) fn place_of<T>(
    items: &[T],
    slot: u32,
    slot_of: impl Fn(&T) -> u32,
) -> Result<usize, usize> {
    let end = items.len().min(slot as usize + 1);
    match items[..end].last() {
        Some(last) if slot_of(last) == slot => Ok(end - 1),
        _ => items[..end].binary_search_by_key(&slot, slot_of),
    }
}

/// Room for one more, with a quarter of slack: most nodes have one holder.
fn grow_exactly(holders: &mut Vec<Holder>) {
    if holders.len() == holders.capacity() {
        holders.reserve_exact(1 + holders.len() / 4);
    }
}

/// Gives memory back once half of it is unused.
fn shrink<T>(items: &mut Vec<T>) {
    if items.len() <= items.capacity() / 2 {
        items.shrink_to_fit();
    }
}

/// How many leading keys agree.
pub(crate) fn common_prefix(a: &[BlockKey], b: &[BlockKey]) -> usize {
    const LANES: usize = 8;
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let mut same = 0;
    for (x, y) in a.chunks_exact(LANES).zip(b.chunks_exact(LANES)) {
        // Without an early exit inside, the compiler compares the lanes at once.
        if x.iter().zip(y).fold(0, |diff, (x, y)| diff | (x.0 ^ y.0)) != 0 {
            break;
        }
        same += LANES;
    }
    same + a[same..].iter().zip(&b[same..]).take_while(|(x, y)| x == y).count()
}
