//! What a row tells of its point.

use serde_json::{Map, Value, json};
use sim::request::RequestSet;

use super::Point;
use super::shape::Shape;
use crate::sim_cli::args::{Args, Switch};

impl Point {
    /// Everything that makes up the point, for its rows. `set` is there if there is a clock.
    pub(in crate::sim_cli) fn params(
        &self,
        args: &Args,
        set: Option<&RequestSet>,
    ) -> Map<String, Value> {
        let mut params = Map::new();
        let mut put = |name: &str, value: Value| params.insert(name.to_owned(), value);
        put("blocks", json!(self.blocks));
        put("believed_capacity", json!(args.gateway.believed_capacity));
        put("eviction_weight", json!(self.selection.eviction_weight));
        put("hot_prefixes", json!(self.hot_prefixes));
        put("skip_requests", json!(self.skipped_requests(args, set)));
        put("requests", json!(args.requests));
        // A trace has its block size in itself.
        if let Some(set) = set {
            put("block_tokens", json!(set.block_tokens));
        }
        params.extend(self.shape.params());
        if let Shape::Plain(plain) = &self.shape {
            let rate = self.windowed(args, plain, 0).prefill_tokens_per_second;
            params.insert("prefill_tokens_per_second".to_owned(), json!(rate.round()));
        }
        if self.prefill_rate.is_some() && params.contains_key("rho") {
            // It is what fixes the rate where no flag does.
            params.insert("rho".to_owned(), Value::Null);
        }
        if let Some(set) = set {
            params.extend(self.clocked_params(args, set));
        }
        params
    }

    fn clocked_params(&self, args: &Args, set: &RequestSet) -> Map<String, Value> {
        let mut params = Map::new();
        let mut put = |name: &str, value: Value| params.insert(name.to_owned(), value);
        put("decode", json!(args.engines.decode != Some(Switch::Off)));
        put("shown_content", json!(args.gateway.shown_content));
        put("told_speeds", json!(args.gateway.told_speeds));
        put("speeds", json!(self.speeds));
        put("sizes", json!(self.sizes));
        put("token_budget", json!(self.token_budget));
        put("max_running", json!(self.max_running));
        put("prefill_tokens_per_second", json!(self.prefill_rate(set).round()));
        put("front_ms", json!(self.front.as_secs_f64() * 1e3));
        put("itl_base_ms", json!(self.itl_base_seconds * 1e3));
        put("itl_per_running_ms", json!(self.itl_per_running_seconds * 1e3));
        put("latency_from_seconds", json!(self.latency_from_seconds(args)));
        put("slo_ttft_ms", json!(self.slo_ms.0));
        put("slo_tpot_ms", json!(self.slo_ms.1));
        params
    }
}
