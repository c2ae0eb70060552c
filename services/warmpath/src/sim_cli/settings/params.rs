//! What a row tells of its point.

use serde_json::{Map, Value, json};
use sim::request::RequestSet;
use sim::trace::Mode;

use super::{OUTAGE_SECONDS, Point, replay, selection};
use crate::sim_cli::args::{Args, Switch, Workload};

impl Point {
    /// Everything that makes up the point, for its rows.
    pub(in crate::sim_cli) fn params(
        &self,
        args: &Args,
        set: Option<&RequestSet>,
    ) -> Map<String, Value> {
        let mut params = Map::new();
        let mut put = |name: &str, value: Value| params.insert(name.to_owned(), value);
        put("blocks", json!(self.blocks));
        put("believed_capacity", json!(args.believed_capacity));
        put("eviction_weight", json!(selection(args).eviction_weight));
        put("skip_requests", json!(self.skipped_requests(args, set)));
        if self.is_windowed() {
            let run = self.windowed(args, 0);
            put("documents", json!(self.documents));
            put("window", json!(self.window));
            put("evict", json!(run.evict));
        }
        if self.kind == Some(Workload::SeedA40) {
            put("documents", json!(self.documents));
            put("concurrency", json!(self.concurrency));
        }
        if self.kind == Some(Workload::Outage) {
            put("documents", json!(self.documents));
            put("away_seconds", json!(OUTAGE_SECONDS));
        }
        let Some(set) = set else { return params };
        if matches!(self.kind, None | Some(Workload::MixedGpus)) {
            let replay = replay(args);
            put("rho", json!(self.rho));
            put("slice", json!(replay.slice));
            put("mode", json!(replay.mode));
            if replay.mode == Mode::Think {
                put("recorded_itl_seconds", json!(replay.recorded_itl_seconds));
            }
        }
        put("decode", json!(args.decode != Some(Switch::Off)));
        put("shown_content", json!(args.shown_content));
        put("told_speeds", json!(args.told_speeds));
        put("speeds", json!(self.speeds(args)));
        put("block_tokens", json!(set.block_tokens));
        put("token_budget", json!(args.token_budget));
        put("max_running", json!(args.max_running));
        put("prefill_tokens_per_second", json!(self.prefill_rate(set).round()));
        put("front_ms", json!(self.front.as_secs_f64() * 1e3));
        put("itl_base_ms", json!(self.itl_base_seconds * 1e3));
        put("itl_per_running_ms", json!(self.itl_per_running_seconds * 1e3));
        put("latency_from_seconds", json!(self.latency_from_seconds()));
        put("slo_ttft_ms", json!(args.slo_ttft_ms));
        put("slo_tpot_ms", json!(args.slo_tpot_ms));
        params
    }
}
