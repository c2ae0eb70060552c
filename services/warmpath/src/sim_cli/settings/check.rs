//! Flags that do not fit are refused before anything runs.

use anyhow::ensure;
use sim::gateway::policy::RoutePolicy;

use crate::sim_cli::args::{Args, Policies, Workload};

/// Flags that mean nothing for a workload are a mistake. Those of its own parameters are looked at
/// where they are used.
pub(super) fn check(args: &Args) -> anyhow::Result<()> {
    let kind = args.workload;
    let replays = matches!(kind, None | Some(Workload::MixedGpus));
    ensure!(replays || args.trace.is_none(), "--trace does not go with this workload");
    ensure!(!replays || args.trace.is_some(), "this workload needs --trace");
    if kind.is_some_and(Workload::is_windowed) {
        refuse_those_of_a_clock(args)?;
    }
    let is_alone = kind == Some(Workload::Outage) && args.engines.nodes == Some(1);
    ensure!(!is_alone, "--nodes must be at least 2, as one of them is away for a while");
    check_policies(args)?;
    check_values(args)
}

/// Plain caches neither decode nor run, and their times are none.
fn refuse_those_of_a_clock(args: &Args) -> anyhow::Result<()> {
    let (engines, gateway, figures) = (&args.engines, &args.gateway, &args.figures);
    let given = [
        ("--decode", engines.decode.is_some()),
        ("--sizes", !engines.sizes.is_empty()),
        ("--speeds", !engines.speeds.is_empty()),
        ("--token-budget", engines.token_budget.is_some()),
        ("--max-running", engines.max_running.is_some()),
        ("--front-ms", engines.front_ms.is_some()),
        ("--itl-base-ms", engines.itl_base_ms.is_some()),
        ("--itl-per-running-ms", engines.itl_per_running_ms.is_some()),
        ("--shown-content", gateway.shown_content),
        ("--told-speeds", gateway.told_speeds),
        ("--latency-from-seconds", figures.latency_from_seconds.is_some()),
        ("--slo-ttft-ms", figures.slo_ttft_ms.is_some()),
        ("--slo-tpot-ms", figures.slo_tpot_ms.is_some()),
    ];
    for (flag, given) in given {
        ensure!(!given, "{flag} does not go with this workload");
    }
    Ok(())
}

fn check_policies(args: &Args) -> anyhow::Result<()> {
    let looks = [Policies::All, Policies::One(RoutePolicy::Prefix)];
    let has_prefix = args.policy.iter().any(|policy| looks.contains(policy));
    let gateway = &args.gateway;
    ensure!(gateway.hot_prefixes.is_empty() || has_prefix, "--hot-prefixes is for policy prefix");
    Ok(())
}

fn check_values(args: &Args) -> anyhow::Result<()> {
    let (engines, gateway, figures) = (&args.engines, &args.gateway, &args.figures);
    ensure!(gateway.believed_capacity > 0.0, "--believed-capacity must be above 0");
    ensure!(engines.speeds.iter().all(|v| *v > 0.0), "--speeds must be above 0");
    ensure!(engines.sizes.iter().all(|v| *v > 0.0), "--sizes must be above 0");
    ensure!(engines.prefill_rate.is_none_or(|v| v >= 1.0), "--prefill-rate must be at least 1");
    ensure!(
        !engines.blocks.contains(&0) && !engines.blocks.contains(&1),
        "--blocks must be at least 2"
    );
    let times = [engines.front_ms, engines.itl_base_ms, engines.itl_per_running_ms];
    for ms in times.into_iter().flatten() {
        ensure!((0.0..1e6).contains(&ms), "a time must be 0 to 1,000,000 ms");
    }
    let from = figures.latency_from_seconds;
    ensure!(from.is_none_or(|v| v >= 0.0), "--latency-from-seconds must not be below 0");
    Ok(())
}
