//! The trace that a request comes with: W3C Trace Context, level 1 and what it says of later ones.

use std::str::FromStr;

use opentelemetry::trace::{SpanId, TraceId, TraceState};

/// The header with trace, parent and whether it is sampled.
pub const TRACEPARENT: &str = "traceparent";
/// The header with what vendors add.
pub const TRACESTATE: &str = "tracestate";

/// The only version there is; later ones begin alike.
const VERSION: &str = "00";
const SAMPLED: u8 = 1;

/// Where a request's trace comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Parent {
    /// The trace.
    pub trace: TraceId,
    /// The span that called us.
    pub span: SpanId,
    /// Whether it is recorded.
    pub sampled: bool,
    /// What vendors add.
    pub state: TraceState,
}

impl Parent {
    /// Reads the headers. `None` of anything that is not a whole context: then a new trace begins,
    /// as the standard says.
    pub fn read(traceparent: &[u8], tracestate: Option<&[u8]>) -> Option<Self> {
        let text = std::str::from_utf8(traceparent).ok()?;
        let (version, rest) = text.split_once('-')?;
        let [trace, span, flags] = fields(rest, version)?;
        if version.len() != 2 || version == "ff" || !is_lower_hex(version) {
            return None;
        }
        let trace = TraceId::from_bytes(u128::from_str_radix(trace, 16).ok()?.to_be_bytes());
        let span = SpanId::from_bytes(u64::from_str_radix(span, 16).ok()?.to_be_bytes());
        let flags = u8::from_str_radix(flags, 16).ok()?;
        let state = tracestate
            .and_then(|state| std::str::from_utf8(state).ok())
            .and_then(|state| TraceState::from_str(state).ok())
            .unwrap_or_default();
        let is_valid = trace != TraceId::INVALID && span != SpanId::INVALID;
        is_valid.then_some(Self { trace, span, sampled: flags & SAMPLED != 0, state })
    }
}

/// Trace, span and flags: all that there may be in version 00, the first three of a later one.
fn fields<'a>(rest: &'a str, version: &str) -> Option<[&'a str; 3]> {
    let mut parts = rest.split('-');
    let found = [parts.next()?, parts.next()?, parts.next()?];
    if version == VERSION && parts.next().is_some() {
        return None;
    }
    let lengths = found.map(str::len) == [32, 16, 2];
    (lengths && found.iter().all(|part| is_lower_hex(part))).then_some(found)
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The header for whoever is called from `span`.
pub(crate) fn traceparent(trace: TraceId, span: SpanId) -> String {
    format!("{VERSION}-{trace:032x}-{span:016x}-{SAMPLED:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(text: &str) -> Option<Parent> {
        Parent::read(text.as_bytes(), None)
    }

    #[test]
    fn a_context_is_read_and_written_alike() {
        let parent = read(GOOD).expect("the standard's own example");
        assert!(parent.sampled);
        assert_eq!(traceparent(parent.trace, parent.span), GOOD);
        assert!(!read(&GOOD.replace("-01", "-00")).expect("not sampled").sampled);
        assert!(read(&GOOD.replace("-01", "-03")).expect("other flags").sampled);
    }

    #[test]
    fn a_later_version_may_have_more_and_this_one_may_not() {
        assert!(read(&format!("{GOOD}-more")).is_none());
        assert!(read(&format!("{GOOD}-more").replacen("00", "01", 1)).is_some());
        assert!(read(&GOOD.replacen("00", "ff", 1)).is_none());
    }

    #[test]
    fn what_is_not_whole_is_no_context() {
        let zeros = ["0".repeat(32), "0".repeat(16)];
        let odd = [
            "".to_owned(),
            "00".to_owned(),
            GOOD[..54].to_owned(),
            GOOD.to_uppercase(),
            GOOD.replace('4', "g"),
            GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &zeros[0]),
            GOOD.replace("00f067aa0ba902b7", &zeros[1]),
            format!(" {GOOD}"),
            GOOD.replacen("00-4b", "00-+b", 1),
        ];
        for odd in odd {
            assert_eq!(read(&odd), None, "{odd}");
        }
        assert_eq!(Parent::read(b"\xff", None), None);
    }

    #[test]
    fn what_vendors_add_is_kept_where_it_can_be_read() {
        let state = |text: &str| {
            let parent = Parent::read(GOOD.as_bytes(), Some(text.as_bytes())).expect("whole");
            parent.state.header()
        };
        assert_eq!(state("a=1,b=2"), "a=1,b=2");
        assert_eq!(state("no member"), "");
    }
}
