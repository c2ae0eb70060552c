use super::*;
use crate::gateway::MirrorKind;
use crate::request::Request;
use crate::workload::{AgentSessions, CustomerGroups, DocumentCallers, SteadyDocuments};
use domain::BlockKey;

fn cluster(ranks: usize, blocks: u32, policy: RoutePolicy) -> ClusterConfig {
    ClusterConfig {
        engines: vec![EngineConfig { blocks, ..EngineConfig::default() }; ranks],
        front: Duration::ZERO,
        gateway: GatewayConfig {
            block_tokens: 16,
            mirror: MirrorKind::FreeQueue,
            believed_blocks: vec![blocks - 1; ranks],
            priors: Vec::new(),
            selection: scheduling::Config::default(),
            hot_prefixes: true,
        },
        policy,
        reference: ReferenceRule::default(),
        shown_content: false,
        outages: Vec::new(),
        seed: 1,
    }
}

fn run_all(config: &ClusterConfig, set: &RequestSet) -> Outcome {
    let mut last = 0;
    let outcome = run(config, set, &mut |ended| last = ended).expect("a sensible configuration");
    assert_eq!(last, set.requests.len());
    outcome
}

fn request(at: f64, document: u64, blocks: u64, output_tokens: u32) -> Request {
    Request {
        start: Start::At(Moment::from_secs_f64(at)),
        keys: (1..=blocks).map(|block| BlockKey(document << 32 | block)).collect(),
        prompt_tokens: blocks as u32 * 16 + 3,
        output_tokens,
    }
}

fn set(requests: Vec<Request>) -> RequestSet {
    RequestSet { block_tokens: 16, requests, callers: 0 }
}

#[test]
fn times_are_those_of_the_engine() {
    let config = cluster(1, 600, RoutePolicy::Prefix);
    let outcome = run_all(&config, &set(vec![request(1.0, 1, 10, 3), request(5.0, 1, 10, 1)]));
    let [cold, warm] = &outcome.records[..] else { panic!("two records") };
    // 163 tokens at 16,000 a second; two further tokens at 2 ms each.
    let near = |a: Option<f64>, b: f64| assert!((a.unwrap_or(9.0) - b).abs() < 1e-6, "{a:?} {b}");
    near(cold.ttft_seconds(), 163.0 / 16_000.0);
    near(cold.tpot_seconds(), 0.002);
    near(warm.ttft_seconds(), 3.0 / 16_000.0);
    assert_eq!((cold.hit_blocks, warm.hit_blocks), (0, 10));
    assert_eq!((cold.believed_blocks, warm.believed_blocks), (0, 10));
    assert_eq!(outcome.block_hit_rate(0..2), 0.5);
    assert_eq!(outcome.believed_hit_rate(1..2), 1.0);
}

#[test]
fn what_never_fits_is_rejected_and_the_rest_goes_on() {
    let config = cluster(2, 20, RoutePolicy::RoundRobin);
    let mut follower = request(0.0, 3, 4, 2);
    follower.start = Start::After { parent: 0, gap: Duration::from_secs(1) };
    let outcome =
        run_all(&config, &set(vec![request(0.0, 1, 40, 2), request(0.0, 2, 4, 2), follower]));
    let ended: Vec<bool> = outcome.records.iter().map(|r| r.finished.is_some()).collect();
    assert_eq!(ended, [false, true, true]);
    assert!(outcome.records[0].rejected);
    assert_eq!(outcome.records[2].sent, Moment::from_secs_f64(1.0));
}

#[test]
fn callers_keep_their_number_of_requests_in_flight() {
    let callers = DocumentCallers { requests: 60, callers: 4, ..DocumentCallers::default() };
    let outcome = run_all(&cluster(2, 8_000, RoutePolicy::Prefix), &callers.generate(0.01, 1));
    for record in &outcome.records {
        let overlapping = outcome
            .records
            .iter()
            .filter(|other| other.sent <= record.sent && other.finished > Some(record.sent));
        assert!(overlapping.count() <= 4);
    }
}

#[test]
fn a_front_delays_and_occupies_nothing() {
    let mut config = cluster(1, 600, RoutePolicy::Prefix);
    config.front = Duration::from_millis(60);
    let outcome = run_all(&config, &set((0..4).map(|d| request(0.0, d, 1, 1)).collect()));
    for record in &outcome.records {
        let ttft = record.ttft_seconds().unwrap_or(0.0);
        assert!((0.06..0.08).contains(&ttft), "{ttft}");
    }
}

#[test]
fn without_decode_an_answer_takes_blocks_and_no_time() {
    let mut config = cluster(1, 41, RoutePolicy::Prefix);
    config.engines[0].decode = false;
    let ask = |at, document| request(at, document, 10, 161);
    let outcome = run_all(&config, &set(vec![ask(0.0, 1), ask(1.0, 2), ask(2.0, 1)]));
    // Ten blocks of prompt and ten of output each; the third finds the first's prompt, of which
    // nothing had to go yet.
    let hits: Vec<u32> = outcome.records.iter().map(|r| r.hit_blocks).collect();
    assert_eq!(hits, [0, 0, 10]);
    let ends: Vec<_> = outcome.records.iter().map(|r| r.finished == r.first_token).collect();
    assert_eq!(ends, [true; 3]);
}

#[test]
fn without_queues_the_mirror_believes_what_engines_hold() {
    let calm = AgentSessions {
        output_tokens: 1,
        pause_seconds: [2.0, 20.0].into(),
        turns: 10,
        ..AgentSessions::default()
    };
    for policy in [RoutePolicy::RoundRobin, RoutePolicy::Prefix] {
        // Far too small for all sessions, so that much is evicted.
        let outcome = run_all(&cluster(3, 300, policy), &calm.generate(2));
        let all = 0..outcome.records.len();
        let (believed, held) =
            (outcome.believed_hit_rate(all.clone()), outcome.block_hit_rate(all));
        assert!((believed - held).abs() < 0.005 && held < 0.6, "{policy}: {believed} {held}");
    }
}

#[test]
fn answers_that_the_next_turn_repeats_are_believed_to_be_found() {
    // An answer of two blocks, of which the last token is not computed: one block of each of a
    // session's thirteen further prompts, which is 1.5 % of all.
    for policy in [RoutePolicy::RoundRobin, RoutePolicy::Prefix] {
        let outcome = run_all(&cluster(3, 3_000, policy), &AgentSessions::default().generate(1));
        let all = 0..outcome.records.len();
        let (believed, held) =
            (outcome.believed_hit_rate(all.clone()), outcome.block_hit_rate(all));
        assert!((believed - held).abs() < 0.01, "{policy}: {believed} {held}");
    }
}

#[test]
fn shown_content_is_believed() {
    let gap = |shown_content| {
        let mut config = cluster(3, 600, RoutePolicy::Prefix);
        // A mirror that is far too large believes far too much.
        config.gateway.believed_blocks = vec![100_000; 3];
        config.shown_content = shown_content;
        let outcome = run_all(&config, &AgentSessions::default().generate(2));
        let all = 0..outcome.records.len();
        outcome.believed_hit_rate(all.clone()) - outcome.block_hit_rate(all)
    };
    let (shown, believed) = (gap(true), gap(false));
    assert!(shown.abs() < 0.02 && believed > shown + 0.03, "{shown} {believed}");
}

#[test]
fn a_run_is_the_same_every_time() {
    let set = AgentSessions { turns: 5, ..AgentSessions::default() }.generate(4);
    for policy in RoutePolicy::ALL {
        let config = cluster(3, 200, policy);
        let first = run_all(&config, &set);
        assert_eq!(first.records, run_all(&config, &set).records, "{policy}");
        assert!(first.records.iter().all(|record| record.finished.is_some()), "{policy}");
    }
}

#[test]
fn a_wrong_capacity_is_corrected_by_what_engines_report() {
    let customers = CustomerGroups {
        groups: 40,
        system_tokens: 640,
        question_tokens: 160,
        output_tokens: 100,
        rate_factor: 0.15,
        ..CustomerGroups::default()
    };
    let set = customers.generate(3);
    let hits = |factor: f64| {
        let mut config = cluster(3, 1_500, RoutePolicy::Prefix);
        config.engines.iter_mut().for_each(|engine| engine.decode = false);
        config.gateway.believed_blocks = vec![(1_499.0 * factor) as u32; 3];
        let outcome = run_all(&config, &set);
        let late = 800..outcome.records.len();
        (outcome.block_hit_rate(late.clone()), outcome.believed_hit_rate(late))
    };
    let (right, _) = hits(1.0);
    assert!((0.5..0.98).contains(&right), "{right}");
    for factor in [0.5, 1.63] {
        let (wrong, believed) = hits(factor);
        assert!(wrong > right - 0.015, "{factor}: {wrong} {right}");
        assert!((believed - wrong).abs() < 0.01, "{factor}: {believed} {wrong}");
    }
}

#[test]
fn hits_come_back_after_an_engine_was_away() {
    let at = Moment::from_secs_f64;
    let set = SteadyDocuments { seconds: 70.0, ..SteadyDocuments::default() }.generate(1);
    let mut config = cluster(3, 600, RoutePolicy::Prefix);
    config.engines.iter_mut().for_each(|engine| engine.itl_base_seconds = 0.005);
    config.outages = vec![Outage { rank: 0, from: at(15.0), until: at(25.0) }];
    let outcome = run_all(&config, &set);
    let before = |seconds| outcome.records.partition_point(|record| record.sent < at(seconds));
    assert!(outcome.block_hit_rate(before(5.0)..before(15.0)) > 0.995);
    let away = before(15.0)..before(25.0);
    assert!(outcome.block_hit_rate(away) < 0.95, "two caches have no room for all");
    let after = before(55.0)..before(70.0);
    assert!(outcome.block_hit_rate(after.clone()) > 0.995);
    for record in &outcome.records[after] {
        assert!(record.ttft_seconds().is_some_and(|seconds| seconds < 0.5), "{record:?}");
    }
}

#[test]
fn a_request_whose_engine_dies_before_its_answer_is_sent_again() {
    let at = Moment::from_secs_f64;
    let mut config = cluster(2, 600, RoutePolicy::RoundRobin);
    config.front = Duration::from_millis(5);
    config.outages = vec![Outage { rank: 0, from: at(1.1), until: at(2.0) }];
    let requests = vec![
        // Generates, computes, and is on its way when the engine dies.
        request(0.5, 1, 10, 1_000),
        request(0.6, 2, 10, 1_000),
        request(1.05, 3, 200, 2),
        request(1.06, 4, 10, 2),
        request(1.098, 5, 10, 2),
        request(3.0, 6, 10, 2),
        request(3.1, 1, 10, 2),
    ];
    let outcome = run_all(&config, &set(requests));
    let ranks: Vec<usize> = outcome.records.iter().map(|record| record.rank).collect();
    assert_eq!(ranks, [0, 1, 1, 1, 1, 0, 1]);
    let unfinished = |record: &&crate::outcome::Record| record.finished.is_none();
    assert_eq!(outcome.records.iter().filter(unfinished).count(), 1, "the first was cut");
    assert!(outcome.records[2].ttft_seconds().is_some_and(|seconds| seconds > 0.25));
    assert_eq!(outcome.records[5].believed_blocks, 0);
}
