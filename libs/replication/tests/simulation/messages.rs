//! What the actors send each other.

use domain::{BlockKey, LeaseId, RankId};
use replication::{
    Audit, AuditReply, Epoch, Lease, LeaseKey, LeaseReport, MemberList, MessageOf, PoolId, Process,
    Reign, Renew, Resume,
};

use crate::state::PoolState;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node {
    Telemetry,
    Edge(usize),
    Router(usize),
    /// Every router, by way of the bus.
    Bus,
}

impl Node {
    pub(crate) fn of(process: &Process) -> Node {
        let (kind, number) = process.id.as_str().split_at(1);
        let number = number.parse().unwrap();
        if kind == "r" { Node::Router(number) } else { Node::Edge(number) }
    }

    /// The same for any process; telemetry is nobody's member.
    pub(crate) fn of_any(process: &Process) -> Option<Node> {
        (process.id.as_str() != "t").then(|| Node::of(process))
    }

    pub(crate) fn name(self) -> String {
        match self {
            Node::Telemetry => "t".into(),
            Node::Edge(i) => format!("e{i}"),
            Node::Router(i) => format!("r{i}"),
            Node::Bus => "bus".into(),
        }
    }
}

/// The backends as telemetry sees them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fleet {
    pub(crate) revision: u64,
    pub(crate) ranks: Vec<(PoolId, RankId)>,
}

impl Fleet {
    pub(crate) fn ranks_of(&self, pool: &PoolId) -> Vec<RankId> {
        self.ranks.iter().filter(|(p, _)| p == pool).map(|(_, rank)| rank.clone()).collect()
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Message {
    Renew(Renew),
    Renewed(Option<MemberList>),
    List(MemberList),
    AskList,
    Fleet(Fleet),
    Pool { process: Process, epoch: Epoch, pool: PoolId, message: MessageOf<PoolState> },
    ToRouter { epoch: Epoch, pool: PoolId, message: ToRouter },
    ToEdge { epoch: Epoch, pool: PoolId, message: ToEdge },
}

#[derive(Clone, Debug)]
pub(crate) enum ToRouter {
    Route { key: LeaseKey, keys: Vec<BlockKey>, excluded: Vec<RankId> },
    Report { key: LeaseKey, report: LeaseReport },
    Audit(Audit),
    Resume(Resume),
}

impl ToRouter {
    /// The lease that waits for an answer.
    pub(crate) fn lease(&self) -> Option<LeaseId> {
        match self {
            ToRouter::Route { key, .. } => Some(key.lease),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum ToEdge {
    Decision { number: LeaseId, lease: Lease, reign: Reign },
    Rejected { lease: LeaseId },
    NotOwner { lease: Option<LeaseId>, router: Process, owner: Option<Process> },
    Audited { reign: Reign, reply: AuditReply },
}
