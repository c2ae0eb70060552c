//! vLLM's metrics page. Ranks are told apart by the label `engine`.
//!
//! Names as of vLLM 0.33, with the ones they had before where they changed their name alone.

use std::collections::BTreeMap;

use domain::{CacheConfig, LoadSample, Moment, PrefillCounters};

use crate::RankReading;
use crate::metrics::{Page, Sample};

/// What every metric of vLLM's begins with.
pub const PREFIX: &str = "vllm:";

/// The label that tells ranks apart.
pub(crate) const RANK: &str = "engine";

pub(crate) const RUNNING: &[&str] = &["vllm:num_requests_running"];
const WAITING: &[&str] = &["vllm:num_requests_waiting"];
const KV_USAGE: &[&str] = &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"];
const PREEMPTIONS: &[&str] = &["vllm:num_preemptions_total", "vllm:num_preemptions"];
const CACHE_QUERIES: &[&str] =
    &["vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"];
const CACHE_HITS: &[&str] = &["vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"];
const PREFILL_SECONDS: &[&str] = &["vllm:request_prefill_time_seconds_sum"];
const PREFILL_REQUESTS: &[&str] = &["vllm:request_prefill_time_seconds_count"];
const PREFILL_TOKENS: &[&str] = &["vllm:request_prefill_kv_computed_tokens_sum"];
const CACHE_CONFIG: &str = "vllm:cache_config_info";

/// Everything that [`read`] reads.
pub(crate) const METRICS: &[&[&str]] = &[
    RUNNING,
    WAITING,
    KV_USAGE,
    PREEMPTIONS,
    CACHE_QUERIES,
    CACHE_HITS,
    PREFILL_SECONDS,
    PREFILL_REQUESTS,
    PREFILL_TOKENS,
    &[CACHE_CONFIG],
];

/// One reading per rank that tells its running requests, by rank.
pub fn read(page: &Page<'_>, at: Moment) -> Vec<RankReading> {
    let sums = |names| sums(page, names);
    let waiting = sums(WAITING);
    let kv_usage = sums(KV_USAGE);
    let preemptions = sums(PREEMPTIONS);
    let (queries, hits) = (sums(CACHE_QUERIES), sums(CACHE_HITS));
    let prefills = prefills(page);
    let caches = caches(page);
    let reading = |(rank, running): (u16, f64)| RankReading {
        rank,
        cache: caches.get(&rank).copied(),
        load: LoadSample {
            at,
            running: running as u32,
            waiting: waiting.get(&rank).map_or(0, |n| *n as u32),
            kv_usage: kv_usage.get(&rank).map(|share| share.min(1.0)),
            preemptions: preemptions.get(&rank).map(|n| *n as u64),
            prefix_cache: queries
                .get(&rank)
                .zip(hits.get(&rank))
                .map(|(queries, hits)| (*queries as u64, *hits as u64)),
            prefills: prefills.get(&rank).copied(),
        },
    };
    sums(RUNNING).into_iter().map(reading).collect()
}

/// Of the ranks that tell all of it.
fn prefills(page: &Page<'_>) -> BTreeMap<u16, PrefillCounters> {
    let (requests, tokens) = (sums(page, PREFILL_REQUESTS), sums(page, PREFILL_TOKENS));
    let counters = |(rank, seconds): (u16, f64)| {
        let requests = *requests.get(&rank)? as u64;
        Some((rank, PrefillCounters { requests, tokens: *tokens.get(&rank)? as u64, seconds }))
    };
    sums(page, PREFILL_SECONDS).into_iter().filter_map(counters).collect()
}

/// A metric per rank, its series of one rank added up. Of several names the first one that the
/// page has counts. Values are finite and not negative, so that `as` only has to saturate.
fn sums(page: &Page<'_>, names: &[&str]) -> BTreeMap<u16, f64> {
    let mut by_rank = BTreeMap::new();
    for name in names {
        for sample in page.named(name) {
            if let Some(rank) = rank(sample).filter(|_| sample.value.is_finite()) {
                *by_rank.entry(rank).or_insert(0.0) += sample.value.max(0.0);
            }
        }
        if !by_rank.is_empty() {
            break;
        }
    }
    by_rank
}

fn rank(sample: &Sample<'_>) -> Option<u16> {
    crate::rank(sample, RANK)
}

fn caches(page: &Page<'_>) -> BTreeMap<u16, CacheConfig> {
    page.named(CACHE_CONFIG).filter_map(|sample| Some((rank(sample)?, cache(sample)?))).collect()
}

/// The cache of a rank. `None` where sizes are not told (`None` stands in the labels until the
/// engine has sized its cache) or nothing fits into it.
fn cache(sample: &Sample<'_>) -> Option<CacheConfig> {
    let number = |name| sample.label(name)?.parse::<u32>().ok();
    let block_size = number("block_size").filter(|size| *size > 0)?;
    // Block 0 is a placeholder that never holds content.
    let usable_blocks = number("num_gpu_blocks")?.checked_sub(1).filter(|blocks| *blocks > 0)?;
    let prefix_caching = sample
        .label("enable_prefix_caching")
        .is_none_or(|flag| matches!(&*flag, "True" | "true" | "1"));
    Some(CacheConfig { block_size, usable_blocks, prefix_caching })
}

#[cfg(test)]
mod tests;
