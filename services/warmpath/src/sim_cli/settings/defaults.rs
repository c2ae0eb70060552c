//! The engines of each workload unless flags say otherwise, and where they come from.

use crate::sim_cli::args::Workload;

/// Tokens that one step of an engine may compute: vLLM's usual budget.
pub(super) const TOKEN_BUDGET: u32 = 8_192;
/// Requests that an engine runs at once, as vLLM does.
pub(super) const MAX_RUNNING: u32 = 256;
/// The limits of a good request: its time to first token, and what each further token takes.
pub(super) const SLO_MS: (f64, f64) = (2_000.0, 100.0);

/// The engines of a workload.
pub(super) struct Defaults {
    pub(super) nodes: usize,
    pub(super) speeds: &'static [f64],
    pub(super) blocks: u32,
    pub(super) prefill_rate: Option<f64>,
    pub(super) front_ms: f64,
    pub(super) itl_base_ms: f64,
    pub(super) itl_per_running_ms: f64,
}

impl Defaults {
    pub(super) fn of(kind: Option<Workload>) -> Self {
        // Engines of a trace: a step of 6 ms and 0.35 ms for each running request, as a large
        // dense model on two current GPUs.
        let trace = Self {
            nodes: 8,
            speeds: &[1.0],
            blocks: 5_000,
            prefill_rate: None,
            front_ms: 0.0,
            itl_base_ms: 6.0,
            itl_per_running_ms: 0.35,
        };
        let fixed = |nodes, blocks, rate| Self {
            nodes,
            blocks,
            prefill_rate: Some(rate),
            itl_base_ms: 10.0,
            itl_per_running_ms: 0.0,
            ..trace
        };
        match kind {
            None => trace,
            Some(Workload::MixedGpus) => Self { speeds: &[1.0, 2.0, 4.0], ..trace },
            Some(Workload::SeedUniform | Workload::SeedSkewed) => fixed(3, 600, 20_000.0),
            // 1.5 billion weights at two bytes, read for every token at 0.7 TB/s: 4.4 ms, and a
            // little around it.
            Some(Workload::SeedA40) => {
                Self { front_ms: 60.0, itl_base_ms: 5.0, ..fixed(2, 8_000, 28_000.0) }
            }
            Some(Workload::B2bSaas | Workload::HotPrefix) => fixed(8, 19_208, 20_480.0),
            // The engine doubles of the runs with processes apart.
            Some(Workload::Outage) => Self { itl_base_ms: 5.0, ..fixed(3, 600, 16_000.0) },
            // Room for all sessions on each engine, as published: only where turns go matters.
            Some(Workload::AgentLoops) => fixed(3, 3_000, 20_000.0),
        }
    }
}
