//! The adapter over gRPC: the client's side here, telemetry's in [`server`].

pub(crate) mod server;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use domain::{BoxFuture, BoxStream};
use futures_util::{StreamExt, stream};
use proto::control::v1 as wire;
use proto::control::v1::control_client::ControlClient;
use replication::{MemberList, Process, Renew};
use rpc::Fingerprint;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use crate::{ConfigFeed, Event, FeedError, Position, wire as events};

/// How long telemetry may take to answer a renewal. A lease lasts 3 s and is renewed every 0.9 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Largest message that is taken. Telemetry sends parts of 1 MiB; a single backend with hundreds
/// of adapters may be larger.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// The header of a call that shows the region's secret: its fingerprint. It is no part of the
/// messages, so those of version 1 stay what they are, and who does not know it passes it over.
const REGION: &str = "warmpath-region-bin";

/// Telemetry over a channel.
#[derive(Clone, Debug)]
pub struct GrpcFeed {
    client: ControlClient<Channel>,
    process: Option<Process>,
    region: Option<Fingerprint>,
}

impl GrpcFeed {
    /// A feed over a channel that connects by itself, and again whenever it has to. `process`
    /// says who watches, for logs.
    pub fn new(channel: Channel, process: Option<Process>) -> Self {
        let client = ControlClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        Self { client, process, region: None }
    }

    /// Shows telemetry that this process has its region's secret.
    #[must_use]
    pub fn of_region(self, region: Fingerprint) -> Self {
        Self { region: Some(region), ..self }
    }

    fn call<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(region) = &self.region {
            let value = MetadataValue::from_bytes(region.as_bytes());
            request.metadata_mut().insert_bin(REGION, value);
        }
        request
    }
}

impl ConfigFeed for GrpcFeed {
    fn watch(&self, from: Position) -> BoxStream<'static, Result<Event, FeedError>> {
        let mut client = self.client.clone();
        let request = self.call(wire::WatchRequest {
            process: self.process.as_ref().map(Into::into),
            store: from.store.to_string(),
            revision: from.revision,
        });
        let opened = async move {
            match client.watch(request).await {
                Ok(response) => Events { frames: Some(response.into_inner()), ..Events::default() },
                Err(status) => Events { fault: Some(unreachable(&status)), ..Events::default() },
            }
        };
        stream::once(opened)
            .flat_map(|events| {
                stream::unfold(events, |mut events| async move {
                    let event = events.next().await?;
                    Some((event, events))
                })
            })
            .boxed()
    }

    fn renew(&self, renew: Renew) -> BoxFuture<'_, Result<Option<MemberList>, FeedError>> {
        let mut client = self.client.clone();
        let mut request = self.call(wire::RenewRequest {
            member: Some((&renew.member).into()),
            known: Some(renew.known.into()),
        });
        request.set_timeout(ANSWER_WITHIN);
        Box::pin(async move {
            let reply = client.renew(request).await.map_err(|status| match status.code() {
                Code::AlreadyExists => FeedError::NameTaken,
                _ => unreachable(&status),
            })?;
            let list = reply.into_inner().list.map(MemberList::try_from).transpose();
            list.map_err(|error| FeedError::Malformed(error.to_string()))
        })
    }

    fn leave(&self, process: Process) -> BoxFuture<'_, Result<(), FeedError>> {
        let mut client = self.client.clone();
        let mut request = self.call(wire::LeaveRequest { process: Some((&process).into()) });
        request.set_timeout(ANSWER_WITHIN);
        Box::pin(async move {
            client.leave(request).await.map_err(|status| unreachable(&status))?;
            Ok(())
        })
    }
}

fn unreachable(status: &Status) -> FeedError {
    if matches!(status.code(), Code::PermissionDenied | Code::FailedPrecondition) {
        return FeedError::Refused(status.message().to_owned());
    }
    FeedError::Unreachable(match status.code() {
        Code::Unknown | Code::Unavailable | Code::Internal => status.message().to_owned(),
        code => format!("{code:?}: {}", status.message()),
    })
}

/// A stream of frames as events. It ends after its first fault.
#[derive(Default)]
struct Events {
    frames: Option<Streaming<wire::WatchFrame>>,
    waiting: VecDeque<Bytes>,
    fault: Option<FeedError>,
}

impl Events {
    async fn next(&mut self) -> Option<Result<Event, FeedError>> {
        loop {
            if let Some(fault) = self.fault.take() {
                self.frames = None;
                self.waiting.clear();
                return Some(Err(fault));
            }
            if let Some(bytes) = self.waiting.pop_front() {
                match events::decode(bytes, lifecycle::monotonic()) {
                    Ok(Some(event)) => return Some(Ok(event)),
                    Ok(None) => {}
                    Err(reason) => self.fault = Some(FeedError::Malformed(reason)),
                }
                continue;
            }
            match self.frames.as_mut()?.message().await {
                Ok(Some(frame)) => self.waiting = frame.events.into(),
                Ok(None) => return None,
                Err(status) => self.fault = Some(unreachable(&status)),
            }
        }
    }
}
