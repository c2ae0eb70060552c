//! Which backend keeps which response: engines keep responses where they were made, and a request
//! that names one has to go there.
//!
//! What passes through this edge is remembered, as much as fits. For an id that is not, the
//! backends are asked (`lookup`).

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use bytes::Bytes;
use domain::BackendId;
use openai_api::{MAX_RESPONSE_ID_BYTES, response_id};
use parking_lot::Mutex;

/// Responses remembered: in tables that double some 8 MiB.
const MOST: usize = 65_536;

/// The owners of the newest responses.
///
/// An id is known by a hash of 64 bits whose seed is drawn at start. Two equal ones, one pair in
/// billions of full tables, would send a request to a backend that says it has no such response.
#[derive(Default)]
pub(crate) struct Owners {
    seed: RandomState,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    by_id: HashMap<u64, BackendId>,
    /// The oldest first.
    order: VecDeque<u64>,
}

/// Where an answer comes from.
pub(crate) struct Origin {
    owners: Arc<Owners>,
    backend: BackendId,
}

impl Owners {
    /// The backend that keeps a response, as far as is known.
    pub(crate) fn of(&self, id: &str) -> Option<BackendId> {
        let id = self.seed.hash_one(id);
        self.known.lock().by_id.get(&id).cloned()
    }

    /// Remembers a response that a backend has shown that it keeps.
    pub(crate) fn learn(&self, id: &str, backend: &BackendId) {
        if id.len() > MAX_RESPONSE_ID_BYTES {
            return;
        }
        let id = self.seed.hash_one(id);
        let mut known = self.known.lock();
        if let Some(owner) = known.by_id.get_mut(&id) {
            *owner = backend.clone();
            return;
        }
        if known.order.len() >= MOST
            && let Some(oldest) = known.order.pop_front()
        {
            known.by_id.remove(&oldest);
        }
        known.order.push_back(id);
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
        let known = owners.known.lock();
        assert_eq!((known.by_id.len(), known.order.len()), (MOST, MOST));
    }

    #[test]
    fn an_id_that_is_longer_than_ids_are_is_not_remembered() {
        let owners = Owners::default();
        let ids = [MAX_RESPONSE_ID_BYTES, MAX_RESPONSE_ID_BYTES + 1].map(|n| "x".repeat(n));
        for id in &ids {
            owners.learn(id, &"a".into());
        }
        assert_eq!(ids.map(|id| owners.of(&id).is_some()), [true, false]);
    }
}
