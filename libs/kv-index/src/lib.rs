//! Which backend rank holds which prefix, and what its engine will evict next.
//!
//! A [`KvIndex`] is a path-compressed radix tree over block keys. It is synchronous, has no
//! clock and does no I/O: callers tell it what was sent, started and ended, and ask it who
//! holds the longest prefix of a prompt.
//!
//! ```
//! use domain::BlockKey;
//! use kv_index::{KvIndex, Matches};
//!
//! let mut index = KvIndex::new();
//! let rank = index.add_rank(600);
//! let prompt = [BlockKey(11), BlockKey(12), BlockKey(13)];
//!
//! let mut booking = index.book(rank, &prompt, 1); // three full blocks and a partial one
//! index.start(&mut booking);
//! index.finish(booking, 0);
//!
//! let mut matches = Matches::default();
//! index.match_prefix(&prompt, &mut matches);
//! assert_eq!(index.matched(&matches, rank).map(|m| m.confirmed_blocks), Some(3));
//! ```
//!
//! # The engines that are mirrored
//! Each rank evicts as its engine does ([`Eviction`]).
//!
//! **vLLM's block pool:**
//! - A block is pinned while a started request holds it, holds nothing, or waits in the *free
//!   order* with its content until its room is needed.
//! - Ends decide the order, not starts. At a request's end its blocks go to the back of the
//!   order, the last block first, so that eviction eats prompts from their tails. Blocks
//!   without content are used before anything is evicted.
//! - A block that several requests hold is freed at the last one's end.
//! - A prompt that ends exactly with a block and is resident as a whole has its last block
//!   computed again. That second physical copy takes room of its own; a hit takes the older
//!   copy, and the content is there as long as one copy is.
//! - Blocks without keys (a partial tail, output) take room; cached output stays in the order.
//!   Where its keys are known it is content like a prompt's. Where not, it is remembered what it
//!   follows: the next turn of a conversation finds it ([`Matches::answer_blocks`],
//!   [`Booking::count_on_answer`]); [`AnswerShare`] learns whether turns do.
//! - A start that needs more room than there is pins beyond the capacity, and later ends go to
//!   settle it. The mirror is a prediction and never refuses.
//!
//! **SGLang's radix tree** has the same order, for a match and an insertion touch whole paths. But
//! its nodes go as a whole, an allocation that does not fit evicts as much as it needs, and nothing
//! is kept twice. The tree keeps the boundaries at which such a rank's engine has cut its nodes.
//!
//! **llama.cpp's slots** keep one sequence each; a prompt goes to the idle slot that has the most
//! of it, and saved sequences may come back from the host's memory. Slots share nothing, so their
//! sequences are lists of their own outside the tree, and a match compares a prompt with each.
//!
//! Bookings lie over this as an overlay: from [`KvIndex::book`] on the prompt counts as the
//! rank's in matches, but takes no room until [`KvIndex::start`].
//!
//! # Shape
//! A node is a run of keys (its label) with one holder per rank: how many
//! leading blocks of the label are resident, pins, bookings, and neighbours in the rank's free
//! order. So the order costs an entry per run, not per block, and eviction cuts a run's tail. A
//! table finds an edge by its first key; it counts only below the node that was just matched.
//!
//! # Where what is
//! | file | what |
//! | --- | --- |
//! | `index` | ranks come and go; what is known of them |
//! | `arena`, `tree`, `node`, `structure` | nodes, their labels and holders; cut and joined |
//! | `matches`, `answers` | who holds how much of a prompt, and the answer it goes on with |
//! | `booking`, `rank` | a request from its booking to its end; a rank's room |
//! | `order`, `radix`, `slots` | what goes next: vLLM's free order, SGLang's leaves, llama.cpp's slots |
//! | `outlook`, `foresight`, `room` | what a prompt would evict, and what it will find when it starts |
//! | `asks`, `demand` | how often blocks are asked for; prefixes that are hot |
//! | `feedback` | beliefs held against what engines report: sizes, trust |
//! | `purge`, `sweep` | what an engine turned out not to hold; what is left of ranks that went |
//! | `snapshot` | the whole, to be sent and read again |
//!
//! # Invariants
//! The tests check these after random operations, beside equality with a model that keeps every
//! physical block:
//! 1. A rank that holds or has booked part of a node has the whole of every ancestor. So a
//!    match is contiguous by construction, and a holder's depth is that of its deepest node.
//! 2. A pinned holder has the whole label. A holder is in its rank's free order exactly if it
//!    has blocks and no pins, and its blocks stand there in one run, the last one first.
//! 3. A node boundary stands wherever pins, bookings or the run in the free order of some rank
//!    differ. A parent and its only child are joined only when no rank needs the boundary; how
//!    far a rank's residency reaches is no reason for one.
//! 4. A node without children has a rank for which its whole label counts; otherwise the label
//!    is cut or the node freed.
//! 5. A node with further physical copies has a one-block label. Its holder stands for the
//!    oldest copy; when that is evicted the next takes its part.
//! 6. Pinned and queued blocks together exceed the capacity only if nothing is queued.
//! 7. Output that follows a node is listed under it, and its rank has the whole of that node. The
//!    node keeps its boundary for as long.
//! 8. Of a rank with a radix tree every element of the free order is a whole node of the engine's,
//!    or lies within one that goes on directly behind it.
//! 9. While entries of a removed rank are left, 1 and 4 hold for the other ranks only, matches
//!    skip those entries, nodes are not joined, and the slot is not given away.

mod answers;
mod arena;
mod asks;
mod booking;
mod demand;
pub mod feedback;
mod foresight;
mod index;
mod matches;
mod node;
mod order;
mod outlook;
mod purge;
mod radix;
mod rank;
mod room;
mod slots;
mod snapshot;
mod structure;
mod sweep;
#[cfg(test)]
mod tests;
mod tree;
mod types;

pub use answers::AnswerShare;
pub use asks::{AskClock, Asks};
pub use booking::Booking;
pub use demand::Demand;
pub use index::KvIndex;
pub use matches::Matches;
pub use snapshot::{Booked, Content};
pub use types::{Eviction, IndexStats, Matched, RankStats, Shared, Slot, Started};
