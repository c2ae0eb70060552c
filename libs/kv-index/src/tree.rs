//! The arena of nodes and the table that finds an edge by its first key.

use domain::BlockKey;
use hashbrown::HashTable;

use crate::node::{Holder, NO_NODE, Node, NodeId};

/// Nodes in one piece of the arena. The arena grows piece by piece, so growing never moves
/// the nodes that are there.
const PIECE: usize = 1024;

/// The table is cut into so many parts, each of which grows on its own: no call pays for
/// rehashing every edge at once.
const PARTS: usize = 1024;

/// Nodes by number, and edges by first key.
pub(crate) struct Tree {
    pieces: Vec<Vec<Node>>,
    vacant: Vec<NodeId>,
    parts: Vec<HashTable<NodeId>>,
    live: usize,
    blocks: usize,
}

impl Tree {
    pub(crate) fn new() -> Self {
        Tree {
            pieces: Vec::new(),
            vacant: Vec::new(),
            parts: (0..PARTS).map(|_| HashTable::new()).collect(),
            live: 0,
            blocks: 0,
        }
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.pieces[id as usize / PIECE][id as usize % PIECE]
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.pieces[id as usize / PIECE][id as usize % PIECE]
    }

    /// Numbers in use are below this; some below it are vacant.
    pub(crate) fn end(&self) -> NodeId {
        self.pieces.last().map_or(0, |last| (self.pieces.len() - 1) * PIECE + last.len()) as NodeId
    }

    /// Nodes in use.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Sum of the label lengths.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Bytes on the heap that nodes, labels, holders and the table take.
    pub(crate) fn heap_bytes(&self) -> usize {
        let of_node = |node: &Node| {
            node.label.capacity() * size_of::<BlockKey>()
                + node.holders.capacity() * size_of::<Holder>()
        };
        let nodes: usize = self.pieces.iter().flatten().map(of_node).sum();
        let pieces: usize = self.pieces.iter().map(|p| p.capacity() * size_of::<Node>()).sum();
        let parts: usize = self.parts.iter().map(HashTable::allocation_size).sum();
        nodes + pieces + parts + self.vacant.capacity() * size_of::<NodeId>()
    }

    /// The edge from `parent` that begins with `first`. An edge with that first key under
    /// another parent is not it: colliding keys do not lead into a strange subtree.
    pub(crate) fn child(&self, parent: NodeId, first: BlockKey) -> Option<NodeId> {
        let found = self.parts[part_of(first)].find(first.0, |id| {
            let node = self.node(*id);
            node.parent == parent && node.label[0] == first
        });
        found.copied()
    }

    /// The only child of `id`, if it has exactly one.
    pub(crate) fn only_child(&self, id: NodeId) -> Option<NodeId> {
        let node = self.node(id);
        (node.children == 1).then_some(node.child_mix)
    }

    /// Adds a node without holders. `label` must not be empty.
    pub(crate) fn add(&mut self, parent: NodeId, label: Vec<BlockKey>) -> NodeId {
        self.blocks += label.len();
        self.live += 1;
        let node = Node::new(parent, label);
        let id = match self.vacant.pop() {
            Some(id) => {
                *self.node_mut(id) = node;
                id
            }
            None => self.push(node),
        };
        self.adopt(parent, id);
        self.enter(id);
        id
    }

    fn push(&mut self, node: Node) -> NodeId {
        let id = self.end();
        match self.pieces.last_mut() {
            Some(last) if last.len() < PIECE => last.push(node),
            _ => {
                let mut piece = Vec::with_capacity(PIECE);
                piece.push(node);
                self.pieces.push(piece);
            }
        }
        id
    }

    /// Frees a node that has no children. Returns its parent.
    pub(crate) fn remove(&mut self, id: NodeId) -> NodeId {
        self.leave(id);
        let parent = self.node(id).parent;
        self.disown(parent, id);
        self.blocks -= self.node(id).label.len();
        self.vacate(id);
        parent
    }

    fn vacate(&mut self, id: NodeId) {
        *self.node_mut(id) = Node::new(NO_NODE, Vec::new());
        self.vacant.push(id);
        self.live -= 1;
    }

    /// Cuts the label's end that no holder has.
    pub(crate) fn trim(&mut self, id: NodeId) {
        self.blocks -= self.node_mut(id).trim();
    }

    /// Puts a new node above `id` with the first `at` keys of its label; `id` keeps the rest.
    /// The holders are left to the caller.
    pub(crate) fn split(&mut self, id: NodeId, at: usize) -> NodeId {
        self.leave(id);
        let node = self.node_mut(id);
        let parent = node.parent;
        let lower = node.label[at..].to_vec();
        let mut upper = std::mem::replace(&mut node.label, lower);
        upper.truncate(at);
        upper.shrink_to_fit();
        self.blocks -= at;
        self.disown(parent, id);
        let above = self.add(parent, upper);
        self.node_mut(id).parent = above;
        self.adopt(above, id);
        self.enter(id);
        above
    }

    /// Joins `id` with its parent, whose only child it is; `id` remains and the parent is
    /// freed. The holders are left to the caller.
    pub(crate) fn merge(&mut self, id: NodeId) {
        self.leave(id);
        let parent = self.node(id).parent;
        self.leave(parent);
        let above = self.node_mut(parent);
        let (grandparent, upper) = (above.parent, std::mem::take(&mut above.label));
        self.vacate(parent);
        self.disown(grandparent, parent);
        let node = self.node_mut(id);
        node.label = [&upper[..], &node.label[..]].concat();
        node.parent = grandparent;
        self.adopt(grandparent, id);
        self.enter(id);
    }

    fn adopt(&mut self, parent: NodeId, child: NodeId) {
        if parent != NO_NODE {
            let node = self.node_mut(parent);
            node.children += 1;
            node.child_mix ^= child;
        }
    }

    fn disown(&mut self, parent: NodeId, child: NodeId) {
        if parent != NO_NODE {
            let node = self.node_mut(parent);
            node.children -= 1;
            node.child_mix ^= child;
        }
    }

    fn enter(&mut self, id: NodeId) {
        let first = self.node(id).label[0];
        let Tree { pieces, parts, .. } = self;
        let hasher = |id: &NodeId| pieces[*id as usize / PIECE][*id as usize % PIECE].label[0].0;
        parts[part_of(first)].insert_unique(first.0, id, hasher);
    }

    fn leave(&mut self, id: NodeId) {
        let first = self.node(id).label[0];
        let entry = self.parts[part_of(first)].find_entry(first.0, |other| *other == id);
        entry.expect("every node in use is in the table under its first key").remove();
    }
}

/// Bits that the hash table itself looks at last.
fn part_of(first: BlockKey) -> usize {
    (first.0 >> 40) as usize % PARTS
}
