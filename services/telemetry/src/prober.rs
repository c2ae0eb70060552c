//! The one task that watches one backend.
//!
//! A round comes once per metrics interval. A ready backend has its metrics read, and is probed
//! where they do not answer, or from time to time although they do: the process that serves
//! metrics may have lost its engine. A backend that is not ready is only probed; when that
//! succeeds, everything about it is learned (models, cache, engine, parity, round trip) before it
//! is shown as ready.

mod learn;

use std::sync::Arc;
use std::time::Duration;

use domain::desired::LifecycleWish;
use domain::{Backend, BackendState, EngineKind, Incarnation, Moment};
use engine::sglang::ServerInfo;
use lifecycle::Drain;
use tokio::time::MissedTickBehavior;

use crate::config::{BackendConfig, Timing};
use crate::health::{Health, Verdict};
use crate::http_client::{Answer, EngineClient, Fault};
use crate::life::Life;
use crate::metrics::BackendMetrics;
use crate::network::RoundTrip;
use crate::parity::Parity;
use crate::publish::{Publisher, SeatNumber};
use learn::Learned;

/// Bytes of a health answer that are read; they are empty or a word.
const MAX_HEALTH_BYTES: usize = 64 << 10;

/// Bytes of a model list that are read.
const MAX_LISTING_BYTES: usize = 1 << 20;

/// Bytes of a metrics page that are read. vLLM's has some 60 KB per rank.
const MAX_METRICS_BYTES: usize = 4 << 20;

/// Bytes of an engine's settings that are read. SGLang's hold all its arguments.
const MAX_SETTINGS_BYTES: usize = 1 << 20;

/// Every so many probe intervals a health probe is sent although metrics answer.
const HEALTH_EVERY: u32 = 5;

/// What a prober needs.
#[derive(Clone)]
pub(crate) struct ProberDeps {
    pub(crate) spec: Arc<BackendConfig>,
    /// Under which it publishes.
    pub(crate) seat: SeatNumber,
    /// The revision since which the registry has it.
    pub(crate) created: u64,
    pub(crate) timing: Timing,
    pub(crate) client: EngineClient,
    pub(crate) parity: Parity,
    pub(crate) publisher: Arc<Publisher>,
}

/// The watch over one backend.
pub(crate) struct Prober {
    deps: ProberDeps,
    metrics: BackendMetrics,
    health: Health,
    life: Life,
    round_trip: RoundTrip,
    /// What is published of it.
    seen: Backend,
    /// The engine, as far as it is known.
    engine: Option<EngineKind>,
    /// What an SGLang said of its settings.
    settings: Option<ServerInfo>,
    /// Whether it has been ready before: coming back may then be a new life.
    served: bool,
    /// Whether it was seen to have restarted while it was not ready.
    restarted: bool,
    last_probe: Option<Moment>,
    last_listing: Option<Moment>,
    last_load: Option<Moment>,
    /// Not asked for metrics before then, as it has none.
    no_metrics_until: Option<Moment>,
    /// Probe intervals that a metrics page stood in for a health probe.
    spared: u32,
}

/// A backend of which nothing is known yet.
pub(crate) fn unknown(spec: &BackendConfig, incarnation: Incarnation) -> Backend {
    Backend {
        id: spec.id.clone(),
        incarnation,
        url: spec.url.clone(),
        engine: spec.engine.unwrap_or(EngineKind::Other),
        state: BackendState::Joining,
        models: Vec::new(),
        ranks: vec![domain::RankState { rank: 0, cache: None, slots: None, load: None }],
        network: Duration::ZERO,
        credential: spec.credential.clone(),
    }
}

impl Prober {
    /// Takes up the watch from what was published last.
    pub(crate) fn new(deps: ProberDeps, metrics: BackendMetrics) -> Self {
        let last = deps.publisher.last(&deps.spec.id);
        let first = || unknown(&deps.spec, Incarnation(deps.created + 1));
        let seen = last.map_or_else(first, |last| (*last).clone());
        Self {
            health: Health::new(seen.state),
            engine: deps.spec.engine,
            settings: None,
            served: seen.state != BackendState::Joining,
            restarted: false,
            deps,
            metrics,
            life: Life::default(),
            round_trip: RoundTrip::default(),
            seen,
            last_probe: None,
            last_listing: None,
            last_load: None,
            no_metrics_until: None,
            spared: 0,
        }
    }

    /// Watches until the drain; the first round comes after `phase`.
    pub(crate) async fn run(mut self, phase: Duration, drain: Drain) {
        tokio::select! {
            () = drain.signaled() => return,
            () = tokio::time::sleep(phase) => {}
        }
        let mut rounds = tokio::time::interval(self.deps.timing.metrics_interval);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = drain.signaled() => return,
                () = async {
                    rounds.tick().await;
                    self.round().await;
                } => {}
            }
        }
    }

    async fn round(&mut self) {
        let now = lifecycle::monotonic();
        let alive = self.is_sound() && self.scrape().await;
        if alive {
            self.health.succeeded();
        }
        if is_due(self.last_probe, self.deps.timing.probe_interval, now) {
            self.last_probe = Some(now);
            self.spared += 1;
            if !alive || self.spared >= HEALTH_EVERY {
                self.spared = 0;
                self.probe().await;
            }
        }
        if self.is_sound() && is_due(self.last_listing, self.deps.timing.listing_interval, now) {
            self.learn().await;
        }
        if let Some(read) = self.last_load {
            self.metrics.metrics_age(lifecycle::monotonic().seconds_since(read));
        }
        self.publish();
    }

    /// Whether it is worth asking for more than a sign of life. One that may be gone is probed
    /// and nothing else: every further question would wait for its time limit.
    fn is_sound(&self) -> bool {
        self.health.state() == BackendState::Ready && !self.health.doubtful()
    }

    /// `GET /health`, or the model list where the engine has no such route.
    async fn probe(&mut self) {
        let limit = self.deps.timing.timeout;
        let client = &self.deps.client;
        let mut answer = client.get("/health", MAX_HEALTH_BYTES, limit).await;
        if answer.as_ref().is_ok_and(Answer::is_missing) {
            answer = client.get("/v1/models", MAX_LISTING_BYTES, limit).await;
        }
        match answer.and_then(Answer::success) {
            Ok(_) => {
                if self.health.succeeded() == Verdict::Ripe {
                    self.join().await;
                }
            }
            Err(fault) => self.probe_failed(fault),
        }
    }

    fn probe_failed(&mut self, fault: Fault) {
        self.metrics.probe_failed(fault);
        let what = match self.health.failed() {
            Verdict::WentDown => "backend is down",
            Verdict::Unheard => "backend has not answered a probe yet; it is asked on",
            Verdict::Unchanged | Verdict::Ripe => return,
        };
        match self.deps.publisher.wished(&self.seen.id) {
            Some(LifecycleWish::Ready) => {
                tracing::warn!(backend.id = %self.seen.id, %fault, "{what}");
            }
            // It is out of service because somebody works on it.
            _ => tracing::info!(backend.id = %self.seen.id, %fault, "{what}"),
        }
    }

    /// It answers: learns what it is before it is shown as ready. One that lists no model now
    /// cannot be sent anything and is asked again at the next probe.
    async fn join(&mut self) {
        let Learned { listed, continues } = self.learn().await;
        if !listed || self.seen.models.is_empty() {
            return;
        }
        // A backend that was gone and gives no sign of being what it was is taken for a new one:
        // to forget what is warm costs less than to believe in what is not there.
        if !self.served {
            self.seen.incarnation = self.seen.incarnation.max(self.told_incarnation());
        } else if self.restarted || !continues {
            self.new_life();
        }
        self.restarted = false;
        self.health.promote();
        self.served = true;
        tracing::info!(
            backend.id = %self.seen.id, engine = self.seen.engine.as_str(),
            models = self.seen.models.len(), ranks = self.seen.ranks.len(),
            incarnation = self.seen.incarnation.0, "backend is ready",
        );
    }

    /// The engine restarted: nothing that is believed of its cache holds.
    fn new_life(&mut self) {
        let next = Incarnation(self.seen.incarnation.0 + 1);
        self.seen.incarnation = next.max(self.told_incarnation());
        self.metrics.restarted();
        tracing::warn!(
            backend.id = %self.seen.id, incarnation = self.seen.incarnation.0,
            "backend has restarted, its cache is empty",
        );
    }

    /// The incarnation by what the engine and the registry tell: the start of its process, and
    /// since when it is known. Each only grows, so an engine that restarts or is added again has
    /// a higher one; and after a restart of telemetry, whose own count is lost, an engine that
    /// went on has the one it had, with all that others believe of its cache.
    fn told_incarnation(&self) -> Incarnation {
        Incarnation(1 + self.deps.created + self.life.start_millis().unwrap_or(0))
    }

    fn publish(&mut self) {
        self.seen.state = self.health.state();
        self.seen.network = self.round_trip.get();
        self.deps.publisher.update(self.deps.seat, self.seen.clone());
    }
}

/// Whether `interval` has passed. A round that comes a little early must not be left out, or
/// every second one would be.
fn is_due(last: Option<Moment>, interval: Duration, now: Moment) -> bool {
    last.is_none_or(|last| now - last + interval / 10 >= interval)
}
