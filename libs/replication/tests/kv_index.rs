//! The real KV index is kept in step by its owner's calls: the same calls make the same tree.
//!
//! A snapshot is the calls themselves here; a service wants one that does not grow with time.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{BlockKey, Incarnation, Moment, RankId};
use kv_index::{Booking, KvIndex, Matches, Slot};
use proptest::prelude::*;
use replication::{
    Epoch, Member, MemberList, MessageOf, Output, OutputOf, Pool, Process, Replicated, RingLimits,
    Role, To,
};

#[derive(Clone, Debug)]
enum Call {
    AddRank { rank: u8, blocks: u32 },
    RemoveRank { rank: u8 },
    SetCapacity { rank: u8, blocks: u32 },
    Book { lease: u64, rank: u8, keys: Vec<BlockKey>, extra: u32 },
    Start { lease: u64 },
    Grow { lease: u64, blocks: u32 },
    Finish { lease: u64, cached: u32 },
    Rollback { lease: u64 },
}

#[derive(Default)]
struct Mirror {
    index: KvIndex,
    slots: BTreeMap<u8, Slot>,
    bookings: BTreeMap<u64, Booking>,
    calls: Vec<Call>,
}

impl Mirror {
    /// All that can be asked of it.
    fn content(&self, prompts: &[Vec<BlockKey>]) -> String {
        let mut matches = Matches::default();
        let mut found = Vec::new();
        for prompt in prompts {
            self.index.match_prefix(prompt, &mut matches);
            self.index.list_all(&mut matches);
            found.push(matches.listed().to_vec());
        }
        // In which order things go shows in what later calls leave.
        let of_rank = |slot: &Slot| self.index.rank_stats(*slot);
        let ranks: Vec<_> = self.slots.values().map(of_rank).collect();
        format!("{:?}", (found, ranks, self.index.stats(), self.bookings.len()))
    }
}

impl Replicated for Mirror {
    type Delta = Call;
    type Chunk = Vec<Call>;

    fn apply(&mut self, call: &Call) {
        self.calls.push(call.clone());
        match call {
            Call::AddRank { rank, blocks } => {
                if !self.slots.contains_key(rank) {
                    self.slots.insert(*rank, self.index.add_rank(*blocks));
                }
            }
            Call::RemoveRank { rank } => {
                if let Some(slot) = self.slots.remove(rank) {
                    self.index.remove_rank(slot);
                }
            }
            Call::SetCapacity { rank, blocks } => {
                if let Some(slot) = self.slots.get(rank) {
                    self.index.set_capacity(*slot, *blocks);
                }
            }
            Call::Book { lease, rank, keys, extra } => {
                if let Some(slot) = self.slots.get(rank)
                    && !self.bookings.contains_key(lease)
                {
                    self.bookings.insert(*lease, self.index.book(*slot, keys, *extra));
                }
            }
            Call::Start { lease } => {
                if let Some(booking) = self.bookings.get_mut(lease) {
                    self.index.start(booking);
                }
            }
            Call::Grow { lease, blocks } => {
                if let Some(booking) = self.bookings.get_mut(lease) {
                    self.index.grow(booking, *blocks);
                }
            }
            Call::Finish { lease, cached } => {
                if let Some(booking) = self.bookings.remove(lease) {
                    self.index.finish(booking, *cached);
                }
            }
            Call::Rollback { lease } => {
                if let Some(booking) = self.bookings.remove(lease) {
                    self.index.rollback(booking);
                }
            }
        }
    }

    fn weight(call: &Call) -> usize {
        match call {
            Call::Book { keys, .. } => 64 + 8 * keys.len(),
            _ => 64,
        }
    }

    fn snapshot(&self) -> Vec<Vec<Call>> {
        self.calls.chunks(16).map(<[_]>::to_vec).collect()
    }

    fn empty(&self) -> Self {
        Self::default()
    }

    fn load(&mut self, calls: Vec<Call>) {
        for call in &calls {
            self.apply(call);
        }
    }

    fn checksums(&self) -> Vec<(RankId, u64)> {
        let of_rank = |(rank, slot): (&u8, &Slot)| {
            let incarnation = Incarnation(u64::from(*rank));
            let stats = self.index.rank_stats(*slot).unwrap_or_default();
            let counts =
                [stats.capacity, stats.pinned_blocks, stats.resident_keyed_blocks, stats.bookings];
            let sum = counts.iter().fold(0_u64, |sum, n| (sum << 16) ^ u64::from(*n));
            (RankId { backend: "b".into(), incarnation, rank: 0 }, sum)
        };
        self.slots.iter().map(of_rank).collect()
    }
}

/// Prompts of one tree: they share prefixes of every length.
fn prompt(branch: u8, blocks: usize) -> Vec<BlockKey> {
    let common = usize::from(branch) * 2;
    let key = |i: usize| BlockKey(if i < common { i as u64 } else { (i + 100 * common) as u64 });
    (0..blocks).map(key).collect()
}

fn call() -> impl Strategy<Value = Call> {
    let rank = 0_u8..3;
    let lease = 0_u64..10;
    prop_oneof![
        2 => (rank.clone(), 4_u32..30).prop_map(|(rank, blocks)| Call::AddRank { rank, blocks }),
        1 => rank.clone().prop_map(|rank| Call::RemoveRank { rank }),
        1 => (rank.clone(), 4_u32..30).prop_map(|(rank, blocks)| Call::SetCapacity { rank, blocks }),
        8 => (lease.clone(), rank, 0_u8..5, 0_usize..12, 0_u32..3).prop_map(
            |(lease, rank, branch, blocks, extra)| {
                Call::Book { lease, rank, keys: prompt(branch, blocks), extra }
            }
        ),
        6 => lease.clone().prop_map(|lease| Call::Start { lease }),
        3 => (lease.clone(), 0_u32..6).prop_map(|(lease, blocks)| Call::Grow { lease, blocks }),
        4 => (lease.clone(), 0_u32..4).prop_map(|(lease, cached)| Call::Finish { lease, cached }),
        2 => lease.prop_map(|lease| Call::Rollback { lease }),
    ]
}

/// An owner and its standby on a line that loses some messages.
struct Pair {
    now: Moment,
    pools: [Pool<Mirror>; 2],
    wire: Vec<(usize, MessageOf<Mirror>)>,
}

impl Pair {
    fn new() -> Self {
        let process = |id: &str| Process { id: id.into(), incarnation: Incarnation(1) };
        let member = |id| Member { process: process(id), role: Role::Router, address: "".into() };
        let members = [member("r0"), member("r1")];
        let epoch = Epoch { term: 1, number: 1 };
        let list = MemberList { epoch, members: members.to_vec().into() };
        let mut names: Vec<Process> = replication::order(&"p".into(), &list);
        let limits = RingLimits { deltas: 20, bytes: 1 << 20 };
        let mut pool = || {
            let mut pool = Pool::new(names.remove(0), "p".into(), Mirror::default(), limits);
            pool.set_list(&list, Moment::ZERO);
            pool
        };
        let pools = [pool(), pool()];
        Self { now: Moment::ZERO, pools, wire: Vec::new() }
    }

    fn send(&mut self, from: usize, outputs: Vec<OutputOf<Mirror>>) {
        let sent = outputs.into_iter().filter_map(|output| match output {
            Output::Send(To::One(_) | To::Routers, message) => Some((from, message)),
            _ => None,
        });
        self.wire.extend(sent);
    }

    fn settle(&mut self, mut loses: impl FnMut() -> bool) {
        while !self.wire.is_empty() {
            let (from, message) = self.wire.remove(0);
            if loses() {
                continue;
            }
            let sender = self.pools[from].process().clone();
            let outputs = self.pools[1 - from].on_message(&sender, message, self.now);
            self.send(1 - from, outputs);
        }
    }

    fn pass(&mut self, millis: u64) {
        for _ in 0..millis / 50 {
            self.now = self.now + Duration::from_millis(50);
            for at in 0..2 {
                let outputs = self.pools[at].tick(self.now);
                self.send(at, outputs);
            }
            self.settle(|| false);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_owners_calls_make_the_same_index(
        calls in prop::collection::vec((call(), 0_u8..8), 1..200),
    ) {
        let mut pair = Pair::new();
        pair.pass(500);
        prop_assert!(pair.pools[0].is_serving());
        for (call, fate) in calls {
            let published = pair.pools[0].change(call);
            pair.send(0, published.into_iter().collect());
            match fate {
                0 => pair.wire.clear(),
                1 => pair.pass(250),
                _ => pair.settle(|| false),
            }
        }
        pair.pass(1000);
        let prompts: Vec<_> = (0..5).map(|branch| prompt(branch, 12)).collect();
        let [owner, standby] = &pair.pools;
        prop_assert_eq!(owner.position(), standby.position());
        prop_assert_eq!(owner.state().content(&prompts), standby.state().content(&prompts));
    }
}
