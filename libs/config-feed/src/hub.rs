//! Telemetry's side: the state that is told, and everybody who is told it.
//!
//! Every change is made into one [`Frame`], which all watchers share: its bytes are made once. A
//! watcher takes frames at its own pace from a bounded ring; one that falls out of it is brought
//! to the present state instead.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use domain::{Fleet, Moment};
use parking_lot::Mutex;
use replication::{MemberList, Process, Registrar, Renew};
use tokio::sync::{broadcast, watch};

use crate::observed::Observed;
use crate::{CARRIED, Document, Event, Heartbeat, Position, Refusal, refusal, wire};

/// How often watchers hear something although nothing happens.
pub const HEARTBEAT_EVERY: Duration = Duration::from_millis(250);

/// How often readings of load are told. Engines are read once a second.
const LOADS_EVERY: Duration = Duration::from_secs(1);

/// Frames that a watcher may lag behind: some ten seconds of heartbeats and loads with a burst of
/// a few hundred changes. A watcher further behind is brought to the present state.
const RING: usize = 512;

/// Deletions that are remembered for watchers that come back. As many as the store's own.
const TOMBSTONES: usize = 4096;

/// Processes that are remembered to have lost their name, so that each is logged once.
const MOST_OUTDATED: usize = 1024;

/// One event with its bytes.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) event: Event,
    bytes: OnceLock<Bytes>,
}

impl Frame {
    fn new(event: Event) -> Arc<Self> {
        Arc::new(Self { event, bytes: OnceLock::new() })
    }

    /// The event as a message of the wire. Made at the first call, loads as old as they are then.
    pub(crate) fn bytes(&self) -> Bytes {
        let encode = || wire::encode(&self.event, lifecycle::monotonic());
        self.bytes.get_or_init(encode).clone()
    }
}

/// What is told to all watchers at the same time.
#[derive(Clone, Debug)]
enum Said {
    Frame(Arc<Frame>),
    /// The desired state was replaced: everybody compares anew.
    Replaced,
}

/// The state that edges and routers follow. Nothing here waits; telemetry tells it of every
/// change and of time.
pub struct Hub {
    state: Mutex<State>,
    said: broadcast::Sender<Said>,
    members: watch::Sender<MemberList>,
}

struct State {
    desired: Desired,
    observed: Observed,
    /// The whole fleet in frames, until it changes.
    whole: Option<Vec<Arc<Frame>>>,
    registrar: Registrar,
    /// Processes that were told that a later one has their name.
    outdated: HashSet<Process>,
    next_heartbeat: Moment,
    next_loads: Moment,
}

/// The documents that are carried, deletions too.
#[derive(Default)]
struct Desired {
    position: Position,
    /// The oldest revision that a watcher can go on from.
    floor: u64,
    by_revision: BTreeMap<u64, Arc<Frame>>,
    by_key: HashMap<(Arc<str>, Arc<str>), u64>,
    /// Revisions of deletions, oldest first.
    tombstones: VecDeque<u64>,
}

impl Hub {
    /// A start of telemetry. `start` is the time in milliseconds since 1970: above that of every
    /// earlier start. Nothing is told of documents or of the fleet before the first call of
    /// [`Hub::replace`] and of [`Hub::fleet`].
    pub fn new(start: u64, now: Moment) -> Arc<Self> {
        let registrar = Registrar::new(start, now);
        let state = State {
            desired: Desired::default(),
            observed: Observed::new(start),
            whole: None,
            registrar,
            outdated: HashSet::new(),
            next_heartbeat: now,
            next_loads: now,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            said: broadcast::Sender::new(RING),
            members: watch::Sender::new(MemberList::default()),
        })
    }

    /// The desired state from its beginning: the documents of a store as of a revision.
    pub fn replace(&self, position: Position, documents: impl IntoIterator<Item = Document>) {
        let mut state = self.state.lock();
        let floor = position.revision;
        state.desired = Desired { position, floor, ..Desired::default() };
        for document in documents {
            state.desired.enter(document);
        }
        let _ = self.said.send(Said::Replaced);
    }

    /// The next change of the desired state. Changes come by rising revision.
    pub fn document(&self, document: Document) {
        let mut state = self.state.lock();
        state.desired.position.revision = document.revision;
        let frame = state.desired.enter(document);
        if let Some(frame) = frame {
            self.say(frame);
        }
        // A revision that a watcher has whole, and may come back with.
        self.say(Frame::new(Event::Synced(state.desired.position.clone())));
    }

    /// The observed state. The first one must be of everything that is wanted.
    pub fn fleet(&self, fleet: &Arc<Fleet>) {
        let mut state = self.state.lock();
        state.whole = None;
        for change in state.observed.update(fleet) {
            self.say(Frame::new(Event::Fleet(Arc::new(change))));
        }
    }

    /// Time has passed. To be called several times within [`HEARTBEAT_EVERY`].
    pub fn tick(&self, now: Moment) {
        let mut state = self.state.lock();
        if let Some(list) = state.registrar.tick(now) {
            self.publish(list);
        }
        if state.next_loads <= now {
            state.next_loads = now + LOADS_EVERY;
            if let Some(loads) = state.observed.take_loads() {
                self.say(Frame::new(Event::Loads(Arc::new(loads))));
            }
        }
        if state.next_heartbeat <= now {
            state.next_heartbeat = now + HEARTBEAT_EVERY;
            self.say(Frame::new(Event::Heartbeat(state.heartbeat())));
        }
    }

    /// Grants or renews a member's lease.
    ///
    /// # Errors
    /// It is not one that others could go by; nothing is changed then. Or
    /// [`Refusal::NameTaken`]: another process of that name, which began later, holds the lease.
    /// That is logged once for each that asks.
    pub fn renew(&self, renew: Renew, now: Moment) -> Result<Option<MemberList>, Refusal> {
        refusal::check(&renew.member)?;
        let mut state = self.state.lock();
        if let Some(objection) = state.registrar.objection(&renew) {
            return Err(objection.into());
        }
        let process = renew.member.process.clone();
        let answer = state.registrar.renew(renew, now);
        self.publish(state.registrar.list().clone());
        if !state.registrar.is_outdated(&process, now) {
            return Ok(answer);
        }
        if state.outdated.len() >= MOST_OUTDATED {
            state.outdated.clear();
        }
        if state.outdated.insert(process.clone()) {
            tracing::warn!(
                member.id = %process.id, member.incarnation = process.incarnation.0,
                "two processes have this member.id: the one that began first is not on the list"
            );
        }
        Err(Refusal::NameTaken)
    }

    /// A member goes.
    pub fn leave(&self, process: &Process, now: Moment) {
        let mut state = self.state.lock();
        state.registrar.leave(process, now);
        self.publish(state.registrar.list().clone());
    }

    /// The services of the region, as published.
    pub fn members(&self) -> watch::Receiver<MemberList> {
        self.members.subscribe()
    }

    /// Watchers there are.
    pub fn watchers(&self) -> usize {
        self.said.receiver_count()
    }

    /// Begins a watch.
    pub(crate) fn watch(self: &Arc<Self>, from: Position) -> Watch {
        let (waiting, said) = (VecDeque::new(), self.said.subscribe());
        let mut watch = Watch { hub: self.clone(), waiting, said, from };
        watch.catch_up();
        watch
    }

    fn say(&self, frame: Arc<Frame>) {
        // Without watchers there is nobody to tell.
        let _ = self.said.send(Said::Frame(frame));
    }

    fn publish(&self, list: MemberList) {
        let newer = self.members.send_if_modified(|members| {
            let newer = members.epoch < list.epoch;
            if newer {
                *members = list.clone();
            }
            newer
        });
        if newer {
            self.say(Frame::new(Event::Members(list)));
        }
    }
}

impl State {
    fn heartbeat(&self) -> Heartbeat {
        let (start, fleet_revision) = self.observed.standing();
        let epoch = self.registrar.list().epoch;
        Heartbeat { position: self.desired.position.clone(), start, fleet_revision, epoch }
    }
}

impl Desired {
    /// Enters a document's state; `None` if its kind is not carried.
    fn enter(&mut self, document: Document) -> Option<Arc<Frame>> {
        if !CARRIED.contains(&&*document.kind) {
            return None;
        }
        let (revision, deleted) = (document.revision, document.json.is_none());
        let key = (document.kind.clone(), document.id.clone());
        let frame = Frame::new(Event::Document(Arc::new(document)));
        if let Some(before) = self.by_key.insert(key, revision) {
            self.by_revision.remove(&before);
        }
        self.by_revision.insert(revision, frame.clone());
        if deleted {
            self.tombstones.push_back(revision);
        }
        while self.tombstones.len() > TOMBSTONES {
            self.forget_oldest_deletion();
        }
        Some(frame)
    }

    fn forget_oldest_deletion(&mut self) {
        let Some(revision) = self.tombstones.pop_front() else { return };
        self.floor = self.floor.max(revision);
        // The document may have been made again since; then this deletion is not there any more.
        if let Some(frame) = self.by_revision.remove(&revision)
            && let Event::Document(document) = &frame.event
        {
            self.by_key.remove(&(document.kind.clone(), document.id.clone()));
        }
    }

    /// What a watcher at `from` has to be told to have everything.
    fn since(&self, from: &Position) -> Vec<Arc<Frame>> {
        let resumes = from.store == self.position.store
            && (self.floor..=self.position.revision).contains(&from.revision);
        let mut frames = Vec::new();
        let mut after = from.revision;
        if !resumes {
            frames.push(Frame::new(Event::Restart));
            after = 0;
        }
        let later = self.by_revision.range(after + 1..);
        frames.extend(later.map(|(_, frame)| frame.clone()));
        frames.push(Frame::new(Event::Synced(self.position.clone())));
        frames
    }
}

/// One watcher's place.
pub(crate) struct Watch {
    hub: Arc<Hub>,
    waiting: VecDeque<Arc<Frame>>,
    said: broadcast::Receiver<Said>,
    /// What the watcher has of the desired state, once it has taken what waits.
    from: Position,
}

impl Watch {
    /// Queues what brings the watcher to the present state.
    fn catch_up(&mut self) {
        // Subscribed and read under one lock: no change is between the two.
        let mut state = self.hub.state.lock();
        self.said = self.said.resubscribe();
        self.waiting.clear();
        // Before the first `replace` there is no store, and nothing to be told.
        if !state.desired.position.store.is_empty() {
            self.waiting.extend(state.desired.since(&self.from));
            self.from = state.desired.position.clone();
        }
        if state.whole.is_none() {
            let parts = state.observed.whole().into_iter();
            let frames = parts.map(|part| Frame::new(Event::Fleet(Arc::new(part)))).collect();
            state.whole = Some(frames);
        }
        self.waiting.extend(state.whole.iter().flatten().cloned());
        let list = state.registrar.list();
        if list.epoch > replication::Epoch::ZERO {
            self.waiting.push_back(Frame::new(Event::Members(list.clone())));
        }
        self.waiting.push_back(Frame::new(Event::Heartbeat(state.heartbeat())));
    }

    /// The next frame; `None` when telemetry ends.
    pub(crate) async fn next(&mut self) -> Option<Arc<Frame>> {
        loop {
            if let Some(frame) = self.waiting.pop_front() {
                return Some(frame);
            }
            match self.said.recv().await {
                Ok(said) => self.take(said),
                Err(broadcast::error::RecvError::Lagged(_)) => self.catch_up(),
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// The next frame, if one is there.
    pub(crate) fn ready(&mut self) -> Option<Arc<Frame>> {
        loop {
            if let Some(frame) = self.waiting.pop_front() {
                return Some(frame);
            }
            match self.said.try_recv() {
                Ok(said) => self.take(said),
                Err(broadcast::error::TryRecvError::Lagged(_)) => self.catch_up(),
                Err(_) => return None,
            }
        }
    }

    fn take(&mut self, said: Said) {
        match said {
            Said::Replaced => self.catch_up(),
            Said::Frame(frame) => {
                if let Event::Synced(position) = &frame.event {
                    self.from = position.clone();
                }
                self.waiting.push_back(frame);
            }
        }
    }

    /// Frames that are ready, as encoded events: at least one and about `limit` bytes. `None`
    /// when telemetry ends.
    pub(crate) async fn encoded(&mut self, limit: usize) -> Option<Vec<Bytes>> {
        let first = self.next().await?.bytes();
        let mut total = first.len();
        let mut batch = vec![first];
        while total < limit {
            let Some(frame) = self.ready() else { break };
            let bytes = frame.bytes();
            total += bytes.len();
            batch.push(bytes);
        }
        Some(batch)
    }
}

#[cfg(test)]
mod tests;
