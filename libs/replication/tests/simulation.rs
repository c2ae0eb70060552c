//! Edges, routers, telemetry and engines in virtual time, with everything failing.
//!
//! `cargo run --release -p replication --example model-check -- --long` runs 1,000 seeds.

#[path = "simulation/checks.rs"]
mod checks;
#[path = "simulation/edge.rs"]
mod edge;
#[path = "simulation/messages.rs"]
mod messages;
#[path = "simulation/router.rs"]
mod router;
#[path = "simulation/runner.rs"]
mod runner;
#[path = "simulation/state.rs"]
mod state;
#[path = "simulation/world.rs"]
mod world;

use std::collections::BTreeMap;

#[test]
fn every_rule_holds_under_every_fault() {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..24 {
        let checks = runner::run(seed).unwrap_or_else(|trace| panic!("{trace}"));
        for (what, count) in checks.counts {
            *counts.entry(what).or_default() += count;
        }
    }
    // The rules mean something only if what they are about happens.
    for what in [
        "choices",
        "choices without a router",
        "cold takeovers",
        "corruptions",
        "handovers",
        "lists",
        "samples with two owners",
        "snapshots for a checksum",
        "snapshots for a new stream",
        "snapshots past the ring",
        "warm takeovers",
    ] {
        assert!(counts.get(what).is_some_and(|count| *count > 0), "{what}: {counts:?}");
    }
}
