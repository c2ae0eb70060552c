//! Keeping node boundaries where they are needed and nowhere else: split, merge, free.

use crate::index::KvIndex;
use crate::node::{Holder, Links, NO_NODE, Node, NodeId, Place};

impl KvIndex {
    /// Makes a boundary after the first `at` blocks of the label. The new upper node is
    /// returned; `id` keeps the rest. Holders of removed ranks are dropped, so that the sweep
    /// never meets them behind its cursor; the caller tidies `id` once the upper node is held.
    pub(crate) fn split(&mut self, id: NodeId, at: usize) -> NodeId {
        let cut = at as u32;
        let mut holders = std::mem::take(&mut self.tree.node_mut(id).holders);
        holders.retain(|holder| self.is_live(holder.slot));
        let upper = holders.iter().map(|h| Holder { len: h.len.min(cut), ..*h });
        let upper = upper.map(|h| Holder { links: Links::NONE, ..h }).collect();
        let lower = holders.iter().map(|h| Holder { len: h.len.saturating_sub(cut), ..*h });
        let lower = lower.filter(|h| !h.is_empty()).collect();
        let above = self.tree.split(id, at);
        self.tree.node_mut(above).asks = self.tree.node(id).asks;
        self.tree.node_mut(above).set_holders(upper);
        self.tree.node_mut(id).set_holders(lower);
        for old in holders.iter().filter(|holder| holder.is_queued()) {
            if old.len > cut {
                self.insert_behind(old.slot, Place::node(above), Place::node(id));
            } else {
                self.put(old.slot, Place::node(above), old.links);
            }
        }
        above
    }

    /// Joins `id` with its parent if no rank needs the boundary.
    fn try_merge(&mut self, id: NodeId) -> bool {
        let Some(node) = self.tree.get(id).filter(|node| node.parent != NO_NODE) else {
            return false;
        };
        let parent = node.parent;
        if self.answers.follow(parent) || self.is_node_end(parent, self.tree.node(parent)) {
            return false;
        }
        if !boundary_is_idle(parent, self.tree.node(parent), node) {
            return false;
        }
        let lower = std::mem::take(&mut self.tree.node_mut(id).holders);
        let upper = std::mem::take(&mut self.tree.node_mut(parent).holders);
        let merged: Vec<Holder> = pairs(&upper, &lower)
            .map(|(above, below)| match below {
                Some(below) if below.len > 0 => Holder {
                    len: above.len + below.len,
                    links: Links { prev: below.links.prev, next: above.links.next },
                    ..*above
                },
                _ => *above,
            })
            .collect();
        let queued: Vec<(u32, Links)> =
            merged.iter().filter(|h| h.is_queued()).map(|h| (h.slot, h.links)).collect();
        self.tree.merge(id);
        self.tree.node_mut(id).set_holders(merged);
        for (slot, links) in queued {
            self.put(slot, Place::node(id), links);
        }
        true
    }

    /// Tries the nodes that the last changes may have made mergeable. Not while holders of
    /// removed ranks are about: they agree with no one.
    pub(crate) fn merge_pending(&mut self) {
        let sweeping = self.sweep.is_pending();
        while let Some(id) = self.mergeable.pop() {
            while !sweeping && self.try_merge(id) {}
        }
    }

    /// After blocks went: cuts the label's end if it is no one's, frees the node if nothing is
    /// left of it, and then looks at its parent likewise.
    pub(crate) fn tidy(&mut self, mut id: NodeId) {
        loop {
            let Some(node) = self.tree.get(id).filter(|n| n.children == 0 && n.full == 0) else {
                return;
            };
            self.forgotten.put(&node.label[node.held()..], node.asks);
            if !node.holders.is_empty() {
                return self.tree.trim(id);
            }
            self.answers.retain(id, |_| false);
            id = self.tree.remove(id);
            if id == NO_NODE {
                return;
            }
            self.mergeable.extend(self.tree.only_child(id));
        }
    }
}

/// Whether every rank has the same pins, the same bookings and one run of the free order on
/// both sides of the boundary between `above` and its child `below`.
fn boundary_is_idle(above_id: NodeId, above: &Node, below: &Node) -> bool {
    if above.children != 1 || above.copies > 0 || below.copies > 0 {
        return false;
    }
    pairs(&above.holders, &below.holders).all(|(above, below)| match below {
        None => above.pins == 0 && above.booked == 0,
        Some(below) => {
            let one_run = !below.is_queued() || below.links.next == Place::node(above_id);
            above.pins == below.pins && above.booked == below.booked && one_run
        }
    })
}

/// The upper holders, each with the lower one of the same rank. Both are ordered by slot, and
/// a rank that has the lower node has the upper one.
fn pairs<'a>(
    upper: &'a [Holder],
    lower: &'a [Holder],
) -> impl Iterator<Item = (&'a Holder, Option<&'a Holder>)> {
    let mut lower = lower.iter().peekable();
    upper.iter().map(move |above| (above, lower.next_if(|below| below.slot == above.slot)))
}
