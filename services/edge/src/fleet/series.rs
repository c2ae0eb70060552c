//! The metric series of models: a model has its own as long as a backend lists it, and a while
//! longer, as backends restart. Adapters come and go by name; their series would else add up.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{ModelId, Moment};
use parking_lot::Mutex;

use crate::metrics::{Families, ModelMetrics, OTHER_MODEL};

/// Models that have series of their own at one time. What is more counts as `other`.
pub(super) const MOST: usize = 1024;
/// Series stay for so long after the last backend has stopped to list the model.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(3600);

pub(super) struct ModelSeries {
    families: Families,
    other: Arc<ModelMetrics>,
    known: Mutex<HashMap<ModelId, Series>>,
}

struct Series {
    metrics: Arc<ModelMetrics>,
    /// Since when no backend lists the model.
    gone_since: Option<Moment>,
}

impl ModelSeries {
    pub(super) fn new(families: Families) -> Self {
        let other = ModelMetrics::new(&families, OTHER_MODEL);
        Self { families, other, known: Mutex::default() }
    }

    /// Those of models that no backend lists, and of those there is no room for.
    pub(super) fn other(&self) -> &Arc<ModelMetrics> {
        &self.other
    }

    /// Those of a model that a backend lists.
    pub(super) fn of(&self, model: &ModelId) -> Arc<ModelMetrics> {
        let mut known = self.known.lock();
        if let Some(series) = known.get(model) {
            return Arc::clone(&series.metrics);
        }
        if known.len() >= MOST {
            known.retain(|_, series| series.gone_since.is_none() || series.stays());
        }
        if known.len() >= MOST {
            return Arc::clone(&self.other);
        }
        let metrics = ModelMetrics::new(&self.families, model.as_str());
        let series = Series { metrics: Arc::clone(&metrics), gone_since: None };
        known.insert(model.clone(), series);
        metrics
    }

    /// Removes the series of models that have not been listed for [`KEPT_FOR`].
    pub(super) fn sweep(&self, is_listed: impl Fn(&ModelId) -> bool, now: Moment) {
        self.known.lock().retain(|model, series| {
            if is_listed(model) {
                series.gone_since = None;
                return true;
            }
            let since = *series.gone_since.get_or_insert(now);
            now - since < KEPT_FOR || series.stays()
        });
    }
}

impl Series {
    /// Takes the series off the page, unless somebody may still count in them: a request in
    /// course, or the fleet's view.
    fn stays(&self) -> bool {
        if Arc::strong_count(&self.metrics) > 1 {
            return true;
        }
        self.metrics.remove();
        false
    }
}
