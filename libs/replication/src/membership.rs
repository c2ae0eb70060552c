//! Members hold leases at telemetry; telemetry publishes who they are.
//!
//! [`Registrar`] is telemetry's side, [`Membership`] a member's. The list is soft state: it is
//! not stored, and every member keeps the last one it saw, so nothing depends on telemetry
//! being there.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::Moment;

use crate::member::{Epoch, Member, MemberId, MemberList, Process};

/// A member that was not heard for so long is off the list.
pub const MEMBER_LEASE: Duration = Duration::from_secs(3);

/// A member renews this often: two renewals in a row may be lost, with time to spare for the
/// third.
pub const RENEW_EVERY: Duration = Duration::from_millis(900);

/// When nobody at all was heard for so long, it is telemetry that is cut off. Longer than
/// [`RENEW_EVERY`], within which one of several members that live is heard; and short enough to be
/// noticed before the first lease ends, as members that fall silent together have renewed up to
/// [`RENEW_EVERY`] apart. Otherwise the list would shrink to whoever renewed last.
const SILENCE: Duration = Duration::from_millis(1500);

/// Members at a time. A region has some hundreds.
pub const MOST_MEMBERS: usize = 1000;

/// How far above its own start's term telemetry follows one that a member knows. Terms are
/// milliseconds since 1970: an earlier start's clock may have been wrong by some thirty years. A
/// term further ahead was never ours, and to follow it would wrap the count, or leave a later
/// start behind for good.
const MOST_AHEAD: u64 = 1 << 40;

/// A member asks telemetry for its lease, or to keep it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renew {
    /// Who asks.
    pub member: Member,
    /// The epoch of the list it goes by.
    pub known: Epoch,
}

/// Why a renewal is not to be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objection {
    /// The member knows a list that no start of telemetry can have issued.
    ForeignEpoch,
    /// There are [`MOST_MEMBERS`] others.
    Full,
}

/// Telemetry's side: grants and ends leases, and makes the list of them.
///
/// **After a start** the list is unknown, not empty: members that go by a list of the time
/// before keep it until everyone had one lease's time to renew. Only then is a list published.
/// **When every member falls silent at once** telemetry takes itself to be cut off, and does
/// the same.
#[derive(Debug)]
pub struct Registrar {
    /// The term of this start, before any was raised.
    start: u64,
    epoch: Epoch,
    members: BTreeMap<MemberId, Holder>,
    /// Whether members differ from the list that was published last.
    changed: bool,
    gathering: Gathering,
    /// When a member was heard last.
    heard: Moment,
    list: MemberList,
}

#[derive(Debug)]
struct Holder {
    member: Member,
    expires: Moment,
}

/// Whether the published list follows the leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gathering {
    No,
    /// Nobody was heard yet.
    Waiting,
    /// Members have until then.
    Until(Moment),
}

impl Registrar {
    /// A start of telemetry. `term` must be above that of every earlier start: a stored count
    /// of starts, or the wall clock. As a guard, it is raised above any that a member knows, if
    /// that can have been ours.
    pub fn new(term: u64, now: Moment) -> Self {
        Self {
            start: term,
            epoch: Epoch { term, number: 0 },
            members: BTreeMap::new(),
            changed: false,
            gathering: Gathering::Until(now + MEMBER_LEASE),
            heard: now,
            list: MemberList::default(),
        }
    }

    /// Why a renewal should not be granted, if anything speaks against it.
    pub fn objection(&self, renew: &Renew) -> Option<Objection> {
        if renew.known.term > self.start.saturating_add(MOST_AHEAD) {
            return Some(Objection::ForeignEpoch);
        }
        let is_new = !self.members.contains_key(&renew.member.process.id);
        (is_new && self.members.len() >= MOST_MEMBERS).then_some(Objection::Full)
    }

    /// Grants or renews a lease, unless there is an [objection](Self::objection). Returns the list
    /// for the asker where it has another; an earlier process of a member that was seen is refused.
    pub fn renew(&mut self, renew: Renew, now: Moment) -> Option<MemberList> {
        if self.objection(&renew).is_some() {
            return None;
        }
        if renew.known > self.epoch {
            // Not one of ours: a term was given twice, or the clock it came from went back.
            self.epoch = Epoch { term: renew.known.term.saturating_add(1), number: 0 };
            self.changed = true;
        }
        // Before the asker is let in: it may be the first that is heard again.
        self.notice_silence(now);
        self.heard = now;
        if self.gathering == Gathering::Waiting {
            self.gathering = Gathering::Until(now + MEMBER_LEASE);
        }
        let Process { id, incarnation } = renew.member.process.clone();
        let expires = now + MEMBER_LEASE;
        let before = self.members.get(&id).map(|holder| holder.member.process.incarnation);
        if before.is_none_or(|before| before <= incarnation) {
            self.changed |= before != Some(incarnation);
            self.members.insert(id, Holder { member: renew.member, expires });
        }
        self.publish(now);
        (self.list.epoch > renew.known).then(|| self.list.clone())
    }

    /// Whether a later process holds a lease under the name of this one: two have one name.
    pub fn is_outdated(&self, process: &Process, now: Moment) -> bool {
        let held = |holder: &&Holder| holder.expires > now;
        let holder = self.members.get(&process.id).filter(held);
        holder.is_some_and(|holder| holder.member.process.incarnation > process.incarnation)
    }

    /// A member goes, and says so.
    pub fn leave(&mut self, process: &Process, now: Moment) {
        if self.members.get(&process.id).is_some_and(|holder| holder.member.process == *process) {
            self.members.remove(&process.id);
            self.changed = true;
        }
        self.publish(now);
    }

    /// Time has passed: ends leases. Call it a few times a second. Returns the list if it
    /// changed, to be published to all.
    pub fn tick(&mut self, now: Moment) -> Option<MemberList> {
        let before = self.list.epoch;
        self.publish(now);
        (self.list.epoch > before).then(|| self.list.clone())
    }

    /// The list as published; empty at [`Epoch::ZERO`] until the first one.
    pub fn list(&self) -> &MemberList {
        &self.list
    }

    /// Whether the published list follows the leases at `now`.
    fn follows(&self, now: Moment) -> bool {
        match self.gathering {
            Gathering::No => true,
            Gathering::Waiting => false,
            Gathering::Until(until) => until <= now,
        }
    }

    /// When nobody is heard any more, the list stands.
    fn notice_silence(&mut self, now: Moment) {
        let is_silent = now.since(self.heard) >= SILENCE;
        if self.follows(now) && !self.members.is_empty() && is_silent {
            self.gathering = Gathering::Waiting;
        }
    }

    /// Brings the published list in line with the leases, unless they are being gathered.
    fn publish(&mut self, now: Moment) {
        self.notice_silence(now);
        if !self.follows(now) {
            return;
        }
        self.gathering = Gathering::No;
        let before = self.members.len();
        self.members.retain(|_, holder| holder.expires > now);
        if !self.changed && self.members.len() == before {
            return;
        }
        self.changed = false;
        self.epoch.number += 1;
        let members = self.members.values().map(|holder| holder.member.clone());
        self.list = MemberList { epoch: self.epoch, members: members.collect() };
    }
}

/// How the epoch of a message stands to ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EpochOrder {
    /// The sender goes by the same list.
    Same,
    /// The sender's list is older: what it says as an owner is refused, and it is sent ours.
    Older(MemberList),
    /// The sender's list is newer: it is asked for it.
    Newer,
}

/// A member's side: renews, and goes by the newest list it ever saw, from whomever.
#[derive(Debug)]
pub struct Membership {
    me: Member,
    list: MemberList,
    next_renew: Moment,
}

impl Membership {
    /// A member that knows no list yet.
    pub fn new(me: Member) -> Self {
        Self { me, list: MemberList::default(), next_renew: Moment::ZERO }
    }

    /// This process.
    pub fn me(&self) -> &Process {
        &self.me.process
    }

    /// The list to go by.
    pub fn list(&self) -> &MemberList {
        &self.list
    }

    /// Time has passed. Returns the renewal that is due, for telemetry.
    pub fn tick(&mut self, now: Moment) -> Option<Renew> {
        if now < self.next_renew {
            return None;
        }
        self.next_renew = now + RENEW_EVERY;
        Some(Renew { member: self.me.clone(), known: self.list.epoch })
    }

    /// Telemetry answered a renewal, or a peer sent its list. Returns whether the list is another now.
    pub fn adopt(&mut self, list: &MemberList) -> bool {
        self.list.replace_if_newer(list)
    }

    /// How a message that carries `epoch` stands to our list.
    pub fn order(&self, epoch: Epoch) -> EpochOrder {
        match epoch.cmp(&self.list.epoch) {
            std::cmp::Ordering::Less => EpochOrder::Older(self.list.clone()),
            std::cmp::Ordering::Equal => EpochOrder::Same,
            std::cmp::Ordering::Greater => EpochOrder::Newer,
        }
    }
}

#[cfg(test)]
mod tests;
