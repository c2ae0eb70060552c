//! Who owns a pool, what is leased in it, and how another router keeps a copy of it.
//!
//! Everything here is a state machine: a message and `now` go in, messages come out. There is no
//! I/O, no clock, no task and no chance in it, so a service and the simulation in `tests/` run
//! the same code. Every message may be lost, late, repeated or overtaken by a later one; nothing
//! is built on a connection that delivers. A connection that does makes it faster, not right.
//!
//! | machine | runs on | does |
//! | --- | --- | --- |
//! | [`Registrar`] | telemetry | grants leases to members, publishes the list of them |
//! | [`Membership`] | every edge and router | renews, keeps the newest list it ever saw |
//! | [`Pool`] | every router, one for each pool | serves it, or keeps in step, or takes over |
//! | [`Sessions`] | the router that serves a pool | decides what is opened, orphaned and ended |
//! | [`LeaseBook`] | inside the pool's replicated state | holds the leases and what they add up to |
//! | [`Holdings`] | every edge | knows what it holds, and whom to ask |
//! | [`OwnDecisions`] | every edge | decides when no router answers |
//!
//! # Members
//! A service holds a lease of 3 s at telemetry and renews it every 900 ms. Telemetry publishes
//! the live members under an [`Epoch`]: its own start (`term`) and a number that grows with every
//! change. The list is not stored anywhere. After a start of telemetry, and when everybody falls
//! silent at once, the list stands until all had one lease's time to renew.
//!
//! | message | from → to | says |
//! | --- | --- | --- |
//! | [`Renew`] | member → telemetry | I live, and go by this epoch |
//! | `Option<`[`MemberList`]`>` | telemetry → member | the answer: a list, if yours is older |
//! | [`MemberList`] | telemetry → all; any → one | this is the list |
//! | a request for the list | any → one | yours is newer: send it |
//!
//! Every message between members carries the sender's epoch ([`Membership::order`]). An older
//! one is answered with the list, and what it says as an owner is refused. A newer one is taken,
//! and its sender asked for the list. So lists spread with telemetry gone.
//!
//! # Owners
//! [`order`] gives the routers of a list in the order in which they should own a pool: the
//! owner, its standby, and so on. Who *does* own it is a [`Reign`], which begins when a router
//! takes over. Of two reigns the higher one stays. A pool's changes are numbered within a reign
//! ([`Stream`], [`Position`]).
//!
//! | message ([`PoolMessage`]) | from → to | answer |
//! | --- | --- | --- |
//! | `Heartbeat` every 200 ms | owner → all | a higher owner's own heartbeat, or `Deposed` |
//! | `Delta` | owner → all | |
//! | `Repair` | follower → owner | `Delta`s, 256 at most, or `PastRing` |
//! | `Fetch` | follower → owner | `Chunk` |
//! | `Claim` every 100 ms | who wants the pool → all others | `Release` or `Heartbeat` |
//! | `Release` | owner → claimer | a reign of the claimer's |
//! | `Deposed` | anyone → a lower owner | |
//!
//! - The **first in order** always wants its pool. **Another** router wants it while edges ask it,
//!   which they do when they reach nobody better: so the next in order takes over from an owner
//!   that is out of reach, whether or not telemetry is there to say so.
//! - Who serves answers a claim. It *releases* the pool if the claimer comes before it in the
//!   list and has its state but for one batch of changes, which it sends along; and it stops
//!   serving in that moment. Who has exactly the released state takes over: nothing is lost in a
//!   handover. To any other claimer it shows that it lives.
//! - If nobody answers for 300 ms (the third in order: 600 ms, and so on), the claimer
//!   takes over with what it has.
//! - Claims are sent directly. A bus that is down makes standbys old, not owners many.
//! - An owner that the newest list names moves its reign along to the list's epoch, so one that
//!   missed lists loses against it when they meet. Otherwise the younger reign stays: it knows
//!   more of what happened last. Then the list's owner claims its pool back.
//!
//! # Deltas
//! The state of a pool is any [`Replicated`]. [`Pool::change`] applies a delta to the owner's
//! state and publishes it; followers apply the same deltas in order. A heartbeat tells the last
//! number and a checksum for each rank.
//!
//! - A **gap** is asked for when a heartbeat shows it, in batches, from the owner's bounded ring
//!   ([`RingLimits`]).
//! - A **snapshot** is taken part by part: past the ring, in a new stream, or when a checksum
//!   differs at the very change that it was made for. Changes that come meanwhile wait; the old
//!   state is used until the new one is whole.
//! - A new stream names the position that it began from. A follower that is exactly there goes on
//!   without a snapshot: after a handover nobody copies anything.
//! - Owner and standby hold the state; all others forget it.
//!
//! # Leases
//! A lease is named by the edge ([`LeaseKey`]: process and number), so asking twice books once
//! and a lease keeps its name over owners. Edges number upwards and never reuse a number.
//!
//! | message | from → to | does |
//! | --- | --- | --- |
//! | Route | edge → owner | opens the lease, or answers as before, or nothing if it is over |
//! | Decision with [`Reign`] | owner → edge | used, or corrected by a report ([`Use`]) |
//! | [`LeaseReport`] | edge → owner | progress, moved by the edge itself, closed |
//! | [`Audit`] every second | edge → owner | count and digest of what is held below a number |
//! | [`AuditReply`] | owner → edge | agreed, or differs |
//! | [`Resume`] | edge → owner | every lease of a range of numbers; those not named end |
//! | not the owner, with a name | router → edge | ask that one ([`Holdings::not_owner`]) |
//!
//! A Resume is sent to an owner that answers for the first time, on a new session, and when an
//! audit differs. A session that breaks, or says nothing for 3 s, **orphans** its leases; those
//! that nobody re-asserts within 10 s end. An owner that takes over orphans all. A restarted edge
//! ends what its earlier process held. What is lost, late or repeated beyond that is found by the
//! next audit. A lease on a rank that is gone lives on, as its stream may, and counts on nobody.
//!
//! # Without a router
//! [`OwnDecisions`] remembers for prefixes of 1, 2, 4, 8 … blocks where the edge sent them last.
//! The deepest one whose rank has less than 1.25 × its share of the edge's own requests wins,
//! else the rank with the fewest. The lease is *moved* there; the owner hears of it by report,
//! audit or resume as soon as there is one.
//!
//! # The caller's part
//! - Deliver messages to the machines, and what they return to the network; call their `tick`.
//! - On [`Output::TookOver`]: [`Sessions::take_over`], then bring the ranks in line with the
//!   backends as seen here, and only then decide. A copied state may hold ranks that are gone.
//! - Make every change of [`Sessions`] by [`Pool::change`], in order, before the next call.
//! - Answer edges with "not the owner" while the pool is not served, and tell it that one
//!   [asked](Pool::asked).
//!
//! # Tests
//! `tests/simulation.rs` runs edges, routers, telemetry and engines in virtual time, with loss,
//! delay, reordering, repetition, partitions, pauses, crashes of any process, a bus that is down,
//! backends that come and go, and damaged copies. `examples/model-check.rs --long` does so for
//! 1,000 seeds.

mod fallback;
mod follower;
mod holdings;
mod leases;
mod member;
mod membership;
mod message;
mod ownership;
mod pool;
mod publisher;
mod sessions;
mod state;

pub use fallback::{FallbackChoice, FallbackRank, OwnDecisions};
pub use holdings::{Holdings, RESUME_BATCH, Use};
pub use leases::{Lease, LeaseBook, LeaseChange, LeaseKey, Phase, RankLoad};
pub use member::{Epoch, Member, MemberId, MemberList, Process, Role};
pub use membership::{
    EpochOrder, MEMBER_LEASE, MOST_MEMBERS, Membership, Objection, RENEW_EVERY, Registrar, Renew,
};
pub use message::{Heartbeat, MessageOf, Output, OutputOf, PoolMessage, ResyncReason, To};
pub use ownership::{PoolId, Reign, Stream, order};
pub use pool::{CLAIM_WAIT, Pool};
pub use publisher::{HEARTBEAT_EVERY, REPAIR_BATCH, RingLimits};
pub use sessions::{
    AUDIT_EVERY, Admission, Audit, AuditReply, LeaseReport, ORPHAN_TIME, Resume, SESSION_SILENCE,
    Sessions,
};
pub use state::{Position, Replicated};
