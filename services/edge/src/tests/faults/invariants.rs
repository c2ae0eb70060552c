//! What holds in every cell.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;

use super::Play;
use super::cells::{Act, Conduct, End, When};
use super::dialects::PROMPT_TOKENS;
use crate::metrics::Outcome;
use crate::testing::*;

/// How soon engines are free, and all is given back, once a client has seen the end.
pub(super) const SOON: Duration = Duration::from_millis(100);

/// Answers in one piece are read for their usage up to this length.
const READ_WHOLE: usize = 1024 * 1024;

/// What an engine says.
#[derive(Default)]
pub(super) struct Said {
    status: u16,
    body: Vec<u8>,
    /// Whether it leaves its connection open for another request.
    keeps_connection: bool,
}

impl Said {
    pub(super) fn by(script: &[Step]) -> Self {
        let sent = script.iter().filter_map(|step| match step {
            Step::Send(bytes) => Some(&bytes[..]),
            _ => None,
        });
        let sent = sent.collect::<Vec<_>>().concat();
        let keeps_connection = matches!(script.last(), Some(Step::Send(_) | Step::Pause(_)));
        match Reply::of(&sent) {
            Some(reply) => Self { status: reply.status, body: reply.body, keeps_connection },
            None => Self { keeps_connection, ..Self::default() },
        }
    }

    fn tells(&self, word: &str) -> bool {
        memchr::memmem::find(&self.body, word.as_bytes()).is_some()
    }
}

/// What a client has of an answer once it is over.
pub(super) struct Heard {
    bytes: Option<Vec<u8>>,
    /// Its connection, if it keeps it.
    _stays: Option<TcpStream>,
}

impl Heard {
    /// All that came until the connection ended.
    pub(super) fn all(bytes: Vec<u8>) -> Self {
        Self { bytes: Some(bytes), _stays: None }
    }

    pub(super) fn nothing(stays: Option<TcpStream>) -> Self {
        Self { bytes: None, _stays: stays }
    }
}

/// Checks a cell that was played: `ended` is when the client saw the end or left.
pub(super) async fn check(play: &Play<'_>, heard: Heard, ended: Instant) {
    let seen = heard.bytes.as_deref().map(|bytes| {
        let answers = memchr::memmem::find_iter(bytes, b"HTTP/1.1 ").count();
        assert_eq!(answers, 1, "{}: answers", at(play));
        Reply::of(bytes).unwrap_or_else(|| panic!("{}: no answer", at(play)))
    });
    if let Err(why) = is_right(play, seen.as_ref()) {
        let text = seen.map_or_else(String::new, |reply| reply.text());
        let text: String = text.chars().take(2000).collect();
        panic!("{}: {why}\n{text}", at(play));
    }
    all_is_given_back(play, ended).await;
    nothing_was_asked_twice(play);
    everything_counts_once(play);
    the_next_request_is_answered(play).await;
}

fn at(play: &Play<'_>) -> String {
    let (cell, dialect) = (play.cell, play.dialect);
    let form = if cell.stream { "stream" } else { "whole" };
    let others = if play.other.is_some() { "one other engine" } else { "no other engine" };
    format!("{:?}, {form} of {}, {others}: {}", cell.fault, dialect.path, cell.name)
}

/// The client saw what the cell says.
fn is_right(play: &Play<'_>, reply: Option<&Reply>) -> Result<(), String> {
    let Some(reply) = reply else { return Ok(()) };
    let body = without_hidden(play, &play.said.body);
    let same = |status: u16, body: &[u8], whole: bool| {
        let right = reply.status == status && reply.body == body && reply.whole == whole;
        let lengths = (reply.status, reply.body.len(), reply.whole);
        right
            .then_some(())
            .ok_or_else(|| format!("{lengths:?} in place of {:?}", (status, body.len(), whole)))
    };
    match play.end() {
        End::Passed(_) => same(play.said.status, &body, true),
        End::Cut(_) => same(play.said.status, &body, false),
        End::Elsewhere | End::Mended(_) => {
            let good = Said::by(&play.dialect.good(play.cell.stream));
            same(200, &without_hidden(play, &good.body), true)
        }
        End::Refused(code, _) => play.dialect.is_refusal(reply, code),
        End::Told(code, _) => {
            let end = after_whole_events(play, reply)?;
            let events = body_events(&play.said.body);
            play.dialect.is_error_end(&end, code, events).and(same(200, &reply.body, true))
        }
        End::Left(_) => Err("the client should have left".to_owned()),
    }
}

fn without_hidden(play: &Play<'_>, body: &[u8]) -> Vec<u8> {
    let hidden = play.dialect.hidden;
    if hidden.is_empty() || !play.cell.stream {
        return body.to_vec();
    }
    let text = String::from_utf8_lossy(body);
    text.replace(hidden, "").replace(&hidden.replace('\n', "\r\n"), "").into_bytes()
}

/// Events that are whole.
fn body_events(body: &[u8]) -> usize {
    let text = String::from_utf8_lossy(body);
    text.split_inclusive("\n\n").filter(|e| e.ends_with("\n\n") && e.contains("data: ")).count()
}

/// What the client saw after all whole events. Of an unfinished one it saw nothing, or a part
/// that is closed before anything else follows.
fn after_whole_events(play: &Play<'_>, reply: &Reply) -> Result<String, String> {
    let said = String::from_utf8_lossy(&play.said.body).into_owned();
    let (whole, unfinished) = said.split_at(said.rfind("\n\n").map_or(0, |end| end + 2));
    let text = reply.text();
    let rest = text.strip_prefix(whole).ok_or("not what the engine said")?;
    let (part, end) = rest.split_at(rest.rfind(play.dialect.error_start).ok_or("no error event")?);
    let is_closed = part.strip_suffix("\n\n").is_some_and(|part| unfinished.starts_with(part));
    let right = part.is_empty() || is_closed;
    right.then(|| end.to_owned()).ok_or("an unfinished event runs on".to_owned())
}

/// Within [`SOON`] no engine is at work, connections are closed unless their answers were whole,
/// and permits, leases and memory are back.
async fn all_is_given_back(play: &Play<'_>, ended: Instant) {
    let holds = || -> Vec<&'static str> {
        let gateway = &play.bed.gateway;
        let may_stay = usize::from(play.said.keeps_connection);
        let others = play.other.as_ref().map_or(0, Engine::working);
        let all = [
            (play.engine.working() + others > 0, "an engine is at work"),
            (play.engine.open() > may_stay, "a connection to the engine is open"),
            (gateway.families.in_flight.get() != 0, "the request is open"),
            (gateway.access.open_requests() != 0, "its permit is held"),
            (play.bed.router.open_leases() != 0, "its lease is open"),
            (
                gateway.body_memory.available_permits() != play.body_memory,
                "its body's memory is held",
            ),
        ];
        all.into_iter().filter_map(|(holds, what)| holds.then_some(what)).collect()
    };
    while !holds().is_empty() {
        assert!(ended.elapsed() <= SOON, "{}: {:?}", at(play), holds());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The engine was asked once, and another only for what nothing had reached the client of.
fn nothing_was_asked_twice(play: &Play<'_>) {
    let never = matches!(play.cell.engine, Act::Refuses)
        || matches!(play.cell.client, Conduct::Leaves { when: When::Sending, .. });
    assert_eq!(play.engine.requests().len(), usize::from(!never), "{}", at(play));
    let elsewhere = matches!(play.end(), End::Elsewhere);
    let others = play.other.as_ref().map_or(0, |other| other.requests().len());
    assert_eq!(others, usize::from(elsewhere), "{}: another engine", at(play));
}

/// One request with one outcome, and the usage of the answer that the client was given.
fn everything_counts_once(play: &Play<'_>) {
    let page = play.bed.metrics();
    let sum = |name: &str, label: &str| -> u64 {
        let lines = page.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        let counts = lines.filter(|line| line.contains(label)).map(|line| {
            line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()).unwrap_or_default()
        });
        counts.sum()
    };
    let requests = |label: &str| sum("warmpath_edge_requests_total", label);
    let ended = || {
        page.lines().filter(|l| l.starts_with("warmpath_edge_requests_total")).collect::<String>()
    };
    let outcome = format!("outcome=\"{}\"", outcome(play.end()).as_str());
    assert_eq!((requests(&outcome), requests("")), (1, 1), "{}: {outcome}\n{}", at(play), ended());
    let expected = if is_usage_told(play) { PROMPT_TOKENS } else { 0 };
    let counted = sum("warmpath_edge_prompt_tokens_total", "");
    assert_eq!(counted, expected, "{}: prompt tokens", at(play));
}

/// Whether the answer that the client was given told its usage as far as it came.
fn is_usage_told(play: &Play<'_>) -> bool {
    let (dialect, stream) = (play.dialect, play.cell.stream);
    match (play.end(), play.cell.client) {
        (End::Elsewhere, _) => true,
        // What is cut in its JSON tells nothing.
        (End::Refused(..) | End::Cut(_), _) => false,
        (End::Left(_), Conduct::Leaves { when: When::Sending | When::Asked, .. }) => false,
        (End::Left(Outcome::Ok), _) => true,
        (End::Left(_), _) => stream && dialect.opening.contains(dialect.usage_word),
        _ => play.said.tells(dialect.usage_word) && (stream || play.said.body.len() < READ_WHOLE),
    }
}

fn outcome(end: End) -> Outcome {
    match end {
        End::Mended(end) => outcome(*end),
        End::Elsewhere => Outcome::Ok,
        End::Passed(outcome)
        | End::Refused(_, outcome)
        | End::Told(_, outcome)
        | End::Cut(outcome)
        | End::Left(outcome) => outcome,
    }
}

/// Nothing of the fault is left for the next request.
async fn the_next_request_is_answered(play: &Play<'_>) {
    let (dialect, stream) = (play.dialect, play.cell.stream);
    let reply = play.bed.client.post(dialect.path, "", dialect.body(stream)).await;
    if matches!(play.cell.engine, Act::Refuses) && play.other.is_none() {
        return assert_eq!(reply.status, 502, "{}: the next request", at(play));
    }
    let good = Said::by(&dialect.good(stream));
    let same = reply.status == 200 && reply.body == without_hidden(play, &good.body);
    assert!(same, "{}: the next request: {}", at(play), reply.text());
}
