//! The values that flags take.

use std::str::FromStr;

use clap::ValueEnum;
use serde::Serialize;
use sim::gateway::policy::RoutePolicy;

/// A built-in workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::sim_cli) enum Workload {
    /// 15 documents drawn uniformly, plain caches, no clock
    SeedUniform,
    /// The same, the n-th document with weight 1/n
    SeedSkewed,
    /// 30 documents of 6,800 tokens on two engines
    SeedA40,
    /// 150 customers with long system prompts, 3 to 60 requests a second
    B2bSaas,
    /// 24 sessions of 14 growing turns
    AgentLoops,
    /// b2b-saas with one customer at 60 % of the requests
    HotPrefix,
    /// A trace on engines of speeds 1 : 2 : 4
    MixedGpus,
    /// 12 documents, 200 requests a second on three engines, one of which is away for 10 seconds;
    /// figures are of what is sent from 10 seconds after its return on
    Outage,
}

impl Workload {
    pub(in crate::sim_cli) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether it runs on plain caches without a clock.
    pub(in crate::sim_cli) fn is_windowed(self) -> bool {
        matches!(self, Self::SeedUniform | Self::SeedSkewed)
    }
}

/// One way to route, the best fixed places in hindsight, or all ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim_cli) enum Policies {
    All,
    One(RoutePolicy),
    /// Plain caches only.
    StaticPartition,
}

/// Its name on the command line and in rows.
pub(in crate::sim_cli) const STATIC_PARTITION: &str = "static-partition";

impl FromStr for Policies {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "all" => Ok(Self::All),
            STATIC_PARTITION => Ok(Self::StaticPartition),
            name => name.parse().map(Self::One).map_err(|error| {
                let names = RoutePolicy::ALL.map(RoutePolicy::as_str).join(", ");
                format!("{error}: one of {names}, {STATIC_PARTITION}, all")
            }),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::sim_cli) enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::sim_cli) enum EvictArg {
    Head,
    Tail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::sim_cli) enum SliceArg {
    All,
    First,
    Second,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::sim_cli) enum ModeArg {
    Trace,
    Think,
}

/// A number that is one.
pub(in crate::sim_cli) fn number(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if number.is_finite() { Ok(number) } else { Err("not a finite number".to_owned()) }
}
