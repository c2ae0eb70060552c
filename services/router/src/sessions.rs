//! The router's end of sessions: edges in other processes ask it over gRPC streams.
//!
//! Every stream begins with a Hello and is then a sequence of messages that are answered by name,
//! in any order. Whatever can be answered at once is, under a pool's lock and in the stream's own
//! task; a Route that waits for a backend has a task of its own. A message that makes no sense
//! fails alone.
//!
//! - [`stream`]: one stream from Hello to its end
//! - [`answer`]: one message after the other
//! - [`hold`]: Routes that wait
//! - [`metrics`]: what is counted

mod answer;
mod hold;
mod metrics;
mod stream;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use domain::{Incarnation, Moment};
use futures_core::Stream;
use lifecycle::{TaskSpawner, Throttle};
use parking_lot::Mutex;
use prometheus::Registry;
use proto::routing::v1::routing_server::{Routing, RoutingServer};
use proto::routing::v1::{EdgeFrame, RouterFrame};
use replication::{MemberId, Process};
use rpc::Fingerprint;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{Error, Router};
use metrics::Metrics;

/// Routes of one stream that may wait at a time.
const ROUTE_CREDIT: u32 = 1024;
/// Frames that wait to be written to one stream; past that its messages wait to be read.
const UNWRITTEN_FRAMES: usize = 32;
/// A frame that is larger ends its stream. Messages above [`rpc::MAX_MESSAGE_BYTES`] are refused
/// one by one below that.
const MAX_FRAME_BYTES: usize = 4 * rpc::MAX_MESSAGE_BYTES;

/// What it needs.
pub(crate) struct Deps {
    pub(crate) router: Arc<Router>,
    /// This process, as it is a member.
    pub(crate) me: Process,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) spawner: TaskSpawner,
}

/// The router's end of sessions. A cheap handle.
#[derive(Clone)]
pub(crate) struct Sessions(Arc<Shared>);

pub(crate) struct Shared {
    router: Arc<Router>,
    me: Process,
    fingerprint: Fingerprint,
    edges: Mutex<HashMap<MemberId, Edge>>,
    spawner: TaskSpawner,
    metrics: Metrics,
    /// Lines about sessions and messages that are not taken.
    lines: Throttle,
}

/// The streams of an edge.
struct Edge {
    incarnation: Incarnation,
    streams: usize,
}

impl Sessions {
    pub(crate) fn new(deps: Deps, registry: &Registry) -> Result<Self, Error> {
        let Deps { router, me, fingerprint, spawner } = deps;
        let metrics = Metrics::default();
        metrics.register(registry)?;
        Ok(Self(Arc::new(Shared {
            router,
            me,
            fingerprint,
            edges: Mutex::default(),
            spawner,
            metrics,
            lines: Throttle::default(),
        })))
    }

    /// The gRPC service, for a server of the process.
    pub(crate) fn service(&self) -> RoutingServer<Self> {
        RoutingServer::new(self.clone())
            .max_decoding_message_size(MAX_FRAME_BYTES)
            .max_encoding_message_size(MAX_FRAME_BYTES)
    }
}

impl Shared {
    /// Counts a stream of an edge. `false` if a later process of it was here.
    fn enter(&self, edge: &Process) -> bool {
        let mut edges = self.edges.lock();
        let new = || Edge { incarnation: edge.incarnation, streams: 0 };
        let known = edges.entry(edge.id.clone()).or_insert_with(new);
        if known.incarnation > edge.incarnation {
            return false;
        }
        if known.incarnation < edge.incarnation {
            *known = new();
        }
        known.streams += 1;
        true
    }

    /// A stream of an edge has ended. With the last one its leases wait to be re-asserted.
    fn leave(&self, edge: &Process, now: Moment) {
        let is_last = {
            let mut edges = self.edges.lock();
            match edges.get_mut(&edge.id).filter(|known| known.incarnation == edge.incarnation) {
                Some(known) => {
                    known.streams -= 1;
                    let is_last = known.streams == 0;
                    if is_last {
                        edges.remove(&edge.id);
                    }
                    is_last
                }
                None => false,
            }
        };
        if is_last {
            self.router.broken(edge, now);
        }
    }
}

#[tonic::async_trait]
impl Routing for Sessions {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<RouterFrame, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<EdgeFrame>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (frames, written) = mpsc::channel(UNWRITTEN_FRAMES);
        let stream = stream::run(Arc::clone(&self.0), request.into_inner(), frames);
        self.0.spawner.spawn("router-session", stream);
        Ok(Response::new(Box::pin(ReceiverStream::new(written))))
    }
}
