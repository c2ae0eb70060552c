//! One stream to a router, again and again: from Hello to its end.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use proto::routing::v1::edge_message::Kind;
use proto::routing::v1::router_message::Kind as FromRouter;
use proto::routing::v1::routing_client::RoutingClient;
use proto::routing::v1::{self, Hello, Refused, RouterFrame, Welcome};
use replication::MemberId;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::client::Shared;
use crate::links::Open;
use crate::outbox::Outbox;

/// The protocol's version that this code speaks.
const VERSION: u32 = 1;
/// A router answers a Hello at once.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(2);
/// First and longest pause before a stream is opened again.
const PAUSE: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];
/// The pause after a refusal: only people can change that.
const REFUSED_PAUSE: Duration = Duration::from_secs(2);
/// Largest frame that is read; a router's answers are a kilobyte each.
const MAX_FRAME_BYTES: usize = 4 * rpc::MAX_MESSAGE_BYTES;

/// How an attempt ended.
enum End {
    /// It was open.
    Open,
    /// It never was.
    Failed,
    /// The router did not let us in.
    Refused,
}

/// Keeps a stream to a router open until the drain, or until the task is aborted.
pub(crate) async fn run(shared: Arc<Shared>, router: MemberId, address: Arc<str>) {
    let channel = match shared.config.client.channel(&address) {
        Ok(channel) => channel,
        Err(error) => {
            shared.metrics.connect_failed("address");
            if let Some(held_back) = shared.lines.pass() {
                tracing::error!(router = %router, %error, held_back, "a router cannot be called");
            }
            return;
        }
    };
    let drain = shared.spawner.drain();
    let mut pause = PAUSE[0];
    loop {
        let end = tokio::select! {
            end = attempt(&shared, &router, channel.clone()) => end,
            () = drain.signaled() => return,
        };
        pause = match end {
            End::Open => PAUSE[0],
            End::Failed => (pause * 2).min(PAUSE[1]),
            End::Refused => REFUSED_PAUSE,
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = drain.signaled() => return,
        }
    }
}

async fn attempt(shared: &Arc<Shared>, router: &MemberId, channel: Channel) -> End {
    let outbox = Arc::new(Outbox::default());
    let closed = CloseOnDrop(Arc::clone(&outbox));
    let hello = Hello {
        version: VERSION,
        features: Vec::new(),
        edge: Some((&shared.me).into()),
        epoch: Some(shared.state.lock().epoch().into()),
        secret_fingerprint: shared.fingerprint.as_bytes().to_vec().into(),
        software: env!("CARGO_PKG_VERSION").to_owned(),
    };
    outbox.push(Kind::Hello(hello));
    let frames = stream::unfold(Arc::clone(&outbox), |outbox| async move {
        outbox.next().await.map(|frame| (frame, outbox))
    });
    let mut client = RoutingClient::new(channel).max_decoding_message_size(MAX_FRAME_BYTES);
    let begun = timeout(WELCOME_TIMEOUT, async {
        let mut inbound = client.session(frames).await?.into_inner();
        let first = inbound.message().await?;
        Ok::<_, tonic::Status>((inbound, first))
    });
    let failed = |reason: &str| {
        shared.metrics.connect_failed("unreachable");
        tracing::debug!(router = %router, reason, "a session could not be opened");
        End::Failed
    };
    let (inbound, first) = match begun.await {
        Ok(Ok((inbound, Some(first)))) => (inbound, first),
        Ok(Ok((_, None))) => return failed("it ended at once"),
        Ok(Err(status)) => return failed(&rpc::explain(&status)),
        Err(_) => return failed("no answer to the Hello"),
    };
    let mut messages = first.messages.into_iter().filter_map(|message| message.kind);
    match messages.next() {
        Some(FromRouter::Welcome(welcome)) => {
            let end = serve(shared, router, welcome, messages.collect(), inbound, outbox).await;
            drop(closed);
            end
        }
        Some(FromRouter::Refused(Refused { message, .. })) => {
            shared.metrics.connect_failed("refused");
            if let Some(held_back) = shared.lines.pass() {
                let reason = message;
                tracing::error!(router = %router, reason, held_back, "a router refuses this edge");
            }
            End::Refused
        }
        _ => failed("the answer to the Hello is none"),
    }
}

async fn serve(
    shared: &Arc<Shared>,
    router: &MemberId,
    welcome: Welcome,
    first: Vec<FromRouter>,
    mut inbound: Streaming<RouterFrame>,
    outbox: Arc<Outbox>,
) -> End {
    let open = Arc::new(Open {
        number: shared.links.number(),
        router: router.clone(),
        outbox,
        credit: Arc::new(Semaphore::new(welcome.route_credit.clamp(1, 1 << 20) as usize)),
    });
    let Some(entered) = Entered::new(shared, &open) else { return End::Failed };
    shared.metrics.connects.inc();
    if entered.is_first {
        shared.resume(&open);
    }
    let theirs = welcome.epoch.map(Into::into);
    if theirs > Some(shared.state.lock().epoch()) {
        open.outbox.push(Kind::WantMembers(v1::WantMembers {}));
    }
    shared.opened.notify_waiters();
    for message in first {
        shared.heard(&open, message);
    }
    loop {
        match inbound.message().await {
            Ok(Some(frame)) => {
                for message in frame.messages.into_iter().filter_map(|message| message.kind) {
                    shared.heard(&open, message);
                }
            }
            Ok(None) => return End::Open,
            Err(status) => {
                tracing::debug!(router = %router, error = %rpc::explain(&status), "a session broke");
                return End::Open;
            }
        }
    }
}

/// A stream's place among the open ones; left however its task ends.
struct Entered<'a> {
    shared: &'a Arc<Shared>,
    open: &'a Arc<Open>,
    is_first: bool,
}

impl<'a> Entered<'a> {
    fn new(shared: &'a Arc<Shared>, open: &'a Arc<Open>) -> Option<Self> {
        let is_first = shared.links.enter(open)?;
        shared.metrics.streams.inc();
        Some(Self { shared, open, is_first })
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let Self { shared, open, .. } = self;
        open.outbox.close();
        open.credit.close();
        let is_last = shared.links.leave(open, shared.now());
        shared.metrics.streams.dec();
        let mut state = shared.state.lock();
        if is_last {
            state.unreachable(&open.router);
        }
        state.broken(open.number);
    }
}

/// Ends what was being written however the attempt ends.
struct CloseOnDrop(Arc<Outbox>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}
