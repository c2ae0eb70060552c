//! What a further copy of a prefix costs.
//!
//! Where several ranks hold a prefix, each request for it renews one of the copies. While there is
//! room that is as it should be. On full caches a copy keeps out something else that is asked for,
//! and the score of a rank does not show it, as the prompt itself evicts nothing. Then the copies
//! stay that a burst or an outage has left behind: requests go to and fro between them, each cache
//! holds a little more than it has room for, and what it lacks is computed again and again.
//!
//! So one rank of those that hold a prefix, its [`keeper`], serves it for nothing. At another one a
//! request pays for the copy if that keeps out what is asked for more often than itself
//! ([`price`]). A prefix that is asked for more than what else there is has copies for nothing, and
//! all of them serve it; so has every prefix on a cache with empty or worthless blocks.

use domain::block::mix;

/// The places of the longest match among these, in blocks; none if nobody holds anything. One
/// round over all, most of which hold nothing.
pub fn holders(matched: impl Iterator<Item = u32>) -> Vec<usize> {
    let (mut holders, mut longest) = (Vec::new(), 1);
    for (place, blocks) in matched.enumerate().filter(|(_, blocks)| *blocks > 0) {
        if blocks > longest {
            longest = blocks;
            holders.clear();
        }
        if blocks == longest {
            holders.push(place);
        }
    }
    holders
}

/// Of the ranks that hold a prefix the one that keeps it, by its number: always the same one of
/// the same ranks, and another share of all prefixes for each of them (rendezvous hashing).
/// `prefix` names the prefix; each rank comes with what names it. `None` if there is none.
pub fn keeper(prefix: u64, ranks: impl Iterator<Item = (usize, u64)>) -> Option<usize> {
    ranks.max_by_key(|(_, name)| mix(prefix ^ mix(*name))).map(|(rank, _)| rank)
}

/// A prefix that several ranks hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Copies {
    /// Its blocks.
    pub blocks: u32,
    /// How often it was asked for lately.
    pub asks: f64,
    /// Ranks that hold it.
    pub holders: u32,
}

/// What one request at a further copy is charged, in blocks by their asks: `kept_out` are the asks
/// of the blocks that would be evicted to make room for the copy now. If that is more than the
/// copy's share of its prefix's requests, its place is worth more to others, and each request for
/// the prefix bears its part of that.
pub fn price(kept_out: f64, copies: Copies) -> f64 {
    let Copies { blocks, asks, holders } = copies;
    let own = f64::from(blocks) * asks / f64::from(holders.max(1));
    if kept_out > own { kept_out / asks.max(1.0) } else { 0.0 }
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
    fn holders_are_those_of_the_longest_match() {
        let of = |matched: &[u32]| holders(matched.iter().copied());
        assert_eq!(of(&[0, 3, 1, 3, 0]), [1, 3]);
        assert_eq!(of(&[1, 1, 2]), [2]);
        assert_eq!(of(&[1, 0, 1]), [0, 2]);
        assert_eq!(of(&[0, 0]), [0; 0]);
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
    fn a_copy_pays_while_it_is_asked_for_less_than_what_it_keeps_out() {
        let of = |asks, holders| Copies { blocks: 10, asks, holders };
        // Ten blocks that are asked for 30 times each.
        assert_eq!(price(300.0, of(30.0, 2)), 10.0);
        assert_eq!(price(300.0, of(50.0, 2)), 6.0);
        assert_eq!(price(300.0, of(60.0, 2)), 0.0);
        assert_eq!(price(300.0, of(60.0, 3)), 5.0);
        assert_eq!(price(0.0, of(3.0, 2)), 0.0);
        assert_eq!(price(300.0, of(0.0, 2)), 300.0);
    }
}
