use std::time::Duration;

use domain::Moment;

use super::*;
use crate::request::{RequestSet, Start};

fn trace(lines: &str) -> Trace {
    let mut trace = Trace::new(None);
    for line in lines.lines() {
        trace.push_line(line).expect("a line of the sample");
    }
    trace
}

const MOONCAKE: &str = r#"
{"timestamp": 1000, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 2]}
{"timestamp": 1000, "input_length": 1024, "output_length": 10, "hash_ids": [0, 3]}
{"timestamp": 4000, "input_length": 600, "output_length": 0, "hash_ids": [9, 10]}
{"timestamp": 7000, "input_length": 1700, "output_length": 20, "hash_ids": [0, 1, 7, 8]}
"#;

const BAILIAN: &str = r#"
{"chat_id": 5, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 40, "output_length": 8, "type": "text", "turn": 1, "hash_ids": [11, 12, 13]}
{"chat_id": 6, "parent_chat_id": -1, "timestamp": 1.0, "input_length": 16, "output_length": 4, "type": "text", "turn": 1, "hash_ids": [20]}
{"chat_id": 7, "parent_chat_id": 5, "timestamp": 3.5, "input_length": 80, "output_length": 2, "type": "text", "turn": 2, "hash_ids": [11, 12, 14, 15, 16]}
"#;

fn times(set: &RequestSet) -> Vec<f64> {
    let time = |start| match start {
        Start::At(at) => at.as_secs_f64(),
        Start::After { .. } | Start::WhenFree => f64::NAN,
    };
    set.requests.iter().map(|request| time(request.start)).collect()
}

#[test]
fn mooncake_lines_become_requests_of_whole_blocks() {
    let trace = trace(MOONCAKE);
    assert_eq!((trace.len(), trace.block_tokens()), (4, 512));
    let set = trace.replay(&Replay::default(), 1);
    let keys: Vec<usize> = set.requests.iter().map(|request| request.keys.len()).collect();
    assert_eq!(keys, [2, 2, 1, 3]);
    let [first, second, _, last] = &set.requests[..] else { panic!("four requests") };
    assert_eq!(first.keys[0], second.keys[0]);
    assert_ne!(first.keys[1], second.keys[1]);
    assert_eq!(first.keys[..], last.keys[..2]);
    assert_eq!((first.prompt_tokens, first.output_tokens), (1100, 50));
    assert_eq!(set.requests[2].output_tokens, 1);
}

#[test]
fn coarse_timestamps_are_spread_up_to_the_next_one() {
    let trace = trace(MOONCAKE);
    let mut firsts = Vec::new();
    for seed in 0..200 {
        let times = times(&trace.replay(&Replay::default(), seed));
        assert!(times.is_sorted(), "{times:?}");
        assert!(times[..2].iter().all(|t| (0.0..3.0).contains(t)), "{times:?}");
        assert!((3.0..6.0).contains(&times[2]) && times[3] >= 6.0, "{times:?}");
        firsts.extend_from_slice(&times[..2]);
    }
    let mean = firsts.iter().sum::<f64>() / firsts.len() as f64;
    assert!((mean - 1.5).abs() < 0.15, "{mean}");
}

#[test]
fn bailian_turns_follow_their_parents_in_think_mode() {
    let trace = trace(BAILIAN);
    assert_eq!(trace.block_tokens(), 16);
    let set = trace.replay(&Replay::default(), 1);
    assert_eq!(set.requests.iter().map(|r| r.keys.len()).collect::<Vec<_>>(), [2, 1, 5]);
    assert!(times(&set).iter().all(|t| t.is_finite()));

    let think = Replay { mode: Mode::Think, ..Replay::default() };
    let set = trace.replay(&think, 1);
    let Start::After { parent: 0, gap } = set.requests[2].start else {
        panic!("{:?}", set.requests[2].start)
    };
    // Three seconds between the turns, of which the first took 8 × 20 ms; half a second of
    // spread either way.
    assert!((gap.as_secs_f64() - 2.84).abs() < 1.0, "{gap:?}");
}

#[test]
fn a_slice_cuts_turns_from_parents_that_it_does_not_have() {
    let trace = trace(BAILIAN);
    let think = Replay { mode: Mode::Think, slice: Slice::Second, ..Replay::default() };
    let set = trace.replay(&think, 1);
    assert_eq!(set.requests.len(), 2);
    assert!(times(&set).iter().all(|t| t.is_finite()));
    let first = trace.replay(&Replay { slice: Slice::First, ..Replay::default() }, 1);
    assert_eq!(first.requests.len(), 1);
    let limited = trace.replay(&Replay { limit: 2, ..Replay::default() }, 1);
    assert_eq!(limited.requests.len(), 2);
}

#[test]
fn sessions_with_delays_follow_the_turn_before() {
    let trace = trace(
        r#"{"timestamp": 0, "session_id": "a", "input_length": 10, "output_length": 5}
{"session_id": "a", "delay": 1500, "input_length": 20, "output_length": 5}"#,
    );
    for mode in [Mode::Trace, Mode::Think] {
        let set = trace.replay(&Replay { mode, ..Replay::default() }, 1);
        let gap = Duration::from_millis(1500);
        assert_eq!(set.requests[1].start, Start::After { parent: 0, gap });
    }
}

#[test]
fn a_trace_without_conversations_is_searched_for_them() {
    let trace = trace(
        r#"{"timestamp": 0, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 2]}
{"timestamp": 1000, "input_length": 600, "output_length": 50, "hash_ids": [0, 5]}
{"timestamp": 9000, "input_length": 2100, "output_length": 50, "hash_ids": [0, 1, 6, 7, 8]}"#,
    );
    let set = trace.replay(&Replay { mode: Mode::Think, ..Replay::default() }, 1);
    assert!(matches!(set.requests[2].start, Start::After { parent: 0, .. }));
    assert!(matches!(set.requests[1].start, Start::At(_)));
}

#[test]
fn lines_out_of_order_are_put_in_order() {
    let trace = trace(
        r#"{"chat_id": 1, "parent_chat_id": -1, "timestamp": 9, "input_length": 16, "output_length": 1, "hash_ids": [1]}
{"chat_id": 2, "parent_chat_id": 1, "timestamp": 12, "input_length": 32, "output_length": 1, "hash_ids": [1, 2]}
{"chat_id": 3, "parent_chat_id": -1, "timestamp": 2, "input_length": 48, "output_length": 1, "hash_ids": [7, 8, 9]}"#,
    );
    let set = trace.replay(&Replay { mode: Mode::Think, ..Replay::default() }, 1);
    assert_eq!(set.requests[0].prompt_tokens, 48);
    assert!(matches!(set.requests[2].start, Start::After { parent: 1, .. }));
    assert!(matches!(set.requests[0].start, Start::At(at) if at < Moment::from_secs_f64(8.0)));
}

#[test]
fn what_cannot_be_read_is_named_by_its_line() {
    let mut trace = Trace::new(None);
    let mooncake = r#"{"timestamp": 1, "input_length": 1, "output_length": 1}"#;
    trace.push_line(mooncake).expect("a Mooncake line");
    trace.push_line("").expect("an empty line is skipped");
    let error = |trace: &mut Trace, line: &str| trace.push_line(line).unwrap_err().to_string();
    assert!(error(&mut trace, "{").starts_with("line 3: "));
    let bailian = r#"{"chat_id": 1, "timestamp": 1, "input_length": 1, "output_length": 1}"#;
    assert!(error(&mut trace, bailian).starts_with("line 4: Mooncake and Bailian"));
    let timeless = r#"{"input_length": 1, "output_length": 1}"#;
    assert!(error(&mut trace, timeless).starts_with("line 5: no timestamp"));
    let negative = r#"{"timestamp": -1, "input_length": 1, "output_length": 1}"#;
    assert!(error(&mut trace, negative).starts_with("line 6: the timestamp"));
    assert_eq!(trace.len(), 1);
}

#[test]
fn a_trace_of_other_blocks_can_be_told_so() {
    let mut trace = Trace::new(std::num::NonZero::new(64));
    let line =
        r#"{"timestamp": 1, "input_length": 200, "output_length": 1, "hash_ids": [1, 2, 3, 4]}"#;
    trace.push_line(line).expect("a Mooncake line");
    assert_eq!(trace.block_tokens(), 64);
    let set = trace.replay(&Replay::default(), 1);
    assert_eq!((set.block_tokens, set.requests[0].prompt_blocks(64)), (64, 3));
    assert_eq!(set.requests[0].keys.len(), 3);
}
