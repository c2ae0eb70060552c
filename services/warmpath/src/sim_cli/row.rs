//! One row of the result.

use serde::Serialize;
use serde_json::{Map, Value};
use sim::outcome::{Outcome, Record};

use crate::stats::{coefficient_of_variation, max_over_mean, mean, quantile, sorted};

/// Forecasts of the first requests come from a gateway that knows nothing yet.
const LEARNING_REQUESTS: usize = 500;

/// A run's figures, under the names that serving benchmarks use. Times are missing where the
/// workload has no clock.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) workload: String,
    pub(super) policy: String,
    pub(super) seed: u64,
    pub(super) nodes: usize,
    pub(super) block_hit_rate: f64,
    /// 100 · Σ cached tokens / Σ prompt tokens.
    pub(super) kv_cache_hit_percent: f64,
    pub(super) believed_hit_rate: f64,
    pub(super) mean_ttft_ms: Option<f64>,
    pub(super) p50_ttft_ms: Option<f64>,
    pub(super) p95_ttft_ms: Option<f64>,
    pub(super) p99_ttft_ms: Option<f64>,
    pub(super) mean_tpot_ms: Option<f64>,
    /// Requests a second that keep both limits.
    pub(super) request_goodput: Option<f64>,
    /// Median of |expected − measured| / measured, after the first requests.
    pub(super) ttft_error_median: Option<f64>,
    pub(super) load_cov: Option<f64>,
    pub(super) load_max_over_mean: Option<f64>,
    pub(super) completed: usize,
    pub(super) failed: usize,
    pub(super) rejected: usize,
    pub(super) params: Map<String, Value>,
}

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    /// Requests from this one on.
    pub(super) from_request: usize,
    /// Latencies of requests sent from this time on.
    pub(super) latency_from_seconds: f64,
    /// Whether times mean anything.
    pub(super) has_clock: bool,
    /// The limits of a good request.
    pub(super) slo_ttft_ms: f64,
    pub(super) slo_tpot_ms: f64,
}

/// Whose row it is.
#[derive(Clone, Debug)]
pub(super) struct Label {
    pub(super) workload: String,
    pub(super) policy: String,
    pub(super) seed: u64,
    pub(super) params: Map<String, Value>,
}

impl Row {
    pub(super) fn new(label: Label, outcome: &Outcome, scope: &Scope) -> Self {
        let all = outcome.records.len();
        let range = scope.from_request.min(all)..all;
        let records = &outcome.records[range.clone()];
        let prompt_tokens: u64 = served(records).map(|r| u64::from(r.prompt_tokens)).sum();
        let cached_tokens: u64 = served(records).map(|r| u64::from(r.cached_tokens)).sum();
        let loads: Vec<f64> =
            outcome.requests_per_rank(range.clone()).into_iter().map(|n| n as f64).collect();
        let rejected = records.iter().filter(|record| record.rejected).count();
        let completed = records.iter().filter(|record| record.finished.is_some()).count();
        let times = scope.has_clock.then(|| Times::new(records, scope));
        let time = |pick: fn(&Times) -> Option<f64>| times.as_ref().and_then(pick);
        Self {
            workload: label.workload,
            policy: label.policy,
            seed: label.seed,
            nodes: outcome.ranks,
            block_hit_rate: outcome.block_hit_rate(range.clone()),
            kv_cache_hit_percent: 100.0 * cached_tokens as f64 / prompt_tokens.max(1) as f64,
            believed_hit_rate: outcome.believed_hit_rate(range),
            mean_ttft_ms: time(|t| mean(&t.ttft_ms)),
            p50_ttft_ms: time(|t| quantile(&t.ttft_ms, 0.50)),
            p95_ttft_ms: time(|t| quantile(&t.ttft_ms, 0.95)),
            p99_ttft_ms: time(|t| quantile(&t.ttft_ms, 0.99)),
            mean_tpot_ms: time(|t| mean(&t.tpot_ms)),
            request_goodput: time(|t| t.goodput),
            ttft_error_median: time(|t| t.error_median),
            load_cov: coefficient_of_variation(&loads),
            load_max_over_mean: max_over_mean(&loads),
            completed,
            failed: records.len() - completed - rejected,
            rejected,
            params: label.params,
        }
    }
}

fn served(records: &[Record]) -> impl Iterator<Item = &Record> {
    records.iter().filter(|record| !record.rejected)
}

struct Times {
    /// Sorted.
    ttft_ms: Vec<f64>,
    /// Of answers with more than one token.
    tpot_ms: Vec<f64>,
    goodput: Option<f64>,
    error_median: Option<f64>,
}

impl Times {
    fn new(records: &[Record], scope: &Scope) -> Self {
        let late = |record: &&Record| record.sent.as_secs_f64() >= scope.latency_from_seconds;
        let counted: Vec<&Record> = records.iter().filter(late).collect();
        let ttft = counted.iter().filter_map(|record| record.ttft_seconds());
        let several = counted.iter().filter(|record| record.output_tokens > 1);
        let tpot = several.filter_map(|record| record.tpot_seconds());
        let good = counted.iter().filter(|record| is_good(record, scope)).count();
        let begin = counted.iter().map(|record| record.sent).min();
        let end = counted.iter().filter_map(|record| record.finished).max();
        let seconds = begin.zip(end).map(|(begin, end)| end.seconds_since(begin));
        let learning = LEARNING_REQUESTS.min(records.len() / 2);
        let errors = records[learning..].iter().filter_map(|record| {
            let measured = record.ttft_seconds().filter(|seconds| *seconds > 0.0)?;
            Some((record.expected_ttft_seconds - measured).abs() / measured)
        });
        Self {
            ttft_ms: sorted(ttft.map(|seconds| seconds * 1e3).collect()),
            tpot_ms: tpot.map(|seconds| seconds * 1e3).collect(),
            goodput: seconds.filter(|s| *s > 0.0).map(|seconds| good as f64 / seconds),
            error_median: quantile(&sorted(errors.collect()), 0.5),
        }
    }
}

fn is_good(record: &Record, scope: &Scope) -> bool {
    let within = |seconds: Option<f64>, ms: f64| seconds.is_some_and(|s| s * 1e3 <= ms);
    within(record.ttft_seconds(), scope.slo_ttft_ms)
        && within(record.tpot_seconds(), scope.slo_tpot_ms)
}

#[cfg(test)]
mod tests {
    use domain::Moment;

    use super::*;

    fn record(sent: f64, ttft: f64, output_tokens: u32, rank: usize) -> Record {
        let at = Moment::from_secs_f64;
        Record {
            sent: at(sent),
            rank,
            prompt_tokens: 100,
            prompt_blocks: 6,
            hit_blocks: 3,
            cached_tokens: 48,
            believed_blocks: 4,
            expected_ttft_seconds: ttft * 1.1,
            first_token: Some(at(sent + ttft)),
            finished: Some(at(sent + ttft + 0.05 * f64::from(output_tokens - 1))),
            output_tokens,
            rejected: false,
        }
    }

    fn row(records: Vec<Record>, from_request: usize, latency_from_seconds: f64) -> Row {
        let outcome = Outcome { records, ranks: 2, ..Outcome::default() };
        let scope = Scope {
            from_request,
            latency_from_seconds,
            has_clock: true,
            slo_ttft_ms: 2_000.0,
            slo_tpot_ms: 100.0,
        };
        let label = Label { workload: "w".into(), policy: "p".into(), seed: 1, params: Map::new() };
        Row::new(label, &outcome, &scope)
    }

    fn near(a: Option<f64>, b: f64) {
        assert!(a.is_some_and(|a| (a - b).abs() < 1e-6), "{a:?} is not {b}");
    }

    #[test]
    fn figures_are_what_their_names_say() {
        let mut refused = record(0.0, 1.0, 1, 1);
        (refused.rejected, refused.finished, refused.first_token) = (true, None, None);
        let row = row(
            vec![record(0.0, 1.0, 11, 0), record(1.0, 3.0, 1, 0), refused, record(2.0, 2.0, 5, 1)],
            0,
            0.0,
        );
        near(Some(row.block_hit_rate), 0.5);
        near(Some(row.believed_hit_rate), 4.0 / 6.0);
        near(Some(row.kv_cache_hit_percent), 48.0);
        near(row.mean_ttft_ms, 2_000.0);
        near(row.p50_ttft_ms, 2_000.0);
        near(row.mean_tpot_ms, 50.0);
        // Two of four keep the limits, in 4.2 seconds.
        near(row.request_goodput, 2.0 / 4.2);
        near(row.ttft_error_median, 0.1);
        near(row.load_max_over_mean, 1.0);
        assert_eq!((row.completed, row.failed, row.rejected), (3, 0, 1));
    }

    #[test]
    fn warm_ups_do_not_count() {
        let records =
            vec![record(0.0, 9.0, 2, 0), record(10.0, 5.0, 2, 0), record(20.0, 1.0, 2, 1)];
        let later = row(records.clone(), 1, 0.0);
        near(later.mean_ttft_ms, 3_000.0);
        assert_eq!(later.completed, 2);
        let latency = row(records, 0, 15.0);
        near(latency.mean_ttft_ms, 1_000.0);
        assert_eq!(latency.completed, 3);
    }
}
