//! Telemetry's side of the wire.

use std::sync::Arc;

use domain::BoxStream;
use futures_util::{StreamExt, stream};
use lifecycle::Drain;
use proto::WireError;
use proto::control::v1 as wire;
use proto::control::v1::control_server::{Control, ControlServer};
use replication::{Epoch, Process, Renew};
use tonic::{Request, Response, Status};

use crate::{Hub, Position};

/// Events of so many bytes go into one message, if they are ready at the same time.
const FRAME_BYTES: usize = 256 << 10;

/// Serves a [`Hub`].
pub struct ControlService {
    hub: Arc<Hub>,
    drain: Drain,
}

impl ControlService {
    /// The service, to be added to a server. Its watches end with the drain.
    pub fn new(hub: Arc<Hub>, drain: Drain) -> ControlServer<Self> {
        ControlServer::new(Self { hub, drain })
    }
}

#[tonic::async_trait]
impl Control for ControlService {
    type WatchStream = BoxStream<'static, Result<wire::WatchFrame, Status>>;

    async fn renew(
        &self,
        request: Request<wire::RenewRequest>,
    ) -> Result<Response<wire::RenewReply>, Status> {
        let wire::RenewRequest { member, known } = request.into_inner();
        let member = member.ok_or_else(|| Status::invalid_argument("there is no member"))?;
        let member = member.try_into().map_err(refused)?;
        let renew = Renew { member, known: known.map_or(Epoch::ZERO, Epoch::from) };
        let list = self.hub.renew(renew, lifecycle::monotonic());
        let list = list.map_err(|error| Status::already_exists(error.to_string()))?;
        Ok(Response::new(wire::RenewReply { list: list.as_ref().map(Into::into) }))
    }

    async fn leave(
        &self,
        request: Request<wire::LeaveRequest>,
    ) -> Result<Response<wire::LeaveReply>, Status> {
        let process = request.into_inner().process;
        let process = process.ok_or_else(|| Status::invalid_argument("there is no process"))?;
        let process = Process::try_from(process).map_err(refused)?;
        self.hub.leave(&process, lifecycle::monotonic());
        Ok(Response::new(wire::LeaveReply {}))
    }

    async fn watch(
        &self,
        request: Request<wire::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let wire::WatchRequest { process, store, revision } = request.into_inner();
        if let Some(process) = process {
            let process = Process::try_from(process).map_err(refused)?;
            tracing::info!(member.id = %process.id, revision, "a watch begins");
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
