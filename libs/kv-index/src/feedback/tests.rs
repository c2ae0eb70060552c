//! Mirrors of engines that are not what they say. The engine is an index of its own with another
//! capacity.

use domain::BlockKey;
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::Matches;

const TOLD: u32 = 1_000;
const DOCUMENT_BLOCKS: u64 = 20;
const OUTPUT_BLOCKS: u32 = 3;

/// One request after the other to engines of `actual` blocks that are believed to have `TOLD`.
struct Bench {
    index: KvIndex,
    feedback: Feedback,
    slots: Vec<Slot>,
    engines: Vec<(KvIndex, Slot)>,
    rng: SmallRng,
}

impl Bench {
    fn new(actual: &[u32], is_assumed: bool, seed: u64) -> Self {
        let (mut index, mut feedback) = (KvIndex::new(), Feedback::default());
        let add = |_: &u32| {
            let slot = index.add_rank(TOLD);
            let told = ToldCapacity { blocks: TOLD, is_assumed, group: 1 };
            assert_eq!(feedback.set_told_capacity(slot, told), TOLD);
            slot
        };
        let slots = actual.iter().map(add).collect();
        let engine = |blocks: &u32| {
            let mut engine = KvIndex::new();
            let slot = engine.add_rank(*blocks);
            (engine, slot)
        };
        let engines = actual.iter().map(engine).collect();
        Self { index, feedback, slots, engines, rng: SmallRng::seed_from_u64(seed) }
    }

    /// A prompt about a document goes to a rank; `report` makes of what the engine found what it
    /// says. Returns the blocks believed and found, and what was corrected.
    fn serve(
        &mut self,
        rank: usize,
        document: u64,
        report: impl FnOnce(u32) -> Heard,
    ) -> (u32, u32, Correction) {
        let keys: Vec<BlockKey> =
            (0..DOCUMENT_BLOCKS).map(|at| BlockKey(document << 32 | at)).collect();
        let (engine, slot) = &mut self.engines[rank];
        let mut running = engine.book(*slot, &keys, 1);
        let found = engine.start(&mut running).cached_blocks;
        engine.grow(&mut running, OUTPUT_BLOCKS);
        engine.finish(running, OUTPUT_BLOCKS);
        let slot = self.slots[rank];
        let mut sample = self.feedback.sample(slot, &keys);
        let mut booking = self.index.book(slot, &keys, 1);
        self.feedback.start(&mut self.index, &mut booking, &mut sample);
        let believed = sample.believed.unwrap_or(0);
        self.index.grow(&mut booking, OUTPUT_BLOCKS);
        let heard = report(found);
        let ended = Ended { output_cached_blocks: OUTPUT_BLOCKS, answer_keys: &[], heard };
        let done = self.feedback.finish(&mut self.index, booking, sample, ended);
        (believed, found, done)
    }

    /// A document, the low numbers far more often than the high ones.
    fn document(&mut self, documents: u64) -> u64 {
        let uniform: f64 = self.rng.random();
        (uniform * uniform * documents as f64) as u64
    }

    fn capacity(&self, rank: usize) -> u32 {
        self.index.rank_stats(self.slots[rank]).map_or(0, |stats| stats.capacity)
    }

    /// Serves so many requests on the ranks in turn. Returns the smallest and the largest capacity
    /// that rank 0 was modelled with.
    fn run(&mut self, requests: usize, documents: u64) -> (u32, u32) {
        let mut range = (u32::MAX, 0);
        for at in 0..requests {
            let document = self.document(documents);
            self.serve(at % self.slots.len(), document, told);
            let capacity = self.capacity(0);
            range = (range.0.min(capacity), range.1.max(capacity));
        }
        range
    }

    /// Mean blocks believed and found, of so many requests.
    fn means(&mut self, requests: usize, documents: u64) -> (f64, f64) {
        let (mut believed, mut found) = (0, 0);
        for at in 0..requests {
            let document = self.document(documents);
            let (a, b, _) = self.serve(at % self.slots.len(), document, told);
            (believed, found) = (believed + a, found + b);
        }
        (f64::from(believed) / requests as f64, f64::from(found) / requests as f64)
    }
}

fn told(blocks: u32) -> Heard {
    Heard::Found { blocks, slack: 1 }
}

fn off_by(capacity: u32, actual: u32) -> f64 {
    (f64::from(capacity) / f64::from(actual) - 1.0).abs()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_wrong_capacity_is_found_and_kept(actual in 400..2_500_u32, seed in any::<u64>()) {
        let mut bench = Bench::new(&[actual], false, seed);
        bench.run(600, 200);
        prop_assert!(off_by(bench.capacity(0), actual) < 0.2, "{}", bench.capacity(0));
        let (least, most) = bench.run(1_500, 200);
        prop_assert!(off_by(least, actual) < 0.2 && off_by(most, actual) < 0.2, "{least} {most}");
        let (believed, found) = bench.means(500, 200);
        prop_assert!((believed - found).abs() < 0.04 * DOCUMENT_BLOCKS as f64);
    }

    #[test]
    fn a_right_capacity_is_never_touched(seed in any::<u64>()) {
        let mut bench = Bench::new(&[TOLD], false, seed);
        prop_assert_eq!(bench.run(2_000, 200), (TOLD, TOLD));
    }
}

#[test]
fn an_engine_that_preempts_shows_nothing_of_its_size() {
    let mut bench = Bench::new(&[2 * TOLD], false, 5);
    let slot = bench.slots[0];
    for total in 1..600 {
        bench.feedback.preempted(slot, total);
        bench.run(1, 200);
    }
    assert_eq!(bench.capacity(0), TOLD);
    for _ in 0..600 {
        bench.feedback.preempted(slot, 599);
        bench.run(1, 200);
    }
    assert!(off_by(bench.capacity(0), 2 * TOLD) < 0.2, "{}", bench.capacity(0));
}

#[test]
fn an_engine_that_preempts_has_the_size_that_others_of_its_kind_show() {
    let mut bench = Bench::new(&[2 * TOLD, 2 * TOLD], false, 5);
    let slot = bench.slots[0];
    for total in 1..600 {
        bench.feedback.preempted(slot, total);
        bench.run(2, 200);
    }
    assert!(off_by(bench.capacity(0), 2 * TOLD) < 0.2, "{}", bench.capacity(0));
}

#[test]
fn an_assumed_capacity_may_be_far_off() {
    for actual in [150, 8_000] {
        let documents = u64::from(actual) / 5;
        let mut bench = Bench::new(&[actual], true, 7);
        bench.run(4_000, documents);
        assert!(off_by(bench.capacity(0), actual) < 0.25, "{actual}: {}", bench.capacity(0));
    }
    let mut told = Bench::new(&[150], false, 7);
    told.run(4_000, 30);
    assert!(told.capacity(0) >= TOLD / 4, "what an engine tells is off by four times at most");
}

#[test]
fn ranks_that_were_told_the_same_learn_together() {
    let mut alone = Bench::new(&[500; 1], false, 3);
    let mut together = Bench::new(&[500; 8], false, 3);
    alone.run(40, 200);
    together.run(320, 200);
    assert!(off_by(alone.capacity(0), 500) > 0.2, "40 requests are too few for one");
    for rank in 0..8 {
        assert!(off_by(together.capacity(rank), 500) < 0.2, "{}", together.capacity(rank));
    }
    let late = together.index.add_rank(TOLD);
    let told = ToldCapacity { blocks: TOLD, is_assumed: false, group: 1 };
    assert!(off_by(together.feedback.set_told_capacity(late, told), 500) < 0.2);
}

#[test]
fn one_rank_may_differ_from_its_group() {
    let mut bench = Bench::new(&[1_000, 1_000, 500, 1_000], false, 5);
    bench.run(4_000, 200);
    let capacities: Vec<u32> = (0..4).map(|rank| bench.capacity(rank)).collect();
    assert!(off_by(capacities[2], 500) < 0.25, "{capacities:?}");
    for rank in [0, 1, 3] {
        assert!(off_by(capacities[rank], 1_000) < 0.2, "{capacities:?}");
    }
}

#[test]
fn requests_that_do_not_look_into_the_cache_change_no_capacity() {
    let mut bench = Bench::new(&[TOLD], false, 11);
    for at in 0..3_000 {
        let document = bench.document(200);
        let (.., done) =
            bench.serve(0, document, |found| told(if at % 12 == 0 { 0 } else { found }));
        assert!(!done.purged_rank);
    }
    assert!(off_by(bench.capacity(0), TOLD) < 0.1, "{}", bench.capacity(0));
    assert_eq!(bench.feedback.mirror_trust(bench.slots[0]), MirrorTrust::Confirmed);
}

#[test]
fn a_lost_prefix_takes_what_continues_it_along() {
    let mut bench = Bench::new(&[TOLD], false, 1);
    let branch: Vec<BlockKey> =
        (0..15).map(|at| BlockKey(if at < 10 { 1 << 32 | at } else { 9 << 32 | at })).collect();
    let slot = bench.slots[0];
    bench.serve(0, 1, told);
    let sample = bench.feedback.sample(slot, &branch);
    let booking = bench.index.book(slot, &branch, 1);
    let ended = Ended { output_cached_blocks: 0, answer_keys: &[], heard: Heard::Nothing };
    bench.feedback.finish(&mut bench.index, booking, sample, ended);
    let (.., done) = bench.serve(0, 1, |_| told(4));
    assert_eq!(done.compared, Some((20, 4)));
    assert_eq!(done.purged_blocks, 5, "the branch's own; the prompt itself was computed anew");
    let mut matches = Matches::default();
    bench.index.match_prefix(&branch, &mut matches);
    assert_eq!(bench.index.matched(&matches, slot).map(|found| found.blocks), Some(10));
}

#[test]
fn a_cache_that_was_reset_is_taken_to_be_empty() {
    let mut bench = Bench::new(&[TOLD], false, 1);
    for document in 0..40 {
        bench.serve(0, document, told);
    }
    let (engine, slot) = &mut bench.engines[0];
    engine.purge_rank(*slot);
    let purged: Vec<bool> =
        (0..12).map(|document| bench.serve(0, document, told).2.purged_rank).collect();
    assert_eq!(purged.iter().position(|purged| *purged), Some(7));
    assert_eq!(bench.serve(0, 30, told).0, 0, "nothing is believed of what was not asked since");
    assert!(bench.serve(0, 11, told).0 > 0);
    assert_eq!(bench.capacity(0), TOLD);
}

#[test]
fn a_rank_that_is_always_wrong_is_distrusted_until_it_is_right() {
    let mut bench = Bench::new(&[TOLD], false, 1);
    let slot = bench.slots[0];
    assert_eq!(bench.feedback.mirror_trust(slot), MirrorTrust::Unreported);
    for document in 0..10 {
        bench.serve(0, document, told);
    }
    assert_eq!(bench.feedback.mirror_trust(slot), MirrorTrust::Confirmed);
    for at in 0..100 {
        bench.serve(0, at % 10, |found| told(found / 5));
    }
    assert_eq!(bench.feedback.mirror_trust(slot), MirrorTrust::Distrusted);
    let trust = bench.feedback.trust(slot);
    assert!((0.1..0.4).contains(&trust), "{trust}");
    for at in 0..100 {
        bench.serve(0, at % 10, told);
    }
    assert_eq!(bench.feedback.mirror_trust(slot), MirrorTrust::Confirmed);
    assert_eq!(bench.feedback.trust(slot), 1.0);
}

#[test]
fn an_engine_that_stops_reporting_is_modelled_again() {
    let mut bench = Bench::new(&[TOLD], false, 1);
    let slot = bench.slots[0];
    for at in 0..20 {
        bench.serve(0, at % 5, told);
    }
    assert_eq!(bench.feedback.mirror_trust(slot), MirrorTrust::Confirmed);
    for at in 0..40 {
        bench.serve(0, at % 5, |_| Heard::Silence);
    }
    assert_eq!(bench.feedback.mirror_trust(slot), MirrorTrust::Unreported);
    for at in 0..20 {
        bench.serve(0, at % 5, told);
    }
    assert_eq!(bench.feedback.mirror_trust(slot), MirrorTrust::Confirmed);
}

#[test]
fn an_engine_that_leaves_out_a_zero_goes_on_counting_as_one_that_reports() {
    let mut bench = Bench::new(&[TOLD], false, 1);
    for at in 0..400 {
        bench.serve(0, at / 2, |found| if found == 0 { Heard::Silence } else { told(found) });
    }
    assert_eq!(bench.feedback.mirror_trust(bench.slots[0]), MirrorTrust::Confirmed);
    assert_eq!(bench.capacity(0), TOLD);
}

#[test]
fn an_engine_that_tells_nothing_is_not_followed() {
    let mut bench = Bench::new(&[500], false, 1);
    for _ in 0..300 {
        let document = bench.document(200);
        let (.., done) = bench.serve(0, document, |_| Heard::Silence);
        assert_eq!(done, Correction::default());
    }
    assert_eq!(bench.capacity(0), TOLD);
    let rank = bench.feedback.rank(bench.slots[0]).expect("it is there");
    assert!(rank.followed.is_none());
}

#[test]
fn an_engine_that_keeps_whole_sequences_is_not_resized() {
    let mut bench = Bench::new(&[300], false, 1);
    let slot = bench.index.add_rank_as(TOLD, crate::Eviction::Slots(4));
    bench
        .feedback
        .set_told_capacity(slot, ToldCapacity { blocks: TOLD, is_assumed: true, group: 2 });
    bench.slots[0] = slot;
    for _ in 0..400 {
        let document = bench.document(60);
        let (.., done) = bench.serve(0, document, told);
        assert_eq!(done.capacity, None);
    }
    assert_eq!(bench.feedback.told_blocks(slot), Some(TOLD));
    assert!(bench.feedback.mirror_trust(slot) != MirrorTrust::Unreported);
}

#[test]
fn a_size_that_was_learned_elsewhere_is_gone_on_from() {
    let mut bench = Bench::new(&[TOLD], false, 1);
    let slot = bench.slots[0];
    let told = ToldCapacity { blocks: 14_000, is_assumed: false, group: 1 };
    bench.feedback.set_told_capacity(slot, told);
    for step in told.range() {
        let learned = scaled(told.blocks, step);
        bench.feedback.follow_capacity(slot, learned);
        assert_eq!(bench.feedback.set_told_capacity(slot, told), learned);
    }
    bench.feedback.follow_capacity(slot, u32::MAX);
    assert_eq!(
        bench.feedback.set_told_capacity(slot, told),
        scaled(told.blocks, *told.range().end())
    );
}

#[test]
fn requests_that_share_what_they_hold_show_no_larger_cache() {
    let mut bench = Bench::new(&[TOLD], false, 9);
    let (slot, mut open) = (bench.slots[0], std::collections::VecDeque::new());
    for _ in 0..3_000 {
        // Five documents fill most of the cache; three or four are held at any time.
        let document = bench.rng.random_range(0..5_u64);
        let keys: Vec<BlockKey> = (0..180).map(|at| BlockKey(document << 32 | at)).collect();
        let (engine, engine_slot) = &mut bench.engines[0];
        let mut running = engine.book(*engine_slot, &keys, 1);
        let found = engine.start(&mut running).cached_blocks;
        let mut sample = bench.feedback.sample(slot, &keys);
        let mut booking = bench.index.book(slot, &keys, 1);
        bench.feedback.start(&mut bench.index, &mut booking, &mut sample);
        open.push_back((running, booking, sample, found));
        if open.len() > 6
            && let Some((running, booking, sample, found)) = open.pop_front()
        {
            let (engine, _) = &mut bench.engines[0];
            engine.finish(running, OUTPUT_BLOCKS);
            let ended =
                Ended { output_cached_blocks: OUTPUT_BLOCKS, answer_keys: &[], heard: told(found) };
            bench.feedback.finish(&mut bench.index, booking, sample, ended);
        }
        assert_eq!(bench.capacity(0), TOLD);
    }
}
