//! The member list of one process, from whomever it heard it.

use domain::Moment;
use parking_lot::Mutex;
use replication::{Member, MemberList, Membership, Process, Renew};
use tokio::sync::watch;

/// The newest list, and the renewal of our own lease where we have one.
pub(crate) struct Roll {
    membership: Mutex<Option<Membership>>,
    list: watch::Sender<MemberList>,
}

impl Roll {
    pub(crate) fn new(me: Option<Member>) -> Self {
        let membership = Mutex::new(me.map(Membership::new));
        Self { membership, list: watch::Sender::new(MemberList::default()) }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<MemberList> {
        self.list.subscribe()
    }

    /// A list that was heard; an older one changes nothing.
    pub(crate) fn adopt(&self, list: MemberList) {
        if let Some(membership) = &mut *self.membership.lock() {
            membership.adopt(list.clone());
        }
        self.list.send_if_modified(|ours| {
            let newer = list.epoch > ours.epoch;
            if newer {
                *ours = list;
            }
            newer
        });
    }

    /// The renewal that is due.
    pub(crate) fn due(&self, now: Moment) -> Option<Renew> {
        self.membership.lock().as_mut()?.tick(now)
    }

    /// Telemetry answered a renewal.
    pub(crate) fn renewed(&self, list: Option<MemberList>, now: Moment) {
        if let Some(membership) = &mut *self.membership.lock() {
            membership.renewed(list.clone(), now);
        }
        if let Some(list) = list {
            self.adopt(list);
        }
    }

    /// This process, if it is a member.
    pub(crate) fn me(&self) -> Option<Process> {
        self.membership.lock().as_ref().map(|membership| membership.me().clone())
    }
}
