//! One pool on one router: serving it, keeping in step with who does, taking over.
//!
//! - [`claim`]: who wants the pool asks for it, hands it over, or takes it

mod claim;

use std::time::Duration;

use domain::Moment;

use crate::follower::{Follower, Part};
use crate::member::{MemberList, Process};
use crate::message::{Heartbeat, MessageOf, Output, OutputOf, PoolMessage, To};
use crate::ownership::{PoolId, Reign, Stream, order};
use crate::publisher::{Publisher, RingLimits};
use crate::state::{Position, Replicated};
pub use claim::CLAIM_WAIT;
use claim::Candidacy;

/// An owner of which nothing was heard for so long is not named to edges any more.
const OWNER_HEARD_WITHIN: Duration = Duration::from_secs(1);

/// A pool's state on one router, and its part in the region. All of a pool's messages and
/// changes go through it. Every router has one for every pool; only the owner and the standby
/// hold the state.
pub struct Pool<S: Replicated> {
    me: Process,
    id: PoolId,
    limits: RingLimits,
    list: MemberList,
    /// The routers of the list in the order in which they should own it.
    order: Vec<Process>,
    state: S,
    role: Role<S>,
    /// The highest reign that was heard of, and when its owner was heard last.
    seen: Option<(Reign, Moment)>,
    /// The highest turn of any reign that was heard of.
    highest_turn: u64,
    candidacy: Option<Candidacy>,
    /// When an edge asked here last, as it found nobody better.
    asked: Option<Moment>,
}

/// What this router does with the pool.
enum Role<S: Replicated> {
    /// In step with the owner, or without state.
    Following(Follower<S>),
    /// It is the owner.
    Serving(Publisher<S>),
    /// It handed over, and its successor was not heard yet: it keeps what that may still need.
    Released(Publisher<S>, Process),
}

impl<S: Replicated> Pool<S> {
    /// A pool without content. `state` is the empty state.
    pub fn new(me: Process, id: PoolId, state: S, limits: RingLimits) -> Self {
        Self {
            me,
            id,
            limits,
            list: MemberList::default(),
            order: Vec::new(),
            state,
            role: Role::Following(Follower::at(None)),
            seen: None,
            highest_turn: 0,
            candidacy: None,
            asked: None,
        }
    }

    /// Its name.
    pub fn id(&self) -> &PoolId {
        &self.id
    }

    /// The process that this is a part of.
    pub fn process(&self) -> &Process {
        &self.me
    }

    /// The state: the owner's own, or the copy of it.
    pub fn state(&self) -> &S {
        &self.state
    }

    /// The state, for an owner that changes it itself and [publishes](Self::publish) what it
    /// did. A copy is changed by what its owner publishes, and by nothing else.
    pub fn state_mut(&mut self) -> &mut S {
        &mut self.state
    }

    /// Whether this router decides for the pool.
    pub fn is_serving(&self) -> bool {
        matches!(self.role, Role::Serving(_))
    }

    /// Its reign while it serves.
    pub fn reign(&self) -> Option<&Reign> {
        match &self.role {
            Role::Serving(publisher) => Some(&publisher.reign),
            _ => None,
        }
    }

    /// Exactly which state it has, if it is one that an owner had.
    pub fn position(&self) -> Option<Position> {
        match &self.role {
            Role::Following(follower) => follower.position.clone(),
            Role::Serving(publisher) | Role::Released(publisher, _) => Some(publisher.position()),
        }
    }

    /// Whom an edge should ask, as far as is known here.
    pub fn owner(&self, now: Moment) -> Option<Process> {
        match &self.role {
            Role::Serving(_) => Some(self.me.clone()),
            Role::Released(_, successor) => Some(successor.clone()),
            Role::Following(_) => {
                let (reign, heard) = self.seen.as_ref()?;
                (now.since(*heard) < OWNER_HEARD_WITHIN && reign.stream.owner != self.me)
                    .then(|| reign.stream.owner.clone())
            }
        }
    }

    /// Makes a change; returns what publishes it. On a router that does not serve the change is
    /// not made, and nothing is returned.
    pub fn change(&mut self, delta: S::Delta) -> Option<OutputOf<S>> {
        let Role::Serving(publisher) = &mut self.role else { return None };
        self.state.apply(&delta);
        Some(Output::Send(To::Routers, publisher.publish(delta)))
    }

    /// Publishes a change that was made by [`state_mut`](Self::state_mut). Nothing is returned on
    /// a router that does not serve.
    pub fn publish(&mut self, delta: S::Delta) -> Option<OutputOf<S>> {
        let Role::Serving(publisher) = &mut self.role else { return None };
        Some(Output::Send(To::Routers, publisher.publish(delta)))
    }

    /// Whether it has given the pool to a successor and nobody's changes were heard since.
    pub fn has_released(&self) -> bool {
        matches!(&self.role, Role::Released(..))
    }

    /// Whether it has the state of an owner and follows that one's changes.
    pub fn is_in_step(&self) -> bool {
        matches!(&self.role, Role::Following(follower) if follower.is_in_step())
    }

    /// Whether the list has other routers, which may keep a copy.
    pub fn has_peers(&self) -> bool {
        self.order.iter().any(|router| router.id != self.me.id)
    }

    /// The member list is another.
    pub fn set_list(&mut self, list: &MemberList, now: Moment) -> Vec<OutputOf<S>> {
        if list.epoch <= self.list.epoch {
            return Vec::new();
        }
        self.order = order(&self.id, list);
        self.list = list.clone();
        let (is_first, epoch) = (self.place(&self.me) == Some(0), list.epoch);
        if let Role::Serving(publisher) = &mut self.role
            && is_first
        {
            publisher.reign.epoch = publisher.reign.epoch.max(epoch);
        }
        self.forget_if_aside();
        self.tick(now)
    }

    /// An edge asked here though this router does not serve: it may have to.
    pub fn asked(&mut self, now: Moment) {
        self.asked = Some(now);
    }

    /// Time has passed. Call it every 50 ms or so.
    pub fn tick(&mut self, now: Moment) -> Vec<OutputOf<S>> {
        match &mut self.role {
            Role::Serving(publisher) => {
                let beat = publisher.tick(&self.state, now);
                beat.map(|beat| Output::Send(To::Routers, beat)).into_iter().collect()
            }
            Role::Following(follower) => {
                let mut outputs: Vec<_> = follower.tick(now).into_iter().collect();
                outputs.extend(self.claim(now));
                outputs
            }
            Role::Released(..) => self.claim(now),
        }
    }

    /// A message of another router's. The caller has refused those of an older epoch than ours
    /// ([`Membership::order`](crate::Membership::order)).
    pub fn on_message(
        &mut self,
        from: &Process,
        message: MessageOf<S>,
        now: Moment,
    ) -> Vec<OutputOf<S>> {
        // A bus may give a publisher its own words back.
        if *from == self.me {
            return Vec::new();
        }
        match message {
            PoolMessage::Heartbeat(beat) => self.on_heartbeat(from, beat, now),
            PoolMessage::Deposed { reign } => self.on_higher_reign(&reign, now),
            PoolMessage::Claim { position } => self.on_claim(from, position.as_ref(), now),
            PoolMessage::Release { position } => self.on_release(&position, now),
            PoolMessage::Repair { stream, from: seq } => self.on_repair(from, &stream, seq),
            PoolMessage::Fetch { stream, snapshot, index } => {
                self.on_fetch(from, &stream, snapshot, index, now)
            }
            PoolMessage::Delta { stream, seq, delta } => match &mut self.role {
                Role::Following(follower) => {
                    follower.on_delta(&stream, seq, delta, &mut self.state, now)
                }
                _ => Vec::new(),
            },
            PoolMessage::PastRing { stream } => match &mut self.role {
                Role::Following(follower) => follower.on_past_ring(&stream, &self.state, now),
                _ => Vec::new(),
            },
            PoolMessage::Chunk { stream, snapshot, index, count, chunk } => match &mut self.role {
                Role::Following(follower) => {
                    let part = Part { snapshot, index, count, chunk };
                    follower.on_chunk(&stream, part, &mut self.state, now)
                }
                _ => Vec::new(),
            },
        }
    }

    fn on_heartbeat(&mut self, from: &Process, beat: Heartbeat, now: Moment) -> Vec<OutputOf<S>> {
        self.highest_turn = self.highest_turn.max(beat.reign.stream.turn);
        if let Role::Serving(publisher) = &self.role
            && beat.reign < publisher.reign
        {
            let mine = publisher.heartbeat(&self.state);
            return vec![Output::Send(To::One(from.clone()), mine)];
        }
        if let Some((reign, _)) = &self.seen
            && beat.reign < *reign
        {
            let deposed = PoolMessage::Deposed { reign: reign.clone() };
            let is_over = beat.reign.stream != reign.stream;
            return is_over
                .then(|| Output::Send(To::One(from.clone()), deposed))
                .into_iter()
                .collect();
        }
        let mut outputs = self.on_higher_reign(&beat.reign, now);
        if let Role::Released(publisher, _) = &self.role
            && *publisher.stream() != beat.reign.stream
        {
            self.role = Role::Following(Follower::at(Some(publisher.position())));
        }
        if let Some(candidacy) = &mut self.candidacy {
            candidacy.heard_owner(now);
        }
        let follows = self.follows();
        if let Role::Following(follower) = &mut self.role
            && follows
        {
            outputs.extend(follower.on_heartbeat(beat, &self.state, now));
        }
        self.forget_if_aside();
        outputs
    }

    /// Takes note of a reign; steps down if it is higher than ours.
    fn on_higher_reign(&mut self, reign: &Reign, now: Moment) -> Vec<OutputOf<S>> {
        self.highest_turn = self.highest_turn.max(reign.stream.turn);
        if self.seen.as_ref().is_none_or(|(seen, _)| seen <= reign) {
            self.seen = Some((reign.clone(), now));
        }
        match &self.role {
            Role::Serving(publisher) if publisher.reign < *reign => {
                self.role = Role::Following(Follower::at(Some(publisher.position())));
                vec![Output::SteppedDown]
            }
            _ => Vec::new(),
        }
    }

    fn on_repair(&mut self, from: &Process, stream: &Stream, seq: u64) -> Vec<OutputOf<S>> {
        let (Role::Serving(publisher) | Role::Released(publisher, _)) = &self.role else {
            return Vec::new();
        };
        if publisher.stream() != stream {
            return Vec::new();
        }
        let send = |message| Output::Send(To::One(from.clone()), message);
        publisher.repair(seq).into_iter().map(send).collect()
    }

    fn on_fetch(
        &mut self,
        from: &Process,
        stream: &Stream,
        snapshot: Option<u64>,
        index: u32,
        now: Moment,
    ) -> Vec<OutputOf<S>> {
        let (Role::Serving(publisher) | Role::Released(publisher, _)) = &mut self.role else {
            return Vec::new();
        };
        if publisher.stream() != stream {
            return Vec::new();
        }
        let chunk = publisher.fetch(snapshot, index, &self.state, now);
        vec![Output::Send(To::One(from.clone()), chunk)]
    }

    /// The place of a router in the order of owners.
    fn place(&self, process: &Process) -> Option<usize> {
        self.order.iter().position(|p| p.id == process.id)
    }

    /// Whether this router keeps the owner's state: as the standby, or to become the owner.
    fn follows(&self) -> bool {
        self.place(&self.me).is_some_and(|place| place <= 1)
    }

    /// Frees the state of a pool that this router has no part in any more.
    fn forget_if_aside(&mut self) {
        if !self.follows()
            && let Role::Following(follower) = &mut self.role
            && follower.has_anything()
        {
            *follower = Follower::at(None);
            self.state = self.state.empty();
        }
    }
}

impl<S: Replicated> std::fmt::Debug for Pool<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let role = match &self.role {
            Role::Following(follower) if follower.is_in_step() => "follows",
            Role::Following(_) => "stands aside",
            Role::Serving(_) => "serves",
            Role::Released(..) => "released",
        };
        f.debug_struct("Pool")
            .field("id", &self.id)
            .field("me", &self.me)
            .field("role", &role)
            .field("position", &self.position())
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}
