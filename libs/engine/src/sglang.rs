//! SGLang: its metrics page, and what it says of itself at `/server_info`.
//!
//! Names as of SGLang 0.5.23, with those of older versions where they changed. The page exists
//! only under `--enable-metrics`. Ranks are told apart by the label `dp_rank`. Schedulers of one
//! rank may each have series (`tp_rank`, `pp_rank`), which repeat one another, and requests are
//! also told by `priority` beside their sum; so of several series of a rank the largest counts.

use std::collections::BTreeMap;

use domain::{CacheConfig, LoadSample, Moment};
use serde::Deserialize;

use crate::metrics::{Page, Sample};
use crate::{EngineError, MAX_RANKS, RankReading};

/// What every metric of SGLang's begins with.
pub const PREFIX: &str = "sglang:";

/// The label that tells ranks apart.
pub(crate) const RANK: &str = "dp_rank";

pub(crate) const RUNNING: &str = "sglang:num_running_reqs";
const WAITING: &str = "sglang:num_queue_reqs";
const TOKEN_USAGE: &str = "sglang:token_usage";
const RETRACTED: &str = "sglang:num_retracted_requests_total";
const PAGE_SIZE: &str = "sglang:page_size";
const MAX_TOKENS: &str = "sglang:max_total_num_tokens";
const PAGES: &str = "sglang:num_pages";
/// Until 0.5.12 the cache's size stood in the labels of this one.
const CACHE_CONFIG: &str = "sglang:cache_config_info";
const PROMPT_TOKENS: &str = "sglang:prompt_tokens_total";
/// By source of the cached tokens in newer versions.
const CACHED_TOKENS: &str = "sglang:cached_tokens_total";

/// Everything that [`read`] reads.
pub(crate) const METRICS: &[&[&str]] = &[
    &[RUNNING, WAITING, TOKEN_USAGE, RETRACTED, PROMPT_TOKENS, CACHED_TOKENS],
    &[PAGE_SIZE, MAX_TOKENS, PAGES, CACHE_CONFIG],
];

/// One reading per rank that tells its running requests, by rank.
pub fn read(page: &Page<'_>, at: Moment) -> Vec<RankReading> {
    let of = |name| largest(page, name);
    let (running, waiting) = (of(RUNNING), of(WAITING));
    let (usage, retracted) = (of(TOKEN_USAGE), of(RETRACTED));
    let caches = caches(page);
    // These two are counted in front of the ranks, so that they say nothing of any of several.
    let prefix_cache = (running.len() == 1)
        .then(|| total(page, PROMPT_TOKENS).zip(total(page, CACHED_TOKENS)))
        .flatten()
        .map(|(prompt, cached)| (prompt as u64, cached as u64));
    let reading = |(rank, running): (u16, f64)| RankReading {
        rank,
        cache: caches.get(&rank).copied(),
        load: LoadSample {
            at,
            running: running as u32,
            waiting: waiting.get(&rank).map_or(0, |n| *n as u32),
            kv_usage: usage.get(&rank).map(|share| share.min(1.0)),
            preemptions: retracted.get(&rank).map(|n| *n as u64),
            prefix_cache,
            prefills: None,
        },
    };
    running.into_iter().map(reading).collect()
}

/// The largest value of each rank.
fn largest(page: &Page<'_>, name: &str) -> BTreeMap<u16, f64> {
    let mut by_rank = BTreeMap::new();
    for sample in page.named(name).filter(|sample| sample.value.is_finite()) {
        if let Some(rank) = rank(sample) {
            let value: &mut f64 = by_rank.entry(rank).or_insert(0.0);
            *value = value.max(sample.value);
        }
    }
    by_rank
}

/// The sum over all series.
fn total(page: &Page<'_>, name: &str) -> Option<f64> {
    let values = page.named(name).map(|sample| sample.value).filter(|value| value.is_finite());
    values.map(|value| value.max(0.0)).reduce(|a, b| a + b)
}

fn rank(sample: &Sample<'_>) -> Option<u16> {
    crate::rank(sample, RANK)
}

fn caches(page: &Page<'_>) -> BTreeMap<u16, CacheConfig> {
    let (sizes, pages, tokens) =
        (largest(page, PAGE_SIZE), largest(page, PAGES), largest(page, MAX_TOKENS));
    let mut caches = BTreeMap::new();
    for sample in page.named(CACHE_CONFIG) {
        let number = |name| sample.label(name)?.parse::<u32>().ok();
        let told = number("page_size").zip(number("num_pages"));
        if let (Some(rank), Some((size, pages))) = (rank(sample), told) {
            caches.extend(cache(size, pages).map(|cache| (rank, cache)));
        }
    }
    for (rank, size) in sizes {
        let from_tokens = tokens.get(&rank).map(|tokens| *tokens / size.max(1.0));
        let count = pages.get(&rank).copied().or(from_tokens).unwrap_or(0.0);
        caches.extend(cache(size as u32, count as u32).map(|cache| (rank, cache)));
    }
    caches
}

/// SGLang adds the page that stands in for padding to those it tells, so all of them are usable.
fn cache(page_size: u32, pages: u32) -> Option<CacheConfig> {
    (page_size > 0 && pages > 0).then_some(CacheConfig {
        block_size: page_size,
        usable_blocks: pages,
        prefix_caching: true,
    })
}

/// What a server says of its settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// The cache of each of its ranks.
    pub cache: Option<CacheConfig>,
    /// Its data-parallel ranks: at least one, and [`MAX_RANKS`] at most.
    pub ranks: u16,
    /// Ranks beyond those.
    pub left_out: u16,
    /// Whether it reports cached tokens (`--enable-cache-report`), where it tells.
    pub reports_cached_tokens: Option<bool>,
}

#[derive(Deserialize)]
struct Info {
    #[serde(default)]
    page_size: Option<u32>,
    #[serde(default)]
    max_total_num_tokens: Option<u32>,
    #[serde(default)]
    disable_radix_cache: Option<bool>,
    #[serde(default)]
    dp_size: Option<u16>,
    #[serde(default)]
    enable_cache_report: Option<bool>,
}

/// Paths that it is told under, the newer one first.
pub const SERVER_INFO_PATHS: [&str; 2] = ["/server_info", "/get_server_info"];

/// Reads the answer to `/server_info` (`/get_server_info` in older versions): the server's
/// arguments, with the size of its cache beside them.
///
/// # Errors
/// [`EngineError::ServerInfo`] if it is no object of that kind.
pub fn server_info(json: &[u8]) -> Result<ServerInfo, EngineError> {
    // A list would pass for an object without any field.
    if !json.trim_ascii_start().starts_with(b"{") {
        return Err(EngineError::ServerInfo("it is no object".to_owned()));
    }
    let info: Info =
        serde_json::from_slice(json).map_err(|fault| EngineError::ServerInfo(fault.to_string()))?;
    let size = info.page_size.unwrap_or(1).max(1);
    let told = info.max_total_num_tokens.and_then(|tokens| cache(size, tokens / size));
    let prefix_caching = !info.disable_radix_cache.unwrap_or(false);
    let ranks = info.dp_size.unwrap_or(1);
    Ok(ServerInfo {
        cache: told.map(|cache| CacheConfig { prefix_caching, ..cache }),
        ranks: ranks.clamp(1, MAX_RANKS),
        left_out: ranks.saturating_sub(MAX_RANKS),
        reports_cached_tokens: info.enable_cache_report,
    })
}

#[cfg(test)]
mod tests;
