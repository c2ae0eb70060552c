//! What makes sense in a workload. Limits are far above any use; they keep numbers from
//! overflowing, and a slip of the hand from filling the memory.

use crate::error::Rule;

/// Documents, customers, sessions, or turns.
const MAX_COUNT: usize = 100_000;
/// Requests of one run.
const MAX_REQUESTS: f64 = 1e7;
/// Blocks that all prompts of a workload have, each counted once.
const MAX_BLOCKS: u64 = 100_000_000;
/// Tokens of a prompt, and of an answer.
const MAX_TOKENS: u64 = 1 << 30;
/// Tokens of a block.
const MAX_BLOCK_TOKENS: u32 = 65_536;
/// Seconds, milliseconds and rates.
const MAX_NUMBER: f64 = 1e6;

pub(crate) fn count(field: &'static str, value: usize) -> Rule {
    ((1..=MAX_COUNT).contains(&value), field, "1 to 100,000")
}

pub(crate) fn requests(field: &'static str, expected: f64) -> Rule {
    let fits = (1.0..=MAX_REQUESTS).contains(&expected);
    (fits, field, "for 1 to 10,000,000 requests in all")
}

/// `values` are multiplied.
pub(crate) fn blocks(field: &'static str, values: [u64; 2]) -> Rule {
    let all = values[0].checked_mul(values[1]);
    let fits = all.is_some_and(|all| (1..=MAX_BLOCKS).contains(&all));
    (fits, field, "for 1 to 100,000,000 different blocks in all")
}

pub(crate) fn tokens(field: &'static str, value: u64) -> Rule {
    ((1..=MAX_TOKENS).contains(&value), field, "for 1 to 2^30 tokens")
}

pub(crate) fn block_tokens(value: u32) -> Rule {
    ((1..=MAX_BLOCK_TOKENS).contains(&value), "block_tokens", "1 to 65,536")
}

/// A time that may be none.
pub(crate) fn time(field: &'static str, value: f64) -> Rule {
    ((0.0..=MAX_NUMBER).contains(&value), field, "0 to 1,000,000")
}

pub(crate) fn positive(field: &'static str, value: f64) -> Rule {
    (value > 0.0 && value <= MAX_NUMBER, field, "above 0, and at most 1,000,000")
}
