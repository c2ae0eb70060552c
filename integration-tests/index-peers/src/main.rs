//! Warmpath's index beside two published ones, in one process; see the README.

mod allocator;
mod clock;
mod ops;
mod run;
mod subjects;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::Parser;
use flate2::read::MultiGzDecoder;
use serde::Serialize;
use sim::index_load::IndexLoad;

use run::{Figure, SPECS, Spec};

#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;

/// Compares prefix indexes on a recorded trace.
#[derive(Parser)]
struct Args {
    /// The trace, gzipped: one JSON object with `hash_ids` a line
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Only these loads: 10-ranks, 1000-ranks, 7000-ranks, 16-tokens
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    load: Vec<String>,
    /// How often everything is measured; the middle one is reported
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only the subject of this name
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Where the result goes as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    cores: String,
    loads: Vec<LoadReport>,
}

#[derive(Serialize)]
struct LoadReport {
    load: Spec,
    /// Blocks held, once for each worker that holds them, when the memory was read.
    entries: usize,
    subjects: Vec<Summary>,
}

/// The rounds of one subject.
#[derive(Serialize)]
struct Summary {
    subject: &'static str,
    /// The middle round.
    requests_per_second: f64,
    lowest: f64,
    highest: f64,
    bytes_per_entry: f64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    ensure!(args.rounds > 0, "--rounds must not be 0");
    for name in &args.load {
        ensure!(SPECS.iter().any(|spec| spec.name == name), "there is no load `{name}`");
    }
    let cores = clock::allowed_cores();
    if cores.contains([',', '-']) {
        eprintln!("not pinned to one core (allowed: {cores}); see the README");
    }
    let trace = read(&args.trace)?;
    let mut report = Report { cores, loads: Vec::new() };
    for spec in
        SPECS.iter().filter(|s| args.load.is_empty() || args.load.iter().any(|n| n == s.name))
    {
        let load = trace.cut(spec.cut);
        let mut entries = 0;
        let mut rounds = Vec::new();
        for _ in 0..args.rounds {
            let (held, figures) = run::round(spec, &load, args.only.as_deref());
            entries = held;
            rounds.push(figures);
        }
        let subjects = summarise(&rounds);
        print(spec, entries, &subjects);
        report.loads.push(LoadReport { load: *spec, entries, subjects });
    }
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<IndexLoad> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
    let reader = BufReader::new(MultiGzDecoder::new(BufReader::new(file)));
    IndexLoad::read(reader).with_context(|| format!("in {shown}"))
}

fn summarise(rounds: &[Vec<Figure>]) -> Vec<Summary> {
    let middle = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        (values[values.len() / 2], values[0], values[values.len() - 1])
    };
    let summary = |subject: usize| {
        let of = |value: fn(&Figure) -> f64| {
            middle(rounds.iter().map(|round| value(&round[subject])).collect())
        };
        let (requests_per_second, lowest, highest) = of(|figure| figure.requests_per_second);
        let (bytes_per_entry, ..) = of(|figure| figure.bytes_per_entry);
        let subject = rounds[0][subject].subject;
        Summary { subject, requests_per_second, lowest, highest, bytes_per_entry }
    };
    (0..rounds[0].len()).map(summary).collect()
}

/// The first subject is ours; another of ours stands beside it.
fn print(spec: &Spec, entries: usize, subjects: &[Summary]) {
    println!("{}: {} workers, {entries} entries", spec.name, spec.workers);
    for s in subjects {
        println!(
            "  {:<38} {:>9.0} req/s ({:.0} to {:.0})  {:>7.2} bytes per entry",
            s.subject, s.requests_per_second, s.lowest, s.highest, s.bytes_per_entry,
        );
    }
    let (own, theirs): (Vec<_>, Vec<_>) =
        subjects.iter().partition(|s| s.subject.starts_with("warmpath"));
    if let (Some(ours), false) = (own.first(), theirs.is_empty()) {
        let fastest = theirs.iter().map(|s| s.requests_per_second).fold(0.0, f64::max);
        // What frees its inputs on a thread of its own does so at its own time: no count tells its bytes.
        let counted = theirs.iter().filter(|s| !s.subject.ends_with("Compressed"));
        let told = counted.map(|s| s.bytes_per_entry);
        let smallest = told.fold(f64::INFINITY, f64::min);
        println!(
            "  ours: {:.2} times the requests per second of their best, {:.2} times the bytes",
            ours.requests_per_second / fastest,
            ours.bytes_per_entry / smallest,
        );
    }
}
