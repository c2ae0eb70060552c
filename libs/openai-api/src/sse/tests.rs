use proptest::prelude::*;

use super::*;

/// Feeds the parts one after the other and gives every frame.
fn frames<'a>(
    splitter: &mut SseSplitter,
    parts: impl IntoIterator<Item = &'a [u8]>,
) -> Vec<SseFrame> {
    let mut frames = Vec::new();
    for part in parts {
        frames.extend(splitter.feed(Bytes::copy_from_slice(part)));
    }
    frames.extend(splitter.finish());
    frames
}

fn split(text: &str) -> Vec<SseFrame> {
    frames(&mut SseSplitter::default(), [text.as_bytes()])
}

fn kinds(text: &str) -> Vec<FrameKind> {
    split(text).into_iter().map(|frame| frame.kind).collect()
}

fn data(payload: &str) -> FrameKind {
    FrameKind::Data(Bytes::copy_from_slice(payload.as_bytes()))
}

fn joined(frames: &[SseFrame]) -> Vec<u8> {
    frames.iter().flat_map(|frame| frame.bytes.to_vec()).collect()
}

fn payloads(frames: &[SseFrame]) -> Vec<Bytes> {
    let payload = |frame: &SseFrame| match &frame.kind {
        FrameKind::Data(payload) => Some(payload.clone()),
        _ => None,
    };
    frames.iter().filter_map(payload).collect()
}

#[test]
fn every_line_end_of_the_standard_ends_an_event() {
    for end in ["\n", "\r\n", "\r"] {
        let text = format!("data: a{end}{end}data: b{end}{end}");
        assert_eq!(kinds(&text), vec![data("a"), data("b")], "{end:?}");
    }
}

#[test]
fn data_is_read_with_and_without_the_space_and_over_several_lines() {
    assert_eq!(kinds("data:[DONE]\n\n"), vec![data("[DONE]")]);
    assert_eq!(kinds("data:  a\n\n"), vec![data(" a")]);
    assert_eq!(kinds("data: a\ndata:b\ndata\nid: 1\n\n"), vec![data("a\nb\n")]);
    assert_eq!(kinds("event: error\r\ndata: a\r\ndata: b\r\n\r\n"), vec![data("a\nb")]);
}

#[test]
fn comments_and_other_fields_are_no_data() {
    let text = ": keep-alive\n\ndata: a\n\nevent: ping\n\n\ndatum: x\n\n: c\nid: 1\n\n";
    use FrameKind::{Comment, Other};
    assert_eq!(kinds(text), vec![Comment, data("a"), Other, Other, Other, Other]);
    assert_eq!(joined(&split(text)), text.as_bytes());
}

#[test]
fn a_byte_order_mark_counts_only_at_the_start() {
    assert_eq!(kinds("\u{feff}data: a\n\n"), vec![data("a")]);
    assert_eq!(kinds("data: a\n\n\u{feff}data: b\n\n"), vec![data("a"), FrameKind::Other]);
}

#[test]
fn an_event_without_its_blank_line_comes_with_the_end() {
    let mut splitter = SseSplitter::default();
    assert_eq!(splitter.feed(Bytes::from_static(b"data: [DONE]\n")).count(), 0);
    let last = splitter.finish().expect("there is a rest");
    assert_eq!((&last.bytes[..], last.kind), (&b"data: [DONE]\n"[..], data("[DONE]")));
    assert_eq!(splitter.finish(), None);
}

#[test]
fn an_event_is_handed_on_with_its_last_byte() {
    let mut splitter = SseSplitter::default();
    for (end, complete) in [("\n\n", true), ("\r\r", true), ("\n", false), ("\r\n\r\n", true)] {
        let count = splitter.feed(Bytes::from(format!("data: a{end}"))).count();
        assert_eq!(count == 1, complete, "{end:?}");
        splitter.finish();
    }
}

#[test]
fn an_event_within_one_read_is_not_copied() {
    let read = Bytes::from_static(b"data: one\n\ndata: two\n\n");
    let mut splitter = SseSplitter::default();
    let frames: Vec<SseFrame> = splitter.feed(read.clone()).collect();
    assert_eq!(frames[0].bytes.as_ptr(), read.as_ptr());
    assert_eq!(frames[1].bytes.as_ptr(), read[11..].as_ptr());
    let FrameKind::Data(payload) = &frames[1].kind else { panic!("{:?}", frames[1]) };
    assert_eq!(payload.as_ptr(), read[17..].as_ptr());
}

#[test]
fn frames_that_were_not_taken_come_with_the_next_read() {
    let mut splitter = SseSplitter::default();
    let first = splitter.feed(Bytes::from_static(b"data: a\n\ndata: b\n\nda")).next();
    assert_eq!(first.map(|frame| frame.kind), Some(data("a")));
    let rest: Vec<FrameKind> =
        splitter.feed(Bytes::from_static(b"ta: c\n\n")).map(|frame| frame.kind).collect();
    assert_eq!(rest, vec![data("b"), data("c")]);
}

#[test]
fn an_event_above_the_cap_flows_through_and_the_next_one_is_read() {
    let large = format!("data: {}\n\n", "x".repeat(100));
    let text = format!("data: a\n\n{large}data: b\n\n");
    for size in [1, 7, 64, 1000] {
        let mut splitter = SseSplitter::new(32);
        let mut got = Vec::new();
        for part in text.as_bytes().chunks(size) {
            got.extend(splitter.feed(Bytes::copy_from_slice(part)));
            assert!(splitter.held_bytes() <= 32);
        }
        assert_eq!(splitter.finish(), None);
        assert_eq!(joined(&got), text.as_bytes());
        assert_eq!(payloads(&got), vec!["a", "b"], "reads of {size}");
        assert!(got.iter().any(|frame| frame.kind == FrameKind::Oversize));
    }
}

/// Twenty megabytes in reads of a kilobyte: rescanning what is held would take minutes.
#[test]
fn a_giant_event_in_small_reads_takes_linear_time_and_bounded_memory() {
    let read = Bytes::from(vec![b'x'; 1024]);
    for cap in [DEFAULT_MAX_EVENT_BYTES, usize::MAX] {
        let mut splitter = SseSplitter::new(cap);
        let mut passed = 0;
        for _ in 0..20 * 1024 {
            passed += splitter.feed(read.clone()).map(|frame| frame.bytes.len()).sum::<usize>();
            assert!(splitter.held_bytes() <= cap);
        }
        let tail = splitter.feed(Bytes::from_static(b"\n\ndata: a\n\n")).collect::<Vec<_>>();
        assert_eq!(payloads(&tail), vec!["a"]);
        passed += tail.iter().map(|frame| frame.bytes.len()).sum::<usize>();
        assert_eq!(passed, 20 * 1024 * 1024 + 11);
    }
}

/// A character of several bytes, cut anywhere, stays what it was.
#[test]
fn a_character_split_over_reads_is_not_changed() {
    let text = "data: {\"choices\":[{\"delta\":{\"content\":\"安🚀\"}}]}\n\ndata: [DONE]\n\n";
    let whole = split(text);
    for at in 0..text.len() {
        let (head, tail) = text.as_bytes().split_at(at);
        assert_eq!(frames(&mut SseSplitter::default(), [head, tail]), whole);
    }
    assert_eq!(frames(&mut SseSplitter::default(), text.as_bytes().chunks(1)), whole);
}

/// The standard's algorithm over the whole text, with an end of stream read as a blank line.
fn reference_payloads(text: &str) -> Vec<String> {
    let unix = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut payloads = Vec::new();
    let mut data: Option<String> = None;
    for line in unix.strip_prefix('\u{feff}').unwrap_or(&unix).split('\n').chain([""]) {
        if line.is_empty() {
            payloads.extend(data.take());
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        if field == "data" {
            let value = value.strip_prefix(' ').unwrap_or(value);
            data = Some(data.map_or_else(|| value.to_owned(), |data| data + "\n" + value));
        }
    }
    payloads
}

fn any_stream() -> impl Strategy<Value = String> {
    let pieces = vec![
        "data",
        "data:",
        "data: ",
        ":",
        " ",
        "\n",
        "\n\n",
        "\r",
        "\r\n",
        "\r\n\r\n",
        "\r\r",
        "x",
        "é",
        "\u{feff}",
        "event: e",
        "{\"a\":1}",
    ];
    prop::collection::vec(prop::sample::select(pieces), 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    /// Any stream in any reads: the bytes come out as they went in, and the data is what the
    /// standard says.
    #[test]
    fn any_stream_in_any_reads_keeps_its_bytes_and_its_data(
        text in any_stream(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let parts = cuts.windows(2).map(|pair| &text.as_bytes()[pair[0]..pair[1]]);
        let frames = frames(&mut SseSplitter::default(), parts);
        prop_assert_eq!(joined(&frames), text.as_bytes());
        prop_assert_eq!(payloads(&frames), reference_payloads(&text));
    }

    /// The same with a cap so small that most events are above it.
    #[test]
    fn a_small_cap_loses_no_byte(text in any_stream(), cap in 0..12_usize, size in 1..9_usize) {
        let mut splitter = SseSplitter::new(cap);
        let mut got = Vec::new();
        for part in text.as_bytes().chunks(size) {
            got.extend(splitter.feed(Bytes::copy_from_slice(part)));
            prop_assert!(splitter.held_bytes() <= cap);
        }
        got.extend(splitter.finish());
        prop_assert_eq!(joined(&got), text.as_bytes());
    }
}
