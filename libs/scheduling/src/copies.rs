//! What a further copy of a prefix costs.
//!
//! Where several ranks hold a prefix, each request for it renews one of the copies. While there is
//! room that is as it should be. On full caches a copy keeps out something else that is asked for,
//! and the score of a rank does not show it, as the prompt itself evicts nothing. Then the copies
//! stay that a burst or an outage has left behind: requests go to and fro between them, each cache
//! holds a little more than it has room for, and what it lacks is computed again and again.
//!
//! So one rank of those that hold a prefix, its [`keeper`], serves it for nothing. The others are
//! charged their share of what the copy keeps out ([`price`]): as much as would be evicted for it
//! now, spread over the requests that the prefix gets. A prefix that is asked for far more than
//! what else there is pays next to nothing and is served by all of them; on a cache with empty or
//! worthless blocks every copy is free.

/// Of the ranks that hold a prefix the one that keeps it, by its number: always the same one of
/// the same ranks, and another share of all prefixes for each of them (rendezvous hashing).
/// `prefix` names the prefix; each rank comes with what names it. `None` if there is none.
pub fn keeper(prefix: u64, ranks: impl Iterator<Item = (usize, u64)>) -> Option<usize> {
    ranks.max_by_key(|(_, name)| spread(prefix ^ spread(*name))).map(|(rank, _)| rank)
}

/// What one request at a further copy is charged: `kept_out` are the asks of the blocks that
/// would be evicted to make room for the copy, `asks` how often its prefix was asked for lately.
pub fn price(kept_out: f64, asks: f64) -> f64 {
    kept_out / asks.max(1.0)
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn spread(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_stays_while_it_is_among_those_that_hold_the_prefix() {
        let all = [(0, 77), (1, 5), (2, 9_000), (3, 12)];
        for prefix in 0..200 {
            let kept = keeper(prefix, all.into_iter());
            let mut turned = all;
            turned.reverse();
            assert_eq!(keeper(prefix, turned.into_iter()), kept);
            for gone in 0..4 {
                let left = all.into_iter().filter(|(rank, _)| *rank != gone);
                let now = keeper(prefix, left);
                assert!(now != Some(gone) && (now == kept || kept == Some(gone)));
            }
        }
        assert_eq!(keeper(1, std::iter::empty()), None);
    }

    #[test]
    fn every_rank_keeps_its_share() {
        let mut kept = [0; 8];
        for prefix in 0..8_000 {
            let of_prefix = keeper(prefix, (0..8).map(|rank| (rank, rank as u64)));
            kept[of_prefix.unwrap_or(0)] += 1;
        }
        assert!(kept.iter().all(|share| (850..1_150).contains(share)), "{kept:?}");
    }

    #[test]
    fn what_is_asked_for_far_more_pays_next_to_nothing() {
        assert_eq!(price(100.0, 0.0), 100.0);
        assert_eq!(price(100.0, 1_000.0), 0.1);
        assert_eq!(price(0.0, 3.0), 0.0);
    }
}
