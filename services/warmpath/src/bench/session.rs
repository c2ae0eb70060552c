//! What a Route costs over a session: from the call to the decision, with the router behind gRPC on
//! loopback, beside the same router in this process.
//!
//! Edge and router are in one process, each with threads of its own; what they share is the
//! machine. Requests are sent at a fixed rate, in bursts of a millisecond, whether or not earlier
//! ones were answered. Each is reported to its end.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use domain::{
    Backend, BackendState, BlockKey, BlockUnit, CacheConfig, EngineKind, Fleet, Incarnation,
    KeyList, Moment, Prompt, RankState, Report, Route, RoutingClient, ServedModel,
};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use instrumentation::Registry;
use lifecycle::Lifecycle;
use replication::{Epoch, Member, MemberList, Process, Role};
use rpc::{Fingerprint, RawServerConfig, ServerConfig};
use serde::Serialize;
use session::SessionClient;
use settings::Redacted;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::cli::Output;
use crate::stats::{quantile, sorted};

const BLOCK_TOKENS: u32 = 16;
/// Documents that prompts are taken from: nearly every one is warm somewhere.
const DOCUMENTS: u64 = 500;
/// How long one is waited for that there should be in milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Requests before the measured ones, in seconds of the rate.
const WARM_SECONDS: f64 = 0.5;

/// Options of `warmpath bench session`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Routes per second
    #[arg(long, value_delimiter = ',', default_value = "1000,10000")]
    rates: Vec<u32>,
    /// Seconds at each rate
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Blocks with keys in a prompt; each is 16 tokens
    #[arg(long, default_value_t = 256)]
    blocks: u32,
    /// Backends of the pool
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    backends: u32,
    /// Streams from the edge to the router
    #[arg(long, default_value_t = 2)]
    streams: u32,
    /// Where the result goes as JSON; `-` is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<Output>,
}

#[derive(Debug, Serialize)]
struct Measured {
    blocks: u32,
    backends: u32,
    streams: u32,
    rounds: Vec<Round>,
}

/// One rate, both ways.
#[derive(Debug, Serialize)]
struct Round {
    rate: u32,
    in_process: Figures,
    session: Figures,
}

#[derive(Debug, Serialize)]
struct Figures {
    answered_per_second: f64,
    p50_micros: f64,
    p99_micros: f64,
    p999_micros: f64,
    /// Decided by the edge, as the router took too long.
    decided_alone: usize,
    rejected: usize,
}

/// Runs the bench.
///
/// # Errors
/// A port cannot be bound, the session does not come up, or the result cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let edge = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut rounds = Vec::new();
    for &rate in &args.rates {
        let in_process = {
            let bed = Bed::new(args);
            let service = router::Config::default().build(bed.deps())?;
            edge.block_on(drive(service.client(), rate, args))
        };
        let (client, _far) = Bed::new(args).connect(args, &edge)?;
        let session = edge.block_on(drive(client, rate, args));
        println!(
            "{rate}/s: in process p50 {:.0} µs p99 {:.0} µs, over a session p50 {:.0} µs p99 {:.0} µs",
            in_process.p50_micros, in_process.p99_micros, session.p50_micros, session.p99_micros
        );
        rounds.push(Round { rate, in_process, session });
    }
    let Args { blocks, backends, streams, .. } = *args;
    match &args.json {
        Some(output) => output.write_json(&Measured { blocks, backends, streams, rounds }),
        None => Ok(()),
    }
}

/// A router's fleet.
struct Bed {
    fleet: watch::Sender<Arc<Fleet>>,
}

/// The router's side of a session; it ends when this is dropped.
struct Far {
    lifecycle: Lifecycle,
    near: Lifecycle,
    _runtime: Runtime,
}

impl Drop for Far {
    fn drop(&mut self) {
        self.near.begin_drain();
        self.lifecycle.begin_drain();
    }
}

impl Bed {
    fn new(args: &Args) -> Self {
        let backends = (0..args.backends).map(|number| Arc::new(backend(number))).collect();
        Self { fleet: watch::Sender::new(Arc::new(Fleet { revision: 1, backends })) }
    }

    fn deps(&self) -> router::Deps {
        router::Deps { registry: Registry::new(), fleet: self.fleet.subscribe() }
    }

    /// A session from the edge's threads to the router's.
    fn connect(self, args: &Args, edge: &Runtime) -> anyhow::Result<(Arc<dyn RoutingClient>, Far)> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (lifecycle, near) = (Lifecycle::new(), Lifecycle::new());
        let fingerprint = Fingerprint::of(&Redacted::new(b"bench".to_vec()));
        let me = Process { id: "router".into(), incarnation: Incarnation(1) };
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let raw = RawServerConfig { listen, ..RawServerConfig::default() };
        let config = ServerConfig::new(raw)?;
        let listener = runtime.block_on(lifecycle::bind(config.listen()))?;
        let server = rpc::Server::new(listener, &config, rpc::Metrics::default())?;
        let address = server.address().to_owned();
        let member = Member { process: me.clone(), role: Role::Router, address: address.into() };
        let list = MemberList { epoch: Epoch { term: 1, number: 1 }, members: vec![member].into() };
        let (_, members) = watch::channel(list);
        let region = router::RegionDeps {
            me,
            members: members.clone(),
            fingerprint,
            client: config.client().clone(),
            bus: None,
            decisions: None,
            spawner: lifecycle.spawner(),
        };
        let drain = lifecycle.drain();
        let service = router::Config::default().build_in_region(self.deps(), region)?;
        let routes = service.routes();
        {
            let _inside = runtime.enter();
            lifecycle.spawn("router", service.run(lifecycle.drain()));
            lifecycle.spawn("rpc", async move {
                if let Err(error) = server.run(routes, drain).await {
                    tracing::error!(%error, "the bench's router ends");
                }
            });
        }
        let raw = session::RawConfig { streams: args.streams, ..session::RawConfig::default() };
        let config =
            session::Config::new(raw, rpc::ClientConfig::new(rpc::RawClientConfig::default())?)?;
        let client = {
            let _inside = edge.enter();
            SessionClient::start(
                config,
                session::Deps {
                    spawner: near.spawner(),
                    me: Process { id: "edge".into(), incarnation: Incarnation(1) },
                    fingerprint,
                    fleet: self.fleet.subscribe(),
                    members,
                    metrics: session::Metrics::default(),
                },
            )
        };
        let client: Arc<dyn RoutingClient> = Arc::new(client);
        edge.block_on(connected(&client))?;
        Ok((client, Far { lifecycle, near, _runtime: runtime }))
    }
}

/// Waits until a router decides.
async fn connected(client: &Arc<dyn RoutingClient>) -> anyhow::Result<()> {
    let decided = async {
        loop {
            let answer = client.route(route(0, 4)).await;
            if let Ok(decision) = answer {
                client.report(Report::Cancelled { lease: decision.lease });
                if decision.evidence.reason != domain::DecisionReason::EdgeAlone {
                    return;
                }
            }
        }
    };
    tokio::time::timeout(PATIENCE, decided).await.context("no session comes up")
}

/// Sends Routes at a rate and reports each to its end.
async fn drive(client: Arc<dyn RoutingClient>, rate: u32, args: &Args) -> Figures {
    let total = u64::from(rate) * args.seconds;
    let warm = (f64::from(rate) * WARM_SECONDS) as u64;
    let started = lifecycle::monotonic();
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut sent, mut open, mut answers) = (0, FuturesUnordered::new(), Vec::new());
    while sent < total + warm || !open.is_empty() {
        tokio::select! {
            biased;
            Some(answer) = open.next() => answers.push(answer),
            _ = ticks.tick(), if sent < total + warm => {
                let due = (started_for(started) * f64::from(rate)) as u64;
                while sent < due.min(total + warm) {
                    open.push(one(Arc::clone(&client), route(sent, args.blocks)));
                    sent += 1;
                }
            }
        }
    }
    let seconds = started_for(started);
    let measured = answers.len() as f64 / seconds;
    figures(answers.into_iter().skip(warm as usize), measured)
}

fn started_for(started: Moment) -> f64 {
    lifecycle::monotonic().seconds_since(started)
}

/// What became of one Route: its time in microseconds, and whether a router decided.
type Answered = Option<(f64, bool)>;

async fn one(client: Arc<dyn RoutingClient>, route: Route) -> Answered {
    let sent = lifecycle::monotonic();
    let decision = client.route(route).await.ok()?;
    let micros = lifecycle::monotonic().seconds_since(sent) * 1e6;
    let lease = decision.lease;
    client.report(Report::FirstToken { lease });
    client.report(Report::Finished { lease, usage: None, output_keys: Vec::new() });
    Some((micros, decision.evidence.reason == domain::DecisionReason::EdgeAlone))
}

fn figures(answers: impl Iterator<Item = Answered>, answered_per_second: f64) -> Figures {
    let (mut micros, mut decided_alone, mut rejected) = (Vec::new(), 0, 0);
    for answer in answers {
        match answer {
            Some((time, alone)) => {
                micros.push(time);
                decided_alone += usize::from(alone);
            }
            None => rejected += 1,
        }
    }
    let micros = sorted(micros);
    let at = |q| quantile(&micros, q).unwrap_or_default();
    Figures {
        answered_per_second,
        p50_micros: at(0.5),
        p99_micros: at(0.99),
        p999_micros: at(0.999),
        decided_alone,
        rejected,
    }
}

fn backend(number: u32) -> Backend {
    let cache =
        CacheConfig { block_size: BLOCK_TOKENS, usable_blocks: 20_000, prefix_caching: true };
    Backend {
        id: format!("b{number}").as_str().into(),
        incarnation: Incarnation(1),
        url: format!("http://b{number}:8000").into(),
        engine: EngineKind::Vllm,
        state: BackendState::Ready,
        models: vec![ServedModel {
            id: "model".into(),
            max_model_len: None,
            listing: "{}".into(),
            parity: None,
            base: None,
        }],
        ranks: vec![RankState { rank: 0, cache: Some(cache), slots: None, load: None }],
        network: Duration::ZERO,
        credential: None,
    }
}

/// The prompts of the documents in turn.
fn route(number: u64, blocks: u32) -> Route {
    let document = number % DOCUMENTS;
    let key = |block| BlockKey((document << 32) + u64::from(block) + 1);
    let tokens = blocks * BLOCK_TOKENS + 5;
    Route {
        request: number.to_string().as_str().into(),
        client_request: None,
        attempt: 0,
        tenant: "tenant".into(),
        model: "model".into(),
        prompt: Some(Prompt {
            tokens,
            text_bytes: tokens * 4,
            keys: vec![KeyList {
                unit: BlockUnit::Tokens(BLOCK_TOKENS),
                keys: (0..blocks).map(key).collect(),
            }],
        }),
        max_output_tokens: None,
        stream: true,
        excluded: Vec::new(),
        hold: Duration::ZERO,
        ranked: Vec::new(),
    }
}
