//! The parameters of a workload, as its flags fix them.

use anyhow::{anyhow, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sim::request::RequestSet;
use sim::trace::{Replay, Trace};
use sim::windowed::Windowed;
use sim::workload::{AgentSessions, CustomerGroups, DocumentCallers, Span, SteadyDocuments};

use crate::sim_cli::args::Workload;

/// The first customer's share of the requests of hot-prefix.
const HOT_SHARE: f64 = 0.6;

/// The workload and all its parameters. A parameter has one name: it is a field here, a flag with
/// hyphens, and an entry of `params` in rows.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(in crate::sim_cli) enum Shape {
    /// seed-uniform, seed-skewed
    Plain(PlainDocuments),
    /// seed-a40
    Callers(DocumentCallers),
    /// b2b-saas, hot-prefix
    Customers(CustomerGroups),
    /// agent-loops
    Agents(AgentSessions),
    /// outage
    Outage(DocumentsInOutage),
    /// A trace, alone or of mixed-gpus
    Trace(TraceAtLoad),
}

/// Plain caches without a clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::sim_cli) struct PlainDocuments {
    /// Different documents.
    pub(in crate::sim_cli) documents: usize,
    #[serde(flatten)]
    pub(in crate::sim_cli) run: Windowed,
    /// Requests.
    pub(in crate::sim_cli) requests: usize,
}

/// Steady documents, while the first engine is away.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::sim_cli) struct DocumentsInOutage {
    #[serde(flatten)]
    documents: SteadyDocuments,
    /// When the first engine dies, and when it is back.
    pub(super) away_seconds: Span,
    /// How long after that hits and latencies of it are back where they were.
    recovery_seconds: f64,
}

/// Recorded traffic.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::sim_cli) struct TraceAtLoad {
    /// Prompt tokens offered over what all engines could prefill if nothing were cached.
    pub(super) rho: f64,
    #[serde(flatten)]
    replay: Replay,
}

impl DocumentsInOutage {
    /// From when on requests count.
    pub(super) fn over_seconds(&self) -> f64 {
        self.away_seconds.high + self.recovery_seconds
    }
}

impl Shape {
    /// What a workload is unless flags say otherwise. A trace alone has no name.
    pub(super) fn of(kind: Option<Workload>) -> Self {
        let customers = CustomerGroups::default();
        match kind {
            Some(Workload::SeedUniform | Workload::SeedSkewed) => Self::Plain(PlainDocuments {
                documents: 15,
                run: Windowed::default(),
                requests: 3_000,
            }),
            Some(Workload::SeedA40) => Self::Callers(DocumentCallers::default()),
            Some(Workload::B2bSaas) => Self::Customers(customers),
            Some(Workload::HotPrefix) => {
                Self::Customers(CustomerGroups { hot_share: Some(HOT_SHARE), ..customers })
            }
            Some(Workload::AgentLoops) => Self::Agents(AgentSessions::default()),
            Some(Workload::Outage) => Self::Outage(DocumentsInOutage {
                documents: SteadyDocuments::default(),
                away_seconds: Span { low: 40.0, high: 50.0 },
                recovery_seconds: 10.0,
            }),
            None | Some(Workload::MixedGpus) => {
                Self::Trace(TraceAtLoad { rho: 0.8, replay: Replay::default() })
            }
        }
    }

    /// Its parameters.
    pub(super) fn params(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(params)) => params,
            // All are structs of plain values.
            _ => Map::new(),
        }
    }

    /// This with the parameters that are `given`.
    ///
    /// # Errors
    /// Names the flag of the first that it does not have, or whose value makes no sense.
    pub(super) fn with(&self, given: &Map<String, Value>) -> anyhow::Result<Self> {
        let own = self.params();
        for name in given.keys() {
            ensure!(own.contains_key(name), "{} does not go with this workload", flag(name));
        }
        let all = own.into_iter().chain(given.clone()).collect();
        let shape = match self {
            Self::Plain(_) => Self::Plain(read(all)?),
            Self::Callers(_) => Self::Callers(read(all)?),
            Self::Customers(_) => Self::Customers(read(all)?),
            Self::Agents(_) => Self::Agents(read(all)?),
            Self::Outage(_) => Self::Outage(read(all)?),
            Self::Trace(_) => Self::Trace(read(all)?),
        };
        shape.check()?;
        Ok(shape)
    }

    fn check(&self) -> anyhow::Result<()> {
        let checked = match self {
            Self::Plain(plain) => {
                ensure!(
                    (1..=10_000_000).contains(&plain.requests),
                    "--requests must be 1 to 10,000,000"
                );
                plain.run.check(plain.documents)
            }
            Self::Callers(callers) => callers.check(),
            Self::Customers(customers) => customers.check(),
            Self::Agents(sessions) => sessions.check(),
            Self::Outage(outage) => {
                let away = outage.away_seconds;
                ensure!(away.low < away.high, "--away-seconds must not be empty");
                ensure!(
                    (0.0..=1e6).contains(&outage.recovery_seconds) && away.high <= 1e6,
                    "--away-seconds and --recovery-seconds must be 0 to 1,000,000"
                );
                outage.documents.check()
            }
            Self::Trace(trace) => {
                ensure!(trace.rho > 0.0, "--rho must be above 0");
                trace.replay.check()
            }
        };
        checked.map_err(|error| match error {
            sim::Error::Config { field, expected } => anyhow!("{}: {expected}", flag(field)),
            other => other.into(),
        })
    }

    /// The requests of one seed, at most `limit`, where there is a clock.
    ///
    /// # Errors
    /// When there is none, or no trace to replay.
    pub(super) fn requests(
        &self,
        trace: Option<&Trace>,
        itl_seconds: f64,
        limit: usize,
        seed: u64,
    ) -> anyhow::Result<RequestSet> {
        let mut set = match (self, trace) {
            (Self::Trace(at), Some(trace)) => trace.replay(&Replay { limit, ..at.replay }, seed),
            (Self::Callers(callers), _) => callers.generate(itl_seconds, seed),
            (Self::Customers(customers), _) => customers.generate(seed),
            (Self::Agents(sessions), _) => sessions.generate(seed),
            (Self::Outage(outage), _) => outage.documents.generate(seed),
            (Self::Trace(_), None) => bail!("this workload needs --trace"),
            (Self::Plain(_), _) => bail!("this workload has no clock"),
        };
        set.requests.truncate(limit);
        Ok(set)
    }
}

fn read<T: DeserializeOwned>(params: Map<String, Value>) -> anyhow::Result<T> {
    Ok(serde_json::from_value(Value::Object(params))?)
}

/// The flag of a parameter.
fn flag(name: &str) -> String {
    format!("--{}", name.replace('_', "-"))
}

/// Every combination of the values; those of the last list change first.
pub(super) fn combinations(lists: &[(String, Vec<Value>)]) -> Vec<Map<String, Value>> {
    let mut all = vec![Map::new()];
    for (name, values) in lists {
        let with = |given: &Map<String, Value>, value: &Value| {
            let mut given = given.clone();
            given.insert(name.clone(), value.clone());
            given
        };
        all = all.iter().flat_map(|given| values.iter().map(|v| with(given, v))).collect();
    }
    all
}
