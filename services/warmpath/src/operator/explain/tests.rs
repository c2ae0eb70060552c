//! What an operator reads of a request.

use domain::ScoreParts;
use serde_json::{Value, json};

use super::{PARTS, shown};

fn score(network: f64, queue: f64, prefill: f64, eviction: f64, others: f64, hot: f64) -> Value {
    let parts = ScoreParts {
        network_seconds: network,
        queue_delay_seconds: queue,
        prefill_seconds: prefill,
        eviction_cost_seconds: eviction,
        others_delay_seconds: others,
        hot_prefix_seconds: hot,
    };
    let mut score = serde_json::to_value(parts).unwrap();
    score["total_seconds"] = parts.total_seconds().into();
    score
}

fn candidate(backend: &str, score: Value, why: &str) -> Value {
    let tokens = (!score.is_null()).then_some(16);
    json!({"backend": backend, "rank": 0, "state": "ready", "level": "model", "in_flight": 3,
        "cached_tokens": tokens, "uncached_tokens": tokens, "score": score, "why": why})
}

fn attempt(candidates: &[Value]) -> Value {
    json!({"request": "req-7", "client_request": null, "attempt": 0, "tenant": "t", "model": "m",
        "prompt_tokens": 32, "rejected": null, "candidates": candidates, "candidates_omitted": 0,
        "decision": {"backend": "gpu-0", "rank": 0, "reason": "warm_prefix",
            "predicted_cached_tokens": 16, "predicted_ttft_seconds": 0.0125},
        "outcome": {"state": "finished", "failure": null, "first_token_seconds": 0.014,
            "seconds": 1.5, "usage": {"cached_tokens": 15}}})
}

/// The heads of a table's columns and the cells of its rows: two blanks part them.
fn cells(shown: &str) -> Vec<Vec<&str>> {
    let lines = shown.lines().skip_while(|line| !line.starts_with("BACKEND"));
    let split = |line| -> Vec<&str> {
        str::split(line, "  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
    };
    lines.map(split).collect()
}

#[test]
fn the_head_tells_whose_request_it_is_under_both_its_ids_and_which_attempt() {
    let mut told = attempt(&[candidate("gpu-0", score(0.1, 0., 0., 0., 0., 0.), "chosen")]);
    let head = |told: &Value| shown(told).lines().take(2).collect::<Vec<_>>().join("\n");
    assert_eq!(head(&told), "request req-7, first attempt\n  tenant t, model m, 32 prompt tokens");
    told["client_request"] = "mine\u{1b}[2J".into();
    told["attempt"] = 2.into();
    told["prompt_tokens"] = Value::Null;
    let expected = "request req-7 (its client's id: mine\u{fffd}[2J), retry 2\n  tenant t, model m";
    assert_eq!(head(&told), expected);
}

#[test]
fn what_was_expected_stands_above_what_came() {
    let mut told = attempt(&[candidate("gpu-0", score(0.1, 0., 0., 0., 0., 0.), "chosen")]);
    let lines = |told: &Value| -> Vec<String> {
        shown(told).lines().skip(2).take(2).map(str::to_owned).collect()
    };
    assert_eq!(
        lines(&told),
        [
            "  sent to gpu-0 rank 0 (warm_prefix): expected 16 tokens cached, the first token after 12.500 ms",
            "  finished after 1500.000 ms, found 15 tokens cached, the first token after 14.000 ms",
        ]
    );
    told["outcome"] = json!({"state": "failed", "failure": "timeout", "seconds": 0.25});
    assert_eq!(lines(&told)[1], "  failed (timeout) after 250.000 ms");
    told["outcome"] = json!({"state": "open", "failure": null, "seconds": null});
    assert_eq!(lines(&told)[1], "  open");
}

#[test]
fn a_refused_request_shows_why_and_nothing_that_it_has_not() {
    let candidates = [
        candidate("gpu-0", Value::Null, "not ready: down"),
        candidate("gpu-1", Value::Null, "excluded: it failed this request already"),
    ];
    let mut told = attempt(&candidates);
    told["decision"] = Value::Null;
    told["rejected"] =
        json!({"reason": "no_ready_backend", "message": "no backend of this model is ready"});
    told["outcome"] = json!({"state": "refused", "failure": null, "seconds": null});
    told["candidates_omitted"] = 4.into();
    assert_eq!(
        shown(&told),
        "request req-7, first attempt
  tenant t, model m, 32 prompt tokens
  refused: no backend of this model is ready (no_ready_backend)
BACKEND  RANK  STATE  LEVEL  IN FLIGHT  WHY
gpu-0    0     ready  model  3          not ready: down
gpu-1    0     ready  model  3          excluded: it failed this request already
and 4 more that are not shown
"
    );
    told["candidates"] = json!([]);
    told["candidates_omitted"] = 0.into();
    let shown = shown(&told);
    assert!(shown.ends_with("(no_ready_backend)\n  there was no candidate\n"), "{shown}");
}

#[test]
fn the_parts_that_are_shown_add_up_to_the_total() {
    let mixed = [
        candidate("gpu-0", score(0.0001, 0.02, 0.0125, 0.0003, 0.001, 0.0), "chosen"),
        candidate("gpu-1", score(0.0002, 0.0, 0.05, 0.0, 0.0, 0.004), "behind"),
        candidate("gpu-2", Value::Null, "not ready: down"),
    ];
    let few = [candidate("gpu-0", score(0.0001, 0.0, 0.0125, 0.0, 0.0, 0.0), "chosen")];
    for (candidates, parts) in [(&mixed[..], 6), (&few[..], 2)] {
        let shown = shown(&attempt(candidates));
        let cells = cells(&shown);
        let heads = &cells[0];
        let first = heads.iter().position(|head| *head == "NETWORK").unwrap();
        let total = heads.iter().position(|head| *head == "TOTAL").unwrap();
        assert_eq!((total - first, heads.len()), (parts, total + 2), "{shown}");
        let rows: Vec<_> = cells[1..].iter().filter(|row| row[total] != "-").collect();
        assert_eq!(rows.len(), candidates.len().min(2));
        for row in rows {
            let millis = |cell: &str| -> f64 { cell.strip_suffix(" ms").unwrap().parse().unwrap() };
            let sum: f64 = row[first..total].iter().map(|cell| millis(cell)).sum();
            assert!((sum - millis(row[total])).abs() < 0.004, "{shown}");
        }
    }
}

#[test]
fn every_part_of_a_score_has_a_column() {
    let parts = serde_json::to_value(ScoreParts::default()).unwrap();
    let mut names: Vec<_> = parts.as_object().unwrap().keys().map(String::as_str).collect();
    let mut shown = PARTS.map(|(_, name)| name);
    names.sort_unstable();
    shown.sort_unstable();
    assert_eq!(shown, names[..]);
}

#[test]
fn a_choice_by_turn_shows_no_scores() {
    let zero = || score(0., 0., 0., 0., 0., 0.);
    let shown = shown(&attempt(&[
        candidate("gpu-0", zero(), "chosen: round_robin"),
        candidate("gpu-1", zero(), "its turn comes later"),
    ]));
    let heads = ["BACKEND", "RANK", "STATE", "LEVEL", "CACHED", "UNCACHED", "IN FLIGHT", "WHY"];
    assert_eq!(cells(&shown)[0], heads, "{shown}");
}
