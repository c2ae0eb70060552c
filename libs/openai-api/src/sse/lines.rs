//! Line ends and fields of an event stream. A line ends with LF, CR LF or CR alone; an event
//! ends with an empty line.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::FrameKind;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Where the search for the end of the current event stands between reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scan {
    /// The current line has content.
    in_line: bool,
    /// The last line end was CR LF, so that a carriage return at the end of a read most likely
    /// is half of one.
    crlf: bool,
    /// What a line feed at the beginning of the next read would belong to.
    pending: Pending,
}

/// A carriage return was the last byte of a read. A line feed that follows belongs to it.
#[derive(Clone, Copy, Debug, Default)]
enum Pending {
    #[default]
    Nothing,
    /// It ended a line within the current event.
    Line,
    /// It ended the event, which waits for the line feed.
    Event,
    /// It ended an event that was handed on without waiting.
    HandedOn,
}

impl Scan {
    /// Looks at `input`, which is not empty and follows what was looked at before. Gives the
    /// offset just behind the event's end if it ends here; the search for the next event then
    /// begins there. Zero means that the event was complete before this input.
    pub(super) fn event_end(&mut self, input: &[u8]) -> Option<usize> {
        let line_feed = usize::from(input.first() == Some(&b'\n'));
        let mut at = match std::mem::take(&mut self.pending) {
            Pending::Nothing => 0,
            pending => {
                self.crlf = line_feed == 1;
                match pending {
                    Pending::Event => return Some(line_feed),
                    Pending::HandedOn if self.crlf => return Some(1),
                    _ => line_feed,
                }
            }
        };
        while let Some(offset) = memchr::memchr2(b'\n', b'\r', &input[at..]) {
            let empty = offset == 0 && !self.in_line;
            self.in_line = false;
            let carriage_return = input[at + offset] == b'\r';
            at += offset + 1;
            if carriage_return && at == input.len() {
                return self.at_end_of_read(empty, at);
            }
            self.crlf = carriage_return && input[at] == b'\n';
            at += usize::from(self.crlf);
            if empty {
                return Some(at);
            }
        }
        self.in_line |= at < input.len();
        None
    }

    /// The read ends with a carriage return, which may be half of a line end.
    fn at_end_of_read(&mut self, empty: bool, at: usize) -> Option<usize> {
        self.pending = match (empty, self.crlf) {
            (false, _) => Pending::Line,
            (true, true) => Pending::Event,
            (true, false) => Pending::HandedOn,
        };
        matches!(self.pending, Pending::HandedOn).then_some(at)
    }
}

/// What the bytes of one event are.
pub(super) fn classify(event: &Bytes, at_start: bool) -> FrameKind {
    let mut data: Option<Range<usize>> = None;
    let mut joined: Option<BytesMut> = None;
    let (mut comments, mut others) = (false, false);
    let marked = at_start && event.starts_with(BYTE_ORDER_MARK);
    let mut at = if marked { BYTE_ORDER_MARK.len() } else { 0 };
    while at < event.len() {
        let rest = &event[at..];
        let length = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let line = &rest[..length];
        match (line.first(), data_value(line)) {
            (None, _) => {}
            (Some(b':'), _) => comments = true,
            (_, None) => others = true,
            (_, Some(skip)) => {
                let value = at + skip..at + length;
                match data.take() {
                    None => data = Some(value),
                    Some(first) => {
                        let lines =
                            joined.get_or_insert_with(|| BytesMut::from(&event[first.clone()]));
                        lines.extend_from_slice(b"\n");
                        lines.extend_from_slice(&event[value]);
                        data = Some(first);
                    }
                }
            }
        }
        // A CR LF reads as one more empty line, which is none of our concern here.
        at += length + 1;
    }
    match (joined, data) {
        (Some(lines), _) => FrameKind::Data(lines.freeze()),
        (None, Some(value)) => FrameKind::Data(event.slice(value)),
        (None, None) if comments && !others => FrameKind::Comment,
        (None, None) => FrameKind::Other,
    }
}

/// Where the value of a `data` line begins; `None` for any other line.
fn data_value(line: &[u8]) -> Option<usize> {
    match line.strip_prefix(b"data")? {
        [] => Some(4),
        [b':', b' ', ..] => Some(6),
        [b':', ..] => Some(5),
        _ => None,
    }
}
