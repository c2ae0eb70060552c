//! Ephemeral messages between the services: published to whoever listens now, stored nowhere.
//!
//! [`Bus`] is the port. Two adapters pass one suite of tests: [`MemoryBus`] within a process, and
//! [`NatsBus`] over NATS core. A publisher never waits. A subscriber that is slow loses the oldest
//! messages, and one that may have missed anything sees a [`Gap`] in its place: what must not be
//! missed is kept elsewhere and asked for again then.

mod error;
mod memory;
mod metrics;
mod nats;
mod port;
mod queue;
mod subject;

pub use error::BusError;
pub use memory::MemoryBus;
pub use metrics::Metrics;
pub use nats::{NatsBus, NatsConfig, RawNatsConfig, RawNatsTls};
pub use port::{Bus, Delivery, Gap, MAX_PAYLOAD, Message, Room, Status, Subscription};
pub use subject::{Pattern, Subject};
