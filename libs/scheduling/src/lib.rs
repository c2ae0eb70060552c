//! Which rank should take a request: estimators per rank, and a pure choice between them.
//!
//! ```text
//! score = network + queue delay + prefill(uncached, cached) + eviction cost + delay to others
//!         + charge for a hot prefix                                            [s, lower wins]
//! ```
//!
//! - [`PrefillFit`] learns how long a rank's prefill takes.
//! - [`LoadBook`] knows how many seconds of prefill stand before a rank.
//! - [`hot`] says when a prefix should have one more holder, [`copies`] what a further one costs.
//! - [`select()`] ranks candidates from a snapshot of both. It has no side effects: booking the
//!   winner is the caller's second, explicit step.
//!
//! Nothing here reads a clock: every `now` is an argument, so that a service and a simulation
//! in virtual time run the same code.

pub mod copies;
pub mod fit;
mod forecast;
pub mod hot;
pub mod load;
pub mod select;

pub use fit::{Coefficients, PrefillFit, Shape};
pub use forecast::forecast;
pub use load::{Arrivals, Due, Fading, LoadBook, LoadSnapshot, Prompt, Sample, Work};
pub use select::{
    CandidateView, Config, Field, Line, Policy, RANKED_LIMIT, SATURATED_SECONDS, Scored, Selection,
    Terms, UnknownPolicy, arrivals_per_rank, score, select, select_sparing,
};
