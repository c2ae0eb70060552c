//! Ids, processes, epochs, key lists.

use std::sync::Arc;

use domain::{BackendId, BlockKey, BlockUnit, Incarnation, KeyList, LeaseId, RankId};
use replication::{
    Epoch, Lease, LeaseKey, Member, MemberId, MemberList, Phase, Process, Reign, Role, Stream,
};

use super::{MAX_NAME_BYTES, WireError, all, bounded, name, present};
use crate::common::v1;

/// Members of a list: a region has some hundreds.
const MAX_MEMBERS: usize = 10_000;

impl From<&Process> for v1::Process {
    fn from(process: &Process) -> Self {
        Self { id: process.id.as_str().to_owned(), incarnation: process.incarnation.0 }
    }
}

impl TryFrom<v1::Process> for Process {
    type Error = WireError;

    fn try_from(wire: v1::Process) -> Result<Self, WireError> {
        if wire.id.is_empty() {
            return Err(WireError::Missing("process.id"));
        }
        name("process.id", &wire.id)?;
        Ok(Self { id: MemberId::new(wire.id), incarnation: Incarnation(wire.incarnation) })
    }
}

impl From<Epoch> for v1::Epoch {
    fn from(epoch: Epoch) -> Self {
        Self { term: epoch.term, number: epoch.number }
    }
}

impl From<v1::Epoch> for Epoch {
    fn from(wire: v1::Epoch) -> Self {
        Self { term: wire.term, number: wire.number }
    }
}

impl From<&Member> for v1::Member {
    fn from(member: &Member) -> Self {
        let role = match member.role {
            Role::Edge => v1::Role::Edge,
            Role::Router => v1::Role::Router,
        };
        Self {
            process: Some((&member.process).into()),
            role: role.into(),
            address: member.address.as_ref().to_owned(),
        }
    }
}

impl TryFrom<v1::Member> for Member {
    type Error = WireError;

    fn try_from(wire: v1::Member) -> Result<Self, WireError> {
        let role = match v1::Role::try_from(wire.role) {
            Ok(v1::Role::Edge) => Role::Edge,
            Ok(v1::Role::Router) => Role::Router,
            _ => {
                let value = wire.role.to_string();
                return Err(WireError::NotAllowed { field: "member.role", value });
            }
        };
        name("member.address", &wire.address)?;
        Ok(Self {
            process: present("member.process", wire.process)?.try_into()?,
            role,
            address: wire.address.into(),
        })
    }
}

impl From<&MemberList> for v1::MemberList {
    fn from(list: &MemberList) -> Self {
        let members = list.members.iter().map(v1::Member::from).collect();
        Self { epoch: Some(list.epoch.into()), members }
    }
}

impl TryFrom<v1::MemberList> for MemberList {
    type Error = WireError;

    fn try_from(wire: v1::MemberList) -> Result<Self, WireError> {
        let members: Vec<Member> = all("members", MAX_MEMBERS, wire.members)?;
        Ok(Self { epoch: present("epoch", wire.epoch)?.into(), members: members.into() })
    }
}

impl From<&RankId> for v1::Rank {
    fn from(rank: &RankId) -> Self {
        Self {
            backend: rank.backend.as_str().to_owned(),
            incarnation: rank.incarnation.0,
            rank: rank.rank.into(),
        }
    }
}

impl TryFrom<v1::Rank> for RankId {
    type Error = WireError;

    fn try_from(wire: v1::Rank) -> Result<Self, WireError> {
        name("rank.backend", &wire.backend)?;
        let not_allowed = |_| WireError::NotAllowed { field: "rank", value: wire.rank.to_string() };
        Ok(Self {
            backend: BackendId::new(wire.backend),
            incarnation: Incarnation(wire.incarnation),
            rank: u16::try_from(wire.rank).map_err(not_allowed)?,
        })
    }
}

impl From<&Stream> for v1::Stream {
    fn from(stream: &Stream) -> Self {
        Self { turn: stream.turn, owner: Some((&stream.owner).into()) }
    }
}

impl TryFrom<v1::Stream> for Stream {
    type Error = WireError;

    fn try_from(wire: v1::Stream) -> Result<Self, WireError> {
        Ok(Self { turn: wire.turn, owner: present("stream.owner", wire.owner)?.try_into()? })
    }
}

impl From<&Reign> for v1::Reign {
    fn from(reign: &Reign) -> Self {
        Self { epoch: Some(reign.epoch.into()), stream: Some((&reign.stream).into()) }
    }
}

impl TryFrom<v1::Reign> for Reign {
    type Error = WireError;

    fn try_from(wire: v1::Reign) -> Result<Self, WireError> {
        let stream = present("reign.stream", wire.stream)?.try_into()?;
        Ok(Self { epoch: present("reign.epoch", wire.epoch)?.into(), stream })
    }
}

impl From<&LeaseKey> for v1::LeaseKey {
    fn from(key: &LeaseKey) -> Self {
        Self { edge: Some((&key.edge).into()), lease: key.lease.0 }
    }
}

impl TryFrom<v1::LeaseKey> for LeaseKey {
    type Error = WireError;

    fn try_from(wire: v1::LeaseKey) -> Result<Self, WireError> {
        Ok(Self { edge: present("edge", wire.edge)?.try_into()?, lease: LeaseId(wire.lease) })
    }
}

impl From<&Lease> for v1::Lease {
    fn from(lease: &Lease) -> Self {
        let phase = match lease.phase {
            Phase::Waiting => v1::Phase::Waiting,
            Phase::Generating => v1::Phase::Generating,
        };
        Self { rank: Some((&lease.rank).into()), blocks: lease.blocks, phase: phase.into() }
    }
}

impl TryFrom<v1::Lease> for Lease {
    type Error = WireError;

    fn try_from(wire: v1::Lease) -> Result<Self, WireError> {
        let phase = match v1::Phase::try_from(wire.phase) {
            Ok(v1::Phase::Waiting) => Phase::Waiting,
            Ok(v1::Phase::Generating) => Phase::Generating,
            _ => {
                let value = wire.phase.to_string();
                return Err(WireError::NotAllowed { field: "lease.phase", value });
            }
        };
        let rank = present("lease.rank", wire.rank)?.try_into()?;
        Ok(Self { rank, blocks: wire.blocks, phase })
    }
}

impl From<&KeyList> for v1::KeyList {
    fn from(list: &KeyList) -> Self {
        let unit = match list.unit {
            BlockUnit::Tokens(size) => v1::key_list::Unit::Tokens(size),
            BlockUnit::Bytes(size) => v1::key_list::Unit::Bytes(size),
        };
        Self { unit: Some(unit), keys: list.keys.iter().map(|key| key.0).collect() }
    }
}

impl TryFrom<v1::KeyList> for KeyList {
    type Error = WireError;

    fn try_from(wire: v1::KeyList) -> Result<Self, WireError> {
        let unit = match present("keys.unit", wire.unit)? {
            v1::key_list::Unit::Tokens(size) => BlockUnit::Tokens(size),
            v1::key_list::Unit::Bytes(size) => BlockUnit::Bytes(size),
        };
        if unit.size() == 0 {
            return Err(WireError::NotAllowed { field: "keys.unit", value: "0".to_owned() });
        }
        // Their number is bounded by the size of a message.
        let keys: Arc<[BlockKey]> = wire.keys.into_iter().map(BlockKey).collect();
        Ok(Self { unit, keys })
    }
}

/// A pool's or other id's text.
pub(super) fn id<T: for<'a> From<&'a str>>(
    field: &'static str,
    text: &str,
) -> Result<T, WireError> {
    bounded(field, text.len(), MAX_NAME_BYTES)?;
    Ok(T::from(text))
}
