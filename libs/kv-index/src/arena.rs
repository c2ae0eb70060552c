//! Nodes by number.
//!
//! The arena grows piece by piece, so growing never moves the nodes that are there, and gives a
//! piece back when nothing in it is in use.

use domain::BlockKey;

use crate::node::{Holder, NO_NODE, Node, NodeId};

/// Nodes in one piece. Few in tests, so that pieces come and go there.
const PIECE: usize = if cfg!(test) { 8 } else { 1024 };

/// Nodes by number.
#[derive(Default)]
pub(crate) struct Arena {
    pieces: Vec<Piece>,
    /// Pieces that have room, in no order.
    open: Vec<u32>,
    /// Pieces that were given back.
    absent: Vec<u32>,
    live: usize,
}

#[derive(Default)]
struct Piece {
    nodes: Vec<Node>,
    /// Places of `nodes` that are not in use.
    vacant: Vec<u16>,
}

impl Piece {
    fn is_full(&self) -> bool {
        self.vacant.is_empty() && self.nodes.len() == PIECE
    }

    fn is_unused(&self) -> bool {
        self.vacant.len() == self.nodes.len()
    }

    fn insert(&mut self, node: Node) -> usize {
        if let Some(place) = self.vacant.pop() {
            self.nodes[usize::from(place)] = node;
            return usize::from(place);
        }
        if self.nodes.is_empty() {
            self.nodes.reserve_exact(PIECE);
        }
        self.nodes.push(node);
        self.nodes.len() - 1
    }
}

impl Arena {
    /// The node of that number, if it is in use.
    pub(crate) fn get(&self, id: NodeId) -> Option<&Node> {
        let node = self.pieces.get(id as usize / PIECE)?.nodes.get(id as usize % PIECE)?;
        (!node.is_vacant()).then_some(node)
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.pieces[id as usize / PIECE].nodes[id as usize % PIECE]
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.pieces[id as usize / PIECE].nodes[id as usize % PIECE]
    }

    /// Numbers in use are below this.
    pub(crate) fn end(&self) -> NodeId {
        (self.pieces.len() * PIECE) as NodeId
    }

    /// The first number from this one on that stands for a node, or did before the node was
    /// vacated; [`end`](Self::end) if there is none.
    pub(crate) fn known_from(&self, id: NodeId) -> NodeId {
        let (piece, place) = (id as usize / PIECE, id as usize % PIECE);
        if self.pieces.get(piece).is_some_and(|piece| place < piece.nodes.len()) {
            return id;
        }
        let later = (piece + 1..self.pieces.len()).find(|at| !self.pieces[*at].nodes.is_empty());
        later.map_or(self.end(), |at| (at * PIECE) as NodeId)
    }

    /// Nodes in use.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Bytes on the heap that nodes, labels and holders take.
    pub(crate) fn heap_bytes(&self) -> usize {
        let of_node = |node: &Node| {
            node.label.capacity() * size_of::<BlockKey>()
                + node.holders.capacity() * size_of::<Holder>()
        };
        let of_piece = |piece: &Piece| {
            piece.nodes.iter().map(of_node).sum::<usize>()
                + piece.nodes.capacity() * size_of::<Node>()
                + piece.vacant.capacity() * size_of::<u16>()
        };
        self.pieces.iter().map(of_piece).sum()
    }

    pub(crate) fn insert(&mut self, node: Node) -> NodeId {
        let number = self.open.last().copied().unwrap_or_else(|| self.open_another());
        let piece = &mut self.pieces[number as usize];
        let place = piece.insert(node);
        if piece.is_full() {
            self.open.pop();
        }
        self.live += 1;
        number * PIECE as u32 + place as u32
    }

    fn open_another(&mut self) -> u32 {
        let number = self.absent.pop().unwrap_or_else(|| {
            self.pieces.push(Piece::default());
            self.pieces.len() as u32 - 1
        });
        self.open.push(number);
        number
    }

    pub(crate) fn vacate(&mut self, id: NodeId) {
        let number = id / PIECE as u32;
        let piece = &mut self.pieces[number as usize];
        if piece.is_full() {
            self.open.push(number);
        }
        let place = id as usize % PIECE;
        piece.nodes[place] = Node::new(NO_NODE, Vec::new());
        piece.vacant.push(place as u16);
        self.live -= 1;
        // One that has room stays: a node that comes and goes must not cost a piece each time.
        if piece.is_unused() && self.open.len() > 1 {
            *piece = Piece::default();
            self.open.retain(|open| *open != number);
            self.absent.push(number);
        }
    }
}
