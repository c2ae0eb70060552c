//! What happens to a pool, in the words in which its owner tells its copies.
//!
//! Changes are effects, not causes: which rank a request was booked on, not why; that a prefill
//! began, not that its time had come; what a report made of a mirror, not the report. So a copy
//! needs neither the owner's clock nor what it has learned, and the same changes in the same
//! order make the same mirrors.
//!
//! - [`wire`]: as messages of `warmpath.replication.v1`

mod wire;

use std::sync::Arc;

use domain::{Backend, BackendId, BlockKey, BlockUnit, KeyList, ModelId, RankId};
use kv_index::{Content, Started};
use replication::{Lease as EdgeLease, LeaseKey, Phase};
use scheduling::Coefficients;

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    /// A backend takes part, or its cache is another.
    Seated { backend: Arc<Backend>, model: ModelId },
    /// A backend takes part no more.
    Unseated { backend: BackendId },
    /// A lease is there.
    Booked(Box<Opening>),
    /// A prefill is taken to have begun.
    Started { lease: LeaseKey },
    /// A request is further.
    Progressed(Progress),
    /// A lease is over; with what it leaves in its rank's cache, if its prefill had begun.
    Closed { lease: LeaseKey, left: Option<Box<Left>> },
    /// The modelled size of a rank's cache, in the index of a unit.
    Capacity { rank: RankId, unit: BlockUnit, blocks: u32 },
    /// In snapshots: an item of a rank's cache.
    Cached { rank: RankId, unit: BlockUnit, content: Content },
    /// How fast a rank is, as learned from so many first tokens.
    Learned { rank: RankId, coefficients: Coefficients, samples: u64 },
}

/// A lease that is there. In snapshots, as far on as it is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Opening {
    pub(crate) lease: LeaseKey,
    /// As its edge knows it.
    pub(crate) edge_lease: EdgeLease,
    /// What it holds of its rank's cache, where that is followed.
    pub(crate) blocks: Option<OpenBlocks>,
    pub(crate) prompt_tokens: u32,
    pub(crate) text_bytes: u32,
    pub(crate) uncached_tokens: u32,
    pub(crate) cached_tokens: u32,
    pub(crate) ttft_seconds: f64,
    /// Tokens that `cached_tokens` may be off by.
    pub(crate) grain: u32,
    pub(crate) stream: bool,
    pub(crate) bytes_per_token: f64,
    pub(crate) first_token: bool,
    pub(crate) generated: u32,
    /// Its edge put it there by itself.
    pub(crate) adopted: bool,
    /// Its rank is gone, or is not here yet: it counts on nobody.
    pub(crate) without_rank: bool,
}

/// What an open request holds of a cache.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenBlocks {
    /// The prompt's full blocks.
    pub(crate) keys: KeyList,
    pub(crate) extra: u32,
    pub(crate) generated: u32,
    pub(crate) counts_on_answer: bool,
    pub(crate) started: Option<Started>,
    pub(crate) holds_copy: bool,
}

/// How far a request is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Progress {
    pub(crate) lease: LeaseKey,
    /// As its edge says: prompt and output.
    pub(crate) blocks: u32,
    pub(crate) phase: Phase,
    pub(crate) first_token: bool,
    pub(crate) generated: u32,
    /// Blocks of output in the rank's cache.
    pub(crate) output_blocks: u32,
}

/// What a request leaves behind.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Left {
    pub(crate) output_blocks: u32,
    /// Blocks beyond the keyed ones that stay cached.
    pub(crate) cached_blocks: u32,
    /// The keys of the first of those.
    pub(crate) answer_keys: Vec<BlockKey>,
    /// The engine had only so many leading blocks of the prompt.
    pub(crate) keep_blocks: Option<u32>,
    /// The engine's cache is taken to be empty.
    pub(crate) emptied: bool,
    /// The modelled size of the rank's cache, if it changed.
    pub(crate) capacity: Option<u32>,
}

impl Change {
    /// Bytes that it takes, about.
    pub(crate) fn weight(&self) -> usize {
        let keys = match self {
            Change::Booked(opening) => opening.blocks.as_ref().map_or(0, |b| b.keys.keys.len()),
            Change::Closed { left: Some(left), .. } => left.answer_keys.len(),
            Change::Cached { content, .. } => match content {
                Content::Prefix { keys, .. } | Content::Copy { keys } => keys.len(),
                Content::Output { after, .. } => after.len(),
            },
            Change::Seated { .. } => 64,
            _ => 0,
        };
        128 + 8 * keys
    }
}

/// The changes of this process that are to be told; nothing is noted where nobody listens.
#[derive(Debug, Default)]
pub(crate) struct ChangeLog(Option<Vec<Arc<Change>>>);

impl ChangeLog {
    /// From now on changes are noted, or not.
    pub(crate) fn listen(&mut self, listens: bool) {
        self.0 = listens.then(Vec::new);
    }

    /// Notes a change that was made.
    pub(crate) fn record(&mut self, change: impl FnOnce() -> Change) {
        if let Some(noted) = &mut self.0 {
            noted.push(Arc::new(change()));
        }
    }

    /// What was noted since the last call.
    pub(crate) fn take(&mut self) -> Vec<Arc<Change>> {
        self.0.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
