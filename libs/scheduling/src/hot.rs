//! Hot prefixes: when a prefix gets one more holder.
//!
//! The score of a rank knows what stands before it now. A prefix that a large part of all requests
//! begin with keeps its first holder just short of a queue, and then in one: requests wait for a
//! place among the running ones, or for room, long before there is much to compute. So a prefix
//! is hot when it alone brings each rank that holds it far more requests than a rank gets on
//! average, or a large part of all ([`least_load`]). What its holders have of it then counts for
//! none of them: they are charged its prefill as if they had to compute it, and a rank that does
//! not hold it wins if it has so much less to do. That rank is its next holder, and until its
//! prefill begins there is no other. When the rate falls nothing is undone: a copy that nobody
//! asks for is evicted like all else.
//!
//! The charge only ever raises the score of a rank that holds the whole hot prefix. Others keep
//! theirs, so a lower bound of the score that is right for ranks without a match stays right.

/// Requests for one prefix at each of its holders that are too many, over those that a rank of the
/// pool gets on average in all. In simulation copies beyond that do more harm by what they, and
/// the answers behind them, take of caches than they help.
const LOAD: f64 = 2.0;

/// In a small pool a rank cannot get much more than the average. There a holder has too much of it
/// with this share of all the pool's requests. On three ranks 0.22 to 0.29 do about as well.
const SHARE: f64 = 0.25;

/// The load of its holders above which a prefix is hot, in a pool of so many ranks, over what a
/// rank gets on average in all. Between 0 and 2.
pub fn least_load(ranks: usize) -> f64 {
    LOAD.min(SHARE * ranks as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_part_of_all_requests_is_enough_in_a_small_pool() {
        assert_eq!([1, 2, 3, 8, 1_000].map(least_load), [0.25, 0.5, 0.75, 2.0, 2.0]);
    }
}
