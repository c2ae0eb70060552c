//! Faults that can be injected, what they are called on the command line, and which of them a
//! request meets.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::watch;

/// The largest event the giant fault makes.
const MAX_GIANT_BYTES: usize = 256 << 20;
/// Most faults at a time, and most comment lines: a bound for what `POST /fault` accepts.
const MAX_FAULTS: usize = 64;
const MAX_COMMENTS: u32 = 100_000;

/// How a connection ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// With a RST.
    Reset,
    /// With a FIN in the middle of the body.
    Close,
    /// The body ends as if it were complete, then a FIN; but `[DONE]` was never sent.
    End,
}

/// What goes wrong. "Tokens" are content events, over all choices; an answer that has fewer of
/// them meets the fault after its last one. In an answer that does not stream, the fault sits in
/// the middle of the JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// `refuse`: the port is closed. Open connections go on.
    Refuse,
    /// `close`: the request is read, then the connection is closed without a byte.
    Close,
    /// `reset`: the same with a RST.
    Reset,
    /// `status=CODE`: this status, before any byte of an answer; with `retry-after=SECONDS`.
    Status {
        /// The HTTP status.
        code: StatusCode,
        /// The `Retry-After` header, in seconds.
        retry_after: Option<u32>,
    },
    /// `silent`: status 200 and headers, then nothing.
    Silent,
    /// `delay=MS`: so long a wait before the headers.
    Delay(Duration),
    /// `reset-after=N`, `close-after=N`, `end-after=N`: the connection ends after N tokens. With
    /// N = 0 only the event that names the role is sent.
    Cut {
        /// Tokens that are still sent.
        after_tokens: u32,
        /// How the connection ends.
        how: Cut,
    },
    /// `stall-after=N`: nothing more after N tokens; the connection stays open.
    Stall {
        /// Tokens that are still sent.
        after_tokens: u32,
    },
    /// `comments=N`: N comment lines before the first event.
    Comments(u32),
    /// `bad-json=N`: after N tokens comes an event that is no JSON, then the stream goes on.
    BadJson {
        /// Tokens before it.
        after_tokens: u32,
    },
    /// `giant=BYTES`: the first content event carries so many bytes.
    Giant {
        /// Bytes of content.
        bytes: usize,
    },
    /// `one-byte-writes`: the answer goes out one byte per write.
    OneByteWrites,
}

/// A fault and whom it hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// `times=K`: only the next so many requests; always without it.
    pub times: Option<u32>,
    /// `all`: health checks, metrics and the like as well, not only inference.
    pub every_route: bool,
}

impl Fault {
    /// A fault that every inference request meets.
    pub fn always(kind: FaultKind) -> Self {
        Self { kind, times: None, every_route: false }
    }

    /// A fault that the next `times` inference requests meet.
    pub fn next(times: u32, kind: FaultKind) -> Self {
        Self { kind, times: Some(times), every_route: false }
    }
}

/// Why a fault's text was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault {spec:?}: {problem}; write one of {FORMS}")]
pub struct FaultSyntax {
    spec: String,
    problem: String,
}

/// Every form, for messages and help.
pub(crate) const FORMS: &str = "refuse, close, reset, status=CODE[,retry-after=SECONDS], silent, \
     delay=MS, reset-after=N, close-after=N, end-after=N, stall-after=N, comments=N, bad-json=N, \
     giant=BYTES, one-byte-writes; each with [,times=K][,all]";

impl FromStr for Fault {
    type Err = FaultSyntax;

    fn from_str(spec: &str) -> Result<Self, FaultSyntax> {
        parse(spec).map_err(|problem| FaultSyntax { spec: spec.to_owned(), problem })
    }
}

fn parse(spec: &str) -> Result<Fault, String> {
    let mut parts = spec.split(',').map(|part| match part.split_once('=') {
        Some((name, value)) => (name.trim(), Some(value.trim())),
        None => (part.trim(), None),
    });
    let (name, value) = parts.next().unwrap_or_default();
    let mut fault = Fault::always(kind(name, value)?);
    for (name, value) in parts {
        match (name, &mut fault.kind) {
            ("times", _) => fault.times = Some(number(name, value)?),
            ("all", _) if value.is_none() => fault.every_route = true,
            ("retry-after", FaultKind::Status { retry_after, .. }) => {
                *retry_after = Some(number(name, value)?);
            }
            _ => return Err(format!("unknown option {name:?}")),
        }
    }
    match fault.kind {
        FaultKind::Refuse if fault.times.is_some() => {
            Err("a closed port sees no requests that could be counted".to_owned())
        }
        _ => Ok(fault),
    }
}

fn kind(name: &str, value: Option<&str>) -> Result<FaultKind, String> {
    let cut = |how| Ok(FaultKind::Cut { after_tokens: number(name, value)?, how });
    match name {
        "refuse" => bare(name, value, FaultKind::Refuse),
        "close" => bare(name, value, FaultKind::Close),
        "reset" => bare(name, value, FaultKind::Reset),
        "silent" => bare(name, value, FaultKind::Silent),
        "one-byte-writes" => bare(name, value, FaultKind::OneByteWrites),
        "status" => {
            let code = number(name, value)?;
            let code = u16::try_from(code).ok().filter(|code| (400..600).contains(code));
            let code = code.and_then(|code| StatusCode::from_u16(code).ok());
            let code = code.ok_or("a status is 400 to 599")?;
            Ok(FaultKind::Status { code, retry_after: None })
        }
        "delay" => Ok(FaultKind::Delay(Duration::from_millis(number(name, value)?.into()))),
        "reset-after" => cut(Cut::Reset),
        "close-after" => cut(Cut::Close),
        "end-after" => cut(Cut::End),
        "stall-after" => Ok(FaultKind::Stall { after_tokens: number(name, value)? }),
        "comments" => Ok(FaultKind::Comments(number(name, value)?.min(MAX_COMMENTS))),
        "bad-json" => Ok(FaultKind::BadJson { after_tokens: number(name, value)? }),
        "giant" => {
            let bytes = number(name, value)? as usize;
            Ok(FaultKind::Giant { bytes: bytes.min(MAX_GIANT_BYTES) })
        }
        _ => Err("unknown".to_owned()),
    }
}

fn bare(name: &str, value: Option<&str>, kind: FaultKind) -> Result<FaultKind, String> {
    match value {
        None => Ok(kind),
        Some(_) => Err(format!("{name} takes no value")),
    }
}

fn number(name: &str, value: Option<&str>) -> Result<u32, String> {
    let value = value.ok_or_else(|| format!("{name} needs a number"))?;
    value.parse().map_err(|_| format!("{name}: {value:?} is no number"))
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            FaultKind::Refuse => f.write_str("refuse")?,
            FaultKind::Close => f.write_str("close")?,
            FaultKind::Reset => f.write_str("reset")?,
            FaultKind::Status { code, retry_after } => {
                write!(f, "status={}", code.as_u16())?;
                if let Some(seconds) = retry_after {
                    write!(f, ",retry-after={seconds}")?;
                }
            }
            FaultKind::Silent => f.write_str("silent")?,
            FaultKind::Delay(delay) => write!(f, "delay={}", delay.as_millis())?,
            FaultKind::Cut { after_tokens, how } => {
                let how = match how {
                    Cut::Reset => "reset",
                    Cut::Close => "close",
                    Cut::End => "end",
                };
                write!(f, "{how}-after={after_tokens}")?;
            }
            FaultKind::Stall { after_tokens } => write!(f, "stall-after={after_tokens}")?,
            FaultKind::Comments(lines) => write!(f, "comments={lines}")?,
            FaultKind::BadJson { after_tokens } => write!(f, "bad-json={after_tokens}")?,
            FaultKind::Giant { bytes } => write!(f, "giant={bytes}")?,
            FaultKind::OneByteWrites => f.write_str("one-byte-writes")?,
        }
        if let Some(times) = self.times {
            write!(f, ",times={times}")?;
        }
        f.write_str(if self.every_route { ",all" } else { "" })
    }
}

/// Everything one request meets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) delay: Option<Duration>,
    /// The connection ends without a byte of an answer.
    pub(crate) drop: Option<Cut>,
    pub(crate) status: Option<(StatusCode, Option<u32>)>,
    pub(crate) silent: bool,
    pub(crate) cut: Option<(u32, Cut)>,
    pub(crate) stall: Option<u32>,
    pub(crate) comments: u32,
    pub(crate) bad_json: Option<u32>,
    pub(crate) giant: Option<usize>,
    pub(crate) one_byte_writes: bool,
}

impl Plan {
    fn add(&mut self, kind: FaultKind) {
        match kind {
            FaultKind::Refuse => {}
            FaultKind::Close => self.drop = Some(Cut::Close),
            FaultKind::Reset => self.drop = Some(Cut::Reset),
            FaultKind::Status { code, retry_after } => self.status = Some((code, retry_after)),
            FaultKind::Silent => self.silent = true,
            FaultKind::Delay(delay) => self.delay = Some(delay),
            FaultKind::Cut { after_tokens, how } => self.cut = Some((after_tokens, how)),
            FaultKind::Stall { after_tokens } => self.stall = Some(after_tokens),
            FaultKind::Comments(lines) => self.comments = lines,
            FaultKind::BadJson { after_tokens } => self.bad_json = Some(after_tokens),
            FaultKind::Giant { bytes } => self.giant = Some(bytes),
            FaultKind::OneByteWrites => self.one_byte_writes = true,
        }
    }
}

/// The faults in force.
#[derive(Debug)]
pub(crate) struct FaultBoard {
    faults: Mutex<Vec<Fault>>,
    refusing: watch::Sender<bool>,
}

impl FaultBoard {
    pub(crate) fn new(faults: Vec<Fault>) -> Self {
        let board = Self { faults: Mutex::default(), refusing: watch::Sender::new(false) };
        board.set(faults);
        board
    }

    /// Replaces all faults.
    pub(crate) fn set(&self, mut faults: Vec<Fault>) {
        faults.truncate(MAX_FAULTS);
        let refusing = faults.iter().any(|fault| fault.kind == FaultKind::Refuse);
        *self.faults.lock() = faults;
        self.refusing.send_if_modified(|now| std::mem::replace(now, refusing) != refusing);
    }

    /// The faults that still have someone to hit.
    pub(crate) fn current(&self) -> Vec<Fault> {
        self.faults.lock().clone()
    }

    /// Whether the port is to be closed.
    pub(crate) fn watch_refusing(&self) -> watch::Receiver<bool> {
        self.refusing.subscribe()
    }

    /// What the next request meets, counted off.
    pub(crate) fn plan(&self, inference: bool) -> Plan {
        let mut plan = Plan::default();
        self.faults.lock().retain_mut(|fault| {
            if !(inference || fault.every_route) || fault.times == Some(0) {
                return fault.times != Some(0);
            }
            plan.add(fault.kind);
            if let Some(times) = &mut fault.times {
                *times -= 1;
            }
            fault.times != Some(0)
        });
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_reads_back_as_it_is_written() {
        for spec in [
            "refuse",
            "close,times=3",
            "reset,all",
            "status=503,retry-after=2,times=5,all",
            "silent",
            "delay=250",
            "reset-after=0",
            "close-after=3,times=1",
            "end-after=2",
            "stall-after=7",
            "comments=4",
            "bad-json=1",
            "giant=1000000",
            "one-byte-writes",
        ] {
            let fault: Fault = spec.parse().expect(spec);
            assert_eq!(fault.to_string(), spec);
        }
    }

    #[test]
    fn a_misspelt_fault_says_what_is_wrong_and_what_can_be_written() {
        for (spec, problem) in [
            ("nonsense", "unknown"),
            ("delay", "delay needs a number"),
            ("delay=soon", "\"soon\" is no number"),
            ("status=200", "400 to 599"),
            ("close=1", "close takes no value"),
            ("close,retry-after=1", "unknown option \"retry-after\""),
            ("refuse,times=2", "a closed port"),
        ] {
            let message = spec.parse::<Fault>().expect_err(spec).to_string();
            assert!(message.contains(problem), "{message}");
            assert!(message.contains("stall-after=N"), "{message}");
        }
    }

    #[test]
    fn a_fault_with_a_count_hits_so_many_inference_requests() {
        let board = FaultBoard::new(vec![
            Fault::next(2, FaultKind::Close),
            Fault::always(FaultKind::Comments(1)),
        ]);
        assert_eq!(board.plan(false), Plan::default());
        for left in [1, 0] {
            assert_eq!(board.plan(true).drop, Some(Cut::Close));
            assert_eq!(board.current().len(), if left > 0 { 2 } else { 1 });
        }
        let plan = board.plan(true);
        assert_eq!((plan.drop, plan.comments), (None, 1));
    }
}
