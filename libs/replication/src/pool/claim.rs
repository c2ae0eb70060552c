//! A router that wants the pool asks all others directly, whatever the bus does.
//!
//! The one that the list names always wants it; another one only when edges ask it, as they do
//! when they reach nobody better. Whoever serves answers: with [`PoolMessage::Release`] if the
//! claimer comes before it and has its state, else with a heartbeat. Only when nobody has
//! answered for a while does a claimer take over with what it has.

use std::time::Duration;

use domain::Moment;

use super::{Pool, Role};
use crate::follower::Follower;
use crate::member::Process;
use crate::message::{Output, OutputOf, PoolMessage, To};
use crate::ownership::Reign;
use crate::publisher::Publisher;
use crate::state::{Position, Replicated};

/// Claims are repeated this often.
const CLAIM_EVERY: Duration = Duration::from_millis(100);

/// Silence after which the first in order takes over, and the second; the third waits twice as
/// long, and so on, so that they do not take over together. Three claims may be lost.
pub const CLAIM_WAIT: Duration = Duration::from_millis(300);

/// An edge's asking counts for so long.
const ASKED_WITHIN: Duration = Duration::from_secs(1);

/// A wish to own the pool.
#[derive(Debug)]
pub(super) struct Candidacy {
    /// Since when no owner was heard.
    quiet_since: Moment,
    next_claim: Moment,
}

impl Candidacy {
    pub(super) fn heard_owner(&mut self, now: Moment) {
        self.quiet_since = now;
    }
}

impl<S: Replicated> Pool<S> {
    /// Asks for the pool if it is wanted, and takes it if nobody has it.
    pub(super) fn claim(&mut self, now: Moment) -> Vec<OutputOf<S>> {
        let Some(place) = self.wanted_at(now) else {
            self.candidacy = None;
            self.forget_if_aside();
            return Vec::new();
        };
        let others = self.claimed_from();
        let candidacy =
            self.candidacy.get_or_insert(Candidacy { quiet_since: now, next_claim: now });
        let patience = CLAIM_WAIT * place.max(1) as u32;
        if others.is_empty() || now.since(candidacy.quiet_since) >= patience {
            return self.take_over(now);
        }
        if now < candidacy.next_claim {
            return Vec::new();
        }
        candidacy.next_claim = now + CLAIM_EVERY;
        // One that is being replaced, as it was seen to differ, is not handed over to.
        let position = match &self.role {
            Role::Following(follower) if !follower.is_in_step() => None,
            _ => self.position(),
        };
        let claim =
            |to| Output::Send(To::One(to), PoolMessage::Claim { position: position.clone() });
        others.into_iter().map(claim).collect()
    }

    /// Our place in the order, if we want the pool.
    fn wanted_at(&self, now: Moment) -> Option<usize> {
        let place = self.place(&self.me)?;
        let is_asked = self.asked.is_some_and(|at| now.since(at) < ASKED_WITHIN);
        (place == 0 || is_asked).then_some(place)
    }

    /// Everyone who may serve it: the list's routers, and the last owner if it is off the list.
    fn claimed_from(&self) -> Vec<Process> {
        let mut others: Vec<_> =
            self.order.iter().filter(|p| p.id != self.me.id).cloned().collect();
        if let Some((reign, _)) = &self.seen
            && self.place(&reign.stream.owner).is_none()
        {
            others.push(reign.stream.owner.clone());
        }
        others
    }

    /// Begins a reign on the state at hand.
    fn take_over(&mut self, now: Moment) -> Vec<OutputOf<S>> {
        let since = self.position();
        let before = self.seen.as_ref().map(|(reign, _)| reign);
        let reign = Reign::after(before, self.highest_turn, self.list.epoch, self.me.clone());
        self.highest_turn = reign.stream.turn;
        let warm = since.is_some();
        self.seen = Some((reign.clone(), now));
        self.candidacy = None;
        self.role = Role::Serving(Publisher::new(reign, since, self.limits));
        let mut outputs = vec![Output::TookOver { warm }];
        outputs.extend(self.tick(now));
        outputs
    }

    pub(super) fn on_claim(
        &mut self,
        from: &Process,
        position: Option<&Position>,
        now: Moment,
    ) -> Vec<OutputOf<S>> {
        let send = |message| Output::Send(To::One(from.clone()), message);
        let (publisher, is_due) = match &self.role {
            Role::Following(_) => return Vec::new(),
            // It asks again: the answer was lost, or came before the changes.
            Role::Released(publisher, successor) => (publisher, successor == from),
            Role::Serving(publisher) => (publisher, self.comes_before_us(from)),
        };
        if !is_due && !self.is_serving() {
            return Vec::new();
        }
        let Some(position) = position.filter(|p| is_due && publisher.is_nearly_at(p)) else {
            return vec![send(publisher.heartbeat(&self.state))];
        };
        let mut outputs = Vec::new();
        if position.seq < publisher.position().seq {
            outputs.extend(publisher.repair(position.seq + 1).into_iter().map(send));
        }
        outputs.push(send(PoolMessage::Release { position: publisher.position() }));
        if self.is_serving() {
            outputs.push(Output::SteppedDown);
            self.release(from.clone(), now);
        }
        outputs
    }

    /// Whether another router should rather own the pool, by our list.
    fn comes_before_us(&self, other: &Process) -> bool {
        match (self.place(other), self.place(&self.me)) {
            (Some(theirs), Some(ours)) => theirs < ours,
            (theirs, ours) => theirs.is_some() && ours.is_none(),
        }
    }

    fn release(&mut self, successor: Process, now: Moment) {
        let placeholder = Role::Following(Follower::at(None));
        if let Role::Serving(publisher) = std::mem::replace(&mut self.role, placeholder) {
            self.seen = Some((publisher.reign.clone(), now));
            self.asked = None;
            self.role = Role::Released(publisher, successor);
        }
    }

    pub(super) fn on_release(&mut self, released: &Position, now: Moment) -> Vec<OutputOf<S>> {
        let is_ours = match &self.role {
            Role::Following(follower) => {
                follower.is_in_step() && follower.position.as_ref() == Some(released)
            }
            _ => false,
        };
        if is_ours {
            return self.take_over(now);
        }
        // It is ours as soon as the changes that are missing are here.
        if let Some(candidacy) = &mut self.candidacy {
            candidacy.heard_owner(now);
        }
        Vec::new()
    }
}
