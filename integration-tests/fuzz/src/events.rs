//! Event streams of engines.

use bytes::Bytes;
use openai_api::sse::FrameKind;
use openai_api::{
    ChunkView, Grammar, Said, SseFrame, SseSplitter, UsageMeter, response_id, usage_of_response,
};

/// The most that the splitter holds here: small, so that short inputs pass it.
const MOST_HELD: usize = 4096;

const GRAMMARS: [Grammar; 5] =
    [Grammar::Choices, Grammar::TokenIds, Grammar::Messages, Grammar::Responses, Grammar::Cohere];

/// However a stream is cut into reads, its frames are its bytes, and its events the same. What is
/// read of an event, in whatever grammar, agrees with itself and stands in the event.
///
/// # Panics
/// Where that does not hold. The first byte says where the stream is cut.
pub fn check(data: &[u8]) {
    let Some((cut, stream)) = data.split_first() else { return };
    let whole = split(stream, usize::MAX);
    let pieces = split(stream, usize::from(*cut % 17) + 1);
    assert_eq!(joined(&whole), stream, "no byte is lost or changed");
    assert_eq!(joined(&pieces), stream, "nor where it comes in pieces");
    if whole.iter().all(is_whole) && pieces.iter().all(is_whole) {
        // Frames may: where a read ends after a carriage return, a line feed makes one of its own.
        assert_eq!(events(&whole), events(&pieces), "events do not depend on the reads");
    }
    for grammar in GRAMMARS {
        let mut meter = UsageMeter::default();
        for event in events(&whole) {
            let view = ChunkView::read(event, grammar);
            agrees(&view, event);
            meter.observe(&view);
        }
        let _ = meter.total();
    }
    for document in events(&whole).into_iter().map(|event| &event[..]).chain([stream]) {
        if let Some(id) = response_id(document) {
            let at = id.as_ptr().addr().wrapping_sub(document.as_ptr().addr());
            assert_eq!(document.get(at..at + id.len()), Some(id.as_bytes()), "an id of the event");
        }
        let _ = usage_of_response(document);
    }
}

/// What is said of an event in several ways is one thing.
fn agrees(view: &ChunkView, event: &[u8]) {
    assert_eq!(view.has_content, view.said != Said::Nothing, "content is what is said");
    assert!(!(view.role_only && view.has_content), "a role alone is no content");
    assert!(!view.is_usage_only || view.usage.is_some(), "usage alone is usage");
    assert!(view.usage.is_none() || view.output_tokens.is_none(), "counts are told once");
    if let Said::Text { start, end } = view.said {
        let quote = Some(&b'"');
        let quoted = start.checked_sub(1).and_then(|at| event.get(at)) == quote;
        assert!(start <= end && quoted && event.get(end) == quote, "a text is a string's");
    }
}

fn events(frames: &[SseFrame]) -> Vec<&Bytes> {
    let data = |frame| match frame {
        &SseFrame { kind: FrameKind::Data(ref data), .. } => Some(data),
        _ => None,
    };
    frames.iter().filter_map(data).collect()
}

fn is_whole(frame: &SseFrame) -> bool {
    frame.kind != FrameKind::Oversize
}

fn split(stream: &[u8], read: usize) -> Vec<SseFrame> {
    let mut splitter = SseSplitter::new(MOST_HELD);
    let mut frames = Vec::new();
    for piece in stream.chunks(read.min(stream.len().max(1))) {
        frames.extend(splitter.feed(Bytes::copy_from_slice(piece)));
        assert!(splitter.held_bytes() <= MOST_HELD, "memory is bounded");
    }
    frames.extend(splitter.finish());
    frames
}

fn joined(frames: &[SseFrame]) -> Vec<u8> {
    frames.iter().flat_map(|frame| frame.bytes.iter().copied()).collect()
}
