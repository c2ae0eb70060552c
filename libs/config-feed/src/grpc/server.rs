//! Telemetry's side of the wire.

use std::sync::Arc;

use domain::BoxStream;
use futures_util::{StreamExt, stream};
use lifecycle::{Drain, Throttle};
use proto::WireError;
use proto::control::v1 as wire;
use proto::control::v1::control_server::{Control, ControlServer};
use replication::{Epoch, Member, MemberId, Process, Renew};
use rpc::Fingerprint;
use tonic::{Request, Response, Status};

use super::REGION;
use crate::{Hub, Position, Refusal, Refusals};

/// Events of so many bytes go into one message, if they are ready at the same time.
const FRAME_BYTES: usize = 256 << 10;

/// Whom telemetry lets in.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    /// Calls must show the secret that this is of. Without it whoever reaches the port is heard.
    pub region: Option<Fingerprint>,
    /// What was refused.
    pub refusals: Refusals,
}

/// Serves a [`Hub`].
pub struct ControlService {
    hub: Arc<Hub>,
    drain: Drain,
    guard: Guard,
    lines: Throttle,
}

impl ControlService {
    /// The service, to be added to a server. Its watches end with the drain.
    pub fn new(hub: Arc<Hub>, drain: Drain, guard: Guard) -> ControlServer<Self> {
        ControlServer::new(Self { hub, drain, guard, lines: Throttle::default() })
    }

    /// Takes a call's message if the caller belongs to the region.
    fn admit<T>(&self, request: Request<T>) -> Result<T, Status> {
        let Some(ours) = &self.guard.region else { return Ok(request.into_inner()) };
        let theirs = request.metadata().get_bin(REGION).map(|value| value.to_bytes());
        match theirs {
            Some(Ok(theirs)) if ours.matches(&theirs) => Ok(request.into_inner()),
            Some(_) => Err(self.refuse(Refusal::OtherRegion, None)),
            None => Err(self.refuse(Refusal::NoRegion, None)),
        }
    }

    fn refuse(&self, refusal: Refusal, who: Option<&Member>) -> Status {
        self.guard.refusals.count(refusal);
        if refusal == Refusal::NameTaken {
            // The hub has said it, once.
        } else if let Some(held_back) = self.lines.pass() {
            // A name that is none must not get into the log at any length.
            let id = who.map(|member| &member.process.id).filter(|id| id.is_plain());
            let id = id.map(MemberId::as_str);
            tracing::warn!(member.id = id, reason = %refusal, held_back, "a call is refused");
        }
        match refusal {
            Refusal::OtherRegion | Refusal::NoRegion => {
                Status::permission_denied(refusal.to_string())
            }
            Refusal::NameTaken => Status::already_exists(refusal.to_string()),
            _ => Status::failed_precondition(refusal.to_string()),
        }
    }
}

#[tonic::async_trait]
impl Control for ControlService {
    type WatchStream = BoxStream<'static, Result<wire::WatchFrame, Status>>;

    async fn renew(
        &self,
        request: Request<wire::RenewRequest>,
    ) -> Result<Response<wire::RenewReply>, Status> {
        let wire::RenewRequest { member, known } = self.admit(request)?;
        let member = member.ok_or_else(|| Status::invalid_argument("there is no member"))?;
        let member = Member::try_from(member).map_err(refused)?;
        let known = known.map_or(Epoch::ZERO, Epoch::from);
        let renew = Renew { member: member.clone(), known };
        let list = self.hub.renew(renew, lifecycle::monotonic());
        let list = list.map_err(|refusal| self.refuse(refusal, Some(&member)))?;
        Ok(Response::new(wire::RenewReply { list: list.as_ref().map(Into::into) }))
    }

    async fn leave(
        &self,
        request: Request<wire::LeaveRequest>,
    ) -> Result<Response<wire::LeaveReply>, Status> {
        let process = self.admit(request)?.process;
        let process = process.ok_or_else(|| Status::invalid_argument("there is no process"))?;
        let process = Process::try_from(process).map_err(refused)?;
        self.hub.leave(&process, lifecycle::monotonic());
        Ok(Response::new(wire::LeaveReply {}))
    }

    async fn watch(
        &self,
        request: Request<wire::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let wire::WatchRequest { process, store, revision } = self.admit(request)?;
        if let Some(process) = process {
            let process = Process::try_from(process).map_err(refused)?;
            // It is told to the log alone, and a name that is none is not.
            if process.id.is_plain() {
                tracing::info!(member.id = %process.id, revision, "a watch begins");
            }
        }
        let watch = self.hub.watch(Position { store: store.into(), revision });
        let frames = stream::unfold(watch, |mut watch| async move {
            let events = watch.encoded(FRAME_BYTES).await?;
            Some((Ok(wire::WatchFrame { events }), watch))
        });
        let drain = self.drain.clone();
        let until = async move { drain.signaled().await };
        Ok(Response::new(frames.take_until(Box::pin(until)).boxed()))
    }
}

fn refused(error: WireError) -> Status {
    Status::invalid_argument(error.to_string())
}
