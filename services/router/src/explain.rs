//! Why a request went where it went: the traces of recent decisions, by request id, the gateway's
//! own or the client's.
//!
//! Bounded in number and in bytes; the oldest go first. A trace keeps the best candidates and a
//! few that were barred, so that a decision among a thousand ranks costs no more to remember than
//! one among thirty.

mod json;

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use domain::{
    BackendState, DecisionReason, Evidence, EvidenceLevel, FailureClass, LeaseId, ModelId, RankId,
    RejectReason, RequestId, Route, ScoreParts, TenantId, Usage,
};
use parking_lot::Mutex;

use crate::pacing::Hold;

/// Traces kept.
const TRACES: usize = 10_000;

/// Bytes that the traces may take in all.
const TRACE_BYTES: usize = 16 << 20;

/// Scored candidates kept of one decision, best first.
pub(crate) const SCORED_LINES: usize = 24;

/// Barred candidates kept of one decision.
const BARRED_LINES: usize = 8;

/// What the tables by lease and by request take for one trace, roughly.
const TABLE_BYTES: usize = 128;

/// What the table by the client's ids takes for one trace besides.
const CLIENT_TABLE_BYTES: usize = 96;

/// Attempts told at a time: a client may give all its requests one id.
const ATTEMPTS_TOLD: usize = 100;

/// How one decision came about.
#[derive(Debug)]
pub(crate) struct Trace {
    request: RequestId,
    client_request: Option<Arc<str>>,
    attempt: u32,
    tenant: TenantId,
    model: ModelId,
    prompt_tokens: Option<u32>,
    pub(crate) reason: Option<DecisionReason>,
    pub(crate) rejected: Option<RejectReason>,
    scored: Vec<Line>,
    barred: Vec<Line>,
    /// Candidates that were not kept.
    pub(crate) omitted: usize,
}

/// One candidate of a decision.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) rank: RankId,
    pub(crate) state: BackendState,
    pub(crate) level: EvidenceLevel,
    pub(crate) verdict: Verdict,
    pub(crate) matched_blocks: u32,
    pub(crate) cached_tokens: u32,
    pub(crate) uncached_tokens: u32,
    pub(crate) in_flight: u32,
    pub(crate) parts: ScoreParts,
}

/// Why a candidate won or lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    Chosen,
    /// Its score is that much above the winner's; not above it for a tie or another policy.
    Behind {
        seconds: f64,
    },
    Excluded,
    NotReady,
    NotServed,
    BreakerOpen,
    Held(Hold),
}

/// What became of a lease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Outcome {
    FirstToken { seconds: f64 },
    Ended { ending: Ending, seconds: f64 },
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Ending {
    Finished(Option<Usage>),
    Failed(FailureClass),
    Cancelled,
    Reaped,
}

impl Trace {
    pub(crate) fn new(route: &Route) -> Self {
        Self {
            request: route.request.clone(),
            client_request: route.client_request.clone(),
            attempt: route.attempt,
            tenant: route.tenant.clone(),
            model: route.model.clone(),
            prompt_tokens: route.prompt.as_ref().map(|p| p.tokens),
            reason: None,
            rejected: None,
            scored: Vec::new(),
            barred: Vec::new(),
            omitted: 0,
        }
    }

    /// Adds a scored candidate, best first. Returns whether there was room.
    pub(crate) fn push_scored(&mut self, line: impl FnOnce() -> Line) -> bool {
        push(&mut self.scored, SCORED_LINES, line)
    }

    /// Adds a candidate that was not scored. Returns whether there was room.
    pub(crate) fn push_barred(&mut self, line: impl FnOnce() -> Line) -> bool {
        push(&mut self.barred, BARRED_LINES, line)
    }

    /// Scored candidates that were kept.
    pub(crate) fn scored(&self) -> usize {
        self.scored.len()
    }

    /// Whether `rank` won.
    pub(crate) fn chose(&self, rank: &RankId) -> bool {
        self.scored.first().is_some_and(|l| l.rank == *rank)
    }
}

fn push(lines: &mut Vec<Line>, most: usize, line: impl FnOnce() -> Line) -> bool {
    let room = lines.len() < most;
    if room {
        lines.push(line());
    }
    room
}

/// One trace with what followed.
#[derive(Debug)]
struct Record {
    trace: Trace,
    at_unix_ms: u64,
    lease: Option<LeaseId>,
    evidence: Option<Evidence>,
    first_token_seconds: Option<f64>,
    ended: Option<(Ending, f64)>,
}

impl Record {
    fn bytes(&self) -> usize {
        size_of::<Self>()
            + (self.trace.scored.capacity() + self.trace.barred.capacity()) * size_of::<Line>()
            + self.trace.request.as_str().len()
            + TABLE_BYTES
            + self.client_bytes()
    }

    fn client_bytes(&self) -> usize {
        let id = self.trace.client_request.as_ref();
        id.map_or(0, |id| id.len() + CLIENT_TABLE_BYTES)
    }
}

/// The recent traces.
#[derive(Default)]
pub(crate) struct Explanations {
    ring: Mutex<Ring>,
}

#[derive(Default)]
struct Ring {
    records: VecDeque<Record>,
    /// Number of the record at the front.
    first: u64,
    bytes: usize,
    by_lease: HashMap<LeaseId, u64>,
    /// All attempts of a request that are still kept, oldest first.
    by_request: HashMap<RequestId, VecDeque<u64>>,
    /// The same by what clients call their requests.
    by_client: HashMap<Arc<str>, VecDeque<u64>>,
}

impl Explanations {
    /// Keeps a trace; `decision` is what the caller was told, if there was one.
    pub(crate) fn record(
        &self,
        trace: Trace,
        decision: Option<(LeaseId, Evidence)>,
        at_unix_ms: u64,
    ) {
        let (lease, evidence) = decision.unzip();
        self.ring.lock().push(Record {
            trace,
            at_unix_ms,
            lease,
            evidence,
            first_token_seconds: None,
            ended: None,
        });
    }

    /// Adds what became of a lease.
    pub(crate) fn update(&self, lease: LeaseId, outcome: Outcome) {
        let mut ring = self.ring.lock();
        let Some(&number) = ring.by_lease.get(&lease) else { return };
        let Some(record) = ring.get_mut(number) else { return };
        match outcome {
            Outcome::FirstToken { seconds } => record.first_token_seconds = Some(seconds),
            Outcome::Ended { ending, seconds } => record.ended = Some((ending, seconds)),
        }
    }

    /// All that is kept of a request, as JSON. An id of the gateway's own goes before the same id
    /// of a client, which may stand for several requests: their newest attempts are told.
    pub(crate) fn explain(&self, request: &str) -> Option<serde_json::Value> {
        let ring = self.ring.lock();
        let numbers = ring.by_request.get(request).or_else(|| ring.by_client.get(request))?;
        let earlier = numbers.len().saturating_sub(ATTEMPTS_TOLD);
        let told = numbers.iter().skip(earlier).filter_map(|number| ring.get(*number));
        let attempts: Vec<serde_json::Value> = told.map(json::record).collect();
        Some(serde_json::json!({ "request": request, "attempts": attempts }))
    }
}

impl Ring {
    fn get(&self, number: u64) -> Option<&Record> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.records.get(at)
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Record> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.records.get_mut(at)
    }

    fn push(&mut self, record: Record) {
        let number = self.first + self.records.len() as u64;
        if let Some(lease) = record.lease {
            self.by_lease.insert(lease, number);
        }
        let trace = &record.trace;
        self.by_request.entry(trace.request.clone()).or_default().push_back(number);
        if let Some(id) = &trace.client_request {
            self.by_client.entry(Arc::clone(id)).or_default().push_back(number);
        }
        self.bytes += record.bytes();
        self.records.push_back(record);
        while self.records.len() > TRACES || self.bytes > TRACE_BYTES {
            self.pop();
        }
    }

    fn pop(&mut self) {
        let Some(record) = self.records.pop_front() else { return };
        self.bytes -= record.bytes();
        if let Some(lease) = record.lease {
            self.by_lease.remove(&lease);
        }
        forget(&mut self.by_request, &record.trace.request);
        if let Some(id) = &record.trace.client_request {
            forget(&mut self.by_client, id);
        }
        self.first += 1;
    }
}

/// Takes the oldest record out of a table.
fn forget<K: Eq + Hash>(table: &mut HashMap<K, VecDeque<u64>>, key: &K) {
    let Some(numbers) = table.get_mut(key) else { return };
    numbers.pop_front();
    if numbers.is_empty() {
        table.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn route(request: &str) -> Route {
        Route {
            request: RequestId::new(request),
            client_request: None,
            attempt: 0,
            tenant: "t".into(),
            model: "m".into(),
            prompt: None,
            max_output_tokens: None,
            stream: true,
            excluded: Vec::new(),
            hold: Duration::ZERO,
            ranked: Vec::new(),
        }
    }

    #[test]
    fn the_oldest_traces_go_first_and_leave_nothing_behind() {
        let kept = Explanations::default();
        for i in 0..TRACES as u64 + 5 {
            let trace = Trace::new(&route(&format!("r{i}")));
            kept.record(trace, None, i);
        }
        assert!(kept.explain("r4").is_none());
        assert!(kept.explain("r5").is_some());
        let ring = kept.ring.lock();
        assert_eq!(ring.records.len(), TRACES);
        assert_eq!(ring.by_request.len(), TRACES);
        assert!(ring.bytes <= TRACE_BYTES);
    }

    #[test]
    fn a_request_that_repeats_its_id_cannot_outgrow_the_bounds() {
        let kept = Explanations::default();
        let id = "r".repeat(64 << 10);
        for i in 0..1000 {
            kept.record(Trace::new(&route(&id)), None, i);
        }
        let ring = kept.ring.lock();
        assert!(ring.bytes <= TRACE_BYTES);
        assert!(ring.records.len() < 300);
        assert_eq!(ring.by_request.len(), 1);
        let numbers = ring.by_request.values().map(VecDeque::len).sum::<usize>();
        assert_eq!(numbers, ring.records.len());
    }

    #[test]
    fn a_clients_own_id_finds_its_requests_and_hides_nobody_elses() {
        let kept = Explanations::default();
        let keep = |request: &str, client: Option<&str>| {
            let client_request = client.map(Into::into);
            kept.record(Trace::new(&Route { client_request, ..route(request) }), None, 0);
        };
        for i in 0..ATTEMPTS_TOLD + 3 {
            keep(&format!("r{i}"), Some("mine"));
        }
        keep("r-other", Some("r1"));
        let found = kept.explain("mine").expect("it is kept");
        let attempts = found["attempts"].as_array().expect("a list");
        assert_eq!(attempts.len(), ATTEMPTS_TOLD);
        assert_eq!(
            (&attempts[0]["request"], &attempts[0]["client_request"]),
            (&"r3".into(), &"mine".into())
        );
        assert_eq!(kept.explain("r1").expect("it is kept")["attempts"][0]["request"], "r1");
        for i in 0..TRACES {
            keep(&format!("n{i}"), None);
        }
        assert!(kept.explain("mine").is_none());
        let ring = kept.ring.lock();
        assert!(ring.by_client.is_empty());
        let left: usize = ring.records.iter().map(Record::bytes).sum();
        assert_eq!(ring.bytes, left);
    }

    #[test]
    fn only_so_many_candidates_are_kept() {
        let mut trace = Trace::new(&route("r"));
        let line = || Line {
            rank: RankId { backend: "b".into(), incarnation: Default::default(), rank: 0 },
            state: BackendState::Ready,
            level: EvidenceLevel::Model,
            verdict: Verdict::Excluded,
            matched_blocks: 0,
            cached_tokens: 0,
            uncached_tokens: 0,
            in_flight: 0,
            parts: ScoreParts::default(),
        };
        let kept = (0..100).filter(|_| trace.push_barred(line)).count();
        assert_eq!(kept, BARRED_LINES);
    }
}
