//! Whether anything is left of any request.

use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

use super::Cluster;
use crate::wait::eventually;

/// What is still held on account of requests: all zero when none is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OpenCounts {
    /// Requests open at the edge.
    pub edge_in_flight: u64,
    /// Leases open at the router.
    pub leases: u64,
    /// Requests that the load books count.
    pub booked: u64,
    /// Bookings in the map of what is cached where.
    pub bookings: u64,
    /// Blocks pinned there.
    pub pinned_blocks: u64,
    /// Sequences that the engines run or let wait.
    pub engine_sequences: u64,
}

impl Cluster {
    /// What is held now.
    pub async fn held(&self) -> OpenCounts {
        let metrics = self.metrics().await;
        let backends = self.operator("/admin/v1/backends").await;
        let ranks = backends["ranks"].as_array().expect("the list of ranks");
        let sum = |pointer: fn(&Value) -> u64| ranks.iter().map(pointer).sum::<u64>();
        OpenCounts {
            edge_in_flight: metrics.value("warmpath_edge_requests_in_flight", &[]) as u64,
            leases: metrics.sum("warmpath_router_leases", &[]) as u64,
            booked: sum(|b| b["in_flight"].as_u64().unwrap_or(u64::from(u32::MAX))),
            bookings: sum(|b| in_caches(b, "bookings")),
            pinned_blocks: sum(|b| in_caches(b, "pinned_blocks")),
            engine_sequences: self.stats().iter().map(|s| u64::from(s.running + s.waiting)).sum(),
        }
    }

    pub(super) async fn idle_within(&self, limit: Duration) -> Duration {
        let last = Mutex::new(OpenCounts::default());
        let show = ShowLast(&last);
        let idle = || async {
            let held = self.held().await;
            *last.lock() = held;
            held == OpenCounts::default()
        };
        let took = eventually(limit, "nothing of any request is left", idle).await;
        drop(show);
        took
    }
}

/// Sum over a rank's caches.
fn in_caches(rank: &Value, name: &str) -> u64 {
    let caches = rank["caches"].as_array().into_iter().flatten();
    caches.map(|c| c[name].as_u64().unwrap_or(u64::from(u32::MAX))).sum()
}

/// Says what was held when the wait for idleness fails.
struct ShowLast<'a>(&'a Mutex<OpenCounts>);

impl Drop for ShowLast<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("still held: {:?}", self.0.lock());
        }
    }
}
