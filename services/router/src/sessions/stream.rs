//! One stream from Hello to its end.

use std::sync::Arc;
use std::time::Duration;

use instrumentation::CountedIn;
use proto::routing::v1::edge_message::Kind as FromEdge;
use proto::routing::v1::router_message::Kind;
use proto::routing::v1::{
    EdgeFrame, Hello, Refused, RouterFrame, RouterMessage, WantMembers, Welcome, refused,
};
use replication::{Epoch, Process};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::answer::Session;
use super::{ROUTE_CREDIT, Shared};

/// A stream without a Hello for so long is nobody's.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// The protocol's version that this code speaks.
const VERSION: u32 = 1;
/// Answers are sent at least after so many messages, so that the first of a large frame does not
/// wait for the last.
const ANSWER_EVERY: usize = 32;

/// Where a stream's frames go.
pub(super) type Frames = mpsc::Sender<Result<RouterFrame, Status>>;

/// Serves a stream until either side ends it, or the drain.
pub(super) async fn run(shared: Arc<Shared>, mut inbound: Streaming<EdgeFrame>, frames: Frames) {
    let drain = shared.spawner.drain();
    let first = tokio::select! {
        first = tokio::time::timeout(HELLO_TIMEOUT, inbound.message()) => first,
        () = drain.signaled() => return,
    };
    let Ok(Ok(Some(frame))) = first else { return };
    let mut messages = frame.messages.into_iter().filter_map(|message| message.kind);
    let (joined, welcome) = match greet(&shared, messages.next()) {
        Ok(greeted) => greeted,
        Err(refused) => {
            let _ = send(&frames, vec![Kind::Refused(refused)]).await;
            return;
        }
    };
    if send(&frames, welcome).await.is_err() {
        return;
    }
    let session = Session::new(Arc::clone(&shared), joined.edge.clone(), frames);
    let served = serve(&session, messages.collect(), &mut inbound);
    tokio::select! {
        () = served => {}
        () = drain.signaled() => {}
    }
    // Its waiting Routes end before the edge counts as gone.
    drop(session);
    drop(joined);
}

/// An edge's stream, counted while it is open.
struct Joined {
    shared: Arc<Shared>,
    edge: Process,
    _counted: CountedIn,
}

impl Joined {
    /// `None` if a later process of the edge has a session.
    fn new(shared: &Arc<Shared>, edge: Process) -> Option<Self> {
        if !shared.enter(&edge) {
            return None;
        }
        let counted = CountedIn::new(&shared.metrics.streams);
        Some(Self { shared: Arc::clone(shared), edge, _counted: counted })
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.shared.leave(&self.edge, lifecycle::monotonic());
    }
}

async fn serve(session: &Session, first: Vec<FromEdge>, inbound: &mut Streaming<EdgeFrame>) {
    let mut messages = first;
    loop {
        let mut rest = messages.into_iter();
        while rest.len() > 0 {
            let answers: Vec<Kind> = rest
                .by_ref()
                .take(ANSWER_EVERY)
                .flat_map(|message| session.answer(message, lifecycle::monotonic()))
                .collect();
            if !answers.is_empty() && send(session.frames(), answers).await.is_err() {
                return;
            }
        }
        messages = match inbound.message().await {
            Ok(Some(frame)) => frame.messages.into_iter().filter_map(|m| m.kind).collect(),
            Ok(None) => return,
            Err(status) => {
                tracing::debug!(error = %rpc::explain(&status), "a session broke");
                return;
            }
        };
    }
}

/// An error where nobody reads any more.
pub(super) async fn send(frames: &Frames, kinds: Vec<Kind>) -> Result<(), ()> {
    let messages = kinds.into_iter().map(|kind| RouterMessage { kind: Some(kind) }).collect();
    frames.send(Ok(RouterFrame { messages })).await.map_err(drop)
}

/// Who speaks, and the answer; or why it is not spoken to.
fn greet(shared: &Arc<Shared>, first: Option<FromEdge>) -> Result<(Joined, Vec<Kind>), Refused> {
    let refuse = |reason: refused::Reason, label: &'static str, message: &str| {
        shared.metrics.refused(label);
        if let Some(held_back) = shared.lines.pass() {
            tracing::warn!(reason = label, held_back, "a session was refused: {message}");
        }
        Refused { reason: reason.into(), message: message.to_owned() }
    };
    let protocol = |message: &str| refuse(refused::Reason::Protocol, "protocol", message);
    let Some(FromEdge::Hello(hello)) = first else {
        return Err(protocol("a session begins with a Hello"));
    };
    let Hello { version, edge, epoch, secret_fingerprint, .. } = hello;
    if version == 0 {
        let message = "the edge speaks a version of the protocol that this router does not";
        return Err(refuse(refused::Reason::Version, "version", message));
    }
    if !shared.fingerprint.matches(&secret_fingerprint) {
        let message = "the edge has another region's secret: give both the same region.secret";
        return Err(refuse(refused::Reason::OtherRegion, "other_region", message));
    }
    let edge = edge.ok_or_else(|| protocol("the edge does not say who it is"))?;
    let edge = Process::try_from(edge).map_err(|error| protocol(&error.to_string()))?;
    let joined = Joined::new(shared, edge).ok_or_else(|| {
        let message = "a later process of this edge has a session: two edges must not share a name";
        refuse(refused::Reason::OutlivedProcess, "outlived_process", message)
    })?;
    let ours = shared.router.epoch();
    let mut answer = vec![Kind::Welcome(Welcome {
        version: version.min(VERSION),
        // There are no optional parts yet.
        features: Vec::new(),
        router: Some((&shared.me).into()),
        epoch: Some(ours.into()),
        route_credit: ROUTE_CREDIT,
        max_message_bytes: rpc::MAX_MESSAGE_BYTES as u32,
        software: env!("CARGO_PKG_VERSION").to_owned(),
    })];
    if epoch.map_or(Epoch::ZERO, Epoch::from) > ours {
        answer.push(Kind::WantMembers(WantMembers {}));
    }
    Ok((joined, answer))
}
