//! Engines with the streams that they work on.

use std::collections::BTreeMap;

use domain::{BackendId, BlockKey, Incarnation, LeaseId, Moment, RankId};
use rand::Rng;
use replication::Process;

use super::{Event, TRAFFIC_UNTIL, World, at, pools};
use crate::edge::Edge;
use crate::messages::Node;

#[derive(Default)]
pub(crate) struct Engine {
    pub(crate) up: bool,
    pub(crate) incarnation: u64,
    /// Whether the operator wants it.
    pub(crate) wanted: bool,
    /// Streams that it works on, with the moment they began.
    pub(crate) streams: BTreeMap<(Process, LeaseId), Moment>,
}

impl Engine {
    pub(crate) fn rank(number: usize, incarnation: u64) -> RankId {
        let backend = BackendId::new(format!("b{number}"));
        RankId { backend, incarnation: Incarnation(incarnation), rank: 0 }
    }
}

impl World {
    pub(super) fn open_stream(&mut self, i: usize, lease: LeaseId, rank: &RankId) {
        let process = self.process(Node::Edge(i));
        let number: usize = rank.backend.as_str()[1..].parse().unwrap();
        let engine = &mut self.engines[number];
        if !engine.up || engine.incarnation != rank.incarnation.0 {
            let delay = self.millis(1..3);
            return self.after(delay, Event::Broke { edge: process, lease });
        }
        engine.streams.insert((process.clone(), lease), self.now);
        let first = self.millis(20..300);
        let done = first + self.millis(50..6000);
        self.after(first, Event::FirstToken { edge: process.clone(), lease });
        self.after(done, Event::Done { edge: process, lease });
    }

    pub(super) fn on_stream(
        &mut self,
        process: &Process,
        lease: LeaseId,
        f: impl FnOnce(&mut Edge, Moment),
    ) {
        let Node::Edge(i) = Node::of(process) else { return };
        if self.process(Node::Edge(i)) != *process {
            return;
        }
        let now = self.now;
        let Some(edge) = self.edges[i].as_mut().filter(|e| e.requests.contains_key(&lease)) else {
            return;
        };
        f(edge, now);
        self.after_edge(i);
    }

    pub(super) fn request(&mut self, i: usize) {
        if self.now >= at(TRAFFIC_UNTIL) {
            return;
        }
        let delay = self.millis(20..200);
        self.after(delay, Event::Request(i));
        let pool = pools()[self.rng.random_range(0..2)].clone();
        let conversation = self.rng.random_range(1..=8_u64);
        let turns = self.rng.random_range(2..=10_u64);
        let keys = (0..turns).map(|turn| BlockKey(conversation * 1000 + turn)).collect();
        let gives_up = self.rng.random_bool(0.1);
        let patience = self.millis(1..1000);
        let now = self.now;
        let Some(edge) = &mut self.edges[i] else { return };
        let lease = edge.begin(pool, keys, now);
        self.after_edge(i);
        if gives_up {
            let edge = self.process(Node::Edge(i));
            self.after(patience, Event::Done { edge, lease });
        }
    }
}
