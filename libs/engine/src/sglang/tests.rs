//! Pages in the shape of SGLang 0.5.23 (`SchedulerMetricsCollector`, `TokenizerMetricsCollector`);
//! no server of it was at hand to record them from.

use proptest::prelude::*;

use super::*;
use crate::metrics::parse;

const PAGE: &str = r#"
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 3.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 5.0
sglang:token_usage{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 0.28
sglang:num_retracted_requests_total{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 2.0
sglang:page_size{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 1.0
sglang:num_pages{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 161721.0
sglang:max_total_num_tokens{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 161721.0
sglang:prompt_tokens_total{model_name="m"} 1000.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 600.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 50.0
"#;

fn cache(block_size: u32, usable_blocks: u32) -> Option<CacheConfig> {
    Some(CacheConfig { block_size, usable_blocks, prefix_caching: true })
}

#[test]
fn a_page_gives_load_and_cache() {
    let at = Moment::from_nanos(5);
    let load = LoadSample {
        at,
        running: 3,
        waiting: 5,
        kv_usage: Some(0.28),
        preemptions: Some(2),
        prefix_cache: Some((1000, 650)),
        prefills: None,
    };
    let expected = RankReading { rank: 0, cache: cache(1, 161_721), load };
    assert_eq!(read(&parse(PAGE), at), vec![expected]);
    let unit = expected.cache.map(|cache| cache.unit());
    assert_eq!(unit, Some(domain::BlockUnit::Tokens(16)));
}

#[test]
fn each_rank_has_its_own_reading_and_its_schedulers_count_once() {
    let text = r#"
sglang:num_running_reqs{dp_rank="0",tp_rank="0",priority=""} 4
sglang:num_running_reqs{dp_rank="0",tp_rank="0",priority="1"} 1
sglang:num_running_reqs{dp_rank="0",tp_rank="1",priority=""} 4
sglang:num_running_reqs{dp_rank="1",tp_rank="2",priority=""} 7
sglang:num_queue_reqs{dp_rank="1",tp_rank="2"} 2
sglang:page_size{dp_rank="0",tp_rank="0"} 64
sglang:page_size{dp_rank="1",tp_rank="2"} 64
sglang:max_total_num_tokens{dp_rank="0",tp_rank="0"} 6400
sglang:max_total_num_tokens{dp_rank="1",tp_rank="2"} 3200
sglang:prompt_tokens_total{model_name="m"} 1000
sglang:cached_tokens_total{model_name="m"} 600
"#;
    let readings = read(&parse(text), Moment::ZERO);
    let facts: Vec<_> = readings
        .iter()
        .map(|r| (r.rank, r.load.running, r.load.waiting, r.cache, r.load.prefix_cache))
        .collect();
    assert_eq!(facts, [(0, 4, 0, cache(64, 100), None), (1, 7, 2, cache(64, 50), None)]);
}

#[test]
fn a_page_of_an_older_version_tells_its_cache_in_labels() {
    let text = "sglang:num_running_reqs{model_name=\"m\"} 0.0\n\
                sglang:cache_config_info{page_size=\"32\",num_pages=\"1000\"} 1.0\n";
    assert_eq!(read(&parse(text), Moment::ZERO)[0].cache, cache(32, 1000));
}

#[test]
fn sizes_that_are_not_known_yet_are_not_told() {
    for sizes in ["", "sglang:page_size 16\n", "sglang:page_size 0\nsglang:num_pages 9\n"] {
        let text = format!("sglang:num_running_reqs 0\n{sizes}");
        assert_eq!(read(&parse(&text), Moment::ZERO)[0].cache, None, "{sizes}");
    }
}

#[test]
fn a_servers_description_gives_its_cache_ranks_and_report() {
    let json = br#"{"model_path":"m","page_size":1,"dp_size":2,"disable_radix_cache":true,
        "enable_cache_report":false,"max_total_num_tokens":161721,"version":"0.5.23",
        "internal_states":[{"page_size":"x"}]}"#;
    let info = server_info(json).expect("a description");
    let off = cache(1, 161_721).map(|cache| CacheConfig { prefix_caching: false, ..cache });
    let expected =
        ServerInfo { cache: off, ranks: 2, left_out: 0, reports_cached_tokens: Some(false) };
    assert_eq!(info, expected);
    let bare = server_info(b"{}").expect("an object");
    assert_eq!(bare, ServerInfo { ranks: 1, ..ServerInfo::default() });
    for json in [&b"[]"[..], b"", b"{\"page_size\":\"x\"}", b"<html>"] {
        assert!(matches!(server_info(json), Err(EngineError::ServerInfo(_))), "{json:?}");
    }
}

#[test]
fn another_engines_page_gives_no_reading() {
    assert_eq!(read(&parse("vllm:num_requests_running 1\n"), Moment::ZERO), vec![]);
}

proptest! {
    #[test]
    fn any_bytes_are_a_description_or_an_error(json in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = server_info(&json);
    }
}

#[test]
fn ranks_beyond_the_bound_are_left_out_and_counted() {
    let mut text = String::new();
    for rank in 0..1000 {
        text.push_str(&format!("sglang:num_running_reqs{{dp_rank=\"{rank}\"}} 1\n"));
    }
    let page = parse(&text);
    assert_eq!(read(&page, Moment::ZERO).len(), usize::from(MAX_RANKS));
    assert_eq!(crate::left_out(domain::EngineKind::Sglang, &page), 1000 - u32::from(MAX_RANKS));
    let info = server_info(br#"{"dp_size":65535}"#).expect("an object");
    assert_eq!((info.ranks, info.left_out), (MAX_RANKS, 65_535 - MAX_RANKS));
}
