//! Faults, and their end.

use std::time::Duration;

use rand::Rng;

use super::{EDGES, ENGINES, Event, FAULTS_UNTIL, ROUTERS, World, at, nodes};
use crate::messages::Node;

#[derive(Clone, Copy, Debug)]
pub(super) enum Undo {
    Restart(Node),
    Heal(Node, Node),
    BusUp,
    Calm,
    EngineUp(usize),
    ListEngine(usize),
}

impl World {
    pub(super) fn fault(&mut self) {
        if self.now >= at(FAULTS_UNTIL) {
            return;
        }
        let next = self.millis(200..2500);
        self.after(next, Event::Fault);
        let lasts = self.millis(100..8000).min(at(FAULTS_UNTIL).since(self.now));
        let (router, edge, engine) = (
            Node::Router(self.rng.random_range(0..ROUTERS)),
            Node::Edge(self.rng.random_range(0..EDGES)),
            self.rng.random_range(0..ENGINES),
        );
        match self.rng.random_range(0..12) {
            0 | 1 => self.crash_for(router, lasts),
            // Long enough for its leases to end before it is back.
            2 => self.crash_for(edge, (lasts * 3).min(at(FAULTS_UNTIL).since(self.now))),
            3 => self.crash_for(Node::Telemetry, lasts),
            4 => self.engine_crash(engine, lasts),
            5 | 6 => self.cut(lasts),
            7 => self.isolate(lasts),
            8 => {
                self.log(|| format!("bus down for {lasts:?}"));
                self.bus_down = true;
                self.after(lasts, Event::Undo(Undo::BusUp));
            }
            9 => {
                self.log(|| format!("storm for {lasts:?}"));
                self.storm = true;
                self.after(lasts, Event::Undo(Undo::Calm));
            }
            10 => {
                self.log(|| format!("backend b{engine} off the list for {lasts:?}"));
                self.engines[engine].wanted = false;
                self.after(lasts, Event::Undo(Undo::ListEngine(engine)));
            }
            _ => {
                let node = if self.rng.random_bool(0.5) { router } else { edge };
                let node = if self.rng.random_bool(0.2) { Node::Telemetry } else { node };
                self.log(|| format!("{} stands still for {lasts:?}", node.name()));
                self.paused.insert(node, self.now + lasts);
            }
        }
        if self.rng.random_bool(0.1) {
            self.checks.corrupt(&mut self.routers[..]);
        }
    }

    pub(super) fn crash_for(&mut self, node: Node, lasts: Duration) {
        if self.is_up(node) {
            self.crash(node);
            self.after(lasts, Event::Undo(Undo::Restart(node)));
        }
    }

    pub(super) fn engine_crash(&mut self, number: usize, lasts: Duration) {
        let engine = &mut self.engines[number];
        if !std::mem::replace(&mut engine.up, false) {
            return;
        }
        let streams = std::mem::take(&mut engine.streams);
        self.log(|| format!("engine b{number} dies with {} streams", streams.len()));
        for (edge, lease) in streams.into_keys() {
            let delay = self.millis(1..5);
            self.after(delay, Event::Broke { edge, lease });
        }
        self.after(lasts, Event::Undo(Undo::EngineUp(number)));
    }

    pub(super) fn cut(&mut self, lasts: Duration) {
        let all = nodes();
        let a = all[self.rng.random_range(0..all.len())];
        let b = all[self.rng.random_range(0..all.len())];
        let both_ways = self.rng.random_bool(0.7);
        self.log(|| format!("cut {} {} both={both_ways} for {lasts:?}", a.name(), b.name()));
        self.cuts.insert((a, b));
        self.after(lasts, Event::Undo(Undo::Heal(a, b)));
        if both_ways {
            self.cuts.insert((b, a));
            self.after(lasts, Event::Undo(Undo::Heal(b, a)));
        }
    }

    pub(super) fn isolate(&mut self, lasts: Duration) {
        let all = nodes();
        let node = all[self.rng.random_range(0..all.len())];
        self.log(|| format!("isolate {} for {lasts:?}", node.name()));
        for other in all {
            for pair in [(node, other), (other, node)] {
                self.cuts.insert(pair);
                self.after(lasts, Event::Undo(Undo::Heal(pair.0, pair.1)));
            }
        }
    }

    pub(super) fn undo(&mut self, undo: Undo) {
        self.log(|| format!("undo {undo:?}"));
        match undo {
            Undo::Restart(node) => self.start(node),
            Undo::Heal(a, b) => {
                self.cuts.remove(&(a, b));
            }
            Undo::BusUp => self.bus_down = false,
            Undo::Calm => self.storm = false,
            Undo::EngineUp(i) => {
                self.engines[i].up = true;
                self.engines[i].incarnation += 1;
            }
            Undo::ListEngine(i) => self.engines[i].wanted = true,
        }
    }
}
