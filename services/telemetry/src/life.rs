//! Whether an engine is still the process it was: its KV cache is empty if it is not.

use engine::metrics::Page;

/// Start of the process, in seconds since the Unix epoch.
const START: &str = "process_start_time_seconds";

/// Clocks are read to the centisecond; anything beyond a second is another process.
const START_TOLERANCE_SECONDS: f64 = 1.0;

/// Counters that grow with every prompt or answer and start at zero.
const COUNTERS: [&str; 8] = [
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_queries_total",
    "sglang:prompt_tokens_total",
    "sglang:generation_tokens_total",
    "llamacpp:prompt_tokens_total",
    "llamacpp:tokens_predicted_total",
];

/// Everything that is compared.
pub(crate) fn metrics() -> impl Iterator<Item = &'static str> {
    COUNTERS.into_iter().chain([START])
}

/// How a page relates to the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Continuity {
    /// The same process.
    Same,
    /// Another one.
    Restarted,
    /// Nothing to tell by.
    Unknown,
}

/// What the last page told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Life {
    start: Option<f64>,
    counters: [Option<f64>; COUNTERS.len()],
}

impl Life {
    /// Compares a page with the last one and keeps it.
    pub(crate) fn observe(&mut self, page: &Page<'_>) -> Continuity {
        let now = Self {
            start: page.named(START).map(|s| s.value).find(|v| v.is_finite()),
            counters: COUNTERS.map(|name| sum(page, name)),
        };
        let before = std::mem::replace(self, now);
        before.continuity(self)
    }

    /// When the process started, in milliseconds since 1970, if it tells.
    pub(crate) fn start_millis(&self) -> Option<u64> {
        // `as` saturates; a start before 1970 counts as 1970.
        self.start.map(|seconds| (seconds * 1000.0).round() as u64)
    }

    fn continuity(&self, next: &Self) -> Continuity {
        if let (Some(a), Some(b)) = (self.start, next.start)
            && (a - b).abs() > START_TOLERANCE_SECONDS
        {
            return Continuity::Restarted;
        }
        let pairs = || self.counters.iter().zip(&next.counters).filter_map(|(a, b)| a.zip(*b));
        if pairs().any(|(a, b)| b < a) {
            return Continuity::Restarted;
        }
        let told = self.start.zip(next.start).is_some() || pairs().next().is_some();
        if told { Continuity::Same } else { Continuity::Unknown }
    }
}

fn sum(page: &Page<'_>, name: &str) -> Option<f64> {
    page.named(name).map(|s| s.value).filter(|v| v.is_finite()).reduce(|a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(first: &str, second: &str) -> Continuity {
        let mut life = Life::default();
        life.observe(&engine::metrics::parse(first));
        life.observe(&engine::metrics::parse(second))
    }

    #[test]
    fn another_start_time_is_another_process() {
        let page = |start: f64| format!("{START} {start}\n");
        assert_eq!(after(&page(1.79596699982e9), &page(1.79596699982e9)), Continuity::Same);
        assert_eq!(after(&page(1.79596699982e9), &page(1.79596700482e9)), Continuity::Restarted);
    }

    #[test]
    fn a_counter_that_fell_is_another_process() {
        let page = |a, b| {
            format!(
                "vllm:prompt_tokens_total{{engine=\"0\"}} {a}\n\
                 vllm:prompt_tokens_total{{engine=\"1\"}} {b}\n"
            )
        };
        assert_eq!(after(&page(10, 5), &page(11, 5)), Continuity::Same);
        assert_eq!(after(&page(10, 5), &page(12, 0)), Continuity::Restarted);
        let start = format!("{START} 7\n{}", page(10, 5));
        let same_start_but_reset = format!("{START} 7\n{}", page(0, 0));
        assert_eq!(after(&start, &same_start_but_reset), Continuity::Restarted);
    }

    #[test]
    fn without_anything_in_common_nothing_is_known() {
        assert_eq!(after("", ""), Continuity::Unknown);
        assert_eq!(after("llamacpp:prompt_tokens_total 9\n", ""), Continuity::Unknown);
    }
}
