//! Sessions: Route, Decision, reports, audits.

use std::time::Duration;

use domain::{
    Candidate, Decision, DecisionReason, Evidence, EvidenceLevel, FailureClass, LeaseId, Prompt,
    RejectReason, Rejected, Report, Route, ScoreParts, Usage,
};
use replication::{Audit, Lease, PoolId, Process, RESUME_BATCH, Reign, Resume};

use super::common::id;
use super::{WireError, all, bounded, present};
use crate::routing::v1::{self, report::Kind};

/// Ranks that one request has failed on, and candidates of a decision.
const MAX_RANKS: usize = 4096;
/// Block units in use in one pool, most often one.
const MAX_KEY_LISTS: usize = 64;
/// Routes of one edge that wait in one pool.
const MAX_PENDING: usize = 100_000;

/// A Route as it is asked over a session.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The pool it goes to.
    pub pool: PoolId,
    /// The edge's number for the lease that it asks for.
    pub lease: LeaseId,
    /// The question. [`Route::ranked`] stays with the edge.
    pub route: Route,
}

/// A Decision as it is answered.
#[derive(Clone, Debug)]
pub struct Decided {
    /// Whose it is.
    pub reign: Reign,
    /// Blocks of the prompt that the lease holds.
    pub blocks: u32,
    /// The decision.
    pub decision: Decision,
}

/// What became of a lease, as it is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Reported {
    /// The lease's pool.
    pub pool: PoolId,
    /// Which lease.
    pub lease: LeaseId,
    /// What became of it.
    pub what: What,
}

/// What became of a lease.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// As the routing port has it.
    Report {
        /// The report.
        report: Report,
        /// Blocks that the lease holds by now; 0 at its end.
        blocks: u32,
    },
    /// The edge has put it somewhere by itself.
    Moved(Lease),
}

impl From<&Asked> for v1::Route {
    fn from(asked: &Asked) -> Self {
        let route = &asked.route;
        Self {
            lease: asked.lease.0,
            pool: asked.pool.as_str().to_owned(),
            request: route.request.as_str().to_owned(),
            client_request: route.client_request.as_deref().unwrap_or_default().to_owned(),
            attempt: route.attempt,
            tenant: route.tenant.as_str().to_owned(),
            model: route.model.as_str().to_owned(),
            prompt: route.prompt.as_ref().map(|prompt| v1::Prompt {
                tokens: prompt.tokens,
                text_bytes: prompt.text_bytes,
                keys: prompt.keys.iter().map(Into::into).collect(),
            }),
            max_output_tokens: route.max_output_tokens,
            stream: route.stream,
            excluded: route.excluded.iter().map(Into::into).collect(),
            hold_millis: millis(route.hold),
        }
    }
}

impl TryFrom<v1::Route> for Asked {
    type Error = WireError;

    fn try_from(wire: v1::Route) -> Result<Self, WireError> {
        let prompt = wire.prompt.map(|prompt| {
            Ok(Prompt {
                tokens: prompt.tokens,
                text_bytes: prompt.text_bytes,
                keys: all("prompt.keys", MAX_KEY_LISTS, prompt.keys)?,
            })
        });
        super::name("client_request", &wire.client_request)?;
        let named = !wire.client_request.is_empty();
        let route = Route {
            request: id("request", &wire.request)?,
            client_request: named.then(|| wire.client_request.into()),
            attempt: wire.attempt,
            tenant: id("tenant", &wire.tenant)?,
            model: id("model", &wire.model)?,
            prompt: prompt.transpose()?,
            max_output_tokens: wire.max_output_tokens,
            stream: wire.stream,
            excluded: all("excluded", MAX_RANKS, wire.excluded)?,
            hold: Duration::from_millis(wire.hold_millis.into()),
            ranked: Vec::new(),
        };
        Ok(Self { pool: id("pool", &wire.pool)?, lease: LeaseId(wire.lease), route })
    }
}

impl From<&Candidate> for v1::Candidate {
    fn from(candidate: &Candidate) -> Self {
        Self {
            rank: Some((&candidate.rank).into()),
            url: candidate.url.as_ref().to_owned(),
            pin_rank: candidate.pin_rank,
        }
    }
}

impl TryFrom<v1::Candidate> for Candidate {
    type Error = WireError;

    fn try_from(wire: v1::Candidate) -> Result<Self, WireError> {
        super::name("url", &wire.url)?;
        let rank = present("rank", wire.rank)?.try_into()?;
        Ok(Self { rank, url: wire.url.into(), pin_rank: wire.pin_rank })
    }
}

impl From<&Decided> for v1::Decision {
    fn from(decided: &Decided) -> Self {
        let Decided { reign, blocks, decision } = decided;
        let Evidence { parts, .. } = &decision.evidence;
        Self {
            lease: decision.lease.0,
            reign: Some(reign.into()),
            chosen: Some((&decision.chosen).into()),
            others: decision.others.iter().map(Into::into).collect(),
            evidence: Some(v1::Evidence {
                matched_blocks: decision.evidence.matched_blocks,
                predicted_cached_tokens: decision.evidence.predicted_cached_tokens,
                predicted_ttft_seconds: decision.evidence.predicted_ttft.as_secs_f64(),
                network_seconds: parts.network_seconds,
                queue_delay_seconds: parts.queue_delay_seconds,
                prefill_seconds: parts.prefill_seconds,
                eviction_cost_seconds: parts.eviction_cost_seconds,
                others_delay_seconds: parts.others_delay_seconds,
                hot_prefix_seconds: parts.hot_prefix_seconds,
                level: decision.evidence.level.as_str().to_owned(),
                reason: decision.evidence.reason.as_str().to_owned(),
            }),
            blocks: *blocks,
        }
    }
}

impl TryFrom<v1::Decision> for Decided {
    type Error = WireError;

    fn try_from(wire: v1::Decision) -> Result<Self, WireError> {
        let decision = Decision {
            lease: LeaseId(wire.lease),
            chosen: present("chosen", wire.chosen)?.try_into()?,
            others: all("others", MAX_RANKS, wire.others)?,
            evidence: evidence(present("evidence", wire.evidence)?),
        };
        let reign = present("reign", wire.reign)?.try_into()?;
        Ok(Self { reign, blocks: wire.blocks, decision })
    }
}

fn evidence(wire: v1::Evidence) -> Evidence {
    let level = EvidenceLevel::ALL.into_iter().find(|level| level.as_str() == wire.level);
    let reason = DecisionReason::ALL.into_iter().find(|reason| reason.as_str() == wire.reason);
    let ttft = Duration::try_from_secs_f64(wire.predicted_ttft_seconds);
    Evidence {
        matched_blocks: wire.matched_blocks,
        predicted_cached_tokens: wire.predicted_cached_tokens,
        predicted_ttft: ttft.unwrap_or_default(),
        parts: ScoreParts {
            network_seconds: wire.network_seconds,
            queue_delay_seconds: wire.queue_delay_seconds,
            prefill_seconds: wire.prefill_seconds,
            eviction_cost_seconds: wire.eviction_cost_seconds,
            others_delay_seconds: wire.others_delay_seconds,
            hot_prefix_seconds: wire.hot_prefix_seconds,
        },
        level: level.unwrap_or(EvidenceLevel::Text),
        reason: reason.unwrap_or(DecisionReason::Cold),
    }
}

impl v1::Rejected {
    /// That a lease was not given.
    pub fn new(lease: LeaseId, rejected: &Rejected) -> Self {
        Self {
            lease: lease.0,
            reason: rejected.reason.as_str().to_owned(),
            retry_after_millis: rejected.retry_after.map(millis),
        }
    }
}

impl From<v1::Rejected> for Rejected {
    fn from(wire: v1::Rejected) -> Self {
        let reason = RejectReason::ALL.into_iter().find(|reason| reason.as_str() == wire.reason);
        Self {
            reason: reason.unwrap_or(RejectReason::NotTaken),
            retry_after: wire.retry_after_millis.map(wait),
        }
    }
}

impl From<&Reported> for v1::Report {
    fn from(reported: &Reported) -> Self {
        let kind = match &reported.what {
            What::Moved(lease) => Kind::Moved(v1::Moved { lease: Some(lease.into()) }),
            What::Report { report, blocks } => report_kind(report, *blocks),
        };
        let pool = reported.pool.as_str().to_owned();
        Self { pool, lease: reported.lease.0, kind: Some(kind) }
    }
}

fn report_kind(report: &Report, blocks: u32) -> Kind {
    match report {
        Report::FirstToken { .. } => Kind::FirstToken(v1::FirstToken { blocks }),
        Report::Progress { generated, .. } => {
            Kind::Progress(v1::Progress { generated: *generated, blocks })
        }
        Report::Finished { usage, output_keys, .. } => Kind::Finished(v1::Finished {
            usage: usage.map(|usage| v1::Usage {
                prompt_tokens: usage.prompt_tokens,
                completion_tokens: usage.completion_tokens,
                cached_tokens: usage.cached_tokens,
            }),
            output_keys: output_keys.iter().map(Into::into).collect(),
        }),
        Report::Failed { class, retry_after, .. } => Kind::Failed(v1::Failed {
            class: class.as_str().to_owned(),
            retry_after_millis: retry_after.map(millis),
        }),
        Report::Cancelled { .. } => Kind::Cancelled(v1::Cancelled {}),
    }
}

impl TryFrom<v1::Report> for Reported {
    type Error = WireError;

    fn try_from(wire: v1::Report) -> Result<Self, WireError> {
        let lease = LeaseId(wire.lease);
        let ended = |report| What::Report { report, blocks: 0 };
        let what = match present("report.kind", wire.kind)? {
            Kind::FirstToken(first) => {
                What::Report { report: Report::FirstToken { lease }, blocks: first.blocks }
            }
            Kind::Progress(v1::Progress { generated, blocks }) => {
                What::Report { report: Report::Progress { lease, generated }, blocks }
            }
            Kind::Finished(finished) => {
                let output_keys = all("output_keys", MAX_KEY_LISTS, finished.output_keys)?;
                let usage = finished.usage.map(|usage| Usage {
                    prompt_tokens: usage.prompt_tokens,
                    completion_tokens: usage.completion_tokens,
                    cached_tokens: usage.cached_tokens,
                });
                ended(Report::Finished { lease, usage, output_keys })
            }
            Kind::Failed(failed) => {
                let class = FailureClass::ALL.into_iter().find(|c| c.as_str() == failed.class);
                // A class that is newer than this code speaks against nobody.
                let class = class.unwrap_or(FailureClass::ClientError);
                let retry_after = failed.retry_after_millis.map(wait);
                ended(Report::Failed { lease, class, retry_after })
            }
            Kind::Cancelled(v1::Cancelled {}) => ended(Report::Cancelled { lease }),
            Kind::Moved(moved) => What::Moved(present("moved.lease", moved.lease)?.try_into()?),
        };
        Ok(Self { pool: id("pool", &wire.pool)?, lease, what })
    }
}

impl v1::Audit {
    /// What an edge holds in a pool. The edge is known from the session's Hello.
    pub fn new(pool: &PoolId, audit: &Audit) -> Self {
        Self {
            pool: pool.as_str().to_owned(),
            serial: audit.serial,
            upto: audit.upto.0,
            open: audit.open,
            digest: audit.digest,
            pending: numbers(&audit.pending),
        }
    }

    /// The same of the session's edge.
    ///
    /// # Errors
    /// It holds more than a message may.
    pub fn read(self, edge: Process) -> Result<(PoolId, Audit), WireError> {
        bounded("audit.pending", self.pending.len(), MAX_PENDING)?;
        let audit = Audit {
            edge,
            serial: self.serial,
            upto: LeaseId(self.upto),
            open: self.open,
            digest: self.digest,
            pending: leases(self.pending),
        };
        Ok((id("pool", &self.pool)?, audit))
    }
}

impl v1::Resume {
    /// The leases that an edge holds in a pool, one by one.
    pub fn new(pool: &PoolId, resume: &Resume) -> Self {
        let open = |(lease, held): &(LeaseId, Lease)| v1::OpenLease {
            lease: lease.0,
            held: Some(held.into()),
        };
        Self {
            pool: pool.as_str().to_owned(),
            serial: resume.serial,
            from: resume.from.0,
            upto: resume.upto.0,
            open: resume.open.iter().map(open).collect(),
            pending: numbers(&resume.pending),
        }
    }

    /// The same of the session's edge.
    ///
    /// # Errors
    /// A lease is without its rank, or there are more than a message may hold.
    pub fn read(self, edge: Process) -> Result<(PoolId, Resume), WireError> {
        bounded("resume.open", self.open.len(), 10 * RESUME_BATCH)?;
        bounded("resume.pending", self.pending.len(), MAX_PENDING)?;
        let open = self.open.into_iter().map(|open| {
            let held = present("resume.held", open.held)?;
            Ok((LeaseId(open.lease), held.try_into()?))
        });
        let resume = Resume {
            edge,
            serial: self.serial,
            from: LeaseId(self.from),
            upto: LeaseId(self.upto),
            open: open.collect::<Result<_, WireError>>()?,
            pending: leases(self.pending),
        };
        Ok((id("pool", &self.pool)?, resume))
    }
}

fn numbers(leases: &[LeaseId]) -> Vec<u64> {
    leases.iter().map(|lease| lease.0).collect()
}

fn leases(numbers: Vec<u64>) -> Vec<LeaseId> {
    numbers.into_iter().map(LeaseId).collect()
}

fn wait(millis: u32) -> Duration {
    Duration::from_millis(millis.into())
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
