//! What must hold between any two calls.

use std::collections::{BTreeMap, HashMap};

use super::model::Prefix;
use crate::node::{Holder, NO_NODE, Node, NodeId, Place, Target};
use crate::rank::ExtraKind;
use crate::{KvIndex, Slot};

impl KvIndex {
    fn ids(&self) -> impl Iterator<Item = NodeId> {
        std::iter::successors(self.tree.known_from(0), |id| self.tree.known_from(id + 1))
            .filter(|id| !self.tree.node(*id).is_vacant())
    }

    fn prefix_of(&self, id: NodeId) -> Prefix {
        let mut labels = Vec::new();
        let mut at = id;
        while at != NO_NODE {
            labels.push(&self.tree.node(at).label[..]);
            at = self.tree.node(at).parent;
        }
        labels.reverse();
        labels.concat()
    }

    /// The free order, front first, in the model's words.
    pub(super) fn free_order(&self, slot: Slot) -> Vec<Option<Prefix>> {
        let Some(index) = self.live(slot) else { return Vec::new() };
        let rank = &self.ranks[index as usize];
        let mut order = Vec::new();
        let mut place = rank.head;
        loop {
            match place.target() {
                Target::Nothing => return order,
                Target::Node(id) => {
                    let holder = self.tree.node(id).holder(index).expect("queued, so held");
                    let prefix = self.prefix_of(id);
                    let start = prefix.len() - self.tree.node(id).label.len();
                    let ends = (1..=holder.len as usize).rev().map(|len| start + len);
                    order.extend(ends.map(|end| Some(prefix[..end].to_vec())));
                    place = holder.links.next;
                }
                Target::Extra(number) => {
                    let extra = rank.extras[number as usize];
                    match extra.kind {
                        ExtraKind::Output { blocks, .. } => {
                            order.extend((0..blocks).map(|_| None));
                        }
                        ExtraKind::Copy { node, .. } => order.push(Some(self.prefix_of(node))),
                    }
                    place = extra.links.next;
                }
            }
        }
    }

    /// The asks of these blocks of the free order, one run after the other.
    pub(super) fn asks_in_order(&self, slot: Slot, places: std::ops::Range<u64>) -> f64 {
        let Some(index) = self.live(slot) else { return 0.0 };
        let (mut at, mut sum) = (0, 0.0);
        let mut place = self.ranks[index as usize].head;
        while place != Place::NONE {
            let (blocks, asks, next) = self.run_at(index, place);
            let (from, to) = (places.start.max(at), places.end.min(at + blocks));
            sum += to.saturating_sub(from) as f64 * f64::from(asks);
            at += blocks;
            place = next;
        }
        sum
    }

    /// The resident prefixes with the number of their physical copies.
    pub(super) fn resident(&self, slot: Slot) -> BTreeMap<Prefix, usize> {
        let Some(index) = self.live(slot) else { return BTreeMap::new() };
        let mut resident = BTreeMap::new();
        for id in self.ids() {
            let Some(holder) = self.tree.node(id).holder(index) else { continue };
            let prefix = self.prefix_of(id);
            let start = prefix.len() - self.tree.node(id).label.len();
            for len in 1..=holder.len as usize {
                let copies = 1 + self.ranks[index as usize].copies_of(id) as usize;
                resident.insert(prefix[..start + len].to_vec(), copies);
            }
        }
        resident
    }

    pub(super) fn check_invariants(&self) {
        let mut children: HashMap<NodeId, (u32, u32)> = HashMap::new();
        let (mut blocks, mut nodes) = (0, 0);
        for id in self.ids() {
            let node = self.tree.node(id);
            nodes += 1;
            blocks += node.label.len();
            let entry = children.entry(node.parent).or_default();
            *entry = (entry.0 + 1, entry.1 ^ id);
            assert_eq!(self.tree.child(node.parent, node.label[0]), Some(id));
            self.check_node(id, node);
        }
        for id in self.ids() {
            let (count, mix) = children.get(&id).copied().unwrap_or_default();
            let node = self.tree.node(id);
            assert_eq!((node.children, node.child_mix), (count, mix), "children of {id}");
        }
        assert_eq!((self.tree.live(), self.tree.blocks()), (nodes, blocks));
        let live = (0..self.ranks.len() as u32).filter(|slot| self.is_live(*slot));
        let resident: u64 = live.map(|slot| self.check_rank(slot)).sum();
        assert_eq!(self.residencies as u64, resident);
    }

    fn check_node(&self, id: NodeId, node: &Node) {
        let label_len = node.label.len();
        let full = node.holders.iter().filter(|h| h.is_full(label_len)).count();
        let confirmed = node.holders.iter().filter(|h| h.len > 0).count();
        assert_eq!((node.full as usize, node.confirmed as usize), (full, confirmed));
        assert!(node.children > 0 || node.full > 0, "the end of {id} is no one's");
        assert!(node.holders.is_sorted_by(|a, b| a.slot < b.slot));
        let of_holder = |h: &Holder| self.ranks[h.slot as usize].copies_of(id);
        let copies: u32 = node.holders.iter().map(of_holder).sum();
        assert_eq!(node.copies, copies);
        assert!(copies == 0 || label_len == 1);
        for holder in &node.holders {
            assert!(!holder.is_empty() && holder.len as usize <= label_len);
            assert!(holder.pins == 0 || holder.len as usize == label_len);
            if node.parent != NO_NODE && self.is_live(holder.slot) {
                let parent = self.tree.node(node.parent);
                let above = parent.holder(holder.slot).expect("the parent is held too");
                assert!(above.is_full(parent.label.len()));
                assert!(holder.len == 0 || above.len as usize == parent.label.len());
                assert!(holder.booked <= above.booked);
                assert!(holder.pins == 0 || above.pins > 0);
            }
        }
    }

    /// Output that follows a node is listed there, and its rank has the whole of the node.
    fn check_answers(&self, slot: u32) {
        let mut listed = 0;
        for id in self.ids() {
            for (_, number) in self.answers.behind(id).filter(|(other, _)| *other == slot) {
                let extra = self.ranks[slot as usize].extras[number as usize];
                let ExtraKind::Output { blocks, after } = extra.kind else { panic!("a copy") };
                assert!(blocks > 0 && after == id);
                let node = self.tree.node(id);
                let holder = node.holder(slot).expect("an answer's prompt is there");
                assert_eq!(holder.len as usize, node.label.len());
                listed += 1;
            }
        }
        let mut place = self.ranks[slot as usize].head;
        let mut following = 0;
        while place != Place::NONE {
            place = match place.target() {
                Target::Nothing => break,
                Target::Node(id) => self.tree.node(id).holder(slot).expect("held").links.next,
                Target::Extra(n) => {
                    let extra = self.ranks[slot as usize].extras[n as usize];
                    let follows = |after: &NodeId| *after != NO_NODE;
                    if let ExtraKind::Output { after, .. } = &extra.kind {
                        following += usize::from(follows(after));
                    }
                    extra.links.next
                }
            };
        }
        assert_eq!(listed, following);
    }

    fn check_rank(&self, slot: u32) -> u64 {
        let rank = &self.ranks[slot as usize];
        let (mut queued, mut elements) = (0, 0);
        let (mut prev, mut place) = (Place::NONE, rank.head);
        while place != Place::NONE {
            let (links, blocks) = match place.target() {
                Target::Nothing => break,
                Target::Node(id) => {
                    let holder = self.tree.node(id).holder(slot).expect("queued, so held");
                    assert!(holder.is_queued());
                    (holder.links, u64::from(holder.len))
                }
                Target::Extra(n) => match rank.extras[n as usize].kind {
                    ExtraKind::Output { blocks, .. } => (rank.extras[n as usize].links, blocks),
                    ExtraKind::Copy { pinned, .. } => {
                        assert!(!pinned);
                        (rank.extras[n as usize].links, 1)
                    }
                },
            };
            assert_eq!(links.prev, prev);
            queued += blocks;
            elements += usize::from(matches!(place.target(), Target::Node(_)));
            (prev, place) = (place, links.next);
        }
        self.check_answers(slot);
        assert_eq!((rank.tail, rank.queued), (prev, queued));
        let held = || self.ids().filter_map(|id| self.tree.node(id).holder(slot));
        assert_eq!(held().filter(|holder| holder.is_queued()).count(), elements);
        let resident: u64 = held().map(|holder| u64::from(holder.len)).sum();
        assert_eq!(rank.resident, resident);
        assert_eq!(rank.excess(), 0);
        resident
    }
}
