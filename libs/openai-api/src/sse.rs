//! An event stream cut at event boundaries, without changing a byte of it.
//!
//! **Invariant:** the frames' bytes, one after the other, are the bytes that were fed, however
//! the stream was cut into reads. Every byte is looked at a fixed number of times, an event that
//! lies within one read is handed on without a copy, and no more than the cap is ever held.

use bytes::{Bytes, BytesMut};

mod lines;

/// The most that is held of one event, by default. Events of this size carry log probabilities
/// or token lists of whole prompts; nothing that the gateway reads of an event is that large.
pub const DEFAULT_MAX_EVENT_BYTES: usize = 1024 * 1024;

/// A piece of an event stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseFrame {
    /// The very bytes, with the blank line that ends the event.
    pub bytes: Bytes,
    /// What they are.
    pub kind: FrameKind,
}

/// What a frame is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// An event with data. Several `data` lines are joined by line feeds, as the standard says.
    Data(Bytes),
    /// Comments alone, such as a keep-alive.
    Comment,
    /// Fields without data, or blank lines.
    Other,
    /// A part of an event that is larger than the cap: to be passed on, not to be read.
    Oversize,
}

/// Cuts an event stream into frames.
#[derive(Debug)]
pub struct SseSplitter {
    max_event_bytes: usize,
    /// What was fed and not yet looked at.
    input: Bytes,
    /// The beginning of the current event, from earlier reads.
    held: BytesMut,
    scan: lines::Scan,
    /// Parts of the current event were passed on as oversize.
    oversize: bool,
    /// No event has ended yet, so a byte order mark may stand before the first field.
    at_start: bool,
}

impl Default for SseSplitter {
    fn default() -> Self {
        Self::new(DEFAULT_MAX_EVENT_BYTES)
    }
}

impl SseSplitter {
    /// A splitter that holds at most `max_event_bytes` of an event.
    pub fn new(max_event_bytes: usize) -> Self {
        Self {
            max_event_bytes,
            input: Bytes::new(),
            held: BytesMut::new(),
            scan: lines::Scan::default(),
            oversize: false,
            at_start: true,
        }
    }

    /// Takes one read and gives the frames that are complete with it. Frames that are not taken
    /// from the iterator come with the next call.
    pub fn feed(&mut self, bytes: Bytes) -> Frames<'_> {
        if self.input.is_empty() {
            self.input = bytes;
        } else {
            let mut joined = BytesMut::from(std::mem::take(&mut self.input));
            joined.extend_from_slice(&bytes);
            self.input = joined.freeze();
        }
        Frames { splitter: self }
    }

    /// The next frame that is complete.
    pub fn next_frame(&mut self) -> Option<SseFrame> {
        while !self.input.is_empty() {
            match self.scan.event_end(&self.input) {
                // The event ended with the read before.
                Some(0) => {
                    if let Some(frame) = self.take_held() {
                        return Some(frame);
                    }
                    self.oversize = false;
                }
                Some(end) => return Some(self.complete(end)),
                None => return self.hold_rest(),
            }
        }
        None
    }

    /// The bytes after the last complete event, if any, and what they would be if a blank line
    /// followed. The splitter is as new afterwards.
    pub fn finish(&mut self) -> Option<SseFrame> {
        let rest = std::mem::take(&mut self.input);
        self.held.extend_from_slice(&rest);
        self.scan = lines::Scan::default();
        let frame = self.take_held();
        self.oversize = false;
        self.at_start = true;
        frame
    }

    /// Bytes that are held at the moment.
    pub fn held_bytes(&self) -> usize {
        self.held.len() + self.input.len()
    }

    /// An event ends `end` bytes into the input.
    fn complete(&mut self, end: usize) -> SseFrame {
        let rest = self.input.split_to(end);
        if self.held.is_empty() {
            return self.frame(rest);
        }
        if self.held.len() + rest.len() > self.max_event_bytes {
            self.oversize = true;
        }
        self.held.extend_from_slice(&rest);
        let whole = self.held.split().freeze();
        self.frame(whole)
    }

    /// The input ends within an event.
    fn hold_rest(&mut self) -> Option<SseFrame> {
        let rest = std::mem::take(&mut self.input);
        if self.oversize {
            return Some(SseFrame { bytes: rest, kind: FrameKind::Oversize });
        }
        if self.held.is_empty() && rest.len() > self.max_event_bytes {
            self.oversize = true;
            return Some(SseFrame { bytes: rest, kind: FrameKind::Oversize });
        }
        self.held.extend_from_slice(&rest);
        if self.held.len() <= self.max_event_bytes {
            return None;
        }
        self.oversize = true;
        let bytes = self.held.split().freeze();
        Some(SseFrame { bytes, kind: FrameKind::Oversize })
    }

    fn take_held(&mut self) -> Option<SseFrame> {
        if self.held.is_empty() {
            return None;
        }
        let bytes = self.held.split().freeze();
        Some(self.frame(bytes))
    }

    /// Closes the current event with its last bytes.
    fn frame(&mut self, bytes: Bytes) -> SseFrame {
        let at_start = std::mem::replace(&mut self.at_start, false);
        let oversize = std::mem::take(&mut self.oversize) || bytes.len() > self.max_event_bytes;
        let kind = if oversize { FrameKind::Oversize } else { lines::classify(&bytes, at_start) };
        SseFrame { bytes, kind }
    }
}

/// The frames that one read completed.
#[derive(Debug)]
pub struct Frames<'a> {
    splitter: &'a mut SseSplitter,
}

impl Iterator for Frames<'_> {
    type Item = SseFrame;

    fn next(&mut self) -> Option<SseFrame> {
        self.splitter.next_frame()
    }
}

#[cfg(test)]
mod tests;
