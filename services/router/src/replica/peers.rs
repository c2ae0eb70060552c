//! The ways to other routers: a queue and a channel for each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::Incarnation;
use lifecycle::{TaskHandle, TaskSpawner, Throttle};
use parking_lot::Mutex;
use prometheus::IntCounter;
use proto::replication::v1::Envelope;
use proto::replication::v1::replication_client::ReplicationClient;
use replication::{MemberId, MemberList, Process};
use rpc::ClientConfig;
use tokio::sync::mpsc;
use tonic::transport::Channel;

/// Envelopes that wait for one router; what does not fit is lost.
const QUEUE: usize = 64;
/// A delivery that takes longer is lost: by then its content is asked for again.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(1);
/// Routers that are remembered. Those that the list does not have are kept, as a pool's last owner
/// may be one of them.
const REMEMBERED: usize = 64;

pub(super) struct Peers {
    client: ClientConfig,
    spawner: TaskSpawner,
    dropped: IntCounter,
    known: Mutex<HashMap<MemberId, Peer>>,
    lines: Throttle,
}

struct Peer {
    incarnation: Incarnation,
    address: Arc<str>,
    /// None where the address cannot be called: it is not tried, nor told, at every message.
    way: Option<Way>,
}

struct Way {
    queue: mpsc::Sender<Envelope>,
    task: TaskHandle,
}

impl Drop for Way {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Peers {
    pub(super) fn new(client: ClientConfig, spawner: TaskSpawner, dropped: IntCounter) -> Self {
        Self { client, spawner, dropped, known: Mutex::default(), lines: Throttle::default() }
    }

    /// Hands an envelope over to be delivered, in order with those before it.
    pub(super) fn deliver(&self, list: &MemberList, to: &Process, envelope: Envelope) {
        let mut known = self.known.lock();
        let member = list.members.iter().find(|member| member.process.id == to.id);
        if let Some(member) = member {
            let (incarnation, address) = (member.process.incarnation, &member.address);
            let is_same = known
                .get(&to.id)
                .is_some_and(|p| p.incarnation == incarnation && p.address == *address);
            if !is_same {
                if known.len() >= REMEMBERED {
                    known.retain(|id, _| list.members.iter().any(|m| m.process.id == *id));
                }
                known.remove(&to.id);
                let way = self.connect(&to.id, address);
                known.insert(to.id.clone(), Peer { incarnation, address: address.clone(), way });
            }
        }
        let peer = known.get(&to.id).filter(|peer| peer.incarnation == to.incarnation);
        let way = peer.and_then(|peer| peer.way.as_ref());
        if way.is_none_or(|way| way.queue.try_send(envelope).is_err()) {
            self.dropped.inc();
        }
    }

    fn connect(&self, id: &MemberId, address: &Arc<str>) -> Option<Way> {
        let channel = match self.client.channel(address) {
            Ok(channel) => channel,
            Err(error) => {
                if let Some(held_back) = self.lines.pass() {
                    tracing::warn!(
                        router = %id, %error, held_back, "a router of the list cannot be called",
                    );
                }
                return None;
            }
        };
        let (queue, waiting) = mpsc::channel(QUEUE);
        let drain = self.spawner.drain();
        let task = self.spawner.spawn("router-peer", async move {
            tokio::select! {
                () = drain.signaled() => {}
                () = deliver_all(channel, waiting) => {}
            }
        });
        Some(Way { queue, task })
    }
}

async fn deliver_all(channel: Channel, mut waiting: mpsc::Receiver<Envelope>) {
    let mut client =
        ReplicationClient::new(channel).max_encoding_message_size(rpc::MAX_MESSAGE_BYTES);
    let mut is_reached = true;
    while let Some(envelope) = waiting.recv().await {
        let delivery = tokio::time::timeout(DELIVERY_TIMEOUT, client.deliver(envelope)).await;
        let fault = match delivery {
            Ok(Ok(_)) => None,
            Ok(Err(status)) => Some(rpc::explain(&status)),
            Err(_) => Some("no answer in time".to_owned()),
        };
        // Told once, not for every message.
        if let Some(error) = fault.as_ref().filter(|_| is_reached) {
            tracing::info!(%error, "another router is not reached");
        }
        is_reached = fault.is_none();
    }
}
