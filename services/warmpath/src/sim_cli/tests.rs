use clap::Parser;
use serde_json::Value;

use super::args::Args;
use super::row::Row;
use super::{plot, runs, settings, table, trace_file};

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn args(flags: &str) -> Args {
    let flags = std::iter::once("sim").chain(flags.split_whitespace());
    Cli::try_parse_from(flags).expect("flags that parse").args
}

fn rows(flags: &str) -> Vec<Row> {
    let args = args(&format!("{flags} --quiet"));
    let trace = trace_file::of(&args).expect("a trace");
    let points = settings::points(&args, trace.as_ref()).expect("flags that fit");
    runs::run_all(&args, &points, trace.as_ref()).expect("runs")
}

fn refusal(flags: &str) -> String {
    let error = settings::points(&args(flags), None).expect_err("flags that do not fit");
    error.to_string()
}

#[test]
fn rows_come_by_point_policy_and_seed_whatever_runs_at_once() {
    let flags = "--workload seed-skewed --policy round-robin,static-partition,prefix --window 4,8 \
                 --seeds 2 --requests 60 --documents 12";
    let all = rows(flags);
    let order: Vec<(Option<&Value>, &str, u64)> =
        all.iter().map(|row| (row.params.get("window"), row.policy.as_str(), row.seed)).collect();
    let (four, eight) = (Value::from(4), Value::from(8));
    let mut expected = Vec::new();
    for window in [&four, &eight] {
        for policy in ["round-robin", "static-partition", "prefix"] {
            expected.extend([(Some(window), policy, 2), (Some(window), policy, 3)]);
        }
    }
    assert_eq!(order, expected);
    let one_at_a_time = rows(&format!("{flags} --jobs 1"));
    let text = |rows: &[Row]| serde_json::to_string(rows).expect("rows are JSON");
    assert_eq!(text(&all), text(&one_at_a_time));
    assert!(all.iter().all(|row| row.mean_ttft_ms.is_none() && row.completed == 60));
}

#[test]
fn a_row_has_the_agreed_fields() {
    let row = &rows("--workload agent-loops --policy prefix --requests 48")[0];
    let value = serde_json::to_value(row).expect("a row is JSON");
    let names: Vec<&str> =
        value.as_object().expect("an object").keys().map(String::as_str).collect();
    let expected = "workload policy seed nodes block_hit_rate kv_cache_hit_percent \
        believed_hit_rate mean_ttft_ms p50_ttft_ms p95_ttft_ms p99_ttft_ms mean_tpot_ms \
        request_goodput ttft_error_median load_cov load_max_over_mean completed failed rejected \
        params";
    assert_eq!(names, expected.split_whitespace().collect::<Vec<_>>());
    assert_eq!(value["params"]["token_budget"], 8_192);
    assert_eq!((row.completed, row.failed, row.rejected), (48, 0, 0));
}

#[test]
fn the_two_gpu_run_reaches_the_published_round_robin_when_callers_come_one_by_one() {
    let rows = rows("--workload seed-a40 --policy round-robin,prefix");
    let ttft = |row: &Row| row.mean_ttft_ms.unwrap_or(0.0);
    // Published: 166 ms and 62.6 % of blocks, on GPUs.
    assert!((ttft(&rows[0]) - 166.4).abs() < 20.0, "{}", ttft(&rows[0]));
    assert!((rows[0].block_hit_rate - 0.626).abs() < 0.03);
    assert!(ttft(&rows[1]) < 0.5 * ttft(&rows[0]), "{}", ttft(&rows[1]));
    assert_eq!(rows[0].completed, 600);
}

#[test]
fn flags_that_mean_nothing_are_refused() {
    assert!(refusal("--workload b2b-saas --window 48").starts_with("--window"));
    assert!(refusal("--workload seed-uniform --decode off").starts_with("--decode"));
    assert!(refusal("--workload seed-a40 --rho 0.8").starts_with("--rho"));
    assert!(refusal("--workload mixed-gpus").contains("--trace"));
    assert!(refusal("--workload agent-loops --believed-capacity 0").starts_with("--believed"));
    assert!(refusal("--workload agent-loops --blocks 1").starts_with("--blocks"));
    for flags in ["--workload seed-b40", "--policy prefix", "--workload seed-a40 --policy best"] {
        let flags = std::iter::once("sim").chain(flags.split_whitespace());
        assert!(Cli::try_parse_from(flags).is_err());
    }
}

#[test]
fn a_trace_runs_at_its_load_on_engines_of_unlike_speed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("small.jsonl");
    let line = |i: u32| {
        format!(
            "{{\"timestamp\": {}, \"input_length\": 2100, \"output_length\": 20, \"hash_ids\": \
             [0, {}, {}, {}]}}\n",
            i * 500,
            1 + i % 5,
            100 + i,
            1_000 + i
        )
    };
    std::fs::write(&path, (0..120).map(line).collect::<String>()).expect("written");
    let shown = path.display();
    let rows = rows(&format!(
        "--workload mixed-gpus --trace {shown} --policy prefix --rho 0.5,1.5 --slice second"
    ));
    assert_eq!(rows.len(), 2);
    let number = |row: &Row, name: &str| row.params[name].as_f64().unwrap_or(0.0);
    let rates = [0, 1].map(|i| number(&rows[i], "prefill_tokens_per_second"));
    assert!((rates[0] / rates[1] - 3.0).abs() < 0.1, "{rates:?}");
    assert!(rows[0].mean_ttft_ms < rows[1].mean_ttft_ms);
    let speeds = rows[0].params["speeds"].as_array().cloned().unwrap_or_default();
    assert_eq!(speeds.len(), 8);
    let svg = plot::render(&rows).expect("a drawing");
    assert!(svg.contains("against rho") && svg.matches("<polyline").count() == 1);
}

#[test]
fn no_policy_finds_more_than_the_ceiling() {
    for workload in ["agent-loops", "seed-a40 --requests 300"] {
        let rows = rows(&format!("--workload {workload} --policy prefix --shown-content"));
        for row in rows {
            let ceiling = row.params["ceiling_hit_rate"].as_f64().expect("it is told");
            assert!(
                row.block_hit_rate <= ceiling,
                "{workload}: {} of {ceiling}",
                row.block_hit_rate
            );
            assert!(row.block_hit_rate > 0.9 * ceiling, "{workload}: {}", row.block_hit_rate);
        }
    }
}

#[test]
fn a_drawing_of_one_load_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let (rows, svg) = (folder.path().join("rows.json"), folder.path().join("drawing.svg"));
    let run = |windows: &str| {
        let (rows, svg) = (rows.display(), svg.display());
        let flags = format!(
            "--workload seed-uniform --requests 30 --window {windows} --json {rows} --svg {svg} --quiet"
        );
        super::run(args(&flags))
    };
    let refused = run("4").expect_err("one window is no line").to_string();
    assert!(refused.starts_with("--svg") && refused.contains("--window"), "{refused}");
    assert!(!rows.exists() && !svg.exists());
    run("4,8").expect("two are");
    assert!(rows.exists() && svg.exists());
}

#[test]
fn the_table_tells_seeds_in_one_line() {
    let rows = rows("--workload seed-uniform --policy prefix,reference --seeds 3 --requests 90");
    let text = table::render(&rows);
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[0].starts_with("seed-uniform, 3 nodes"));
    assert!(lines[1].contains("window=48") && lines[1].contains("evict=head"));
    assert!(lines[3].trim_start().starts_with("prefix") && lines[3].contains('['));
    assert!(plot::render(&rows).is_err(), "one point is no line");
}
