//! This router among the others: carries what their pools say to each other.
//!
//! What is for all goes over the bus, what is for one is delivered by gRPC; without a bus, or
//! where it does not take a message, everything is delivered. Nothing here is ever waited for,
//! and whatever is lost on the way is asked for again by the pools.
//!
//! - [`peers`]: the ways to other routers
//! - [`wire`]: pools' messages on the wire

mod peers;
pub(crate) mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, Delivery, MAX_PAYLOAD, Room, Subscription};
use domain::Moment;
use futures_core::Stream;
use lifecycle::{Drain, TaskSpawner, Throttle};
use prost::Message as _;
use proto::WireError;
use proto::replication::v1;
use proto::replication::v1::pool_message::Kind;
use proto::replication::v1::replication_server::{Replication, ReplicationServer};
use replication::{Epoch, PoolId, Process, To};
use rpc::{ClientConfig, Fingerprint};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tonic::{Request, Response, Status};

use crate::Router;
use crate::metrics::Region as Metrics;
use crate::pool::Outgoing;
use peers::Peers;

/// How often copies let time pass.
const TICK: Duration = Duration::from_millis(50);
/// Changes of so long a time are sent together. A copy is older by it than it could be.
const GATHERED: Duration = Duration::from_millis(2);
/// Messages that are taken at a time.
const BATCH: usize = 1024;
/// Bytes in one envelope before another is begun: well below what either way takes.
const ENVELOPE_BYTES: usize = MAX_PAYLOAD / 2;
/// Messages that wait for the wire.
pub(crate) const OUTBOX: usize = 65_536;
/// What may wait to be read from the bus: a second of the busiest pool.
const BUS_ROOM: Room = Room { messages: 8192, bytes: 64 << 20 };

/// The bus of a region, for what owners of pools tell their copies.
#[derive(Clone)]
pub struct RegionBus {
    /// The bus.
    pub bus: Arc<dyn Bus>,
    /// The region, for the names of subjects.
    pub region: events::Region,
}

/// What it needs.
pub(crate) struct Deps {
    pub(crate) router: Arc<Router>,
    pub(crate) me: Process,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) client: ClientConfig,
    pub(crate) bus: Option<RegionBus>,
    pub(crate) spawner: TaskSpawner,
    pub(crate) metrics: Metrics,
}

/// The router's end of what other routers deliver. A cheap handle.
#[derive(Clone)]
pub(crate) struct Replica(Arc<Shared>);

struct Shared {
    router: Arc<Router>,
    me: Process,
    fingerprint: Fingerprint,
    bus: Option<RegionBus>,
    peers: Peers,
    metrics: Metrics,
    /// Lines about messages that are not taken.
    lines: Throttle,
}

impl Replica {
    pub(crate) fn new(deps: Deps) -> Self {
        let Deps { router, me, fingerprint, client, bus, spawner, metrics } = deps;
        let peers = Peers::new(client, spawner, metrics.copies.dropped.clone());
        let lines = Throttle::default();
        Self(Arc::new(Shared { router, me, fingerprint, bus, peers, metrics, lines }))
    }

    /// The gRPC service, for a server of the process.
    pub(crate) fn service(&self) -> ReplicationServer<Self> {
        ReplicationServer::new(self.clone())
            .max_decoding_message_size(rpc::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(rpc::MAX_MESSAGE_BYTES)
    }

    /// Carries messages until the drain.
    pub(crate) async fn run(self, mut outgoing: mpsc::Receiver<Outgoing>, drain: Drain) {
        let mut subscription = self.0.subscribe().await;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut batch = Vec::new();
        let mut gathering = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        let mut gathers = true;
        loop {
            tokio::select! {
                () = drain.signaled() => return,
                _ = tick.tick() => {
                    let (served, followed) = self.0.router.tick_copies(lifecycle::monotonic());
                    self.0.metrics.pools_served.set(served as i64);
                    self.0.metrics.pools_followed.set(followed as i64);
                }
                // What comes in is heard meanwhile.
                () = &mut gathering, if gathers => gathers = false,
                taken = outgoing.recv_many(&mut batch, BATCH), if !gathers => {
                    if taken == 0 {
                        return;
                    }
                    self.0.send(std::mem::take(&mut batch));
                    gathering.as_mut().reset(Instant::now() + GATHERED);
                    gathers = true;
                }
                delivery = next(&mut subscription) => {
                    if let Some(Delivery::Message(message)) = delivery {
                        self.0.hear_bus(&message.payload);
                    }
                }
            }
        }
    }
}

/// The next message of the bus; none ever comes without one.
async fn next(subscription: &mut Option<Subscription>) -> Option<Delivery> {
    let Some(open) = subscription else { return std::future::pending().await };
    let delivery = std::future::poll_fn(|cx| std::pin::Pin::new(&mut *open).poll_next(cx)).await;
    if delivery.is_none() {
        *subscription = None;
    }
    delivery
}

impl Shared {
    async fn subscribe(&self) -> Option<Subscription> {
        let RegionBus { bus, region } = self.bus.as_ref()?;
        Some(bus.subscribe(region.pools(), BUS_ROOM).await)
    }

    /// Sends a batch, in its order for each receiver and way: what is for all goes before what is
    /// for one.
    fn send(&self, batch: Vec<Outgoing>) {
        let mut to_all: BTreeMap<PoolId, Vec<v1::PoolMessage>> = BTreeMap::new();
        let mut to_one: BTreeMap<Process, Vec<v1::PoolMessage>> = BTreeMap::new();
        for Outgoing { pool, to, message } in batch {
            let message = wire::message(&pool, message);
            match to {
                To::Routers => to_all.entry(pool).or_default().push(message),
                To::One(process) => to_one.entry(process).or_default().push(message),
            }
        }
        for (pool, messages) in to_all {
            for envelope in self.envelopes(messages) {
                self.publish(&pool, envelope);
            }
        }
        for (process, messages) in to_one {
            for envelope in self.envelopes(messages) {
                self.deliver(&process, envelope);
            }
        }
    }

    /// Tells all other routers something of a pool.
    fn publish(&self, pool: &PoolId, envelope: v1::Envelope) {
        if let Some(RegionBus { bus, region }) = &self.bus {
            let payload = envelope.encode_to_vec().into();
            if bus.publish(&region.pool(pool.as_str()), payload).is_ok() {
                return;
            }
        }
        for router in self.router.members().routers().filter(|router| router.id != self.me.id) {
            self.deliver(router, envelope.clone());
        }
    }

    fn deliver(&self, to: &Process, mut envelope: v1::Envelope) {
        envelope.secret_fingerprint = self.fingerprint.as_bytes().to_vec().into();
        self.peers.deliver(&self.router.members(), to, envelope);
    }

    /// Messages in envelopes of bounded size; a message that is larger has one of its own.
    fn envelopes(&self, messages: Vec<v1::PoolMessage>) -> Vec<v1::Envelope> {
        let mut envelopes = Vec::new();
        let (mut open, mut bytes) = (self.envelope(), 0);
        for message in messages {
            let length = message.encoded_len();
            if bytes > 0 && bytes + length > ENVELOPE_BYTES {
                envelopes.push(std::mem::replace(&mut open, self.envelope()));
                bytes = 0;
            }
            bytes += length;
            open.messages.push(message);
        }
        envelopes.push(open);
        envelopes
    }

    fn envelope(&self) -> v1::Envelope {
        let (from, epoch) = ((&self.me).into(), self.router.epoch().into());
        v1::Envelope { from: Some(from), epoch: Some(epoch), ..v1::Envelope::default() }
    }

    fn hear_bus(&self, payload: &[u8]) {
        let read = v1::Envelope::decode(payload);
        let heard = match read {
            Ok(envelope) => self.hear(for_all(envelope), lifecycle::monotonic()),
            Err(_) => Err(WireError::Missing("envelope")),
        };
        if let Err(error) = heard {
            self.malformed(&error);
        }
    }

    fn malformed(&self, error: &WireError) {
        self.metrics.malformed.inc();
        if let Some(held_back) = self.lines.pass() {
            tracing::warn!(%error, held_back, "a message of another router makes no sense");
        }
    }

    /// Takes what another router says. What goes by an older list than ours is not taken: its
    /// sender is told of ours.
    fn hear(&self, envelope: v1::Envelope, now: Moment) -> Result<(), WireError> {
        let from: Process = envelope.from.ok_or(WireError::Missing("envelope.from"))?.try_into()?;
        // A bus gives a publisher its own words back.
        if from.id == self.me.id {
            return Ok(());
        }
        if let Some(list) = envelope.members {
            self.router.set_list(&list.try_into()?, now);
        }
        let theirs: Epoch = envelope.epoch.ok_or(WireError::Missing("envelope.epoch"))?.into();
        let ours = self.router.epoch();
        let wants_ours = theirs < ours || envelope.want_members;
        if wants_ours || theirs > ours {
            let members = wants_ours.then(|| (&self.router.members()).into());
            let answer = v1::Envelope { members, want_members: theirs > ours, ..self.envelope() };
            self.deliver(&from, answer);
        }
        if theirs < ours {
            return Ok(());
        }
        for message in envelope.messages {
            let Some((pool, message)) = wire::read(message)? else { continue };
            self.router.hear_router(&from, &pool, message, now);
        }
        Ok(())
    }
}

/// What may be said over the bus, where nobody shows the region's secret: how far an owner is, and
/// what it did. Pools are handed over by direct calls alone.
fn for_all(envelope: v1::Envelope) -> v1::Envelope {
    let v1::Envelope { from, epoch, mut messages, .. } = envelope;
    messages.retain(|message| matches!(message.kind, Some(Kind::Heartbeat(_) | Kind::Delta(_))));
    v1::Envelope { from, epoch, messages, ..v1::Envelope::default() }
}

#[tonic::async_trait]
impl Replication for Replica {
    async fn deliver(
        &self,
        request: Request<v1::Envelope>,
    ) -> Result<Response<v1::Delivered>, Status> {
        let envelope = request.into_inner();
        if !self.0.fingerprint.matches(&envelope.secret_fingerprint) {
            self.0.metrics.malformed.inc();
            if let Some(held_back) = self.0.lines.pass() {
                tracing::warn!(
                    held_back,
                    "a router of another region was refused: its region.secret differs"
                );
            }
            return Err(Status::permission_denied("another region's secret"));
        }
        self.0.hear(envelope, lifecycle::monotonic()).map_err(|error| {
            self.0.malformed(&error);
            Status::invalid_argument(error.to_string())
        })?;
        Ok(Response::new(v1::Delivered {}))
    }
}
