//! Whatever makes up a run can be set, and is told with its result.

use std::collections::BTreeMap;

use clap::{CommandFactory as _, Parser, ValueEnum as _};
use serde_json::{Map, Value, json};

use super::args::{Args, Workload, WorkloadArgs};
use super::settings::{self, Point, Shape};
use super::trace_file::{self, NamedTrace};

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

/// The parameters of workloads alone.
#[derive(Debug, Parser)]
struct Parameters {
    #[command(flatten)]
    _parameters: WorkloadArgs,
}

/// Flags that say what to run and where the result goes, not what a run is like. The number of
/// nodes is a field of rows, and so is the seed.
const NOT_PARAMETERS: [&str; 11] = [
    "workload",
    "trace",
    "policy",
    "seeds",
    "first-seed",
    "nodes",
    "json",
    "svg",
    "jobs",
    "quiet",
    "help",
];

/// For each flag that is no workload's own, a value that is not the default.
const OTHER_VALUES: [(&str, &str); 21] = [
    ("requests", "40"),
    ("block-tokens", "17"),
    ("blocks", "700"),
    ("sizes", "1,2"),
    ("speeds", "1,2,3"),
    ("prefill-rate", "12345"),
    ("token-budget", "4096"),
    ("max-running", "9"),
    ("decode", "off"),
    ("itl-base-ms", "7"),
    ("itl-per-running-ms", "0.5"),
    ("front-ms", "3"),
    ("believed-capacity", "0.5"),
    ("shown-content", ""),
    ("told-speeds", ""),
    ("eviction-weight", "0.5"),
    ("hot-prefixes", "off"),
    ("skip-requests", "3"),
    ("latency-from-seconds", "2"),
    ("slo-ttft-ms", "1000"),
    ("slo-tpot-ms", "50"),
];

fn args(flags: &str) -> Args {
    let flags = std::iter::once("sim").chain(flags.split_whitespace());
    Cli::try_parse_from(flags).expect("flags that parse").args
}

/// The one point of `flags`, and its parameters under one seed.
fn point(flags: &str) -> anyhow::Result<(Point, Map<String, Value>)> {
    let args = args(flags);
    let trace: Option<NamedTrace> = trace_file::of(&args)?;
    let mut points = settings::points(&args, trace.as_ref())?;
    assert_eq!(points.len(), 1, "{flags}");
    let point = points.remove(0);
    let set = match &point.shape {
        Shape::Plain(_) => None,
        _ => Some(point.requests(&args, trace.as_ref(), 1)?),
    };
    let params = point.params(&args, set.as_ref());
    Ok((point, params))
}

/// A trace in a folder that goes with it.
fn small_trace() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("small.jsonl");
    let line = |i: u32| {
        format!(
            "{{\"timestamp\": {}, \"input_length\": 1100, \"output_length\": 20, \"hash_ids\": \
             [0, {}, {}]}}\n",
            i * 500,
            1 + i % 5,
            100 + i,
        )
    };
    std::fs::write(&path, (0..60).map(line).collect::<String>()).expect("written");
    let shown = path.display().to_string();
    (folder, shown)
}

/// The flags that name each workload, and a trace alone.
fn workloads(trace: &str) -> Vec<String> {
    let named = Workload::value_variants().iter().map(|kind| match kind {
        Workload::MixedGpus => format!("--workload mixed-gpus --trace {trace}"),
        kind => format!("--workload {}", kind.name()),
    });
    named.chain([format!("--trace {trace}")]).collect()
}

fn long_flags(command: &clap::Command) -> Vec<String> {
    command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
}

/// Another value that a parameter may have, as its flag takes it.
fn another(flag: &str, value: &Value) -> String {
    let command = Cli::command();
    let arg = command.get_arguments().find(|arg| arg.get_long() == Some(flag));
    let possible = arg.expect("a flag").get_possible_values();
    let is_other = |name: &&str| json!(name) != *value;
    if let Some(other) = possible.iter().map(|value| value.get_name()).find(is_other) {
        return other.to_owned();
    }
    match value {
        Value::Array(span) => format!("{}..{}", span[0], span[1].as_f64().unwrap_or(0.0) + 1.0),
        Value::String(_) => "7x9+2.5x3".to_owned(),
        Value::Number(number) => number.as_u64().map_or_else(
            || (number.as_f64().unwrap_or(0.0) / 2.0).to_string(),
            |number| (number + 1).to_string(),
        ),
        other => panic!("{flag} is {other}"),
    }
}

#[test]
fn every_parameter_of_a_workload_is_a_flag_and_in_its_rows() {
    let (_folder, trace) = small_trace();
    let flags_of_all = long_flags(&Cli::command());
    for workload in workloads(&trace) {
        let (usual, params) = point(&workload).expect("a workload");
        let own = serde_json::to_value(&usual.shape).expect("plain values");
        for (name, value) in own.as_object().expect("parameters") {
            assert_eq!(params.get(name), Some(value), "{workload}: {name}");
            let flag = name.replace('_', "-");
            assert!(flags_of_all.contains(&flag), "{workload}: --{flag}");
            let flags = format!("{workload} --{flag} {}", another(&flag, value));
            let (_, changed) = point(&flags).expect(&flags);
            assert_ne!(changed.get(name), Some(value), "{flags}");
        }
    }
}

#[test]
fn a_workloads_flags_are_refused_where_it_has_no_such_parameter() {
    let (_folder, trace) = small_trace();
    for workload in workloads(&trace) {
        let (usual, _) = point(&workload).expect("a workload");
        let own = serde_json::to_value(&usual.shape).expect("plain values");
        let foreign = |flag: &String| own.get(flag.replace('-', "_")).is_none();
        for flag in long_flags(&Parameters::command()).into_iter().filter(foreign) {
            let command = Parameters::command();
            let arg = command.get_arguments().find(|arg| arg.get_long() == Some(&flag));
            let possible = arg.expect("a flag").get_possible_values();
            let value = match (possible.first(), flag.as_str()) {
                (Some(value), _) => value.get_name().to_owned(),
                (None, "ladder") => "7x9".to_owned(),
                (None, "away-seconds" | "pause-seconds") => "1..2".to_owned(),
                (None, _) => "1".to_owned(),
            };
            let error = point(&format!("{workload} --{flag} {value}")).err();
            let expected = format!("--{flag} does not go with this workload");
            assert_eq!(error.map(|error| error.to_string()), Some(expected), "{workload}");
        }
    }
}

#[test]
fn every_other_flag_is_in_the_rows_of_the_workloads_that_it_goes_with() {
    let (_folder, trace) = small_trace();
    let own = long_flags(&Parameters::command());
    let mut flags = long_flags(&Cli::command());
    flags.retain(|flag| !own.contains(flag) && !NOT_PARAMETERS.contains(&flag.as_str()));
    let known: Vec<&str> = OTHER_VALUES.iter().map(|(flag, _)| *flag).collect();
    flags.sort_unstable();
    assert!(flags.iter().all(|flag| known.contains(&flag.as_str())), "{flags:?}");
    assert_eq!(flags.len(), known.len());
    let mut fits: BTreeMap<&str, u32> = BTreeMap::new();
    for workload in workloads(&trace) {
        let (_, usual) = point(&workload).expect("a workload");
        for (flag, value) in OTHER_VALUES {
            match point(&format!("{workload} --{flag} {value}")) {
                Ok((_, changed)) => {
                    *fits.entry(flag).or_default() += 1;
                    assert_ne!(changed, usual, "{workload} --{flag}");
                }
                Err(error) => {
                    let expected = format!("--{flag} does not go with this workload");
                    assert_eq!(error.to_string(), expected, "{workload}");
                }
            }
        }
    }
    // Two of the workloads have no clock.
    assert!(known.iter().all(|flag| fits.get(flag) >= Some(&7)), "{fits:?}");
}

#[test]
fn values_that_make_no_sense_are_refused_by_the_name_of_their_flag() {
    for (flags, expected) in [
        ("--workload b2b-saas --groups 0", "--groups: "),
        ("--workload hot-prefix --hot-share 2", "--hot-share: "),
        ("--workload seed-uniform --question-tokens 16", "--question-tokens: "),
        ("--workload seed-skewed --requests 0", "--requests "),
        ("--workload outage --away-seconds 4..4", "--away-seconds "),
        ("--workload outage --nodes 1", "--nodes "),
        ("--workload agent-loops --sizes 0,1", "--sizes "),
        ("--workload agent-loops --policy random --hot-prefixes off", "--hot-prefixes "),
        ("--workload seed-uniform --prefill-rate 0", "--prefill-rate "),
    ] {
        let error = point(flags).expect_err(flags).to_string();
        assert!(error.starts_with(expected), "{flags}: {error}");
    }
    for flags in ["--ladder 5", "--pause-seconds 2..1", "--rho NaN", "--believed-capacity inf"] {
        let flags = std::iter::once("sim").chain(flags.split_whitespace());
        assert!(Cli::try_parse_from(flags.chain(["--workload", "b2b-saas"])).is_err());
    }
}

#[test]
fn lists_of_several_flags_run_every_combination() {
    let args =
        args("--workload hot-prefix --blocks 500,600 --rate-factor 0.5,1 --hot-prefixes on,off");
    let points = settings::points(&args, None).expect("points");
    let name = |point: &Point| {
        let params = point.params(&args, None);
        ["blocks", "rate_factor", "hot_prefixes"].map(|name| params[name].to_string()).join(" ")
    };
    let expected = [
        "500 0.5 true",
        "500 0.5 false",
        "500 1.0 true",
        "500 1.0 false",
        "600 0.5 true",
        "600 0.5 false",
        "600 1.0 true",
        "600 1.0 false",
    ];
    assert_eq!(points.iter().map(name).collect::<Vec<_>>(), expected);
}

#[test]
fn caches_of_unlike_size_are_the_engines_and_the_gateway_is_told_them() {
    let flags =
        "--workload agent-loops --nodes 4 --blocks 700 --sizes 1,2,4 --believed-capacity 0.5";
    let (point, params) = point(flags).expect("a point");
    let args = args(flags);
    let set = point.requests(&args, None, 1).expect("requests");
    let cluster = point.cluster(&args, &set, sim::gateway::policy::RoutePolicy::Prefix, 1);
    // 1 + 2 + 4 + 1 over four is a mean of 2.
    let blocks: Vec<u32> = cluster.engines.iter().map(|engine| engine.blocks).collect();
    assert_eq!(blocks, [350, 700, 1_400, 350]);
    // One block is never handed out.
    assert_eq!(cluster.gateway.believed_blocks, [175, 350, 700, 175]);
    assert_eq!(params["sizes"], json!([0.5, 1.0, 2.0, 0.5]));
    assert_eq!(params["blocks"], 700);
}
