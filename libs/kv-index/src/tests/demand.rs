//! What prefixes bring to those that hold them.

use domain::BlockKey;
use proptest::prelude::*;

use super::{keys, serve};
use crate::{Booking, Demand, KvIndex, Matches, Slot};

/// Bookings after which a count has faded to 1/e, for each rank.
const MEMORY: f64 = 150.0;

fn demand(index: &KvIndex, prompt: &[BlockKey], least: f64) -> Option<Demand> {
    let mut matches = Matches::default();
    index.match_prefix(prompt, &mut matches);
    index.demand(&matches, least)
}

#[test]
fn what_half_of_all_ask_for_brings_its_one_holder_half_of_what_all_ranks_get() {
    let mut index = KvIndex::new();
    let slots: Vec<Slot> = (0..4).map(|_| index.add_rank(100_000)).collect();
    for n in 0..4_000 {
        serve(&mut index, slots[0], &keys(0..10), 1);
        serve(&mut index, slots[1 + n % 3], &keys(100..110), 1);
    }
    let hot = demand(&index, &keys(0..20), 0.0).expect("it is held");
    assert!((hot.load - 2.0).abs() < 0.01, "{hot:?}");
    assert_eq!((hot.blocks, hot.is_pending), (10, false));
    let shared = demand(&index, &keys(100..120), 0.0).expect("it is held");
    assert!((shared.load - 2.0 / 3.0).abs() < 0.01, "{shared:?}");
    assert_eq!(demand(&index, &keys(0..20), 2.1), None);
    assert_eq!(demand(&index, &keys(500..520), 0.0), None, "nobody holds it");
    index.remove_rank(slots[0]);
    assert_eq!(demand(&index, &keys(0..20), 0.0), None, "its holder is gone");
}

#[test]
fn the_longest_prefix_with_enough_of_it_counts() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(100_000);
    let user = |user: u64| [keys(0..10), keys(100 * user..100 * user + 5)].concat();
    for round in 0..300 {
        serve(&mut index, slot, &user(1 + round % 3), 1);
    }
    let at = |least| demand(&index, &user(1), least).map(|d| d.blocks);
    assert_eq!([0.1, 0.6, 0.95].map(at), [Some(15), Some(10), None]);
}

#[test]
fn a_holder_is_pending_until_its_prefill_begins() {
    let mut index = KvIndex::new();
    let (first, second) = (index.add_rank(100), index.add_rank(100));
    serve(&mut index, first, &keys(0..10), 1);
    let is_pending = |index: &KvIndex| demand(index, &keys(0..10), 0.0).map(|d| d.is_pending);
    assert_eq!(is_pending(&index), Some(false));
    let mut booking = index.book(second, &keys(0..10), 1);
    assert_eq!(is_pending(&index), Some(true));
    index.start(&mut booking);
    assert_eq!(is_pending(&index), Some(false));
    index.finish(booking, 0);
}

#[derive(Clone, Debug)]
enum Step {
    /// A prompt of so many blocks of one of two documents, on one of three ranks.
    Book { rank: usize, document: u64, blocks: u64 },
    /// The oldest booking starts and ends, or is taken back.
    Close { started: bool },
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3_usize, 0..2_u64, 1..8_u64)
            .prop_map(|(rank, document, blocks)| Step::Book { rank, document, blocks }),
        2 => any::<bool>().prop_map(|started| Step::Close { started }),
    ]
}

/// For each key, the bookings that asked for it, by number, and which ranks hold it.
#[derive(Default)]
struct Naive {
    bookings: u32,
    asked: std::collections::BTreeMap<u64, Vec<u32>>,
}

impl Naive {
    fn book(&mut self, prompt: &[BlockKey]) {
        self.bookings += 1;
        for key in prompt {
            self.asked.entry(key.0).or_default().push(self.bookings);
        }
    }

    fn asks(&self, key: BlockKey) -> f64 {
        let age = |at: &u32| f64::from(self.bookings - at) / (3.0 * MEMORY);
        self.asked.get(&key.0).map_or(0.0, |asked| asked.iter().map(|at| (-age(at)).exp()).sum())
    }
}

proptest! {
    /// The index counts a run once, by its end, and forgets what nobody holds.
    #[test]
    fn a_load_is_never_more_than_that_of_every_single_request_counted(
        steps in prop::collection::vec(any_step(), 1..80),
        least in 0.0..0.02_f64,
    ) {
        let mut index = KvIndex::new();
        let slots: Vec<Slot> = (0..3).map(|_| index.add_rank(1_000)).collect();
        let mut naive = Naive::default();
        let mut open: std::collections::VecDeque<Booking> = Default::default();
        for step in steps {
            match step {
                Step::Book { rank, document, blocks } => {
                    let prompt = keys(document * 100..document * 100 + blocks);
                    naive.book(&prompt);
                    open.push_back(index.book(slots[rank], &prompt, 1));
                }
                Step::Close { started } => match open.pop_front() {
                    Some(booking) if started => drop(index.finish(booking, 0)),
                    Some(booking) => index.rollback(booking),
                    None => {}
                },
            }
            for document in 0..2 {
                let prompt = keys(document * 100..document * 100 + 8);
                let mut matches = Matches::default();
                index.match_prefix(&prompt, &mut matches);
                index.list_all(&mut matches);
                let Some(found) = index.demand(&matches, least) else { continue };
                let holds = |slot: &&Slot| {
                    index.matched(&matches, **slot).is_some_and(|m| m.blocks >= found.blocks)
                };
                let holders = slots.iter().filter(holds).count();
                let last = prompt[found.blocks as usize - 1];
                let most = naive.asks(last) / MEMORY / holders.max(1) as f64;
                prop_assert!(found.load > least);
                prop_assert!(found.load <= most + 1e-6, "{found:?}, {holders} holders, {most}");
            }
        }
    }
}
