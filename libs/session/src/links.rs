//! Connections to the routers of the member list.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::Moment;
use lifecycle::TaskHandle;
use parking_lot::Mutex;
use proto::routing::v1;
use proto::routing::v1::edge_message::Kind;
use replication::{Member, MemberId, MemberList, Process, Role};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::client::Shared;
use crate::outbox::Outbox;
use crate::stream;

/// How often it is looked whether an audit is due.
const AUDIT_TICK: Duration = Duration::from_millis(250);

/// An open stream to a router.
#[derive(Debug)]
pub(crate) struct Open {
    /// Never given twice in a process.
    pub(crate) number: u64,
    pub(crate) router: MemberId,
    pub(crate) outbox: Arc<Outbox>,
    /// Routes that may still wait on it.
    pub(crate) credit: Arc<Semaphore>,
}

/// The routers that there are links to.
#[derive(Debug)]
pub(crate) struct Links {
    routers: Mutex<HashMap<MemberId, Router>>,
    state: Mutex<Since>,
}

#[derive(Debug)]
struct Router {
    address: Arc<str>,
    open: Vec<Arc<Open>>,
    tasks: Vec<TaskHandle>,
}

#[derive(Debug)]
struct Since {
    open: usize,
    /// When the last stream ended, or the process began.
    down: Moment,
    next: u64,
}

impl Links {
    pub(crate) fn new(now: Moment) -> Self {
        let state = Mutex::new(Since { open: 0, down: now, next: 0 });
        Self { routers: Mutex::default(), state }
    }

    /// A number for a stream.
    pub(crate) fn number(&self) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        state.next
    }

    /// How long there has been no stream to any router.
    pub(crate) fn down_for(&self, now: Moment) -> Duration {
        let state = self.state.lock();
        if state.open > 0 { Duration::ZERO } else { now.since(state.down) }
    }

    /// A stream is open. Returns whether it is the first to its router; `None` if the router is
    /// one no longer.
    pub(crate) fn enter(&self, stream: &Arc<Open>) -> Option<bool> {
        let mut routers = self.routers.lock();
        let router = routers.get_mut(&stream.router)?;
        router.open.push(Arc::clone(stream));
        self.state.lock().open += 1;
        Some(router.open.len() == 1)
    }

    /// A stream is over. Returns whether it was the last to its router.
    pub(crate) fn leave(&self, stream: &Open, now: Moment) -> bool {
        let mut routers = self.routers.lock();
        let mut state = self.state.lock();
        state.open -= 1;
        state.down = now;
        let Some(router) = routers.get_mut(&stream.router) else { return true };
        router.open.retain(|open| open.number != stream.number);
        router.open.is_empty()
    }

    /// A stream to a router; which one goes by `turn`.
    pub(crate) fn open(&self, router: &MemberId, turn: u64) -> Option<Arc<Open>> {
        let routers = self.routers.lock();
        let open = &routers.get(router)?.open;
        open.get(usize::try_from(turn).unwrap_or_default() % open.len().max(1)).cloned()
    }

    /// The same, if one has credit.
    pub(crate) fn with_credit(
        &self,
        router: &MemberId,
        turn: u64,
    ) -> Option<(Arc<Open>, OwnedSemaphorePermit)> {
        let routers = self.routers.lock();
        let open = &routers.get(router)?.open;
        let first = usize::try_from(turn).unwrap_or_default();
        (0..open.len()).find_map(|i| {
            let stream = &open[(first % open.len() + i) % open.len()];
            let permit = Arc::clone(&stream.credit).try_acquire_owned().ok()?;
            Some((Arc::clone(stream), permit))
        })
    }

    /// A stream to the first of the routers that has one.
    pub(crate) fn first_open(&self, order: &[Process], turn: u64) -> Option<Arc<Open>> {
        order.iter().find_map(|router| self.open(&router.id, turn))
    }

    /// The first of the routers that has a stream.
    pub(crate) fn first_reachable(&self, order: &[Process]) -> Option<MemberId> {
        self.first_open(order, 0).map(|stream| stream.router.clone())
    }
}

/// Follows the member list until the drain.
pub(crate) async fn follow(shared: Arc<Shared>, mut members: watch::Receiver<MemberList>) {
    let drain = shared.spawner.drain();
    loop {
        let list = members.borrow_and_update().clone();
        set_list(&shared, &list);
        tokio::select! {
            changed = members.changed() => if changed.is_err() { return },
            () = drain.signaled() => return,
        }
    }
}

/// A member list came, from telemetry or a router.
pub(crate) fn set_list(shared: &Arc<Shared>, list: &MemberList) {
    // Under this lock, so that the links follow the list that is taken last.
    let mut known = shared.links.routers.lock();
    if !shared.state.lock().set_list(list) {
        return;
    }
    let routers = list.members.iter().filter(|member| member.role == Role::Router);
    let wanted: HashMap<&MemberId, &Member> = routers.map(|m| (&m.process.id, m)).collect();
    known.retain(|id, router| {
        let stays = wanted.get(id).is_some_and(|member| member.address == router.address);
        if !stays {
            router.tasks.iter().for_each(TaskHandle::abort);
            router.open.iter().for_each(|stream| stream.outbox.close());
        }
        stays
    });
    for (id, member) in wanted {
        if known.contains_key(id) {
            continue;
        }
        tracing::info!(router = %id, address = &*member.address, "a router is connected to");
        let task = || {
            let link = stream::run(Arc::clone(shared), id.clone(), Arc::clone(&member.address));
            shared.spawner.spawn("session-link", link)
        };
        let router = Router {
            address: Arc::clone(&member.address),
            open: Vec::new(),
            tasks: (0..shared.config.streams).map(|_| task()).collect(),
        };
        known.insert(id.clone(), router);
    }
}

/// Tells owners once a second what is held, until the drain.
pub(crate) async fn audit(shared: Arc<Shared>) {
    let drain = shared.spawner.drain();
    let mut ticks = tokio::time::interval(AUDIT_TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = drain.signaled() => return,
        }
        let due: Vec<_> = {
            let mut state = shared.state.lock();
            let audits = state.holdings.tick(shared.now());
            audits
                .into_iter()
                .map(|(pool, audit)| (state.holdings.ask_order(&pool), pool, audit))
                .collect()
        };
        if !due.is_empty() {
            ask_owners_again(&shared);
        }
        for (order, pool, audit) in due {
            if let Some(stream) = shared.links.first_open(&order, 0) {
                stream.outbox.push(Kind::Audit(v1::Audit::new(&pool, &audit)));
            }
        }
    }
}

/// Routers that stand in for others are asked no more once those are connected.
fn ask_owners_again(shared: &Shared) {
    let passed_over = shared.state.lock().holdings.passed_over();
    for router in passed_over {
        if shared.links.first_open(std::slice::from_ref(&router), 0).is_some() {
            shared.state.lock().holdings.ask_again(&router);
        }
    }
}
