use proptest::prelude::*;

use super::*;

const ROLE: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
const TOKEN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn read(reader: &mut EventReader, text: &str) -> Vec<Bytes> {
    let mut out = VecDeque::new();
    reader.read(Bytes::copy_from_slice(text.as_bytes()), &mut out);
    out.into()
}

#[test]
fn whole_events_of_one_read_go_on_in_one_piece() {
    let mut reader = EventReader::new(Grammar::Choices, false, false);
    let text = [ROLE, TOKEN, TOKEN].concat();
    assert_eq!(read(&mut reader, &text), [Bytes::from(text.clone())]);
    assert_eq!(reader.contents(), 2);
}

#[test]
fn the_usage_event_is_left_out_only_if_it_was_asked_for_by_the_gateway() {
    let text = [TOKEN, USAGE, DONE].concat();
    for (drop_usage, expected) in [(true, [TOKEN, DONE].concat()), (false, text.clone())] {
        for split in 0..text.len() {
            let mut reader = EventReader::new(Grammar::Choices, drop_usage, false);
            let mut out = read(&mut reader, &text[..split]);
            out.extend(read(&mut reader, &text[split..]));
            assert_eq!(out.concat(), expected.as_bytes(), "split at {split}");
            assert_eq!(reader.usage().unwrap().prompt_tokens, 5);
            assert!(reader.is_done());
        }
    }
}

#[test]
fn comments_and_roles_are_no_content() {
    let mut reader = EventReader::new(Grammar::Choices, true, false);
    read(&mut reader, &[": keep-alive\n\n", ROLE].concat());
    assert!(!reader.is_committed());
    assert_eq!(reader.contents(), 0);
}

#[test]
fn an_answer_that_ends_without_content_is_an_answer() {
    let mut reader = EventReader::new(Grammar::Choices, true, false);
    read(&mut reader, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n");
    assert!(reader.is_committed());
    assert!(reader.is_complete());
}

#[test]
fn an_end_without_a_blank_line_is_read_and_handed_on() {
    let mut reader = EventReader::new(Grammar::Choices, true, false);
    assert!(read(&mut reader, "data: [DONE]").is_empty());
    let mut out = VecDeque::new();
    reader.finish(&mut out);
    assert_eq!(out, [Bytes::from_static(b"data: [DONE]")]);
    assert!(reader.is_done());
}

#[test]
fn a_4xx_code_makes_an_error_the_clients() {
    let error =
        |code: &str| EngineError::read(format!("{{\"error\":{{\"code\":{code}}}}}").as_bytes());
    assert_eq!(error("400"), EngineError::Client);
    assert_eq!(error("\"404\""), EngineError::Client);
    assert_eq!(error("429"), EngineError::Server);
    assert_eq!(error("500"), EngineError::Server);
    assert_eq!(error("null"), EngineError::Server);
    assert_eq!(error("\"oops\""), EngineError::Server);
    assert_eq!(EngineError::read(b"{\"error\":\"oops\"}"), EngineError::Server);
}

proptest! {
    #[test]
    fn any_stream_in_any_pieces_passes_but_for_the_usage_event(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                ROLE, TOKEN, USAGE, DONE, ": c\n\n", "event: x\r\ndata: {}\r\n\r\n",
                "data: not json\n\n", "data: a\ndata: b\n\n",
            ]),
            0..12,
        ),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        drop_usage: bool,
    ) {
        let text = parts.concat();
        let mut cuts: Vec<_> = cuts.iter().map(|c| c.index(text.len() + 1)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut reader = EventReader::new(Grammar::Choices, drop_usage, false);
        let mut out = VecDeque::new();
        for cut in cuts.windows(2) {
            reader.read(Bytes::copy_from_slice(&text.as_bytes()[cut[0]..cut[1]]), &mut out);
        }
        reader.finish(&mut out);
        let passed = Vec::from(out).concat();
        let kept = parts.iter().filter(|p| !drop_usage || **p != USAGE);
        let expected: String = kept.copied().collect();
        prop_assert_eq!(&passed, expected.as_bytes());
        prop_assert_eq!(reader.usage().is_some(), parts.contains(&USAGE));
        prop_assert_eq!(reader.is_done(), parts.contains(&DONE));
    }
}
