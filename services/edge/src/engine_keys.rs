//! The keys that engines ask this gateway for. What a backend asks for is a name; what the name
//! stands for is in this process's own config and goes nowhere but to that engine.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use domain::{BackendId, Fleet};
use http::HeaderValue;
use parking_lot::Mutex;
use prometheus::IntGauge;
use settings::{Redacted, SettingsError};

/// Every key that is configured, by name, ready to be sent; marked sensitive.
#[derive(Debug, Default)]
pub(crate) struct NamedKeys(HashMap<String, HeaderValue>);

impl NamedKeys {
    /// # Errors
    /// A key that cannot stand in a header.
    pub(crate) fn new(
        credentials: &HashMap<String, Redacted<String>>,
    ) -> Result<Self, SettingsError> {
        let keys = credentials.iter().map(|(name, key)| {
            let value = bearer(key).ok_or_else(|| {
                let message = "it has characters that cannot be sent in a header";
                SettingsError::new(format!("credentials.{name}"), message)
            })?;
            Ok((name.clone(), value))
        });
        keys.collect::<Result<_, _>>().map(Self)
    }
}

/// The keys of backends.
pub(crate) struct EngineKeys {
    by_name: NamedKeys,
    /// Backends that ask for a key that is not there, as the log was told last.
    missing: Mutex<BTreeSet<(BackendId, Arc<str>)>>,
    without_key: IntGauge,
}

/// What each backend of a fleet wants in `authorization`; marked sensitive.
pub(crate) type BackendKeys = HashMap<BackendId, HeaderValue>;

impl EngineKeys {
    /// `without_key` counts the backends whose key is not there.
    pub(crate) fn new(by_name: NamedKeys, without_key: IntGauge) -> Self {
        Self { by_name, missing: Mutex::default(), without_key }
    }

    /// From now on these are the keys.
    pub(crate) fn replace(&mut self, by_name: NamedKeys) {
        self.by_name = by_name;
    }

    /// The keys of all backends that ask for one. Each that is not there is logged once.
    pub(crate) fn of(&self, fleet: &Fleet) -> BackendKeys {
        let (mut keys, mut missing) = (BackendKeys::new(), BTreeSet::new());
        for backend in &fleet.backends {
            let Some(name) = &backend.credential else { continue };
            match self.by_name.0.get(&**name) {
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
