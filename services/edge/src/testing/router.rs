//! A router that chooses the first engine that is not excluded, and remembers what it is told.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use domain::{
    Backend, BackendId, BackendState, BoxFuture, BoxStream, CacheConfig, Candidate, Decision,
    DecisionReason, EngineKind, Evidence, EvidenceLevel, Fleet, Incarnation, KeyList, LeaseId,
    ModelId, RankState, RejectReason, Rejected, Report, Route, RoutingClient, ScoreParts,
    ServedModel,
};
use parking_lot::Mutex;

use super::Engine;

pub(crate) struct Router {
    fleet: Mutex<Arc<Fleet>>,
    pin_rank: bool,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    routes: Vec<Route>,
    reports: Vec<Report>,
    open: HashSet<LeaseId>,
    next: u64,
}

/// The reports of one lease, by name.
pub(crate) type Events = Vec<String>;

impl Router {
    pub(crate) fn new(engines: &[&Engine]) -> Arc<Self> {
        let backends = engines.iter().map(|e| Arc::new(backend(e))).collect();
        Arc::new(Self {
            fleet: Mutex::new(Arc::new(Fleet { revision: 1, backends })),
            pin_rank: false,
            seen: Mutex::default(),
        })
    }

    /// Changes the engines; the edge is not told, and sees it when it looks.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Vec<Arc<Backend>>)) {
        change(&mut Arc::make_mut(&mut self.fleet.lock()).backends);
    }

    /// Changes one of them.
    pub(crate) fn change_one(&self, id: &BackendId, change: impl FnOnce(&mut Backend)) {
        let mut fleet = self.fleet.lock();
        let mut backends = Arc::make_mut(&mut fleet).backends.iter_mut();
        change(Arc::make_mut(backends.find(|backend| backend.id == *id).unwrap()));
    }

    pub(crate) fn routes(&self) -> Vec<Route> {
        self.seen.lock().routes.clone()
    }

    /// The reports so far, by name, one list per lease in the order of the leases.
    pub(crate) fn events(&self) -> Vec<Events> {
        let seen = self.seen.lock();
        let of = |lease: u64| {
            let mine = seen.reports.iter().filter(move |r| r.lease() == LeaseId(lease));
            mine.map(name).collect()
        };
        (0..seen.next).map(of).collect()
    }

    /// How long each lease that failed is to keep its engine from others, in their order.
    pub(crate) fn waits(&self) -> Vec<Option<Duration>> {
        let seen = self.seen.lock();
        let wait = |report: &Report| match report {
            Report::Failed { retry_after, .. } => Some(*retry_after),
            _ => None,
        };
        seen.reports.iter().filter_map(wait).collect()
    }

    /// The keys that came with each lease that ended well, in the order of their ends.
    pub(crate) fn output_keys(&self) -> Vec<Vec<KeyList>> {
        let seen = self.seen.lock();
        let keys = |report: &Report| match report {
            Report::Finished { output_keys, .. } => Some(output_keys.clone()),
            _ => None,
        };
        seen.reports.iter().filter_map(keys).collect()
    }

    pub(crate) fn open_leases(&self) -> usize {
        self.seen.lock().open.len()
    }

    fn decide(&self, route: Route) -> Result<Decision, Rejected> {
        // A stand-in for a fault in the gateway's own process.
        assert_ne!(route.model.as_str(), "panic", "told to");
        let reject = |reason| Err(Rejected { reason, retry_after: None });
        let mut seen = self.seen.lock();
        seen.routes.push(route.clone());
        let fleet = self.fleet();
        if fleet.ready_for(&route.model).next().is_none() {
            return reject(RejectReason::UnknownModel);
        }
        let mut left = fleet
            .ready_for(&route.model)
            .filter(|b| !route.excluded.contains(&b.rank_id(0)))
            .map(|b| Candidate {
                rank: b.rank_id(0),
                url: Arc::clone(&b.url),
                pin_rank: self.pin_rank,
            });
        let Some(chosen) = left.next() else { return reject(RejectReason::AllExcluded) };
        let lease = LeaseId(seen.next);
        seen.next += 1;
        seen.open.insert(lease);
        Ok(Decision { lease, chosen, others: left.collect(), evidence: evidence() })
    }
}

impl RoutingClient for Router {
    fn route(&self, route: Route) -> BoxFuture<'_, Result<Decision, Rejected>> {
        Box::pin(async move { self.decide(route) })
    }

    fn report(&self, report: Report) {
        let mut seen = self.seen.lock();
        let closes = !matches!(report, Report::FirstToken { .. } | Report::Progress { .. });
        assert!(seen.open.contains(&report.lease()), "a report for a closed lease: {report:?}");
        if closes {
            seen.open.remove(&report.lease());
        }
        seen.reports.push(report);
    }

    fn fleet(&self) -> Arc<Fleet> {
        Arc::clone(&self.fleet.lock())
    }

    fn watch_fleet(&self) -> BoxStream<'static, Arc<Fleet>> {
        Box::pin(futures_util::stream::pending())
    }
}

fn name(report: &Report) -> String {
    match report {
        Report::FirstToken { .. } => "first-token".to_owned(),
        Report::Progress { generated, .. } => format!("progress {generated}"),
        Report::Finished { usage: None, .. } => "finished".to_owned(),
        Report::Finished { usage: Some(usage), .. } => {
            let cached = usage.cached_tokens.unwrap_or(0);
            format!("finished {}+{} cached {cached}", usage.prompt_tokens, usage.completion_tokens)
        }
        Report::Failed { class, .. } => format!("failed {}", class.as_str()),
        Report::Cancelled { .. } => "cancelled".to_owned(),
    }
}

fn backend(engine: &Engine) -> Backend {
    let cache = CacheConfig { block_size: 16, usable_blocks: 100, prefix_caching: true };
    let served = |id: &str| ServedModel {
        id: ModelId::from(id),
        max_model_len: Some(4096),
        listing: format!(r#"{{"id":"{id}","object":"model","max_model_len":4096}}"#).into(),
        parity: None,
        base: None,
    };
    Backend {
        id: engine.id(),
        incarnation: Incarnation(1),
        url: engine.url().into(),
        engine: EngineKind::Vllm,
        state: BackendState::Ready,
        models: vec![served("m"), served("org/m"), served("panic")],
        ranks: vec![RankState { rank: 0, cache: Some(cache), slots: None, load: None }],
        network: Duration::ZERO,
        credential: Some(format!("key-of-{}", engine.id()).into()),
    }
}

fn evidence() -> Evidence {
    Evidence {
        matched_blocks: 2,
        predicted_cached_tokens: 32,
        predicted_ttft: Duration::from_millis(20),
        parts: ScoreParts { queue_delay_seconds: 0.0125, ..ScoreParts::default() },
        level: EvidenceLevel::Model,
        reason: DecisionReason::WarmPrefix,
    }
}
