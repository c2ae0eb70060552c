//! The cluster of a point that has a clock.

use domain::Moment;
use scheduling::Coefficients;
use sim::EngineConfig;
use sim::cluster::{ClusterConfig, Outage};
use sim::gateway::policy::{ReferenceRule, RoutePolicy};
use sim::gateway::{GatewayConfig, MirrorKind};
use sim::request::{RequestSet, Start};

use super::Point;
use super::shape::Shape;
use crate::sim_cli::args::{Args, Switch};

impl Point {
    /// Tokens that an engine of speed 1 prefills in a second.
    pub(super) fn prefill_rate(&self, set: &RequestSet) -> f64 {
        let rho = match (&self.shape, self.prefill_rate) {
            (_, Some(rate)) => return rate,
            (Shape::Trace(trace), None) => trace.rho,
            (_, None) => 1.0,
        };
        let times = set.requests.iter().filter_map(|request| match request.start {
            Start::At(at) => Some(at.as_secs_f64()),
            Start::After { .. } | Start::WhenFree => None,
        });
        let seconds = times.fold(0.0, f64::max).max(1.0);
        set.prompt_tokens() as f64 / seconds / self.nodes as f64 / rho
    }

    /// The engines, the gateway before them and what befalls them.
    pub(in crate::sim_cli) fn cluster(
        &self,
        args: &Args,
        set: &RequestSet,
        policy: RoutePolicy,
        seed: u64,
    ) -> ClusterConfig {
        let engines = self.engines(args, set);
        let told = |engine: &EngineConfig| {
            args.gateway.told_speeds.then(|| Coefficients {
                latency_seconds: self.front.as_secs_f64(),
                fixed_seconds: 0.0,
                per_token_seconds: 1.0 / engine.prefill_tokens_per_second,
                per_pair_seconds: 0.0,
                decode_step_seconds: engine.itl_base_seconds,
                decode_running_seconds: engine.itl_per_running_seconds,
            })
        };
        let believed = |engine: &EngineConfig| {
            (f64::from(engine.usable_blocks()) * args.gateway.believed_capacity).round() as u32
        };
        ClusterConfig {
            front: self.front,
            gateway: GatewayConfig {
                block_tokens: set.block_tokens,
                mirror: MirrorKind::FreeQueue,
                believed_blocks: engines.iter().map(believed).collect(),
                priors: engines.iter().map(told).collect(),
                selection: self.selection,
                hot_prefixes: self.hot_prefixes,
            },
            engines,
            policy,
            reference: self.reference(),
            shown_content: args.gateway.shown_content,
            outages: self.outages(),
            seed,
        }
    }

    fn engines(&self, args: &Args, set: &RequestSet) -> Vec<EngineConfig> {
        let rate = self.prefill_rate(set);
        let engine = |(speed, size): (&f64, &f64)| EngineConfig {
            // An engine never hands one of its blocks out.
            blocks: (f64::from(self.blocks) * size).round().max(2.0) as u32,
            block_size: set.block_tokens,
            prefill_tokens_per_second: (rate * speed).max(1.0),
            prefill_floor_seconds: 0.0,
            token_budget: self.token_budget,
            itl_base_seconds: self.itl_base_seconds / speed,
            itl_per_running_seconds: self.itl_per_running_seconds / speed,
            max_running: self.max_running,
            decode: args.engines.decode != Some(Switch::Off),
        };
        self.speeds.iter().zip(&self.sizes).map(engine).collect()
    }

    fn outages(&self) -> Vec<Outage> {
        let Shape::Outage(outage) = &self.shape else { return Vec::new() };
        let away = outage.away_seconds;
        let [from, until] = [away.low, away.high].map(Moment::from_secs_f64);
        vec![Outage { rank: 0, from, until }]
    }

    fn reference(&self) -> ReferenceRule {
        let Shape::Callers(callers) = &self.shape else { return ReferenceRule::default() };
        let per_block = callers.text_blocks_per_block();
        ReferenceRule {
            blocks_per_engine_block: per_block,
            believed_blocks: Some((callers.reference_blocks / per_block) as u32),
            ..ReferenceRule::default()
        }
    }
}
