//! What goes wrong, and what a client sees of it.

mod clients;
mod engines;

use std::time::Duration;

use domain::ErrorCode;

use super::dialects::{Dialect, JSON};
use crate::metrics::Outcome;
use crate::testing::*;

/// The rows of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fault {
    /// No connection, or one that ends before any byte.
    ConnectRefused,
    /// A status that says no, or an error in place of content.
    ErrorBeforeContent,
    /// 200, and then nothing.
    NothingAfterHead,
    /// An end in the middle.
    Cut,
    /// Silence.
    Stall,
    /// Events that are no JSON.
    BadJson,
    /// Every byte by itself, in characters of several, with line ends of two.
    Split,
    /// Megabytes in one event.
    Giant,
    /// A client that reads slowly, or not at all.
    SlowReader,
    /// A client that goes away.
    ClientLeaves,
}

impl Fault {
    pub(super) const ALL: [Fault; 10] = [
        Fault::ConnectRefused,
        Fault::ErrorBeforeContent,
        Fault::NothingAfterHead,
        Fault::Cut,
        Fault::Stall,
        Fault::BadJson,
        Fault::Split,
        Fault::Giant,
        Fault::SlowReader,
        Fault::ClientLeaves,
    ];
}

/// One fault in one place.
pub(super) struct Cell {
    pub(super) fault: Fault,
    /// In words.
    pub(super) name: String,
    /// Whether the request streams.
    pub(super) stream: bool,
    pub(super) engine: Act,
    pub(super) client: Conduct,
    pub(super) end: End,
}

/// What the engine does that is asked first.
#[derive(Clone, Copy)]
pub(super) enum Act {
    /// Nothing listens.
    Refuses,
    Does(fn(&Dialect) -> Vec<Step>),
}

/// What the client does.
#[derive(Clone, Copy)]
pub(super) enum Conduct {
    Reads,
    ReadsSlowly,
    /// It stays, and reads nothing.
    Stops,
    /// `reset`: by a RST.
    Leaves {
        when: When,
        reset: bool,
    },
}

/// How far things are when the client leaves.
#[derive(Clone, Copy)]
pub(super) enum When {
    /// Half of its body is sent.
    Sending,
    /// The engine has the request and has said what it says; the client has heard nothing.
    Asked,
    /// The client has heard this.
    Heard(fn(&Dialect) -> &'static str),
}

/// What the client sees in the end, and what is noted of it.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// All that the engine said.
    Passed(Outcome),
    /// Another engine's answer, and if there is none, this.
    Mended(&'static End),
    /// Another engine's answer.
    Elsewhere,
    /// An error of the gateway's.
    Refused(ErrorCode, Outcome),
    /// What the engine said, then an error event and the end.
    Told(ErrorCode, Outcome),
    /// What the engine said, and a broken connection.
    Cut(Outcome),
    /// The client is gone.
    Left(Outcome),
}

const UNAVAILABLE: End = End::Refused(ErrorCode::UpstreamUnavailable, Outcome::UpstreamError);
const MENDED: End = End::Mended(&UNAVAILABLE);
const TOLD: End = End::Told(ErrorCode::UpstreamInterrupted, Outcome::UpstreamEof);
const TIMED_OUT: End = End::Refused(ErrorCode::Timeout, Outcome::Timeout);
const OK: End = End::Passed(Outcome::Ok);

/// All cells.
pub(super) fn cells() -> Vec<Cell> {
    engines::cells().into_iter().chain(clients::cells()).collect()
}

fn stream(fault: Fault, name: &str, script: fn(&Dialect) -> Vec<Step>, end: End) -> Cell {
    let (engine, client) = (Act::Does(script), Conduct::Reads);
    Cell { fault, name: name.to_owned(), stream: true, engine, client, end }
}

fn whole(fault: Fault, name: &str, script: fn(&Dialect) -> Vec<Step>, end: End) -> Cell {
    Cell { stream: false, ..stream(fault, name, script, end) }
}

/// The same cell with a stream and without.
fn both(fault: Fault, name: &str, script: fn(&Dialect) -> Vec<Step>, end: End) -> [Cell; 2] {
    [stream(fault, name, script, end), whole(fault, name, script, end)]
}

/// The head of a document, and so much of it.
fn begun(dialect: &Dialect, bytes: usize) -> Step {
    let length = dialect.answer.len();
    let head = format!("HTTP/1.1 200 OK\r\n{JSON}content-length: {length}\r\n\r\n");
    Step::Send([head.as_bytes(), &dialect.answer.as_bytes()[..bytes]].concat())
}

/// Half of a document, cut in a character.
fn half(dialect: &Dialect) -> usize {
    dialect.answer.find('😀').unwrap_or(0) + 2
}

fn half_token(dialect: &Dialect) -> Step {
    let cut = dialect.token.find('😀').unwrap_or(0) + 2;
    part(&dialect.token.as_bytes()[..cut])
}

/// What was sent before is read before what follows, which may overtake it otherwise.
fn breath() -> Step {
    Step::Pause(Duration::from_millis(20))
}

/// The same with a text of megabytes.
fn long(text: &str) -> String {
    text.replace("é😀", &"é😀".repeat(700_000))
}

/// Every byte by itself.
fn bytewise(steps: &[Step]) -> Vec<Step> {
    let bytes = steps.iter().flat_map(|step| match step {
        Step::Send(bytes) => bytes.clone(),
        _ => Vec::new(),
    });
    let each = bytes.flat_map(|b| [Step::Send(vec![b]), Step::Pause(Duration::from_millis(1))]);
    each.collect()
}
