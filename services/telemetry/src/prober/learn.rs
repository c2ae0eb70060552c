//! What a backend is: its models, its engine, its cache and load, its parity, its distance.

use std::sync::LazyLock;

use domain::{BackendState, EngineKind, RankState, ServedModel};
use engine::metrics::{self, Page, Wanted};
use engine::sglang::{self, ServerInfo};
use engine::{RankReading, llama_cpp};

use super::{MAX_LISTING_BYTES, MAX_METRICS_BYTES, MAX_SETTINGS_BYTES, Prober};
use crate::http_client::{Answer, Fault};
use crate::life;
use crate::life::Continuity;
use crate::metrics::LeftOut;
use crate::network::connect_seconds;

/// What is read of a page each second.
static WANTED: LazyLock<Wanted> =
    LazyLock::new(|| Wanted::new(engine::load_metrics().chain(life::metrics())));

/// How much was learned.
pub(super) struct Learned {
    /// The model list is the engine's of now.
    pub(super) listed: bool,
    /// The engine is known to be the process it was.
    pub(super) continues: bool,
}

impl Prober {
    /// Learns everything anew.
    pub(super) async fn learn(&mut self) -> Learned {
        self.last_listing = Some(lifecycle::monotonic());
        self.no_metrics_until = None;
        let listing = self.list().await;
        let listed = listing.is_some();
        let page = self.fetch_metrics().await;
        self.find_engine(page.as_ref(), listing.as_ref());
        self.ask_for_settings().await;
        let continuity = page.map_or(Continuity::Unknown, |answer| {
            let text = String::from_utf8_lossy(&answer.body);
            self.read(|| metrics::parse(&text))
        });
        let ready = self.health.state() == BackendState::Ready;
        if continuity == Continuity::Restarted {
            if ready {
                self.new_life();
            }
            self.restarted |= !ready;
        }
        if !ready || continuity == Continuity::Restarted {
            self.forget_parity();
        }
        self.check_parity().await;
        let limit = self.deps.timing.timeout;
        if let Some(seconds) = connect_seconds(&self.deps.spec, limit).await {
            self.round_trip.observe(seconds);
            self.metrics.network(self.round_trip.get().as_secs_f64());
        }
        Learned { listed, continues: continuity == Continuity::Same }
    }

    /// Reads the load of a ready backend. Returns whether it answered as its engine does; if it
    /// does not, it serves on with the load that is known.
    pub(super) async fn scrape(&mut self) -> bool {
        let now = lifecycle::monotonic();
        if self.no_metrics_until.is_some_and(|until| now < until) {
            return false;
        }
        let Some(answer) = self.fetch_metrics().await else { return false };
        let before = self.last_load;
        let text = String::from_utf8_lossy(&answer.body);
        let mut continuity = self.read(|| metrics::parse_wanted(&text, &WANTED));
        if self.last_load == before && continuity != Continuity::Restarted {
            // Nothing that is wanted is there: read whole, it counts as what is not understood.
            continuity = self.read(|| metrics::parse(&text));
        }
        if continuity == Continuity::Restarted {
            self.new_life();
            self.forget_parity();
            // Another process may serve other models.
            self.last_listing = None;
        }
        self.last_load != before
    }

    async fn list(&mut self) -> Option<Answer> {
        let limit = self.deps.timing.timeout;
        let answer = self.deps.client.get("/v1/models", MAX_LISTING_BYTES, limit).await;
        let answer = match answer.and_then(Answer::success) {
            Ok(answer) => answer,
            Err(fault) => {
                tracing::debug!(backend.id = %self.seen.id, %fault, "no model list");
                self.metrics.listing_failed();
                return None;
            }
        };
        match engine::models::parse(&answer.body) {
            Ok(list) => {
                self.metrics.listed(list.undecoded);
                self.left_out(LeftOut::Models, list.left_out);
                self.take_models(list.models);
            }
            Err(error) => {
                tracing::debug!(backend.id = %self.seen.id, %error, "model list not understood");
                self.metrics.listing_failed();
                return None;
            }
        }
        Some(answer)
    }

    /// Takes over a list; a model that stays keeps its parity.
    fn take_models(&mut self, mut models: Vec<ServedModel>) {
        for model in &mut models {
            let known = self.seen.models.iter().find(|m| m.id == model.id);
            model.parity = known.and_then(|m| m.parity);
        }
        self.seen.models = models;
    }

    async fn fetch_metrics(&mut self) -> Option<Answer> {
        let now = lifecycle::monotonic();
        let timing = self.deps.timing;
        match self.deps.client.get("/metrics", MAX_METRICS_BYTES, timing.timeout).await {
            Ok(answer) if answer.status.is_success() => Some(answer),
            Ok(answer) => {
                if answer.is_missing() {
                    self.no_metrics_until = Some(now + timing.listing_interval);
                }
                self.metrics.scrape_failed(Fault::Status);
                None
            }
            Err(fault) => {
                self.metrics.scrape_failed(fault);
                None
            }
        }
    }

    /// Takes over a page: load, cache, and whether it is the same process that tells them.
    fn read<'a>(&mut self, parse: impl FnOnce() -> Page<'a>) -> Continuity {
        let now = lifecycle::monotonic();
        let page = parse();
        let readings = engine::read(self.seen.engine, &page, now);
        let left_out = engine::left_out(self.seen.engine, &page);
        let continuity = self.life.observe(&page);
        let seconds = lifecycle::monotonic().seconds_since(now);
        self.metrics.scraped(seconds, page.undecoded());
        if readings.is_empty() {
            return continuity;
        }
        self.last_load = Some(now);
        self.left_out(LeftOut::Ranks, left_out);
        self.metrics.load(&readings);
        self.take_readings(&readings);
        continuity
    }

    /// Shows how much of what the engine told is not used, and logs it when that begins.
    fn left_out(&mut self, what: LeftOut, count: u32) {
        if self.metrics.left_out(what, count) {
            tracing::warn!(
                backend.id = %self.seen.id, what = what.as_str(), count,
                "the engine tells of more than is taken: the rest is left out",
            );
        }
    }

    /// Asks an engine whose metrics do not tell its cache for its settings.
    async fn ask_for_settings(&mut self) {
        match self.seen.engine {
            EngineKind::Sglang => self.ask_sglang().await,
            EngineKind::LlamaCpp => self.ask_llama_cpp().await,
            EngineKind::Vllm | EngineKind::Other => {}
        }
    }

    /// How many slots it has.
    async fn ask_llama_cpp(&mut self) {
        let limit = self.deps.timing.timeout;
        let answer = self.deps.client.get(llama_cpp::PROPS_PATH, MAX_SETTINGS_BYTES, limit).await;
        let Ok(answer) = answer.and_then(Answer::success) else { return };
        let told = llama_cpp::slots(&answer.body);
        for rank in &mut self.seen.ranks {
            rank.slots = told.or(rank.slots);
        }
    }

    /// With its metrics switched off its settings alone tell its cache.
    async fn ask_sglang(&mut self) {
        let limit = self.deps.timing.timeout;
        for path in sglang::SERVER_INFO_PATHS {
            let answer = self.deps.client.get(path, MAX_SETTINGS_BYTES, limit).await;
            let Ok(answer) = answer.and_then(Answer::success) else { continue };
            match sglang::server_info(&answer.body) {
                Ok(info) => return self.take_settings(info),
                Err(error) => {
                    tracing::debug!(backend.id = %self.seen.id, %error, "settings not understood");
                }
            }
        }
    }

    fn take_settings(&mut self, info: ServerInfo) {
        if info.reports_cached_tokens == Some(false) && self.settings.is_none() {
            tracing::warn!(
                backend.id = %self.seen.id,
                "SGLang runs without --enable-cache-report: what it finds in its cache is not told",
            );
        }
        self.settings = Some(info);
        // Each reading tells its rank; without metrics there is nothing else that does.
        let told = self.last_load.is_some();
        if !told {
            self.left_out(LeftOut::Ranks, info.left_out.into());
        }
        if !told && self.seen.ranks.len() != usize::from(info.ranks) {
            let rank = |rank| RankState { rank, cache: None, slots: None, load: None };
            self.seen.ranks = (0..info.ranks).map(rank).collect();
        }
        if let Some(cache) = info.cache {
            for rank in &mut self.seen.ranks {
                rank.cache = Some(cache);
            }
        }
    }

    fn take_readings(&mut self, readings: &[RankReading]) {
        let settings = self.settings.and_then(|info| info.cache);
        let before = std::mem::take(&mut self.seen.ranks);
        self.seen.ranks = readings
            .iter()
            .map(|reading| {
                let known = before.iter().find(|r| r.rank == reading.rank);
                RankState {
                    rank: reading.rank,
                    // A page without the sizes does not unsay what another one said.
                    cache: settings.or(reading.cache).or_else(|| known.and_then(|r| r.cache)),
                    slots: known.and_then(|r| r.slots),
                    load: Some(reading.load),
                }
            })
            .collect();
    }

    /// Finds out the engine unless the operator named it. One that was found stays found: a
    /// page may be missing for a moment.
    fn find_engine(&mut self, page: Option<&Answer>, listing: Option<&Answer>) {
        if self.engine.is_none() {
            let text = page.map(|answer| String::from_utf8_lossy(&answer.body));
            let parsed = text.as_deref().map(metrics::parse);
            let server = page.or(listing).and_then(|answer| answer.server.as_deref());
            let listing = listing.map(|answer| &*answer.body);
            let found = engine::detect(parsed.as_ref(), server, listing);
            self.engine = (found != EngineKind::Other).then_some(found);
        }
        self.seen.engine = self.engine.unwrap_or(EngineKind::Other);
    }

    /// An adapter, or another name of a model, has that model's tokenizer.
    fn inherit_parity(&mut self) {
        for at in 0..self.seen.models.len() {
            let model = &self.seen.models[at];
            let Some(base) = model.base.as_ref().filter(|_| !self.deps.parity.knows(&model.id))
            else {
                continue;
            };
            let of_base = self.seen.models.iter().find(|m| m.id == base.model);
            self.seen.models[at].parity = of_base.and_then(|m| m.parity);
        }
    }

    fn forget_parity(&mut self) {
        for model in &mut self.seen.models {
            model.parity = None;
        }
    }

    /// Asks about every model whose check has not passed; one that fails is asked again each
    /// time, so that a repaired engine or folder needs no restart of ours.
    async fn check_parity(&mut self) {
        if matches!(self.seen.engine, EngineKind::Vllm | EngineKind::Sglang) {
            for at in 0..self.seen.models.len() {
                let model = &self.seen.models[at];
                if model.parity == Some(true) || !self.deps.parity.knows(&model.id) {
                    continue;
                }
                let id = model.id.clone();
                let outcome = self.deps.parity.check(&self.deps.client, &id).await;
                // An engine that is too busy to answer has not changed its tokenizer.
                if let Some(passed) = outcome {
                    self.seen.models[at].parity = Some(passed);
                    if !passed {
                        tracing::warn!(
                            backend.id = %self.seen.id, model = %id,
                            "parity check failed: this model is routed by text here",
                        );
                    }
                }
            }
        }
        self.inherit_parity();
        let checked = self.seen.models.iter().filter_map(|m| Some((&m.id, m.parity?)));
        self.metrics.parity(checked);
    }
}
