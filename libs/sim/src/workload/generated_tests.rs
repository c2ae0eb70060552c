use domain::BlockKey;

use super::*;
use crate::Error;
use crate::request::{Request, Start};

#[test]
fn customers_ask_what_the_published_benchmark_asks() {
    let set = CustomerGroups::default().generate(1);
    let count = set.requests.len() as f64;
    assert!((count / 17_084.0 - 1.0).abs() < 0.03, "{count}");
    let distinct: std::collections::HashSet<BlockKey> =
        set.requests.iter().flat_map(|request| request.keys.iter().copied()).collect();
    assert_eq!(distinct.len(), 112_500);
    assert!((set.ceiling(0) - 0.986).abs() < 0.001, "{}", set.ceiling(0));
    assert_eq!(set.requests[0].prompt_blocks(16), 450);
    let seconds: f64 = Ladder::default().steps().map(|(_, seconds)| seconds).sum();
    assert_eq!(seconds, 502.0);
}

#[test]
fn a_hot_customer_gets_its_share() {
    let set = CustomerGroups { hot_share: Some(0.6), ..Default::default() }.generate(3);
    let hot = set.requests[0].keys[0];
    let first = |request: &Request| request.keys[0];
    let mut counts = std::collections::HashMap::new();
    set.requests.iter().for_each(|request| *counts.entry(first(request)).or_insert(0) += 1);
    let most = counts.values().max().copied().unwrap_or(0);
    assert!((f64::from(most) / set.requests.len() as f64 - 0.6).abs() < 0.02);
    assert!(counts.contains_key(&hot));
}

#[test]
fn a_turn_repeats_the_session_and_its_answer() {
    let sessions = AgentSessions::default();
    let set = sessions.generate(1);
    assert_eq!(set.requests.len(), 24 * 14);
    for (index, request) in set.requests.iter().enumerate() {
        let Start::After { parent, .. } = request.start else {
            assert!(index < 24);
            continue;
        };
        let before = &set.requests[parent];
        assert_eq!(request.prompt_blocks(16), before.prompt_blocks(16) + 8);
        assert_eq!(&before.keys[..2], &request.keys[..2]);
    }
    // 2 shared blocks; 8 more per turn.
    assert_eq!(set.requests[24 * 13].prompt_blocks(16), 2 + 8 * 14);
    // A session computes 8 blocks in its first turn and 7 in each other, as one is in the answer.
    let computed = 2 + 24 * (8 + 13 * 7);
    let all: u32 = (1..=14).map(|turn| 24 * (2 + 8 * turn)).sum();
    assert_eq!(set.ceiling(0), f64::from(all - computed) / f64::from(all));
}

#[test]
fn a_seed_fixes_a_set() {
    let times = |seed| {
        let set = CustomerGroups::default().generate(seed);
        set.requests.iter().map(|request| request.start).collect::<Vec<_>>()
    };
    assert_eq!(times(5), times(5));
    assert_ne!(times(5), times(6));
}

#[test]
fn the_two_gpu_run_shares_its_first_blocks_only() {
    let set = DocumentCallers::default().generate(0.01, 1);
    assert_eq!(set.requests.len(), 750);
    assert_eq!(set.requests[0].prompt_tokens, 426 * 16 + 15);
    assert_eq!(set.requests[0].keys.len(), 426);
    // A quarter of a second after the first token.
    assert_eq!(set.requests[0].output_tokens, 26);
    // Once every document was asked about, there is nothing to compute.
    assert!(set.ceiling(0) < 0.97 && set.ceiling(150) > 0.99, "{}", set.ceiling(150));
    assert_eq!(set.requests[0].keys[..2], [BlockKey(0), BlockKey(1)]);
    assert_eq!(reference_draws(Draw::Skewed, 15, 5, 2), [12, 12, 0, 0, 8]);
}

#[test]
fn a_block_that_a_system_prompt_does_not_fill_is_a_users_own() {
    let customers = CustomerGroups {
        groups: 2,
        users: 2,
        system_tokens: 40,
        question_tokens: 24,
        ladder: "20x5".parse().expect("a ladder"),
        ..CustomerGroups::default()
    };
    let set = customers.generate(1);
    let prompts: std::collections::HashSet<Vec<BlockKey>> =
        set.requests.iter().map(|request| request.keys.to_vec()).collect();
    assert_eq!(prompts.len(), 4);
    assert!(prompts.iter().all(|keys| keys.len() == 4));
    let firsts = |blocks: usize| {
        let firsts = prompts.iter().map(|keys| keys[..blocks].to_vec());
        firsts.collect::<std::collections::HashSet<_>>().len()
    };
    assert_eq!((firsts(2), firsts(3)), (2, 4));
}

#[test]
fn a_ladder_is_read_as_it_is_written() {
    let ladder: Ladder = "15x50+2.5x20".parse().expect("a ladder");
    assert_eq!(ladder.steps().collect::<Vec<_>>(), [(15.0, 50.0), (2.5, 20.0)]);
    assert_eq!((ladder.warm_up_seconds(), ladder.to_string().as_str()), (50.0, "15x50+2.5x20"));
    let published = Ladder::default();
    assert_eq!(published.to_string().parse(), Ok(published));
    for wrong in ["", "15", "15x", "0x5", "5x0", "-1x5", "NaNx5", "1x5+", "infx1"] {
        assert!(wrong.parse::<Ladder>().is_err(), "{wrong}");
    }
}

#[test]
fn workloads_that_make_no_sense_are_refused() {
    let field = |result: Result<(), Error>| match result {
        Err(Error::Config { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let callers = DocumentCallers::default();
    let steady = SteadyDocuments::default();
    let customers = CustomerGroups::default();
    let agents = AgentSessions::default();
    assert_eq!(callers.check().and(steady.check()), Ok(()));
    assert_eq!(customers.check().and(agents.check()), Ok(()));
    let wrong = [
        (DocumentCallers { documents: 0, ..callers }.check(), "documents"),
        (DocumentCallers { document_blocks: u32::MAX, ..callers }.check(), "document_blocks"),
        (DocumentCallers { block_tokens: 0, ..callers }.check(), "block_tokens"),
        (SteadyDocuments { rate: f64::NAN, ..steady }.check(), "rate"),
        (SteadyDocuments { rate: 1e6, seconds: 1e6, ..steady }.check(), "seconds"),
        (SteadyDocuments { output_tokens: 0, ..steady }.check(), "output_tokens"),
        (CustomerGroups { hot_share: Some(1.1), ..customers.clone() }.check(), "hot_share"),
        (CustomerGroups { users: 100_000, ..customers.clone() }.check(), "users"),
        (CustomerGroups { rate_factor: 1e6, ..customers }.check(), "ladder"),
        (AgentSessions { turns: 0, ..agents }.check(), "turns"),
        (AgentSessions { turn_blocks: u32::MAX, turns: 99_999, ..agents }.check(), "turn_blocks"),
        (AgentSessions { pause_seconds: [0.5, 0.1].into(), ..agents }.check(), "pause_seconds"),
    ];
    for (result, expected) in wrong {
        assert_eq!(field(result), expected);
    }
}
