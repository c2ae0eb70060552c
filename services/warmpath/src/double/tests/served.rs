//! Ranks behind one address, and adapters over one model.

use super::*;

/// Asks with a header of its own.
async fn pinned(double: &DoubleHandle, rank: &str, content: &str) -> Reply {
    let body = ask(content).to_string();
    let header = format!("x-data-parallel-rank: {rank}\r\n");
    Client::connect(double.addr()).await.post_with("/v1/chat/completions", &header, &body).await
}

#[tokio::test]
async fn a_request_runs_on_the_rank_that_it_names_and_finds_that_ranks_cache() {
    let double = start(quick().data_parallel(2)).await;
    let text = long_text();
    for (rank, found) in [("1", false), ("1", true), ("0", false), ("0", true)] {
        let before = double.stats().cached_tokens;
        assert_eq!(pinned(&double, rank, &text).await.status, 200);
        assert_eq!(double.stats().cached_tokens > before, found, "rank {rank}");
    }
    let scheduled: Vec<u64> = double.rank_stats().iter().map(|rank| rank.scheduled).collect();
    assert_eq!(scheduled, [2, 2]);
    for rank in ["2", "-1", "x"] {
        assert_eq!(pinned(&double, rank, &text).await.status, 400, "{rank}");
    }
}

#[tokio::test]
async fn each_rank_has_its_series_and_each_family_its_head_once() {
    let double = start(quick().data_parallel(2)).await;
    pinned(&double, "1", "hello").await;
    let page = Client::connect(double.addr()).await.get("/metrics").await.text();
    for (rank, count) in [(0, 0), (1, 1)] {
        let line = format!(
            "vllm:request_success_total{{engine=\"{rank}\",model_name=\"m\",\
             finished_reason=\"length\"}} {count}.0"
        );
        assert!(page.contains(&line), "{line} is not in {page}");
        assert!(page.contains(&format!("engine=\"{rank}\",hash_block_size")), "{page}");
    }
    let heads: Vec<&str> = page.lines().filter(|line| line.starts_with("# HELP")).collect();
    let different: std::collections::HashSet<_> = heads.iter().collect();
    assert_eq!(heads.len(), different.len());
}

#[tokio::test]
async fn an_adapter_answers_by_its_name_from_blocks_of_its_own() {
    let double = start(quick().adapter("sql")).await;
    let text = long_text();
    let named = |model: &str| with(ask(&text), json!({"model": model}));
    for (model, found) in [("m", false), ("sql", false), ("sql", true), ("m", true)] {
        let before = double.stats().cached_tokens;
        let reply = chat(&double, named(model)).await;
        assert_eq!((reply.status, &reply.json()["model"]), (200, &json!(model)));
        assert_eq!(double.stats().cached_tokens > before, found, "{model}");
    }
    assert_eq!(chat(&double, named("law")).await.status, 404);
}
