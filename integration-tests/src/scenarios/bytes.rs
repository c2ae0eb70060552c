//! Recorded event streams through the gateway, cut into pieces in every way.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::Serialize;
use serde_json::Value;

use crate::client::Session;
use crate::cluster::Cluster;
use crate::recorded::Exchange;
use crate::scripted::ScriptedEngine;

/// Which cuts are tried on each stream.
#[derive(Clone, Copy, Debug)]
pub enum Cuts {
    /// So many times at random places, and once after every byte.
    Random(usize),
    /// In two at every place, and once after every byte.
    EveryPlace,
}

/// What a run came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Recorded streams.
    pub transcripts: usize,
    /// Their bytes together.
    pub transcript_bytes: usize,
    /// Answers of an engine, cut in one way each, that went through the gateway.
    pub answers: usize,
    /// Those that arrived as other bytes.
    pub different: usize,
    /// What those were.
    pub differences: Vec<String>,
    /// Answers among them that held a usage event which the client had not asked for.
    pub usage_events_removed: usize,
}

/// Replays every recorded stream of the routes that the gateway serves.
///
/// # Panics
/// The cluster does not come up, or an answer does not come in time.
pub async fn run(cuts: Cuts) -> Report {
    let exchanges: Vec<Exchange> = Exchange::all()
        .into_iter()
        .filter(|e| e.is_stream && e.status == 200 && is_served(&e.path))
        .collect();
    let bed = Bed::start(&exchanges).await;
    let mut session = Session::new(&bed.cluster.client()).await;
    let mut report = Report::default();
    for exchange in &exchanges {
        report.transcripts += 1;
        report.transcript_bytes += exchange.body.len();
        for (request, expected) in variants(exchange) {
            for cuts in cuts.of(exchange) {
                bed.engine.answer(exchange.script(&cuts));
                let reply = session.post(&exchange.path, request.clone()).await;
                report.answers += 1;
                report.usage_events_removed += usize::from(expected.len() < exchange.body.len());
                if reply.status != 200 || !reply.whole || reply.body[..] != expected[..] {
                    report.different += 1;
                    report.differences.push(format!("{} cut at {cuts:?}", exchange.name));
                }
            }
        }
    }
    drop(session);
    bed.cluster.assert_idle().await;
    bed.cluster.stop().await;
    report
}

/// A gateway before one scripted engine that serves the models of these exchanges.
pub struct Bed {
    /// The gateway.
    pub cluster: Cluster,
    /// The engine.
    pub engine: ScriptedEngine,
}

impl Bed {
    /// Starts both.
    pub async fn start(exchanges: &[Exchange]) -> Self {
        let mut models: Vec<String> = exchanges.iter().filter_map(|e| model(&e.request)).collect();
        models.sort_unstable();
        models.dedup();
        let engine = ScriptedEngine::start(&models).await;
        let cluster = Cluster::builder().engines(0).backend("scripted", &engine.url());
        Self { cluster: cluster.build().await, engine }
    }
}

fn model(request: &str) -> Option<String> {
    let body: Value = serde_json::from_str(request).ok()?;
    Some(body["model"].as_str()?.to_owned())
}

fn is_served(path: &str) -> bool {
    ["/v1/chat/completions", "/v1/completions"].contains(&path)
}

/// The request as it was recorded with the body that must arrive; and where the engine told its
/// usage in an event of its own, the same from a client that did not ask.
fn variants(exchange: &Exchange) -> Vec<(String, Vec<u8>)> {
    let mut variants = vec![(exchange.request.clone(), exchange.body.clone())];
    let without = exchange.body_without_usage_event();
    let mut body: Value = serde_json::from_str(&exchange.request).unwrap_or_default();
    if without != exchange.body
        && let Some(fields) = body.as_object_mut()
    {
        fields.remove("stream_options");
        variants.push((body.to_string(), without));
    }
    variants
}

impl Cuts {
    fn of(self, exchange: &Exchange) -> Vec<Vec<usize>> {
        let length = exchange.body.len();
        let mut all = vec![(1..length).collect()];
        match self {
            Cuts::EveryPlace => all.extend((0..length).map(|at| vec![at])),
            Cuts::Random(times) => {
                let mut rng = SmallRng::seed_from_u64(length as u64);
                all.extend((0..times).map(|_| exchange.random_cuts(&mut rng)));
            }
        }
        all
    }
}
