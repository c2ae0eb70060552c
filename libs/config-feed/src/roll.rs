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
            membership.adopt(&list);
        }
        self.list.send_if_modified(|ours| ours.replace_if_newer(&list));
    }

    /// The renewal that is due.
    pub(crate) fn due(&self, now: Moment) -> Option<Renew> {
        self.membership.lock().as_mut()?.tick(now)
    }

    /// This process, if it is a member.
    pub(crate) fn me(&self) -> Option<Process> {
        self.membership.lock().as_ref().map(|membership| membership.me().clone())
    }
}
