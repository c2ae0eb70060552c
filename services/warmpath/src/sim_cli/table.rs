//! The rows as a table: one line for each point and policy, seeds in the mean with their spread.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use super::row::Row;
use crate::stats::mean;

/// Parameters that every line would show alike are told once, above the table.
pub(super) fn render(rows: &[Row]) -> String {
    let mut out = String::new();
    for (workload, rows) in by_workload(rows) {
        let varying = varying(rows);
        let _ = writeln!(out, "{workload}, {} nodes", rows[0].nodes);
        let _ = writeln!(out, "  {}", constant(&rows[0], &varying));
        let lines = lines(rows, &varying);
        let columns = lines.first().map_or(0, Vec::len);
        let width = |c: usize| lines.iter().map(|line| line[c].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for line in &lines {
            for (c, (cell, width)) in line.iter().zip(&widths).enumerate() {
                let pad = width - cell.chars().count();
                // The first columns are names, the others figures.
                let (before, after) = if c <= varying.len() { (0, pad) } else { (pad, 0) };
                let _ = write!(out, "  {}{cell}{}", " ".repeat(before), " ".repeat(after));
            }
            out.truncate(out.trim_end().len());
            out.push('\n');
        }
        out.push('\n');
    }
    out
}

fn by_workload(rows: &[Row]) -> impl Iterator<Item = (&str, &[Row])> {
    rows.chunk_by(|a, b| a.workload == b.workload).map(|rows| (rows[0].workload.as_str(), rows))
}

/// Names of the parameters that differ between points.
pub(super) fn varying(rows: &[Row]) -> Vec<String> {
    let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.params.keys()).collect();
    let differs = |name: &&&String| {
        // What follows from the seed, or from another parameter, makes no point of its own.
        let derived =
            ["ceiling_hit_rate", "places", "steps", "skip_requests", "prefill_tokens_per_second"];
        !derived.contains(&name.as_str())
            && rows.iter().any(|row| row.params.get(**name) != rows[0].params.get(**name))
    };
    names.iter().filter(differs).map(|name| (*name).clone()).collect()
}

fn constant(row: &Row, varying: &[String]) -> String {
    let shown = row.params.iter().filter(|(name, _)| !varying.contains(name) && *name != "places");
    shown.map(|(name, value)| format!("{name}={}", plain(value))).collect::<Vec<_>>().join(" ")
}

pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            Some(value) if number.is_f64() => {
                let text = format!("{value:.4}");
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            }
            _ => number.to_string(),
        },
        Value::Null => "–".to_owned(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(":"),
        other => other.to_string(),
    }
}

fn lines(rows: &[Row], varying: &[String]) -> Vec<Vec<String>> {
    let figures = [
        "hit %",
        "believed %",
        "ttft ms",
        "p50",
        "p95",
        "p99",
        "tpot ms",
        "good/s",
        "error %",
        "max/mean",
        "cov",
        "done",
        "rejected",
    ];
    let names = varying.iter().cloned().chain(["policy".to_owned()]);
    let mut lines = vec![names.chain(figures.map(str::to_owned)).collect::<Vec<_>>()];
    let same = |a: &Row, b: &Row| {
        a.policy == b.policy && varying.iter().all(|name| a.params.get(name) == b.params.get(name))
    };
    lines.extend(rows.chunk_by(same).map(|seeds| line(seeds, varying)));
    lines
}

fn line(seeds: &[Row], varying: &[String]) -> Vec<String> {
    let value = |name: &String| seeds[0].params.get(name).map_or_else(String::new, plain);
    let mut cells: Vec<String> = varying.iter().map(value).collect();
    cells.push(seeds[0].policy.clone());
    let all = |pick: fn(&Row) -> Option<f64>| seeds.iter().filter_map(pick).collect::<Vec<f64>>();
    cells.push(spread(&all(|r| Some(100.0 * r.block_hit_rate)), 2));
    cells.push(average(&all(|r| Some(100.0 * r.believed_hit_rate)), 2));
    cells.push(spread(&all(|r| r.mean_ttft_ms), 1));
    cells.push(average(&all(|r| r.p50_ttft_ms), 1));
    cells.push(average(&all(|r| r.p95_ttft_ms), 1));
    cells.push(average(&all(|r| r.p99_ttft_ms), 1));
    cells.push(average(&all(|r| r.mean_tpot_ms), 2));
    cells.push(average(&all(|r| r.request_goodput), 2));
    cells.push(average(&all(|r| r.ttft_error_median.map(|error| 100.0 * error)), 1));
    cells.push(average(&all(|r| r.load_max_over_mean), 2));
    cells.push(average(&all(|r| r.load_cov), 2));
    cells.push(average(&all(|r| Some(r.completed as f64)), 0));
    cells.push(average(&all(|r| Some((r.rejected + r.failed) as f64)), 0));
    cells
}

fn average(values: &[f64], digits: usize) -> String {
    mean(values).map_or_else(|| "–".to_owned(), |mean| format!("{mean:.digits$}"))
}

/// The mean, and with several seeds the lowest and the highest.
fn spread(values: &[f64], digits: usize) -> String {
    let text = average(values, digits);
    if values.len() < 2 {
        return text;
    }
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{text} [{low:.digits$} {high:.digits$}]")
}
