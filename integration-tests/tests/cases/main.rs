//! Faults that users of gateways have met, each seen as a client sees it: HTTP in, HTTP out.

mod encoding;
mod errors;
mod faults;
mod fields;
mod health;
mod identity;
mod keep_alive;
mod load;
mod metrics;
mod models;
mod prefixes;
mod region;
mod reload;
mod revocation;
mod spread;
mod streams;
mod usage;

use integration_tests::cluster::{Cluster, ClusterBuilder, MODEL};
use integration_tests::scripted::ScriptedEngine;
use tokio::net::TcpListener;
use warmpath::double::{Double, DoubleHandle};

/// A gateway before scripted engines, which are called `a`, `b` and so on.
fn before(engines: &[&ScriptedEngine]) -> ClusterBuilder {
    let named = engines.iter().zip('a'..);
    named.fold(Cluster::builder().engines(0), |builder, (engine, name)| {
        builder.backend(&name.to_string(), &engine.url())
    })
}

/// At which what is warm is far ahead of what is cold, however unevenly a busy machine lets
/// engines compute.
const SLOW_PREFILL: f64 = 1500.0;

/// However unevenly it lets them answer, they are to be taken as equally fast.
const TIE: &str = "[router]\ntie_margin_seconds = 10.0";

/// Doubles that no cluster was told of, with the names and addresses under which it may be.
async fn doubles(count: usize) -> (Vec<DoubleHandle>, Vec<(&'static str, String)>) {
    doubles_like(count, |double| double).await
}

/// The same, changed.
async fn doubles_like(
    count: usize,
    shape: impl Fn(Double) -> Double,
) -> (Vec<DoubleHandle>, Vec<(&'static str, String)>) {
    let mut handles = Vec::new();
    for _ in 0..count {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let double = Double::builder().model(MODEL).blocks(2000);
        let double = shape(double.prefill_tokens_per_second(SLOW_PREFILL));
        handles.push(double.spawn(listener).unwrap());
    }
    let named = handles.iter().zip(["a", "b", "c", "d"]);
    let backends = named.map(|(double, name)| (name, double.url())).collect();
    (handles, backends)
}
