//! What routers say to each other about one pool.

use domain::RankId;

use crate::member::Process;
use crate::ownership::{Reign, Stream};
use crate::state::{Position, Replicated};

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum To {
    /// Published: every router that listens gets it.
    Routers,
    /// One router.
    One(Process),
}

/// The owner lives, and this is how far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Its reign.
    pub reign: Reign,
    /// The state its stream began from. Who has exactly that goes on without a snapshot.
    pub since: Option<Position>,
    /// The last change it published.
    pub seq: u64,
    /// The checksum of each rank at that change.
    pub checksums: Vec<(RankId, u64)>,
}

/// A message about a pool from one router to another.
#[derive(Clone, Debug)]
pub enum PoolMessage<D, C> {
    /// Owner → all, every [`HEARTBEAT_EVERY`](crate::HEARTBEAT_EVERY), and in answer to a
    /// [`Claim`](Self::Claim) that is not granted.
    Heartbeat(Heartbeat),
    /// Owner → all, and in answer to [`Repair`](Self::Repair).
    Delta {
        /// Whose change.
        stream: Stream,
        /// Which; the first is 1.
        seq: u64,
        /// The change.
        delta: D,
    },
    /// Follower → owner: changes are missing.
    Repair {
        /// Of this stream.
        stream: Stream,
        /// From this one on.
        from: u64,
    },
    /// Owner → follower: those are no longer kept.
    PastRing {
        /// The stream that was asked for.
        stream: Stream,
    },
    /// Follower → owner: a part of a snapshot, please.
    Fetch {
        /// Of this stream.
        stream: Stream,
        /// Of the snapshot at this change; of the newest if absent.
        snapshot: Option<u64>,
        /// Which part.
        index: u32,
    },
    /// Owner → follower: a part of a snapshot. When the one asked for is gone, the first part
    /// of a new one.
    Chunk {
        /// Of this stream.
        stream: Stream,
        /// The state after this change.
        snapshot: u64,
        /// Which part.
        index: u32,
        /// How many parts there are.
        count: u32,
        /// The part; absent if the state has none.
        chunk: Option<C>,
    },
    /// Who wants to own it → every router before or after it: who serves, hand over.
    Claim {
        /// The state it has.
        position: Option<Position>,
    },
    /// Owner → claimer: it has stopped serving; who has exactly this state takes over.
    Release {
        /// Its last state.
        position: Position,
    },
    /// Anyone → an owner whose reign is over: this one is higher.
    Deposed {
        /// The higher reign.
        reign: Reign,
    },
}

/// What a [`Pool`](crate::Pool) wants done.
#[derive(Clone, Debug)]
pub enum Output<D, C> {
    /// Send this.
    Send(To, PoolMessage<D, C>),
    /// It serves from now on. The caller orphans every lease
    /// ([`Sessions::take_over`](crate::Sessions::take_over)) and brings the state in line with
    /// the backends as it sees them before it decides anything.
    TookOver {
        /// Whether the state is one that was kept in step with an owner's.
        warm: bool,
    },
    /// It no longer serves. Edges are told who does.
    SteppedDown,
    /// It takes a whole snapshot.
    Resync(ResyncReason),
}

/// The messages of a pool with this state.
pub type MessageOf<S> = PoolMessage<<S as Replicated>::Delta, <S as Replicated>::Chunk>;

/// The outputs of a pool with this state.
pub type OutputOf<S> = Output<<S as Replicated>::Delta, <S as Replicated>::Chunk>;

/// Why a follower takes a whole snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResyncReason {
    /// It follows another stream than before, or is new.
    NewStream,
    /// It missed more than the owner keeps.
    PastRing,
    /// Its checksums differ from the owner's.
    Checksum,
}
