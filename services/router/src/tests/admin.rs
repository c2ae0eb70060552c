//! What the admin port tells.

use std::sync::Arc;

use axum::body::Body;
use domain::{BackendState, FailureClass, Usage};
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

use super::kit::{Bench, doc, fleet_of};
use crate::Router;

async fn get(router: Arc<Router>, path: &str) -> (u16, Value) {
    let request = axum::http::Request::get(path).body(Body::empty()).expect("a valid request");
    let answer = crate::api::admin_routes(router).oneshot(request).await.expect("infallible");
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.expect("a body in memory").to_bytes();
    (status, serde_json::from_slice(&body).expect("JSON"))
}

#[tokio::test]
async fn explain_tells_who_won_who_lost_and_what_came_of_it() {
    let mut fleet = fleet_of(4);
    fleet[3].state = BackendState::Down;
    let mut bench = Bench::new(fleet);
    let warm = bench.serve(doc(1, 100)).chosen.rank;
    let mut route = bench.request(Some(doc(1, 100)));
    route.excluded.push(domain::RankId {
        backend: if warm.backend.as_str() == "b0" { "b1" } else { "b0" }.into(),
        ..warm.clone()
    });
    let id = route.request.to_string();
    let first = bench.router.route_at(&route, bench.now).expect("two are left");
    assert_eq!(first.chosen.rank, warm);
    bench.wait(0.01);
    bench.fail(first.lease, FailureClass::ServerError);
    route.attempt = 1;
    route.excluded.push(warm.clone());
    let second = bench.router.route_at(&route, bench.now).expect("one is left");
    bench.wait(0.05);
    bench.first_token(second.lease);
    let usage = Usage { prompt_tokens: 1605, completion_tokens: 7, cached_tokens: Some(16) };
    bench.finish_with(second.lease, usage);
    bench.wait(2.0);

    let (status, told) = get(Arc::new(bench.router), &format!("/admin/v1/explain/{id}")).await;
    assert_eq!(status, 200);
    let attempts = told["attempts"].as_array().expect("a list");
    assert_eq!(attempts.len(), 2);
    let one = &attempts[0];
    assert_eq!(one["decision"]["backend"], warm.backend.as_str());
    assert_eq!(one["decision"]["reason"], "warm_prefix");
    assert_eq!(one["decision"]["predicted_cached_tokens"], 1600);
    assert_eq!(one["outcome"]["failure"], "server_error");
    let candidates = one["candidates"].as_array().expect("a list");
    assert_eq!(candidates.len(), 4);
    assert_eq!(candidates[0]["chosen"], true);
    assert_eq!(candidates[0]["matched_blocks"], 100);
    let why: Vec<&str> = candidates.iter().map(|c| c["why"].as_str().expect("a reason")).collect();
    assert!(why[1].starts_with("score higher by "), "{why:?}");
    assert!(candidates[1]["score"]["total_seconds"].as_f64() > Some(0.0));
    assert!(why[2..].iter().any(|w| w.starts_with("excluded")), "{why:?}");
    assert!(why[2..].iter().any(|w| w.starts_with("not ready: down")), "{why:?}");
    let two = &attempts[1];
    assert_eq!(two["outcome"]["state"], "finished");
    assert_eq!(two["outcome"]["usage"]["cached_tokens"], 16);
    assert!(two["outcome"]["first_token_seconds"].as_f64() > Some(0.04));
}

#[tokio::test]
async fn an_unknown_request_is_a_json_404() {
    let bench = Bench::new(fleet_of(1));
    let (status, told) = get(Arc::new(bench.router), "/admin/v1/explain/never").await;
    assert_eq!(status, 404);
    assert_eq!(told["error"]["code"], "not_found");
}

#[tokio::test]
async fn a_rejected_request_is_explained_too() {
    let mut fleet = fleet_of(1);
    fleet[0].state = BackendState::Joining;
    let mut bench = Bench::new(fleet);
    let route = bench.request(Some(doc(1, 1)));
    bench.router.route_at(&route, bench.now).expect_err("not ready");
    let (_, told) = get(Arc::new(bench.router), "/admin/v1/explain/r1").await;
    assert_eq!(told["attempts"][0]["rejected"]["reason"], "no_ready_backend");
    assert_eq!(told["attempts"][0]["outcome"]["state"], "refused", "it is not open");
    assert_eq!(told["attempts"][0]["candidates"][0]["why"], "not ready: joining");
}

#[tokio::test]
async fn the_backends_are_listed_with_what_is_believed_of_them() {
    let mut bench = Bench::new(fleet_of(2));
    let decision = bench.serve(doc(1, 40));
    let (status, told) = get(Arc::new(bench.router), "/admin/v1/backends").await;
    assert_eq!(status, 200);
    let ranks = told["ranks"].as_array().expect("a list");
    assert_eq!(ranks.len(), 2);
    let rank = ranks
        .iter()
        .find(|r| r["backend"] == decision.chosen.rank.backend.as_str())
        .expect("the chosen one");
    assert_eq!(rank["state"], "ready");
    assert_eq!(rank["breaker"], "closed");
    assert_eq!(rank["evidence"], "model");
    assert_eq!(rank["caches"][0]["capacity_blocks"], 600);
    assert_eq!(rank["caches"][0]["resident_blocks"], 40);
    assert_eq!(rank["prefill_fit"]["samples"], 1);
}

#[test]
fn predictions_are_held_against_what_was_delivered() {
    let mut bench = Bench::new(fleet_of(1));
    bench.serve(doc(1, 100));
    for cached in [1600, 1584, 800] {
        let decision = bench.route(doc(1, 100));
        bench.wait(0.02);
        bench.first_token(decision.lease);
        let usage =
            Usage { prompt_tokens: 1605, completion_tokens: 3, cached_tokens: Some(cached) };
        bench.finish_with(decision.lease, usage);
    }
    let metrics = bench.metrics();
    let labels = "backend=\"b0\",model=\"model\"";
    for line in [
        format!("warmpath_router_predicted_cached_tokens_total{{{labels},rank=\"0\"}} 4800"),
        format!("warmpath_router_delivered_cached_tokens_total{{{labels},rank=\"0\"}} 3984"),
        format!(
            "warmpath_router_cached_predictions_total\
             {{{labels},outcome=\"within_one_block\",rank=\"0\"}} 2"
        ),
        format!(
            "warmpath_router_cached_predictions_total{{{labels},outcome=\"over\",rank=\"0\"}} 1"
        ),
        "warmpath_router_ttft_error_seconds_count{model=\"model\"} 4".to_owned(),
        "warmpath_router_decisions_total{model=\"model\",reason=\"only_candidate\"} 4".to_owned(),
    ] {
        assert!(metrics.contains(&line), "{line} is not in\n{metrics}");
    }
}

#[test]
fn a_pool_of_many_is_explained_by_those_that_matter() {
    let mut bench = Bench::new(fleet_of(60));
    for d in 0..60 {
        bench.serve(doc(d, 40));
    }
    let decision = bench.route(doc(1, 40));
    let id = format!("r{}", 61);
    let told = bench.router.explain(&id).expect("just decided");
    let attempt = &told["attempts"][0];
    let candidates = attempt["candidates"].as_array().expect("a list");
    assert_eq!(candidates.len(), 24);
    assert_eq!(attempt["candidates_omitted"], 36);
    assert_eq!(candidates[0]["backend"], decision.chosen.rank.backend.as_str());
    assert!(candidates[1..].iter().all(|c| c["score"]["total_seconds"].as_f64() > Some(0.0)));
    let mut names: Vec<&str> = candidates.iter().filter_map(|c| c["backend"].as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 24, "each stands there once");
}
