//! `/metrics` under vLLM's names and labels: what a gateway or a dashboard reads of an engine.

use std::fmt::Write as _;

use super::core::Core;
use super::engine::Engine;
use super::stats::{Histogram, Histograms, Stats};

/// The page as text.
pub(crate) fn page(engine: &Engine) -> String {
    let ranks = engine.ranks().iter().zip(0..);
    let pages: Vec<String> = ranks.map(|(rank, n)| rank_page(engine, rank, n)).collect();
    match pages.as_slice() {
        [page] => page.clone(),
        pages => merged(pages),
    }
}

/// The pages of several ranks as one: each family once, with the series of every rank.
fn merged(pages: &[String]) -> String {
    const FAMILY: &str = "# HELP ";
    let mut families: Vec<_> = pages.iter().map(|page| page.split(FAMILY).skip(1)).collect();
    let mut out = String::with_capacity(pages.iter().map(String::len).sum());
    // Every rank has the same families in the same order.
    while let Some(first) = families[0].next() {
        out.push_str(FAMILY);
        out.push_str(first);
        for family in families.iter_mut().skip(1).filter_map(Iterator::next) {
            family.lines().filter(|line| line.starts_with("vllm:")).for_each(|line| {
                out.push_str(line);
                out.push('\n');
            });
        }
    }
    out
}

fn rank_page(engine: &Engine, rank: &Core, number: u16) -> String {
    let (stats, counters) = (rank.stats(), rank.counters());
    let mut page = Page::new(number, &engine.config.model, engine.started);
    page.process();
    page.load(&stats);
    page.counter("prefix_cache_queries", "Prompt tokens looked up.", "", counters.queried_tokens);
    page.counter("prefix_cache_hits", "Prompt tokens found in the cache.", "", counters.hit_tokens);
    page.counter("num_preemptions", "Preemptions.", "", counters.preemptions);
    page.counter("prompt_tokens", "Prefill tokens processed.", "", counters.prompt_tokens);
    let computed = counters.queried_tokens - counters.hit_tokens;
    page.family("prompt_tokens_by_source", "_total", "counter", "Prompt tokens by source.");
    page.sample("prompt_tokens_by_source_total", ",source=\"local_compute\"", computed as f64);
    let hits = counters.hit_tokens as f64;
    page.sample("prompt_tokens_by_source_total", ",source=\"local_cache_hit\"", hits);
    page.counter("prompt_tokens_cached", "Cached prompt tokens.", "", counters.hit_tokens);
    page.counter("generation_tokens", "Tokens generated.", "", counters.generated_tokens);
    page.family("request_success", "_total", "counter", "Requests that ended, by reason.");
    for (reason, count) in [
        ("stop", 0),
        ("length", counters.finished_requests),
        ("abort", counters.cancelled_requests),
    ] {
        let label = format!(",finished_reason=\"{reason}\"");
        page.sample("request_success_total", &label, count as f64);
    }
    page.cache_config(engine);
    rank.with_histograms(|histograms| page.histograms(histograms));
    page.out
}

struct Page {
    out: String,
    rank: u16,
    /// `engine="0",model_name="…"`.
    labels: String,
    started: u64,
}

impl Page {
    fn new(rank: u16, model: &str, started: u64) -> Self {
        let model = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels = format!("engine=\"{rank}\",model_name=\"{model}\"");
        Self { out: String::with_capacity(16 << 10), rank, labels, started }
    }

    /// What Python's client tells of its process.
    fn process(&mut self) {
        let _ = writeln!(
            self.out,
            "# HELP process_start_time_seconds Start time of the process since unix epoch in \
             seconds.\n# TYPE process_start_time_seconds gauge\n\
             process_start_time_seconds {:?}",
            self.started as f64
        );
    }

    fn load(&mut self, stats: &Stats) {
        let (running, waiting) = (f64::from(stats.running), f64::from(stats.waiting));
        self.gauge("num_requests_running", "Requests in execution batches.", running);
        self.gauge("num_requests_waiting", "Requests waiting to be processed.", waiting);
        self.family("num_requests_waiting_by_reason", "", "gauge", "Waiting requests by reason.");
        self.sample("num_requests_waiting_by_reason", ",reason=\"capacity\"", waiting);
        self.sample("num_requests_waiting_by_reason", ",reason=\"deferred\"", 0.0);
        self.gauge("kv_cache_usage_perc", "KV-cache usage, 1 means all.", stats.kv_usage);
    }

    fn cache_config(&mut self, engine: &Engine) {
        let config = &engine.config.engine;
        let block_size = config.block_size;
        let blocks = engine.config.told_blocks.unwrap_or(config.blocks);
        let help = "Information of the LLMEngine CacheConfig";
        self.family("cache_config_info", "", "gauge", help);
        let _ = writeln!(
            self.out,
            "vllm:cache_config_info{{block_size=\"{block_size}\",cache_dtype=\"auto\",\
             enable_prefix_caching=\"True\",engine=\"{}\",hash_block_size=\"None\",\
             kv_cache_size_tokens=\"{}\",num_cpu_blocks=\"None\",num_gpu_blocks=\"{blocks}\",\
             num_gpu_blocks_override=\"{blocks}\",prefix_caching_hash_algo=\"sha256\",\
             prefix_match_unit=\"None\",sliding_window=\"None\"}} 1.0",
            self.rank,
            u64::from(blocks) * u64::from(block_size),
        );
    }

    fn histograms(&mut self, histograms: &Histograms) {
        for (name, help, histogram) in [
            (
                "time_to_first_token_seconds",
                "Time to first token in seconds.",
                &histograms.time_to_first_token,
            ),
            (
                "request_queue_time_seconds",
                "Time spent in WAITING phase for request.",
                &histograms.queue_time,
            ),
            (
                "request_prefill_time_seconds",
                "Time spent in PREFILL phase for request.",
                &histograms.prefill_time,
            ),
            (
                "e2e_request_latency_seconds",
                "End to end request latency in seconds.",
                &histograms.e2e_latency,
            ),
            (
                "request_prefill_kv_computed_tokens",
                "New KV tokens computed during prefill (excluding cached tokens).",
                &histograms.prefill_kv_computed_tokens,
            ),
        ] {
            self.family(name, "", "histogram", help);
            self.histogram(name, histogram);
        }
    }

    fn histogram(&mut self, name: &str, histogram: &Histogram) {
        let labels = self.labels.split_once(',').unwrap_or((&self.labels, ""));
        let mut below = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            below += count;
            let (engine, model) = labels;
            let _ = writeln!(
                self.out,
                "vllm:{name}_bucket{{{engine},le=\"{bound:?}\",{model}}} {below}.0"
            );
        }
        let (engine, model) = labels;
        let count = histogram.count;
        let _ = writeln!(
            self.out,
            "vllm:{name}_bucket{{{engine},le=\"+Inf\",{model}}} {count}.0\n\
             vllm:{name}_count{{{engine},{model}}} {count}.0\n\
             vllm:{name}_sum{{{engine},{model}}} {:?}",
            histogram.sum
        );
    }

    /// A counter of one series, with the `_created` gauge that Python's client adds.
    fn counter(&mut self, name: &str, help: &str, labels: &str, value: u64) {
        self.family(name, "_total", "counter", help);
        self.sample(&format!("{name}_total"), labels, value as f64);
        self.family(name, "_created", "gauge", help);
        let started = self.started as f64;
        self.sample(&format!("{name}_created"), labels, started);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "", "gauge", help);
        self.sample(name, "", value);
    }

    fn family(&mut self, name: &str, suffix: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.out,
            "# HELP vllm:{name}{suffix} {help}\n# TYPE vllm:{name}{suffix} {kind}"
        );
    }

    /// One line; `more` are labels after the common ones, each with its comma before it.
    fn sample(&mut self, name: &str, more: &str, value: f64) {
        let _ = writeln!(self.out, "vllm:{name}{{{}{more}}} {value:?}", self.labels);
    }
}
