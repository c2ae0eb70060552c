//! Which backend keeps which response: engines keep responses where they were made, and a request
//! that names one has to go there.
//!
//! What passes through this edge is remembered, as much as fits. For an id that is not, the
//! backends are asked (`lookup`).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use domain::BackendId;
use openai_api::{MAX_RESPONSE_ID_BYTES, response_id};
use parking_lot::Mutex;

/// Responses remembered: with the longest ids some 24 MiB.
const MOST: usize = 65_536;

/// The owners of the newest responses.
#[derive(Default)]
pub(crate) struct Owners(Mutex<Known>);

#[derive(Default)]
struct Known {
    by_id: HashMap<Arc<str>, BackendId>,
    /// The oldest first.
    order: VecDeque<Arc<str>>,
}

/// Where an answer comes from.
pub(crate) struct Origin {
    owners: Arc<Owners>,
    backend: BackendId,
}

impl Owners {
    /// The backend that keeps a response, as far as is known.
    pub(crate) fn of(&self, id: &str) -> Option<BackendId> {
        self.0.lock().by_id.get(id).cloned()
    }

    /// Remembers a response that a backend has shown that it keeps.
    pub(crate) fn learn(&self, id: &str, backend: &BackendId) {
        if id.len() > MAX_RESPONSE_ID_BYTES {
            return;
        }
        let mut known = self.0.lock();
        if let Some(owner) = known.by_id.get_mut(id) {
            *owner = backend.clone();
            return;
        }
        if known.order.len() >= MOST
            && let Some(oldest) = known.order.pop_front()
        {
            known.by_id.remove(&oldest);
        }
        let id: Arc<str> = id.into();
        known.order.push_back(Arc::clone(&id));
        known.by_id.insert(id, backend.clone());
    }
}

impl Origin {
    pub(crate) fn new(owners: Arc<Owners>, backend: BackendId) -> Self {
        Self { owners, backend }
    }

    /// Takes note of a whole answer.
    pub(crate) fn learn(&self, body: &Bytes) {
        if let Some(id) = response_id(body) {
            self.learn_id(id);
        }
    }

    pub(crate) fn learn_id(&self, id: &str) {
        self.owners.learn(id, &self.backend);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_responses_are_forgotten_first() {
        let owners = Owners::default();
        for i in 0..=MOST {
            owners.learn(&format!("resp_{i}"), &"a".into());
        }
        owners.learn("resp_5", &"b".into());
        assert_eq!(owners.of("resp_0"), None);
        assert_eq!(owners.of("resp_1"), Some("a".into()));
        assert_eq!(owners.of("resp_5"), Some("b".into()));
        let known = owners.0.lock();
        assert_eq!((known.by_id.len(), known.order.len()), (MOST, MOST));
    }

    #[test]
    fn an_id_that_is_longer_than_ids_are_is_not_remembered() {
        let owners = Owners::default();
        for length in [MAX_RESPONSE_ID_BYTES, MAX_RESPONSE_ID_BYTES + 1] {
            owners.learn(&"x".repeat(length), &"a".into());
        }
        let known = owners.0.lock();
        let lengths: Vec<_> = known.order.iter().map(|id| id.len()).collect();
        assert_eq!((lengths.as_slice(), known.by_id.len()), (&[MAX_RESPONSE_ID_BYTES][..], 1));
    }
}
