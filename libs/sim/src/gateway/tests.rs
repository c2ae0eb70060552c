use domain::{BlockKey, Moment};

use super::policy::{Chooser, ReferenceRule, RoutePolicy, Snapshot};
use super::*;
use crate::lru::Evict;

const BLOCK: u32 = 16;

fn keys(document: u64, blocks: u64) -> Vec<BlockKey> {
    (1..=blocks).map(|block| BlockKey(document << 32 | block)).collect()
}

fn gateway(ranks: usize) -> Gateway {
    Gateway::new(GatewayConfig {
        block_tokens: BLOCK,
        mirror: MirrorKind::FreeQueue,
        believed_blocks: vec![1_000; ranks],
        priors: Vec::new(),
        selection: scheduling::Config::default(),
        hot_prefixes: true,
    })
}

fn chooser(policy: RoutePolicy, ranks: usize) -> Chooser {
    Chooser::new(policy, ranks, ReferenceRule::default(), 1)
}

fn at(seconds: f64) -> Moment {
    Moment::from_secs_f64(seconds)
}

#[test]
fn a_prompt_on_its_way_counts_as_resident() {
    let mut gateway = gateway(1);
    let mut prefix = chooser(RoutePolicy::Prefix, 1);
    let keys = keys(1, 400);
    let prompt = Prompt { keys: &keys, tokens: 400 * BLOCK + 5 };
    let believed: Vec<u32> =
        (0..3).map(|_| gateway.route(prompt, &mut prefix, None, at(0.0)).believed_blocks).collect();
    assert_eq!(believed, [0, 400, 400]);
}

#[test]
fn an_answer_is_believed_to_take_room_and_the_prompt_to_stay() {
    let mut gateway = gateway(1);
    let mut prefix = chooser(RoutePolicy::Prefix, 1);
    let keys = keys(1, 10);
    let prompt = Prompt { keys: &keys, tokens: 10 * BLOCK + 5 };
    let routed = gateway.route(prompt, &mut prefix, None, at(0.0));
    assert_eq!(routed.believed_blocks, 0);
    gateway.first_token(routed.lease, at(0.1));
    gateway.progress(routed.lease, 20);
    gateway.finished(routed.lease, 60, 0, at(1.0));
    let again = gateway.route(prompt, &mut prefix, None, at(2.0));
    assert_eq!(again.believed_blocks, 10);
    // The engine has more than is believed, or less: the truth replaces what is confirmed.
    gateway.first_token(again.lease, at(2.1));
    gateway.finished(again.lease, 1, 10 * BLOCK, at(2.2));
    let shown = gateway.route(prompt, &mut prefix, Some(&[3]), at(3.0));
    assert_eq!(shown.believed_blocks, 3);
}

#[test]
fn a_prompt_that_waits_for_room_is_believed_to_lose_what_those_before_it_evict() {
    let mut gateway = gateway(1);
    let mut prefix = chooser(RoutePolicy::Prefix, 1);
    let mut route = |gateway: &mut Gateway, document, blocks: u32, now| {
        let keys = keys(document, u64::from(blocks));
        let prompt = Prompt { keys: &keys, tokens: blocks * BLOCK + 1 };
        gateway.route(prompt, &mut prefix, None, at(now))
    };
    let first = route(&mut gateway, 1, 300, 0.0);
    gateway.first_token(first.lease, at(1.0));
    gateway.finished(first.lease, 1, 0, at(1.1));
    let running = route(&mut gateway, 2, 600, 2.0);
    gateway.first_token(running.lease, at(3.0));
    assert_eq!(route(&mut gateway, 1, 300, 4.0).believed_blocks, 300, "it fits beside that");
    route(&mut gateway, 3, 500, 4.0);
    route(&mut gateway, 4, 500, 4.0);
    let last = route(&mut gateway, 1, 300, 9.0);
    assert_eq!(last.believed_blocks, 0, "two of 500 blocks come before it");
    assert!(last.ttft_seconds > 1.0, "and it waits for them: {} s", last.ttft_seconds);
}

/// Ranks that a prompt of three quarters of all requests went to, of four.
fn holders_of_a_hot_prefix(mirror: MirrorKind, hot_prefixes: bool) -> usize {
    let mut gateway = Gateway::new(GatewayConfig { mirror, hot_prefixes, ..gateway(4).config });
    let mut prefix = chooser(RoutePolicy::Prefix, 4);
    let hot = keys(1, 100);
    let mut holders = std::collections::HashSet::new();
    for n in 0..2_000_u32 {
        let now = at(f64::from(n) * 0.02);
        let other = keys(2 + u64::from(n) % 7, 100);
        let keys = if n % 4 > 0 { &hot } else { &other };
        let routed =
            gateway.route(Prompt { keys, tokens: 100 * BLOCK + 5 }, &mut prefix, None, now);
        gateway.first_token(routed.lease, now);
        gateway.finished(routed.lease, 1, routed.believed_blocks * BLOCK, now);
        if n % 4 > 0 {
            holders.insert(routed.rank);
        }
    }
    holders.len()
}

#[test]
fn a_hot_prefix_gets_further_holders_on_either_kind_of_mirror() {
    for mirror in [MirrorKind::FreeQueue, MirrorKind::PlainLru(Evict::Head)] {
        // Three times what a rank gets on average in all, and one is enough for one of four.
        assert_eq!(holders_of_a_hot_prefix(mirror, true), 3, "{mirror:?}");
        assert_eq!(holders_of_a_hot_prefix(mirror, false), 1, "{mirror:?}");
    }
}

#[test]
fn a_refused_request_leaves_nothing() {
    let mut gateway = gateway(1);
    let mut prefix = chooser(RoutePolicy::Prefix, 1);
    let first = keys(1, 300);
    let second = keys(2, 300);
    let a =
        gateway.route(Prompt { keys: &first, tokens: 300 * BLOCK + 1 }, &mut prefix, None, at(0.0));
    let b = Prompt { keys: &second, tokens: 300 * BLOCK + 1 };
    let refused = gateway.route(b, &mut prefix, None, at(0.0));
    gateway.failed(refused.lease, at(0.0));
    gateway.finished(a.lease, 1, 0, at(1.0));
    assert_eq!(gateway.route(b, &mut prefix, None, at(2.0)).believed_blocks, 0);
    assert_eq!(gateway.leases.len(), 1);
}

#[test]
fn ranks_without_samples_learn_from_the_others() {
    let mut gateway = gateway(3);
    let mut turns = chooser(RoutePolicy::RoundRobin, 3);
    let keys = keys(1, 500);
    let prompt = Prompt { keys: &keys, tokens: 500 * BLOCK + 1 };
    let routed = gateway.route(prompt, &mut turns, None, at(0.0));
    let before = gateway.learned();
    gateway.first_token(routed.lease, at(8.0));
    let after = gateway.learned();
    let slower = |i: usize| after[i].per_token_seconds / before[i].per_token_seconds;
    assert!(slower(0) > 3.0, "{after:?}");
    assert_eq!(after, vec![after[0]; 3]);
}

/// Candidates that hold so many of a prompt's eight blocks and have so many requests.
fn choose(policy: RoutePolicy, held: &[(u32, u32)]) -> usize {
    let fit = PrefillFit::default();
    let views: Vec<CandidateView<'_>> = held
        .iter()
        .enumerate()
        .map(|(i, (matched, in_flight))| CandidateView {
            matched_blocks: *matched,
            cached_tokens: matched * BLOCK,
            uncached_tokens: (8 - matched) * BLOCK,
            hot_tokens: 0,
            queue_delay_seconds: 0.0,
            network_seconds: 0.0,
            evicted_ask_tokens: 0.0,
            booked_seconds: 0.0,
            arrivals_per_second: 0.0,
            in_flight: *in_flight,
            running: 0,
            last_chosen: i as u64,
            saturated: false,
            fit: fit.as_ref(),
        })
        .collect();
    let keys = keys(1, 8);
    let resident = |rank: usize| held[rank].0 * 10;
    let ranks: Vec<usize> = (0..views.len()).collect();
    let snapshot = Snapshot { keys: &keys, ranks: &ranks, views: &views, resident: &resident };
    chooser(policy, held.len()).choose(&scheduling::Config::default(), &snapshot)
}

#[test]
fn rules_choose_by_what_they_go_by() {
    assert_eq!(choose(RoutePolicy::LeastLoad, &[(8, 3), (0, 1), (2, 2)]), 1);
    assert_eq!(choose(RoutePolicy::RoundRobin, &[(0, 9), (8, 0), (2, 0)]), 0);
    assert_eq!(choose(RoutePolicy::LongestPrefix, &[(1, 0), (6, 30), (6, 20)]), 2);
    // Half of the prompt is not more than half: the emptiest cache.
    assert_eq!(choose(RoutePolicy::SglangLike, &[(4, 0), (3, 0), (2, 0)]), 2);
    assert_eq!(choose(RoutePolicy::SglangLike, &[(5, 9), (3, 0), (2, 0)]), 0);
    assert_eq!(choose(RoutePolicy::SglangLike, &[(5, 40), (3, 2), (2, 5)]), 1);
    // 200 ms for each request against 0.8 ms for each block.
    assert_eq!(choose(RoutePolicy::Reference, &[(8, 1), (0, 0), (0, 5)]), 1);
    assert_eq!(choose(RoutePolicy::Reference, &[(0, 1), (8, 1), (0, 1)]), 1);
    assert_eq!(choose(RoutePolicy::Reference, &[(8, 67), (0, 66), (0, 70)]), 1);
    assert_eq!(choose(RoutePolicy::Reference, &[(8, 65), (0, 64), (0, 70)]), 1);
}

#[test]
fn a_hash_goes_by_the_blocks_that_it_is_told() {
    let fit = PrefillFit::default();
    let view = CandidateView {
        matched_blocks: 0,
        cached_tokens: 0,
        uncached_tokens: 0,
        hot_tokens: 0,
        queue_delay_seconds: 0.0,
        network_seconds: 0.0,
        evicted_ask_tokens: 0.0,
        booked_seconds: 0.0,
        arrivals_per_second: 0.0,
        in_flight: 0,
        running: 0,
        last_chosen: 0,
        saturated: false,
        fit: fit.as_ref(),
    };
    let views = [view; 8];
    let mut by_first = chooser(RoutePolicy::ConsistentHash1, 8);
    let mut by_second = chooser(RoutePolicy::ConsistentHash2, 8);
    let (mut first, mut second) = (std::collections::HashSet::new(), [0; 8]);
    for document in 0..2_000 {
        let keys = [BlockKey(77), BlockKey(document)];
        let ranks: Vec<usize> = (0..views.len()).collect();
        let snapshot = Snapshot { keys: &keys, ranks: &ranks, views: &views, resident: &|_| 0 };
        first.insert(by_first.choose(&scheduling::Config::default(), &snapshot));
        second[by_second.choose(&scheduling::Config::default(), &snapshot)] += 1;
    }
    assert_eq!(first.len(), 1);
    assert!(second.iter().all(|requests| (120..450).contains(requests)), "{second:?}");
}

#[test]
fn names_lead_back_to_policies() {
    for policy in RoutePolicy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert!("fastest".parse::<RoutePolicy>().is_err());
}
