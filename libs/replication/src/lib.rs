//! TODO-DOC

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
pub use membership::{MEMBER_LEASE, Membership, RENEW_EVERY, Registrar, Renew, Standing};
pub use message::{Heartbeat, MessageOf, Output, OutputOf, PoolMessage, ResyncReason, To};
pub use ownership::{PoolId, Reign, Stream, order};
pub use pool::{CLAIM_WAIT, Pool};
pub use publisher::{HEARTBEAT_EVERY, REPAIR_BATCH, RingLimits};
pub use sessions::{
    AUDIT_EVERY, Admission, Audit, AuditReply, LeaseReport, ORPHAN_TIME, Resume, SESSION_SILENCE,
    Sessions,
};
pub use state::{Position, Replicated};
