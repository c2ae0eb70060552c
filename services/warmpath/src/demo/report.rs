//! What a demo run measured: the table for people and the JSON for scripts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::load::{Answer, Outcome};
use crate::stats;

/// The result of all policies.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Share of prompt blocks that would be hits if one cache without limit served everything.
    pub(crate) ceiling_block_hit_rate: f64,
    /// Share of requests that would be hits in such a cache.
    pub(crate) ceiling_request_hit_rate: f64,
    /// Results by policy, in the order they ran.
    pub(crate) policies: BTreeMap<String, PolicyReport>,
}

/// The result of one policy. Rates are 0 to 1; load is counted in requests.
#[derive(Debug, Serialize)]
pub(crate) struct PolicyReport {
    /// Requests answered in full.
    pub(crate) completed: u64,
    /// Requests that were not.
    pub(crate) failed: u64,
    /// Prompt blocks that the engines found in their caches, over all prompt blocks.
    pub(crate) block_hit_rate: f64,
    /// Requests whose match went beyond the shared system prompt.
    pub(crate) request_hit_rate: f64,
    /// 100 × cached tokens / prompt tokens, as the engines report them.
    pub(crate) kv_cache_hit_percent: f64,
    /// Prompt blocks that the router believed cached, over all prompt blocks.
    pub(crate) believed_hit_rate: f64,
    /// Time from send to the first non-empty delta.
    pub(crate) mean_ttft_ms: f64,
    /// Its median.
    pub p50_ttft_ms: f64,
    /// Its 95th percentile.
    pub p95_ttft_ms: f64,
    /// Its 99th percentile.
    pub p99_ttft_ms: f64,
    /// Standard deviation over mean of requests per backend.
    pub(crate) load_cov: f64,
    /// Requests of the busiest backend over the mean.
    pub(crate) load_max_over_mean: f64,
    /// Requests by backend.
    pub(crate) requests_by_backend: BTreeMap<String, u64>,
    /// Wall time of the run.
    pub(crate) seconds: f64,
}

/// What the engines themselves counted in one run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineTruth {
    /// Full blocks in all prompts.
    pub(crate) prompt_blocks: u64,
    /// Of these, found in the cache.
    pub(crate) hit_blocks: u64,
}

/// The shape of a run that turns tokens into blocks and hits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Tokens in a block.
    pub(crate) block_size: u64,
    /// Blocks that every request shares.
    pub(crate) shared_blocks: u64,
}

impl PolicyReport {
    /// Sums up one run. Where the engines were not ours to ask, the truth is what they reported
    /// in `usage`.
    pub(crate) fn new(
        outcomes: &[Outcome],
        backends: &[String],
        truth: Option<EngineTruth>,
        shape: Shape,
        seconds: f64,
    ) -> Self {
        let answers: Vec<&Answer> = outcomes.iter().filter_map(|o| o.as_ref().ok()).collect();
        let blocks = |tokens: u64| tokens / shape.block_size;
        let sum = |f: &dyn Fn(&Answer) -> u64| answers.iter().map(|a| f(a)).sum::<u64>();
        let prompt_blocks = sum(&|a| blocks(a.prompt_tokens));
        let cached_blocks = sum(&|a| blocks(a.cached_tokens));
        let truth = truth.unwrap_or(EngineTruth { prompt_blocks, hit_blocks: cached_blocks });
        let hits =
            answers.iter().filter(|a| blocks(a.cached_tokens) > shape.shared_blocks).count() as u64;
        let ttft = stats::sorted(answers.iter().map(|a| a.ttft.as_secs_f64() * 1e3).collect());

        let mut by_backend: BTreeMap<String, u64> =
            backends.iter().map(|b| (b.clone(), 0)).collect();
        for answer in &answers {
            *by_backend.entry(answer.backend.clone().unwrap_or_default()).or_default() += 1;
        }
        let loads: Vec<f64> = by_backend.values().map(|n| *n as f64).collect();
        Self {
            completed: answers.len() as u64,
            failed: (outcomes.len() - answers.len()) as u64,
            block_hit_rate: ratio(truth.hit_blocks, truth.prompt_blocks),
            request_hit_rate: ratio(hits, answers.len() as u64),
            kv_cache_hit_percent: 100.0
                * ratio(sum(&|a| a.cached_tokens), sum(&|a| a.prompt_tokens)),
            believed_hit_rate: ratio(sum(&|a| a.matched_blocks), prompt_blocks),
            mean_ttft_ms: stats::mean(&ttft).unwrap_or(0.0),
            p50_ttft_ms: stats::quantile(&ttft, 0.50).unwrap_or(0.0),
            p95_ttft_ms: stats::quantile(&ttft, 0.95).unwrap_or(0.0),
            p99_ttft_ms: stats::quantile(&ttft, 0.99).unwrap_or(0.0),
            load_cov: stats::coefficient_of_variation(&loads).unwrap_or(0.0),
            load_max_over_mean: stats::max_over_mean(&loads).unwrap_or(0.0),
            requests_by_backend: by_backend,
            seconds,
        }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl Report {
    /// The table, with one column for each policy.
    pub(crate) fn table(&self) -> String {
        let policies: Vec<(&String, &PolicyReport)> = self.policies.iter().collect();
        let mut out = String::new();
        let _ = write!(out, "{:<34}", "");
        for (name, _) in &policies {
            let _ = write!(out, "{name:>14}");
        }
        out.push('\n');
        let mut row = |label: &str, cell: &dyn Fn(&PolicyReport) -> String| {
            let _ = write!(out, "{label:<34}");
            for (_, policy) in &policies {
                let _ = write!(out, "{:>14}", cell(policy));
            }
            out.push('\n');
        };
        let percent = |x: f64| format!("{:.1} %", 100.0 * x);
        row("block hits at the engines", &|p| percent(p.block_hit_rate));
        row("request hits at the engines", &|p| percent(p.request_hit_rate));
        row("block hits believed by the router", &|p| percent(p.believed_hit_rate));
        row("TTFT mean", &|p| format!("{:.1} ms", p.mean_ttft_ms));
        row("TTFT p50", &|p| format!("{:.1} ms", p.p50_ttft_ms));
        row("TTFT p95", &|p| format!("{:.1} ms", p.p95_ttft_ms));
        row("TTFT p99", &|p| format!("{:.1} ms", p.p99_ttft_ms));
        row("requests completed / failed", &|p| format!("{} / {}", p.completed, p.failed));
        row("share of requests by backend", &|p| {
            let total: u64 = p.requests_by_backend.values().sum();
            let shares = p
                .requests_by_backend
                .values()
                .map(|n| format!("{:.0}", 100.0 * ratio(*n, total)))
                .collect::<Vec<_>>();
            shares.join(" ")
        });
        row("wall time", &|p| format!("{:.1} s", p.seconds));
        let _ = writeln!(
            out,
            "The most that any router could reach here: {} of blocks, {} of requests.",
            percent(self.ceiling_block_hit_rate),
            percent(self.ceiling_request_hit_rate)
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn answer(backend: &str, cached_tokens: u64) -> Outcome {
        Ok(Answer {
            ttft: Duration::from_millis(10),
            total: Duration::from_millis(20),
            prompt_tokens: 100,
            cached_tokens,
            completion_tokens: 4,
            matched_blocks: 3,
            predicted_cached_tokens: 48,
            backend: Some(backend.into()),
        })
    }

    #[test]
    fn hits_are_blocks_beyond_the_shared_ones_and_failures_are_counted_apart() {
        let outcomes =
            vec![answer("a", 48), answer("a", 32), answer("b", 0), Err("refused".into())];
        let shape = Shape { block_size: 16, shared_blocks: 2 };
        let names = ["a".to_owned(), "b".to_owned()];
        let report = PolicyReport::new(&outcomes, &names, None, shape, 1.0);
        assert_eq!((report.completed, report.failed), (3, 1));
        assert!((report.block_hit_rate - 5.0 / 18.0).abs() < 1e-12);
        assert!((report.request_hit_rate - 1.0 / 3.0).abs() < 1e-12);
        assert!((report.believed_hit_rate - 0.5).abs() < 1e-12);
        assert!((report.load_max_over_mean - 2.0 / 1.5).abs() < 1e-12);
    }
}
