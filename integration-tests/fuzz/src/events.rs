//! Event streams of engines.

use bytes::Bytes;
use openai_api::sse::FrameKind;
use openai_api::{ChunkView, SseFrame, SseSplitter};

/// The most that the splitter holds here: small, so that short inputs pass it.
const MOST_HELD: usize = 4096;

/// However a stream is cut into reads, its frames are its bytes, and its events the same.
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
    for event in events(&whole) {
        let _ = ChunkView::parse(event);
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
