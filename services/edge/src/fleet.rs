//! The backends as the edge uses them: per model the block units to make keys in, and its
//! metric handles. One value, replaced whole when the fleet changes.

mod series;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use domain::{Backend, BackendId, BackendState, Base, BlockUnit, Fleet, ModelId, ServedModel};
use http::HeaderValue;
use parking_lot::Mutex;
use tokenization::{KeySpace, ModelFolder};

use self::series::ModelSeries;
use crate::engine_keys::{BackendKeys, EngineKeys, NamedKeys};
use crate::metrics::{Families, ModelMetrics};
use crate::retries::{RetryBudget, RetryBudgets};

/// Tokens that a model has no longer context than, where one of its engines does not tell: the
/// longest that is told of any is ten million.
const LONGEST_CONTEXT: usize = 1 << 24;

/// One model as the ready backends serve it.
pub(crate) struct ModelView {
    pub(crate) id: ModelId,
    /// The model whose cache it shares, where it has none of its own.
    pub(crate) base: Option<Base>,
    /// What renders and tokenises its prompts, where there is a folder.
    pub(crate) folder: Option<Arc<ModelFolder>>,
    /// The token units that its backends' caches are indexed in, each once.
    pub(crate) token_units: Vec<BlockUnit>,
    /// Whether some backend's cache is indexed by text.
    pub(crate) by_text: bool,
    /// Tokens of the longest prompt that some backend takes; of more no keys are needed.
    pub(crate) longest: usize,
    pub(crate) metrics: Arc<ModelMetrics>,
    /// How often requests of its pool may be tried again.
    pub(crate) retries: Arc<RetryBudget>,
    /// The engine's own listing of it, from the first backend that has it.
    pub(crate) listing: Arc<str>,
}

/// All models of one state of the fleet.
pub(crate) struct FleetView {
    models: HashMap<ModelId, Arc<ModelView>>,
    /// In the order of the listing.
    order: Vec<ModelId>,
    keys: BackendKeys,
}

impl ModelView {
    /// The name space of its prompts' keys. Names of one model share their keys, adapters do not.
    pub(crate) fn key_space(&self, region_secret: &[u8], cache_salt: Option<&str>) -> KeySpace {
        let (model, adapter) = match &self.base {
            None => (&self.id, None),
            Some(Base { model, adapter: false }) => (model, None),
            Some(Base { model, adapter: true }) => (model, Some(self.id.as_str())),
        };
        KeySpace::new(region_secret, model, adapter, cache_salt)
    }
}

impl FleetView {
    pub(crate) fn model(&self, name: &str) -> Option<&Arc<ModelView>> {
        self.models.get(name)
    }

    /// What a backend wants in `authorization`.
    pub(crate) fn key(&self, backend: &BackendId) -> Option<HeaderValue> {
        self.keys.get(backend).cloned()
    }

    /// The models of ready backends, each once, in the order of the backends.
    pub(crate) fn models(&self) -> impl Iterator<Item = &Arc<ModelView>> {
        self.order.iter().filter_map(|id| self.models.get(id))
    }
}

/// Keeps the newest [`FleetView`].
pub(crate) struct FleetWatch {
    folders: HashMap<ModelId, Arc<ModelFolder>>,
    /// Held while another view is made.
    keys: Mutex<EngineKeys>,
    series: ModelSeries,
    budgets: RetryBudgets,
    current: ArcSwap<FleetView>,
}

impl FleetWatch {
    pub(crate) fn new(
        fleet: &Fleet,
        folders: HashMap<ModelId, Arc<ModelFolder>>,
        keys: EngineKeys,
        families: Families,
    ) -> Self {
        let empty =
            FleetView { models: HashMap::new(), order: Vec::new(), keys: BackendKeys::new() };
        let watch = Self {
            folders,
            keys: Mutex::new(keys),
            series: ModelSeries::new(families),
            budgets: RetryBudgets::default(),
            current: ArcSwap::from_pointee(empty),
        };
        watch.update(fleet);
        watch
    }

    pub(crate) fn current(&self) -> Arc<FleetView> {
        self.current.load_full()
    }

    /// The retry budget of models that no ready backend serves.
    pub(crate) fn other_retries(&self) -> &Arc<RetryBudget> {
        self.budgets.others()
    }

    /// The series of models that no backend lists.
    pub(crate) fn other(&self) -> &Arc<ModelMetrics> {
        self.series.other()
    }

    /// Takes over a state of the fleet.
    pub(crate) fn update(&self, fleet: &Fleet) {
        self.change(&self.keys.lock(), fleet);
    }

    /// Takes over other keys. `fleet` is the newest state.
    pub(crate) fn rekey(&self, by_name: NamedKeys, fleet: impl FnOnce() -> Arc<Fleet>) {
        let mut keys = self.keys.lock();
        keys.replace(by_name);
        self.change(&keys, &fleet());
    }

    fn change(&self, keys: &EngineKeys, fleet: &Fleet) {
        let bases = fleet.bases();
        let mut models: HashMap<ModelId, ModelView> = HashMap::new();
        let mut order = Vec::new();
        for backend in fleet.backends.iter().filter(|b| b.state == BackendState::Ready) {
            for served in &backend.models {
                let view = models.entry(served.id.clone()).or_insert_with(|| {
                    order.push(served.id.clone());
                    self.view_of(served, bases.get(&served.id).copied())
                });
                add_units(view, backend, served);
            }
        }
        let models = models.into_iter().map(|(id, view)| (id, Arc::new(view))).collect();
        let keys = keys.of(fleet);
        self.current.store(Arc::new(FleetView { models, order, keys }));
        let listed: HashSet<_> =
            fleet.backends.iter().flat_map(|b| &b.models).map(|m| &m.id).collect();
        self.series.sweep(|model| listed.contains(model), lifecycle::monotonic());
    }

    fn view_of(&self, served: &ServedModel, base: Option<&Base>) -> ModelView {
        // Adapters have their model's tokenizer, unless the operator says otherwise.
        let of_base = || self.folders.get(&base?.model);
        ModelView {
            id: served.id.clone(),
            base: base.cloned(),
            folder: self.folders.get(&served.id).or_else(of_base).cloned(),
            token_units: Vec::new(),
            by_text: false,
            longest: 0,
            metrics: self.series.of(&served.id),
            retries: self.budgets.of(base.map_or(&served.id, |base| &base.model)),
            listing: Arc::clone(&served.listing),
        }
    }
}

/// Adds the units of one backend, and how long its prompts may be.
fn add_units(view: &mut ModelView, backend: &Backend, served: &ServedModel) {
    let longest = served.max_model_len.and_then(|tokens| usize::try_from(tokens).ok());
    view.longest = view.longest.max(longest.unwrap_or(LONGEST_CONTEXT));
    for rank in &backend.ranks {
        match backend.token_unit(served, rank) {
            Some(unit) if view.token_units.contains(&unit) => {}
            Some(unit) => view.token_units.push(unit),
            None => view.by_text = true,
        }
    }
}

#[cfg(test)]
mod tests;
