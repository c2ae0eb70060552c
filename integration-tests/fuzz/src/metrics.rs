//! Metrics pages, model lists and token answers of engines.

use domain::{EngineKind, Moment};
use engine::metrics;

/// Whatever an engine answers, it is read or refused, and a load that is read is a number.
///
/// # Panics
/// Where that does not hold.
pub fn check(data: &[u8]) {
    let _ = engine::models::parse(data);
    let _ = engine::tokens::tokenize_answer(data);
    let _ = (engine::llama_cpp::slots(data), engine::sglang::server_info(data));
    let Ok(text) = std::str::from_utf8(data) else { return };
    let page = metrics::parse(text);
    for kind in EngineKind::ALL {
        for reading in engine::read(kind, &page, Moment::ZERO) {
            let usage = reading.load.kv_usage.unwrap_or_default();
            assert!((0.0..=1.0).contains(&usage), "{usage}");
            assert!(reading.load.prefills.is_none_or(|p| p.seconds.is_finite()));
            if let Some(cache) = reading.cache {
                assert!(cache.block_size > 0 && cache.usable_blocks > 0);
            }
        }
    }
    for sample in page.samples() {
        let _ = (sample.label("engine"), sample.label("model_name"));
    }
}
