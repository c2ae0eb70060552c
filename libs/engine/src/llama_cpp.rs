//! The metrics page of llama.cpp's server. It has slots, no blocks, and one rank.

use domain::{LoadSample, Moment};
use serde::Deserialize;

use crate::RankReading;
use crate::metrics::Page;

/// What every metric of llama.cpp's begins with.
pub const PREFIX: &str = "llamacpp:";

const RUNNING: &str = "llamacpp:requests_processing";
const WAITING: &str = "llamacpp:requests_deferred";
/// Tokens that were not found in the cache.
const UNCACHED_TOKENS: &str = "llamacpp:prompt_tokens_total";
const CACHED_TOKENS: &str = "llamacpp:prompt_tokens_cached_total";

/// Everything that [`read`] reads.
pub(crate) const METRICS: &[&str] = &[RUNNING, WAITING, UNCACHED_TOKENS, CACHED_TOKENS];

/// The one reading, or none if the page does not tell the requests in process.
pub fn read(page: &Page<'_>, at: Moment) -> Vec<RankReading> {
    let value = |name| {
        let sample = page.named(name).next()?;
        sample.value.is_finite().then_some(sample.value.max(0.0))
    };
    let Some(running) = value(RUNNING) else {
        return Vec::new();
    };
    let waiting = value(WAITING).unwrap_or(0.0);
    let prefix_cache = value(UNCACHED_TOKENS)
        .zip(value(CACHED_TOKENS))
        .map(|(uncached, cached)| ((uncached + cached) as u64, cached as u64));
    let load = LoadSample {
        at,
        running: running as u32,
        waiting: waiting as u32,
        kv_usage: None,
        preemptions: None,
        prefix_cache,
        // It tells tokens and seconds, but not of how many requests.
        prefills: None,
    };
    vec![RankReading { rank: 0, cache: None, load }]
}

/// Where its server tells its settings.
pub const PROPS_PATH: &str = "/props";

#[derive(Deserialize)]
struct Props {
    total_slots: u32,
}

/// The slots that an answer to `/props` tells, each of which keeps one sequence. `None` if it
/// tells none.
pub fn slots(json: &[u8]) -> Option<u32> {
    let props: Props = serde_json::from_slice(json).ok()?;
    Some(props.total_slots).filter(|slots| *slots > 0)
}

#[cfg(test)]
mod tests {
    use domain::Moment;

    use super::*;
    use crate::metrics;

    const PAGE: &str = include_str!("../fixtures/llamacpp-xllamacpp-2026.10.11549/metrics.txt");

    #[test]
    fn a_recorded_page_gives_load_and_cache_counters_and_no_cache_size() {
        let at = Moment::from_nanos(7);
        let page = metrics::parse(PAGE);
        let readings = read(&page, at);
        assert_eq!(page.undecoded(), 0);
        let load = LoadSample {
            at,
            running: 0,
            waiting: 0,
            kv_usage: None,
            preemptions: None,
            prefix_cache: Some((3823 + 7969, 7969)),
            prefills: None,
        };
        assert_eq!(readings, vec![RankReading { rank: 0, cache: None, load }]);
    }

    #[test]
    fn busy_slots_and_deferred_requests_are_the_load() {
        let page = metrics::parse("llamacpp:requests_processing 2\nllamacpp:requests_deferred 5\n");
        let load = read(&page, Moment::ZERO)[0].load;
        assert_eq!((load.running, load.waiting, load.prefix_cache), (2, 5, None));
    }

    #[test]
    fn slots_are_told_by_the_settings() {
        // The fields that count of a recorded answer of xllamacpp 2026.10.11549.
        let props = br#"{"default_generation_settings":{"n_ctx":4096},"total_slots":2}"#;
        assert_eq!(slots(props), Some(2));
        for json in [&b"{}"[..], b"{\"total_slots\":0}", b"", b"{\"total_slots\":\"2\"}"] {
            assert_eq!(slots(json), None, "{json:?}");
        }
    }

    #[test]
    fn another_engines_page_gives_no_reading() {
        let page = metrics::parse("vllm:num_requests_running 1\n");
        assert_eq!(read(&page, Moment::ZERO), vec![]);
    }
}
