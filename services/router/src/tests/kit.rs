//! A scripted fleet before a router, with the time in the test's hand.

use std::sync::Arc;
use std::time::Duration;

use domain::{
    Backend, BackendState, BlockKey, BlockUnit, CacheConfig, Decision, EngineKind, FailureClass,
    Fleet, Incarnation, KeyList, LeaseId, LoadSample, Moment, Prompt, RankState, Rejected, Report,
    Route, ServedModel, Usage,
};
use prometheus::Registry;

use crate::metrics::Families;
use crate::{Config, Router};

pub(super) const BLOCK: u32 = 16;

/// A router and its clock.
pub(super) struct Bench {
    pub(super) router: Router,
    pub(super) registry: Registry,
    pub(super) now: Moment,
    requests: u64,
}

impl Bench {
    pub(super) fn new(backends: Vec<Backend>) -> Self {
        Self::with(Config::default(), backends)
    }

    pub(super) fn with(config: Config, backends: Vec<Backend>) -> Self {
        let registry = Registry::new();
        let families = Families::register(&registry).expect("an empty registry");
        let router = Router::new(config.choosing, families, None);
        router.reconcile(fleet(backends));
        Self { router, registry, now: Moment::from_secs_f64(1000.0), requests: 0 }
    }

    pub(super) fn wait(&mut self, seconds: f64) {
        self.now = self.now + Duration::from_secs_f64(seconds);
    }

    pub(super) fn reconcile(&self, backends: Vec<Backend>) {
        self.router.reconcile(fleet(backends));
    }

    pub(super) fn request(&mut self, prompt: Option<Prompt>) -> Route {
        self.requests += 1;
        Route {
            request: format!("r{}", self.requests).as_str().into(),
            client_request: None,
            attempt: 0,
            tenant: "tenant".into(),
            model: "model".into(),
            prompt,
            max_output_tokens: None,
            stream: true,
            excluded: Vec::new(),
            hold: Duration::ZERO,
            ranked: Vec::new(),
        }
    }

    pub(super) fn try_route(&mut self, prompt: Prompt) -> Result<Decision, Rejected> {
        let route = self.request(Some(prompt));
        self.router.route_at(&route, self.now)
    }

    pub(super) fn route(&mut self, prompt: Prompt) -> Decision {
        self.try_route(prompt).expect("a candidate is there")
    }

    pub(super) fn first_token(&mut self, lease: LeaseId) {
        self.router.report_at(&Report::FirstToken { lease }, self.now);
    }

    pub(super) fn progress(&mut self, lease: LeaseId, generated: u32) {
        self.router.report_at(&Report::Progress { lease, generated }, self.now);
    }

    pub(super) fn finish(&mut self, lease: LeaseId) {
        self.router
            .report_at(&Report::Finished { lease, usage: None, output_keys: Vec::new() }, self.now);
    }

    pub(super) fn finish_with(&mut self, lease: LeaseId, usage: Usage) {
        self.router.report_at(
            &Report::Finished { lease, usage: Some(usage), output_keys: Vec::new() },
            self.now,
        );
    }

    pub(super) fn fail(&mut self, lease: LeaseId, class: FailureClass) {
        self.fail_after(lease, class, None);
    }

    pub(super) fn fail_after(
        &mut self,
        lease: LeaseId,
        class: FailureClass,
        retry_after: Option<Duration>,
    ) {
        self.router.report_at(&Report::Failed { lease, class, retry_after }, self.now);
    }

    pub(super) fn cancel(&mut self, lease: LeaseId) {
        self.router.report_at(&Report::Cancelled { lease }, self.now);
    }

    /// Routes and answers at once: prefill in no time, a few tokens, the end.
    pub(super) fn serve(&mut self, prompt: Prompt) -> Decision {
        let decision = self.route(prompt);
        self.wait(0.02);
        self.first_token(decision.lease);
        self.wait(0.01);
        self.finish(decision.lease);
        decision
    }

    /// The ranks as the admin port shows them.
    pub(super) fn ranks(&self) -> Vec<serde_json::Value> {
        match &self.router.view(self.now)["ranks"] {
            serde_json::Value::Array(ranks) => ranks.clone(),
            other => panic!("not a list: {other}"),
        }
    }

    /// One field of one backend's rank 0.
    pub(super) fn field(&self, backend: &str, field: &str) -> serde_json::Value {
        let ranks = self.ranks();
        let rank = ranks.iter().find(|r| r["backend"] == backend).expect("known backend");
        rank[field].clone()
    }

    pub(super) fn in_flight(&self, backend: &str) -> u64 {
        self.field(backend, "in_flight").as_u64().expect("never below zero")
    }

    pub(super) fn metrics(&self) -> String {
        instrumentation::encode(&self.registry)
    }
}

pub(super) fn fleet(backends: Vec<Backend>) -> Arc<Fleet> {
    Arc::new(Fleet { revision: 1, backends: backends.into_iter().map(Arc::new).collect() })
}

/// A ready vLLM of 600 usable blocks that serves `model`.
pub(super) fn vllm(id: &str) -> Backend {
    Backend {
        id: id.into(),
        incarnation: Incarnation(1),
        url: format!("http://{id}:8000").into(),
        engine: EngineKind::Vllm,
        state: BackendState::Ready,
        models: vec![ServedModel {
            id: "model".into(),
            max_model_len: None,
            listing: "{}".into(),
            parity: None,
            base: None,
        }],
        ranks: vec![RankState {
            rank: 0,
            cache: Some(CacheConfig {
                block_size: BLOCK,
                usable_blocks: 600,
                prefix_caching: true,
            }),
            slots: None,
            load: None,
        }],
        network: Duration::ZERO,
        credential: None,
    }
}

pub(super) fn fleet_of(n: usize) -> Vec<Backend> {
    (0..n).map(|i| vllm(&format!("b{i}"))).collect()
}

pub(super) fn with_load(mut backend: Backend, at: Moment, running: u32, waiting: u32) -> Backend {
    backend.ranks[0].load = Some(LoadSample {
        at,
        running,
        waiting,
        kv_usage: None,
        preemptions: None,
        prefix_cache: None,
        prefills: None,
    });
    backend
}

/// A prompt of `blocks` full blocks of document `doc` and a partial one of its own.
pub(super) fn doc(doc: u64, blocks: u32) -> Prompt {
    let keys: Vec<BlockKey> =
        (0..u64::from(blocks)).map(|i| BlockKey((doc << 32) + i + 1)).collect();
    let tokens = blocks * BLOCK + 5;
    Prompt {
        tokens,
        text_bytes: tokens * 4,
        keys: vec![KeyList { unit: BlockUnit::Tokens(BLOCK), keys: keys.into() }],
    }
}

/// The same as text alone.
pub(super) fn text(doc: u64, blocks: u32) -> Prompt {
    let keys: Vec<BlockKey> =
        (0..u64::from(blocks)).map(|i| BlockKey((doc << 32) + i + 1)).collect();
    let bytes = blocks * 64 + 20;
    Prompt {
        tokens: bytes / 4,
        text_bytes: bytes,
        keys: vec![KeyList { unit: BlockUnit::TEXT, keys: keys.into() }],
    }
}

/// How often each backend occurs.
pub(super) fn shares<'a>(
    decisions: impl IntoIterator<Item = &'a Decision>,
) -> std::collections::BTreeMap<String, usize> {
    let mut shares = std::collections::BTreeMap::new();
    for decision in decisions {
        *shares.entry(decision.chosen.rank.backend.to_string()).or_default() += 1;
    }
    shares
}
