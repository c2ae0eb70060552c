//! What processes send each other on its way: late, twice, in another order, or not at all.

use domain::Moment;
use rand::Rng;
use replication::Process;

use super::{Event, ROUTERS, World};
use crate::messages::{Message, Node};

impl World {
    /// Whether both live and hear each other.
    pub(crate) fn are_connected(&self, a: Node, b: Node) -> bool {
        let stands = |node| self.paused.get(&node).is_some_and(|until| *until > self.now);
        let runs = |node| self.is_up(node) && !stands(node);
        let cut = self.cuts.contains(&(a, b)) || self.cuts.contains(&(b, a));
        runs(a) && runs(b) && !cut && !self.storm
    }

    /// What a process that stands still will get later.
    pub(super) fn waits_for(&self, event: &Event) -> Option<Moment> {
        let node = match event {
            Event::Deliver { to: node, .. } | Event::Tick(node) => *node,
            Event::Request(edge) => Node::Edge(*edge),
            Event::FirstToken { edge, .. }
            | Event::Done { edge, .. }
            | Event::Broke { edge, .. } => Node::of(edge),
            Event::SessionBroke { at, .. } => *at,
            Event::Fault | Event::Undo(_) | Event::Check => return None,
        };
        self.paused.get(&node).copied().filter(|until| *until > self.now)
    }

    pub(super) fn send(&mut self, from: Node, to: Node, message: Message) {
        if to == Node::Bus {
            for router in 0..ROUTERS {
                if !self.bus_down {
                    self.send(from, Node::Router(router), message.clone());
                }
            }
            return;
        }
        let (loss, twice, slow) = if self.storm { (0.2, 0.1, 0.3) } else { (0.01, 0.01, 0.03) };
        if self.cuts.contains(&(from, to)) || self.rng.random_bool(loss) {
            return;
        }
        let copies = 1 + usize::from(self.rng.random_bool(twice));
        for _ in 0..copies {
            let range = if self.rng.random_bool(slow) { 2..300 } else { 0..2 };
            let delay = self.millis(range);
            let message = Box::new(message.clone());
            self.after(delay, Event::Deliver { from, to, message });
        }
    }

    pub(super) fn deliver(&mut self, from: Node, to: Node, message: Message) {
        if self.cuts.contains(&(from, to)) {
            return;
        }
        let now = self.now;
        match to {
            Node::Telemetry => {
                let Some(telemetry) = &mut self.telemetry else { return };
                let Message::Renew(renew) = message else { return };
                self.checks.renewed(&renew.member.process, now);
                let list = telemetry.renew(renew, now);
                self.checks.published(telemetry.list(), now);
                self.send(to, from, Message::Renewed(list));
            }
            Node::Router(i) => {
                let Some(router) = &mut self.routers[i] else { return };
                let sent = router.on_message(from, message, now);
                self.after_router(i, sent);
            }
            Node::Edge(i) => {
                let Some(edge) = &mut self.edges[i] else { return };
                edge.on_message(from, message, now);
                self.after_edge(i);
            }
            Node::Bus => {}
        }
    }

    pub(super) fn session_broke(&mut self, at: Node, of: &Process) {
        let now = self.now;
        match (at, Node::of_any(of)) {
            (Node::Router(i), Some(Node::Edge(_))) => {
                let Some(router) = &mut self.routers[i] else { return };
                for served in router.pools.values_mut() {
                    let book = served.pool.state().book.clone();
                    served.sessions.broken(of, &book, now);
                }
            }
            (Node::Edge(i), Some(Node::Router(_))) => {
                let Some(edge) = &mut self.edges[i] else { return };
                edge.unreachable(of, now);
            }
            _ => {}
        }
    }
}
