//! A backend as it was last seen, for people and scripts.

use domain::{Backend, Moment, RankState};
use serde::Serialize;
use utoipa::ToSchema;

/// What was seen of a backend last.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Observed {
    /// `joining`, `ready`, `down`, `draining`, `maintenance`.
    state: &'static str,
    /// Which life of it: grows when the engine restarts.
    incarnation: u64,
    /// The software behind it.
    engine: &'static str,
    /// The names that it serves.
    models: Vec<String>,
    /// Round trip of the probe, in seconds.
    network_seconds: f64,
    /// Its data-parallel ranks.
    ranks: Vec<Rank>,
}

/// One rank of a backend.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Rank {
    /// Its number.
    rank: u16,
    /// Requests in the engine's batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    running: Option<u32>,
    /// Requests that the engine has accepted and not begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<u32>,
    /// Share of the cache that live requests hold, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_usage: Option<f64>,
    /// Tokens in one of the engine's blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    block_size: Option<u32>,
    /// Blocks of its cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<u32>,
    /// Age of the load figures, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    load_age_seconds: Option<f64>,
}

impl Observed {
    pub(super) fn of(backend: &Backend, now: Moment) -> Self {
        Self {
            state: backend.state.as_str(),
            incarnation: backend.incarnation.0,
            engine: backend.engine.as_str(),
            models: backend.models.iter().map(|model| model.id.to_string()).collect(),
            network_seconds: backend.network.as_secs_f64(),
            ranks: backend.ranks.iter().map(|rank| Rank::of(rank, now)).collect(),
        }
    }
}

impl Rank {
    fn of(rank: &RankState, now: Moment) -> Self {
        let (load, cache) = (rank.load.as_ref(), rank.cache.as_ref());
        Self {
            rank: rank.rank,
            running: load.map(|load| load.running),
            waiting: load.map(|load| load.waiting),
            kv_usage: load.and_then(|load| load.kv_usage).filter(|usage| usage.is_finite()),
            block_size: cache.map(|cache| cache.block_size),
            blocks: cache.map(|cache| cache.usable_blocks),
            load_age_seconds: load.map(|load| now.seconds_since(load.at)),
        }
    }
}
