//! Who takes part, and the list of them that everything is decided by.

use std::fmt;
use std::sync::Arc;

use domain::Incarnation;

/// Longest name of a member, in bytes.
const MAX_ID_BYTES: usize = 64;

/// A service of the region by the operator's name for it. It stays the same over restarts, so
/// that a router comes back to the pools it had.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(Arc<str>);

impl MemberId {
    /// Wraps the given name as it is.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the name is one that a member may have: 1 to 64 letters, digits, `-` and `_`. It is
    /// part of subjects, of metrics and of log lines.
    pub fn is_plain(&self) -> bool {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        (1..=MAX_ID_BYTES).contains(&self.0.len()) && self.0.bytes().all(plain)
    }
}

impl From<&str> for MemberId {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One process of a member. Its incarnation grows with every start, so nothing that was said
/// of an earlier process can be taken for this one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// The member.
    pub id: MemberId,
    /// Which start of it.
    pub incarnation: Incarnation,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.id, self.incarnation.0)
    }
}

/// What a member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// It holds leases on requests.
    Edge,
    /// It can own pools.
    Router,
}

/// An entry of the member list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// Who.
    pub process: Process,
    /// What it does.
    pub role: Role,
    /// Where other members connect to it, as `http://host:port` or `https://host:port`; empty for
    /// one that nobody connects to.
    pub address: Arc<str>,
}

/// The version of a member list. Telemetry alone issues them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Epoch {
    /// Which start of telemetry: two starts never issue the same epoch, even if the later one
    /// knows nothing of the earlier.
    pub term: u64,
    /// Grows with every change of the list.
    pub number: u64,
}

impl Epoch {
    /// Before any list.
    pub const ZERO: Epoch = Epoch { term: 0, number: 0 };
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.number)
    }
}

/// The live members at one epoch, ordered by id.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MemberList {
    /// Its version.
    pub epoch: Epoch,
    /// The members; at most one process of each.
    pub members: Arc<[Member]>,
}

impl MemberList {
    /// Takes the other list's place if that one is newer. Returns whether it was.
    pub fn replace_if_newer(&mut self, other: &MemberList) -> bool {
        let is_newer = other.epoch > self.epoch;
        if is_newer {
            *self = other.clone();
        }
        is_newer
    }

    /// The processes that can own pools.
    pub fn routers(&self) -> impl Iterator<Item = &Process> {
        self.members.iter().filter(|m| m.role == Role::Router).map(|m| &m.process)
    }
}
