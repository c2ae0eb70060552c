use domain::Incarnation;
use proptest::prelude::*;

use super::*;

fn rank(number: u64) -> RankId {
    RankId { backend: "b".into(), incarnation: Incarnation(number), rank: 0 }
}

fn keys(first: u64, blocks: usize) -> Vec<BlockKey> {
    (0..blocks as u64).map(|i| BlockKey(first * 1000 + i)).collect()
}

fn choose(own: &mut OwnDecisions, keys: &[BlockKey], loads: &[(u64, u32)]) -> (u64, u32) {
    let ids: Vec<RankId> = loads.iter().map(|(number, _)| rank(*number)).collect();
    let ranks = ids.iter().zip(loads).map(|(rank, load)| FallbackRank { rank, in_flight: load.1 });
    let choice = own.choose(keys, &ranks.collect::<Vec<_>>()).expect("there are ranks");
    (loads[choice.index].0, choice.remembered_blocks)
}

#[test]
fn the_deepest_prefix_that_was_sent_somewhere_wins() {
    let mut own = OwnDecisions::new(100);
    let longer = [keys(1, 2), keys(2, 6)].concat();
    own.remember(&longer, &rank(2));
    own.remember(&keys(1, 3), &rank(1));
    let idle = [(1, 0), (2, 0), (3, 0)];
    assert_eq!(choose(&mut own, &longer, &idle), (2, 8));
    assert_eq!(choose(&mut own, &longer[..7], &idle), (2, 4));
    assert_eq!(choose(&mut own, &keys(1, 9), &idle), (1, 2), "depth 3 is not kept, depth 2 is");
}

#[test]
fn a_warm_rank_that_is_too_busy_gives_way_to_the_next_shallower_and_then_to_load() {
    let mut own = OwnDecisions::new(100);
    own.remember(&keys(1, 4), &rank(2));
    own.remember(&keys(1, 2), &rank(1));
    // Of 12 in flight and the new one, a rank may have ceil(1.25 × 13 / 3) = 6.
    assert_eq!(choose(&mut own, &keys(1, 4), &[(1, 4), (2, 5), (3, 3)]), (2, 4));
    assert_eq!(choose(&mut own, &keys(1, 4), &[(1, 4), (2, 6), (3, 2)]), (1, 2));
    assert_eq!(choose(&mut own, &keys(1, 4), &[(1, 6), (2, 6), (3, 0)]), (3, 0));
}

#[test]
fn a_rank_that_is_not_offered_is_never_chosen() {
    let mut own = OwnDecisions::new(100);
    own.remember(&keys(1, 8), &rank(9));
    assert_eq!(choose(&mut own, &keys(1, 8), &[(1, 5), (2, 4)]), (2, 0));
    assert_eq!(own.choose(&keys(1, 8), &[]), None);
}

#[test]
fn idle_ranks_take_turns() {
    let mut own = OwnDecisions::new(100);
    let mut seen: Vec<u64> =
        (0..6).map(|_| choose(&mut own, &[], &[(1, 0), (2, 0), (3, 0)]).0).collect();
    assert_eq!(seen[..3], seen[3..]);
    seen.truncate(3);
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3]);
}

#[test]
fn one_prefix_in_a_burst_stays_together_up_to_its_share() {
    let mut own = OwnDecisions::new(100);
    let mut loads = [(1, 0), (2, 0), (3, 0), (4, 0)];
    for _ in 0..40 {
        let (chosen, _) = choose(&mut own, &keys(1, 4), &loads);
        own.remember(&keys(1, 4), &rank(chosen));
        loads[chosen as usize - 1].1 += 1;
    }
    let most = loads.iter().map(|(_, load)| *load).max();
    assert!(most <= Some(13), "1.25 × 10 at most: {loads:?}");
}

/// The definition, with everything remembered for ever.
fn naive(
    decisions: &[(Vec<BlockKey>, u64)],
    keys: &[BlockKey],
    loads: &[(u64, u32)],
) -> Option<(u64, u32)> {
    let total: u32 = loads.iter().map(|(_, load)| load).sum();
    let most = (1.25 * f64::from(total + 1) / loads.len() as f64).ceil() as u32;
    let depths = [16, 8, 4, 2, 1].into_iter().filter(|depth| *depth <= keys.len());
    for depth in depths {
        let sent = decisions
            .iter()
            .rev()
            .find(|(sent, _)| sent.len() >= depth && sent[depth - 1] == keys[depth - 1]);
        if let Some((_, number)) = sent
            && loads.iter().any(|(n, load)| n == number && *load < most)
        {
            return Some((*number, depth as u32));
        }
    }
    None
}

proptest! {
    #[test]
    fn choices_agree_with_the_definition(
        decisions in prop::collection::vec((0_u64..4, 1_usize..20, 0_u64..5), 0..30),
        asked in (0_u64..4, 0_usize..20),
        loads in prop::collection::btree_map(0_u64..5, 0_u32..6, 1..5),
    ) {
        let mut own = OwnDecisions::new(1000);
        let decisions: Vec<_> =
            decisions.into_iter().map(|(text, len, number)| (keys(text, len), number)).collect();
        for (keys, number) in &decisions {
            own.remember(keys, &rank(*number));
        }
        let (keys, loads) = (keys(asked.0, asked.1), loads.into_iter().collect::<Vec<_>>());
        let chosen = choose(&mut own, &keys, &loads);
        match naive(&decisions, &keys, &loads) {
            Some(expected) => prop_assert_eq!(chosen, expected),
            None => {
                let least = loads.iter().map(|(_, load)| *load).min();
                let load = loads.iter().find(|(n, _)| *n == chosen.0).map(|(_, load)| *load);
                prop_assert_eq!((load, chosen.1), (least, 0));
            }
        }
    }

    #[test]
    fn memory_is_bounded_and_the_last_decisions_are_kept(
        decisions in prop::collection::vec((any::<u64>(), 1_usize..300), 1..60),
    ) {
        let mut own = OwnDecisions::new(16);
        for (text, len) in &decisions {
            own.remember(&keys(text % 1_000_000, *len), &rank(1));
            prop_assert!(own.len() <= 32);
        }
        let (text, len) = decisions[decisions.len() - 1];
        let chosen = choose(&mut own, &keys(text % 1_000_000, len), &[(1, 0), (2, 0)]);
        prop_assert_eq!(chosen, (1, 1 << len.ilog2()));
    }
}
