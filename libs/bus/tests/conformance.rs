//! The suite of the port on the adapter in memory. That on NATS needs a server and runs with the
//! end-to-end tests (`integration-tests/tests/e2e_bus.rs`).

#[path = "conformance/suite.rs"]
mod suite;

use std::sync::Arc;

use bus::{MemoryBus, Metrics};
use suite::{Adapter, Ends};

struct Memory;

impl Adapter for Memory {
    async fn ends(&self) -> Ends {
        let bus = Arc::new(MemoryBus::new(Metrics::default()));
        Ends { one: bus.clone(), other: bus, ground: Box::new(()) }
    }
}

suite::run_on!(Memory);
