//! Nodes, and the table that finds an edge by its first key.

use domain::BlockKey;
use hashbrown::HashTable;

use crate::arena::Arena;
use crate::node::{NO_NODE, Node, NodeId};

/// The table is cut into so many parts, each of which grows on its own: no call pays for
/// rehashing every edge at once.
const PARTS: usize = 1024;

/// A part gives memory back when it is so many times as large as what is in it …
const SPARSE: usize = 8;
/// … and has room for more edges than this.
const SMALL_PART: usize = 28;

/// Nodes by number, and edges by first key.
pub(crate) struct Tree {
    arena: Arena,
    parts: Vec<HashTable<NodeId>>,
    blocks: usize,
}

impl Tree {
    pub(crate) fn new() -> Self {
        Tree {
            arena: Arena::default(),
            parts: (0..PARTS).map(|_| HashTable::new()).collect(),
            blocks: 0,
        }
    }

    /// The node of that number, if it is in use.
    pub(crate) fn get(&self, id: NodeId) -> Option<&Node> {
        self.arena.get(id)
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        self.arena.node(id)
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.arena.node_mut(id)
    }

    /// See [`Arena::known_from`].
    pub(crate) fn known_from(&self, id: NodeId) -> Option<NodeId> {
        let id = self.arena.known_from(id);
        (id < self.arena.end()).then_some(id)
    }

    /// Nodes in use.
    pub(crate) fn live(&self) -> usize {
        self.arena.live()
    }

    /// Sum of the label lengths.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Bytes on the heap that nodes, labels, holders and the table take.
    pub(crate) fn heap_bytes(&self) -> usize {
        let parts: usize = self.parts.iter().map(HashTable::allocation_size).sum();
        self.arena.heap_bytes() + parts
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
        let id = self.arena.insert(Node::new(parent, label));
        self.adopt(parent, id);
        self.enter(id);
        id
    }

    /// Frees a node that has no children. Returns its parent.
    pub(crate) fn remove(&mut self, id: NodeId) -> NodeId {
        self.leave(id);
        let parent = self.node(id).parent;
        self.disown(parent, id);
        self.blocks -= self.node(id).label.len();
        self.arena.vacate(id);
        parent
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
        self.arena.vacate(parent);
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
        let Tree { arena, parts, .. } = self;
        let hasher = |id: &NodeId| arena.node(*id).label[0].0;
        parts[part_of(first)].insert_unique(first.0, id, hasher);
    }

    fn leave(&mut self, id: NodeId) {
        let Tree { arena, parts, .. } = self;
        let first = arena.node(id).label[0];
        let part = &mut parts[part_of(first)];
        let entry = part.find_entry(first.0, |other| *other == id);
        entry.expect("every node in use is in the table under its first key").remove();
        if part.capacity() > SMALL_PART && part.len() * SPARSE < part.capacity() {
            part.shrink_to(part.len() * 2, |id| arena.node(*id).label[0].0);
        }
    }
}

/// Bits that the hash table itself looks at last.
fn part_of(first: BlockKey) -> usize {
    (first.0 >> 40) as usize % PARTS
}
