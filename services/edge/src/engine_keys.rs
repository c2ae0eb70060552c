//! The keys that engines ask this gateway for. What a backend asks for is a name; what the name
//! stands for is in this process's own config and goes nowhere but to that engine.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use domain::{BackendId, Fleet};
use http::HeaderValue;
use parking_lot::Mutex;
use prometheus::IntGauge;
use settings::Redacted;

use crate::error::Error;

/// Every key that is configured, by name.
pub(crate) struct EngineKeys {
    by_name: HashMap<String, HeaderValue>,
    /// Backends that ask for a key that is not there, as the log was told last.
    missing: Mutex<BTreeSet<(BackendId, Arc<str>)>>,
    without_key: IntGauge,
}

/// What each backend of a fleet wants in `authorization`; marked sensitive.
pub(crate) type BackendKeys = HashMap<BackendId, HeaderValue>;

impl EngineKeys {
    /// `without_key` counts the backends whose key is not there.
    ///
    /// # Errors
    /// A key that cannot stand in a header.
    pub(crate) fn new(
        by_name: &HashMap<String, Redacted<String>>,
        without_key: IntGauge,
    ) -> Result<Self, Error> {
        let by_name = by_name.iter().map(|(name, key)| {
            let value = bearer(key).ok_or_else(|| Error::Credential(name.clone()))?;
            Ok((name.clone(), value))
        });
        let by_name = by_name.collect::<Result<_, Error>>()?;
        Ok(Self { by_name, missing: Mutex::default(), without_key })
    }

    /// The keys of all backends that ask for one. Each that is not there is logged once.
    pub(crate) fn of(&self, fleet: &Fleet) -> BackendKeys {
        let (mut keys, mut missing) = (BackendKeys::new(), BTreeSet::new());
        for backend in &fleet.backends {
            let Some(name) = &backend.credential else { continue };
            match self.by_name.get(&**name) {
                Some(key) => drop(keys.insert(backend.id.clone(), key.clone())),
                None => drop(missing.insert((backend.id.clone(), name.clone()))),
            }
        }
        self.without_key.set(i64::try_from(missing.len()).unwrap_or(i64::MAX));
        let mut told = self.missing.lock();
        for (backend, name) in missing.difference(&told) {
            tracing::warn!(
                backend.id = %backend, credential = &**name,
                "no [[credentials]] entry of this edge has that name: the engine is asked without \
                 a key, and will refuse",
            );
        }
        *told = missing;
        keys
    }
}

fn bearer(key: &Redacted<String>) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", key.expose())).ok()?;
    value.set_sensitive(true);
    Some(value)
}
