//! Flags that do not fit are refused before anything runs.

use anyhow::ensure;

use crate::sim_cli::args::{Args, Workload};

/// Flags that mean nothing for a workload are a mistake.
pub(super) fn check(args: &Args) -> anyhow::Result<()> {
    use Workload::{MixedGpus, Outage, SeedA40};
    let kind = args.workload;
    let windowed = kind.is_some_and(Workload::is_windowed);
    let has_documents = windowed || matches!(kind, Some(SeedA40 | Outage));
    let replays = matches!(kind, None | Some(MixedGpus));
    let rules = [
        ("--window", !args.window.is_empty(), windowed),
        ("--evict", args.evict.is_some(), windowed),
        ("--concurrency", !args.concurrency.is_empty(), kind == Some(SeedA40)),
        ("--documents", !args.documents.is_empty(), has_documents),
        ("--rho", !args.rho.is_empty(), replays && args.prefill_rate.is_none()),
        ("--slice", args.slice.is_some(), replays),
        ("--mode", args.mode.is_some(), replays),
        ("--trace", args.trace.is_some(), replays),
        ("--decode", args.decode.is_some(), !windowed),
        ("--shown-content", args.shown_content, !windowed),
        ("--told-speeds", args.told_speeds, !windowed),
        ("--speeds", !args.speeds.is_empty(), !windowed),
        ("--prefill-rate", args.prefill_rate.is_some(), !windowed),
        ("--front-ms", args.front_ms.is_some(), !windowed),
        ("--itl-base-ms", args.itl_base_ms.is_some(), !windowed),
        ("--itl-per-running-ms", args.itl_per_running_ms.is_some(), !windowed),
    ];
    for (flag, given, fits) in rules {
        ensure!(!given || fits, "{flag} does not go with this workload");
    }
    ensure!(!replays || args.trace.is_some(), "this workload needs --trace");
    let is_alone = kind == Some(Outage) && args.nodes == Some(1);
    ensure!(!is_alone, "--nodes must be at least 2, as one of them is away for a while");
    let positive = |value: f64| value.is_finite() && value > 0.0;
    ensure!(positive(args.believed_capacity), "--believed-capacity must be above 0");
    ensure!(args.rho.iter().chain(&args.speeds).all(|v| positive(*v)), "values must be above 0");
    ensure!(args.prefill_rate.is_none_or(positive), "--prefill-rate must be above 0");
    for ms in [args.front_ms, args.itl_base_ms, args.itl_per_running_ms].into_iter().flatten() {
        ensure!(ms.is_finite() && (0.0..1e6).contains(&ms), "a time must be 0 to 1,000,000 ms");
    }
    ensure!(!args.blocks.contains(&0) && !args.blocks.contains(&1), "--blocks must be at least 2");
    ensure!(args.documents.iter().all(|d| (1..=100_000).contains(d)), "--documents: 1 to 100,000");
    ensure!(!args.concurrency.contains(&0), "--concurrency must be at least 1");
    Ok(())
}
