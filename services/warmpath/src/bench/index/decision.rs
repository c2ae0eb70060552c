//! Whole decisions of the router: views of 1,000 ranks, choice and booking, with the caches full.

use std::collections::VecDeque;
use std::fmt;
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

/// Blocks of all ranks.
const BLOCKS: u64 = RANKS as u64 * BLOCKS_PER_RANK as u64;

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
    rounds: usize,
    decisions: usize,
    decision: Spread,
    /// Of the middle of what each decision took in the rounds.
    middle_decision: Spread,
    report: Spread,
    /// Of a fixed piece of work that takes as long at the median.
    control: Spread,
    middle_control: Spread,
}

/// How times are spread.
#[derive(Debug, Serialize)]
struct Spread {
    p50_micros: f64,
    p95_micros: f64,
    p99_micros: f64,
    highest_micros: f64,
}

impl Spread {
    fn of(times: Vec<f64>) -> Self {
        let times = sorted(times);
        let at = |q| quantile(&times, q).unwrap_or_default();
        Self {
            p50_micros: at(0.5),
            p95_micros: at(0.95),
            p99_micros: at(0.99),
            highest_micros: at(1.0),
        }
    }

    /// All rounds as one series.
    fn over<'a>(rounds: impl Iterator<Item = &'a [f64]>) -> Self {
        Self::of(rounds.flatten().copied().collect())
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "p50 {:5.1} µs, p95 {:5.1} µs, p99 {:5.1} µs, longest {:6.1} µs",
            self.p50_micros, self.p95_micros, self.p99_micros, self.highest_micros,
        )
    }
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
            client_request: None,
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

/// Every round makes the same requests in the same order. What a decision takes beyond its own work
/// (a tick, another guest on the core) hits another one in each round, so that the middle of what it
/// took in the rounds is near to that work.
pub(super) fn run(load: &IndexLoad, rounds: u32) -> anyhow::Result<Figures> {
    let rounds: Vec<Round> = (0..rounds).map(|_| round(load)).collect::<anyhow::Result<_>>()?;
    let figures = Figures {
        ranks: RANKS,
        blocks: BLOCKS,
        rounds: rounds.len(),
        decisions: rounds.first().map_or(0, |round| round.decisions.len()),
        decision: Spread::over(rounds.iter().map(|round| &round.decisions[..])),
        middle_decision: Spread::of(middle(rounds.iter().map(|round| &round.decisions[..]))),
        report: Spread::over(rounds.iter().map(|round| &round.reports[..])),
        control: Spread::over(rounds.iter().map(|round| &round.controls[..])),
        middle_control: Spread::of(middle(rounds.iter().map(|round| &round.controls[..]))),
    };
    println!("decision with {RANKS} ranks and {BLOCKS} blocks, {} rounds:", figures.rounds);
    println!("  as they came            {}", figures.decision);
    println!("  middle of the rounds    {}", figures.middle_decision);
    println!("  control, as it came     {}", figures.control);
    println!("  control, middle         {}", figures.middle_control);
    println!("  reports, as they came   {}", figures.report);
    Ok(figures)
}

/// What the measured calls of one round took, in microseconds and in their order.
struct Round {
    decisions: Vec<f64>,
    reports: Vec<f64>,
    controls: Vec<f64>,
}

fn round(load: &IndexLoad) -> anyhow::Result<Round> {
    let mut bed = Bed::new()?;
    // Prompts of their own spread over all ranks; a tenth more of them than there is room for.
    let filling = BLOCKS / u64::from(FILLING_BLOCKS) * 11 / 10;
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
    let Bed { decisions, reports, .. } = bed;
    // Not in turn with the decisions: it would take the CPU's caches from them.
    let mut control = Control::of(Spread::of(decisions.clone()).p50_micros);
    let controls = decisions.iter().map(|_| control.micros()).collect();
    Ok(Round { decisions, reports, controls })
}

/// The middle of what each call took, by its place in its round.
fn middle<'a>(rounds: impl Iterator<Item = &'a [f64]>) -> Vec<f64> {
    let rounds: Vec<&[f64]> = rounds.collect();
    let calls = rounds.iter().map(|round| round.len()).min().unwrap_or(0);
    let of_call = |call: usize| {
        let times = sorted(rounds.iter().map(|round| round[call]).collect());
        quantile(&times, 0.5).unwrap_or_default()
    };
    (0..calls).map(of_call).collect()
}
