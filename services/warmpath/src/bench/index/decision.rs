//! Whole decisions of the router: views of 1,000 ranks, choice and booking, with the caches full.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use domain::{
    Backend, BackendState, BlockKey, BlockUnit, CacheConfig, EngineKind, Fleet, Incarnation,
    KeyList, LeaseId, Prompt, RankState, Report, Route, RoutingClient, ServedModel,
};
use futures_util::FutureExt as _;
use instrumentation::Registry;
use serde::Serialize;
use sim::index_load::{IndexLoad, block_key};
use tokio::sync::watch;

use super::clock::timed;
use super::control::Control;
use crate::stats::{quantile, sorted};

const RANKS: usize = 1_000;
const BLOCKS_PER_RANK: u32 = 10_000;
const BLOCK_TOKENS: u32 = 16;

/// Blocks of one of the prompts that fill the caches.
const FILLING_BLOCKS: u32 = 400;

/// Requests in flight, two for each rank.
const IN_FLIGHT: usize = 2 * RANKS;

/// Decisions before the measured ones, on the trace as well.
const WARM_DECISIONS: usize = 2_000;

/// What was measured.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    ranks: usize,
    blocks: u64,
    decisions: usize,
    p50_micros: f64,
    p95_micros: f64,
    p99_micros: f64,
    highest_micros: f64,
    report_p99_micros: f64,
    /// Of a fixed piece of work that takes as long at the median.
    control_p50_micros: f64,
    control_p95_micros: f64,
    control_p99_micros: f64,
}

/// A router with requests in flight.
struct Bed {
    client: Arc<dyn RoutingClient>,
    in_flight: VecDeque<LeaseId>,
    requests: u64,
    decisions: Vec<f64>,
    reports: Vec<f64>,
}

impl Bed {
    fn new() -> anyhow::Result<Self> {
        let backends = (0..RANKS).map(|number| Arc::new(backend(number))).collect();
        let (_keep, fleet) = watch::channel(Arc::new(Fleet { revision: 1, backends }));
        let deps = router::Deps { registry: Registry::new(), fleet };
        let service = router::Config::default().build(deps)?;
        Ok(Self {
            client: service.client(),
            in_flight: VecDeque::new(),
            requests: 0,
            decisions: Vec::new(),
            reports: Vec::new(),
        })
    }

    /// Routes a prompt that is answered once so many others are in flight.
    fn request(&mut self, keys: Arc<[BlockKey]>) -> anyhow::Result<()> {
        self.requests += 1;
        let tokens = keys.len() as u32 * BLOCK_TOKENS + 5;
        let route = Route {
            request: self.requests.to_string().as_str().into(),
            attempt: 0,
            tenant: "tenant".into(),
            model: "model".into(),
            prompt: Some(Prompt {
                tokens,
                text_bytes: tokens * 4,
                keys: vec![KeyList { unit: BlockUnit::Tokens(BLOCK_TOKENS), keys }],
            }),
            max_output_tokens: None,
            stream: true,
            excluded: Vec::new(),
            hold: Duration::ZERO,
            ranked: Vec::new(),
        };
        let (decision, spent) = timed(|| self.client.route(route).now_or_never());
        self.decisions.push(micros(spent));
        let decision = decision.context("the router decides at once")?;
        let decision = decision.map_err(|rejected| anyhow!("rejected: {rejected:?}"))?;
        self.in_flight.push_back(decision.lease);
        if self.in_flight.len() > IN_FLIGHT
            && let Some(lease) = self.in_flight.pop_front()
        {
            self.report(Report::FirstToken { lease });
            self.report(Report::Finished { lease, usage: None, output_keys: Vec::new() });
        }
        Ok(())
    }

    fn report(&mut self, report: Report) {
        let ((), spent) = timed(|| self.client.report(report));
        self.reports.push(micros(spent));
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn backend(number: usize) -> Backend {
    let cache = CacheConfig {
        block_size: BLOCK_TOKENS,
        usable_blocks: BLOCKS_PER_RANK,
        prefix_caching: true,
    };
    Backend {
        id: format!("backend-{number}").as_str().into(),
        incarnation: Incarnation(1),
        url: format!("http://10.0.{}.{}:8000", number / 250, number % 250).into(),
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

pub(super) fn run(load: &IndexLoad) -> anyhow::Result<Figures> {
    let mut bed = Bed::new()?;
    let blocks = RANKS as u64 * u64::from(BLOCKS_PER_RANK);
    // Prompts of their own spread over all ranks; a tenth more of them than there is room for.
    let filling = blocks / u64::from(FILLING_BLOCKS) * 11 / 10;
    for prompt in 0..filling as u32 {
        let first = u32::MAX - (prompt + 1) * FILLING_BLOCKS;
        bed.request((first..first + FILLING_BLOCKS).map(block_key).collect())?;
    }
    for request in 0..load.len() {
        if request == WARM_DECISIONS.min(load.len() / 2) {
            bed.decisions.clear();
            bed.reports.clear();
        }
        bed.request(load.keys(request).into())?;
    }
    let of = |series: &[f64], q| quantile(series, q).unwrap_or_default();
    let decisions = sorted(bed.decisions);
    // Not in turn with the decisions: it would take the CPU's caches from them.
    let mut control = Control::of(of(&decisions, 0.5));
    let controls = sorted((0..decisions.len()).map(|_| control.micros()).collect());
    let figures = Figures {
        ranks: RANKS,
        blocks,
        decisions: decisions.len(),
        p50_micros: of(&decisions, 0.5),
        p95_micros: of(&decisions, 0.95),
        p99_micros: of(&decisions, 0.99),
        highest_micros: of(&decisions, 1.0),
        report_p99_micros: of(&sorted(bed.reports), 0.99),
        control_p50_micros: of(&controls, 0.5),
        control_p95_micros: of(&controls, 0.95),
        control_p99_micros: of(&controls, 0.99),
    };
    println!(
        "decision with {RANKS} ranks and {blocks} blocks: p50 {:.1} µs, p95 {:.1} µs, p99 {:.1} \
         µs, longest {:.1} µs; report p99 {:.1} µs",
        figures.p50_micros,
        figures.p95_micros,
        figures.p99_micros,
        figures.highest_micros,
        figures.report_p99_micros,
    );
    println!(
        "control, always the same work: p50 {:.1} µs, p95 {:.1} µs, p99 {:.1} µs",
        figures.control_p50_micros, figures.control_p95_micros, figures.control_p99_micros,
    );
    Ok(figures)
}
