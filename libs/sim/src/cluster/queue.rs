//! What is to happen, by time; what happens at one time keeps the order it was entered in.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use domain::{LeaseId, Moment};

/// Something that happens to a request, or to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// Its caller sends it.
    Send(usize),
    /// It reaches its engine, if that lease is still its own.
    Arrive(usize, LeaseId),
    /// An engine dies.
    Dies(usize),
    /// It is back, with nothing in its cache.
    Returns(usize),
}

/// The events to come.
#[derive(Debug, Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Reverse<(Moment, u64, Event)>>,
    entered: u64,
}

impl Queue {
    pub(super) fn push(&mut self, at: Moment, event: Event) {
        self.heap.push(Reverse((at, self.entered, event)));
        self.entered += 1;
    }

    pub(super) fn next_at(&self) -> Option<Moment> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    pub(super) fn pop_due(&mut self, now: Moment) -> Option<Event> {
        if self.next_at()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((.., event))| event)
    }
}
