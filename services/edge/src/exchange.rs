//! One engine's answer to one attempt: read, understood, and handed on.
//!
//! The same object first holds the beginning of an answer back, while a failure can still be
//! mended by asking another engine, and is then polled by the client's response body. Bytes go
//! through unchanged, but for a usage event that the gateway asked for on its own account.

mod fault;
mod hold;
mod plain;
mod sse;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use domain::{ErrorCode, FailureClass, Moment, Usage};
use openai_api::{ApiError, Grammar};

use self::fault::Fault;
pub(crate) use self::hold::Commit;
use self::plain::UsageTap;
use self::sse::EventReader;
use crate::answer::{Answers, PromptEnd, Text};
use crate::lease::Lease;
use crate::metrics::Outcome;
use crate::owners::Origin;
use crate::refusal::ErrorForm;
use crate::timer::Timer;
use crate::upstream::UpstreamBody;

/// After its end marker an engine gets this long to end the answer.
const LINGER: Duration = Duration::from_secs(5);

/// How long an answer may take, and what is said when it takes longer.
#[derive(Clone)]
pub(crate) struct Limits {
    pub(crate) span: Span,
    /// Set when the gateway is about to end, and the answer with it.
    pub(crate) cut: Arc<AtomicBool>,
    /// How the client is told if it breaks.
    pub(crate) errors: ErrorForm,
}

/// What is limited.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Span {
    /// A stream: until the first content, and between two reads after it.
    Stream {
        /// When the first content must be there.
        first_token_by: Moment,
        /// Between two reads after it.
        idle: Duration,
    },
    /// Everything else: until its end.
    Whole {
        /// When the answer must be there.
        by: Moment,
    },
}

/// An answer in course.
pub(crate) struct Exchange {
    upstream: Option<UpstreamBody>,
    reader: Reader,
    lease: Lease,
    /// Where the answer's keys go on from, if it is to get any.
    keys: Option<AnswerKeys>,
    /// Whose responses are remembered, if this is one.
    origin: Option<Origin>,
    limits: Limits,
    timer: Timer,
    ready: VecDeque<Bytes>,
    ready_bytes: usize,
    last_read: Moment,
    phase: Phase,
    summary: Summary,
}

/// How an answer gets its keys.
pub(crate) struct AnswerKeys {
    pub(crate) answers: Arc<Answers>,
    pub(crate) prompt: Arc<PromptEnd>,
}

/// What an answer came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) usage: Option<Usage>,
    pub(crate) first_token_at: Option<Moment>,
    /// How it ended; `None` while it is in course.
    pub(crate) end: Option<(Outcome, Option<ErrorCode>)>,
}

enum Reader {
    /// An event stream.
    Events(EventReader),
    /// An answer that is not streamed, watched for its usage.
    Plain(UsageTap),
    /// Bytes that are none of our business.
    Opaque,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing was handed on: another engine may still answer.
    Held,
    /// Bytes go to the client.
    Open,
    /// The end is noted; what is ready is still to be handed on.
    Ended,
    /// The client must see that the answer broke.
    Broken,
}

/// How an answer is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// As events; `drop_usage`: without the usage event that the client did not ask for.
    Events {
        /// Whether that event is to be dropped.
        drop_usage: bool,
        /// How they are written.
        grammar: Grammar,
    },
    /// As one JSON document, which says things as the events of that grammar do.
    Plain(Grammar),
    /// Not at all.
    Opaque,
}

/// The engine's answer broke off.
#[derive(Debug, thiserror::Error)]
#[error("the engine's answer broke off")]
pub(crate) struct Broken;

enum Read {
    Some,
    End,
    Broken(Fault),
}

impl Exchange {
    /// An answer whose head has come and says that all is well.
    pub(crate) fn new(
        upstream: UpstreamBody,
        lease: Lease,
        keys: Option<AnswerKeys>,
        limits: Limits,
        form: Form,
        now: Moment,
    ) -> Self {
        let reader = match form {
            Form::Events { drop_usage, grammar } => {
                Reader::Events(EventReader::new(grammar, drop_usage, keys.is_some()))
            }
            Form::Plain(grammar) => Reader::Plain(UsageTap::new(grammar)),
            Form::Opaque => Reader::Opaque,
        };
        Self {
            upstream: Some(upstream),
            reader,
            lease,
            keys,
            origin: None,
            limits,
            timer: Timer::default(),
            ready: VecDeque::new(),
            ready_bytes: 0,
            last_read: now,
            phase: Phase::Held,
            summary: Summary::default(),
        }
    }

    /// Remembers which backend keeps the response that this answer is.
    pub(crate) fn with_origin(mut self, origin: Option<Origin>) -> Self {
        self.origin = origin;
        if let (Reader::Events(events), Some(_)) = (&mut self.reader, &self.origin) {
            events.want_response_id();
        }
        self
    }

    /// An answer that is handed on whatever it says: an engine's error.
    pub(crate) fn passing(
        upstream: UpstreamBody,
        lease: Lease,
        limits: Limits,
        outcome: Outcome,
        now: Moment,
    ) -> Self {
        let mut exchange = Self::new(upstream, lease, None, limits, Form::Opaque, now);
        exchange.summary.end = Some((outcome, None));
        exchange
    }

    /// The next piece for the client. An error breaks the client's connection.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Broken>>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                self.ready_bytes -= bytes.len();
                return Poll::Ready(Some(Ok(bytes)));
            }
            match self.phase {
                Phase::Ended => return Poll::Ready(None),
                Phase::Broken => return Poll::Ready(Some(Err(Broken))),
                Phase::Held | Phase::Open => {}
            }
            match self.poll_read(cx) {
                Poll::Ready(Read::Some) => {}
                Poll::Ready(Read::End) => match self.check_end() {
                    Ok(()) => self.end_well(),
                    Err(fault) => self.end_badly(fault),
                },
                Poll::Ready(Read::Broken(fault)) => self.end_badly(fault),
                Poll::Pending if self.limits.cut.load(Ordering::Relaxed) => {
                    self.end_badly(Fault::shutdown());
                }
                Poll::Pending => {
                    let deadline = self.deadline();
                    if self.timer.poll_until(cx, deadline).is_pending() {
                        return Poll::Pending;
                    }
                    self.end_badly(Fault::timeout());
                }
            }
        }
    }

    /// Whether [`poll_next`](Self::poll_next) has nothing more to give.
    pub(crate) fn is_end(&self) -> bool {
        self.phase == Phase::Ended && self.ready.is_empty()
    }

    /// What is known of the answer so far.
    pub(crate) fn summary(&self) -> Summary {
        self.summary
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        let Some(upstream) = &mut self.upstream else { return Poll::Ready(Read::End) };
        match upstream.poll_next(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => {
                self.upstream = None;
                Poll::Ready(Read::End)
            }
            Poll::Ready(Some(Err(_))) => {
                self.upstream = None;
                Poll::Ready(Read::Broken(Fault::cut()))
            }
            Poll::Ready(Some(Ok(frame))) => {
                // A client's connection may stop asking once it has the announced length, so the
                // end has to be seen with the last piece.
                let is_last = upstream.is_end();
                // Trailers carry nothing for a client here and are dropped.
                if let Ok(bytes) = frame.into_data() {
                    self.take(bytes);
                }
                if !is_last {
                    return Poll::Ready(Read::Some);
                }
                self.upstream = None;
                Poll::Ready(Read::End)
            }
        }
    }

    fn take(&mut self, bytes: Bytes) {
        let now = lifecycle::monotonic();
        self.last_read = now;
        match &mut self.reader {
            Reader::Events(events) => {
                events.read(bytes, &mut self.ready);
                self.ready_bytes = self.ready.iter().map(Bytes::len).sum();
                self.note_events(now);
            }
            Reader::Plain(tap) => {
                tap.observe(&bytes);
                self.hand_on(bytes);
            }
            Reader::Opaque => self.hand_on(bytes),
        }
    }

    fn hand_on(&mut self, bytes: Bytes) {
        self.ready_bytes += bytes.len();
        self.ready.push_back(bytes);
    }

    /// Reports what the events just read tell.
    fn note_events(&mut self, now: Moment) {
        let Reader::Events(events) = &mut self.reader else { return };
        if let (Some(origin), Some(id)) = (&self.origin, events.take_response_id()) {
            origin.learn_id(&id);
        }
        if events.contents() > 0 && self.summary.first_token_at.is_none() {
            self.summary.first_token_at = Some(now);
            self.lease.first_token(now);
        }
        self.summary.usage = events.usage();
        self.lease.progress(events.generated(), now);
        if events.is_done() && events.error().is_none() {
            let text = events.take_text().map(Text::Pieces);
            self.finish(text);
            self.summary.end.get_or_insert((Outcome::Ok, None));
        }
    }

    /// The booking has ended well; the first time counts.
    fn finish(&mut self, text: Option<Text>) {
        let usage = self.summary.usage;
        match self.keys.take() {
            Some(AnswerKeys { answers, prompt }) => {
                self.lease.finish_with_keys(usage, &answers, &prompt, text);
            }
            None => self.lease.finish(usage),
        }
    }

    /// When the engine has taken too long.
    fn deadline(&self) -> Moment {
        match (self.limits.span, &self.reader) {
            (_, Reader::Events(events)) if events.is_done() => self.last_read + LINGER,
            (Span::Stream { first_token_by, idle }, Reader::Events(events)) => {
                if events.contents() > 0 { self.last_read + idle } else { first_token_by }
            }
            (Span::Stream { first_token_by, idle }, _) => first_token_by.max(self.last_read + idle),
            (Span::Whole { by }, _) => by,
        }
    }

    /// The connection has ended in good order; has the answer?
    fn check_end(&mut self) -> Result<(), Fault> {
        let Reader::Events(events) = &mut self.reader else { return Ok(()) };
        events.finish(&mut self.ready);
        self.ready_bytes = self.ready.iter().map(Bytes::len).sum();
        let complete = events.is_complete();
        self.note_events(lifecycle::monotonic());
        match self.held_error() {
            Some(fault) => Err(fault),
            None if complete => Ok(()),
            None => Err(Fault::cut()),
        }
    }

    /// All that there is of the answer has been read, or as much as matters.
    fn end_well(&mut self) {
        self.phase = Phase::Ended;
        self.upstream = None;
        let (error, text) = match &mut self.reader {
            Reader::Events(events) => {
                self.summary.usage = events.usage();
                (events.error(), events.take_text().map(Text::Pieces))
            }
            Reader::Plain(tap) => {
                let (usage, body) = tap.end();
                self.summary.usage = usage;
                if let (Some(origin), Some(body)) = (&self.origin, &body) {
                    origin.learn(body);
                }
                let grammar = tap.grammar();
                (None, body.map(|body| Text::Whole(body, grammar)))
            }
            Reader::Opaque => (None, None),
        };
        match error {
            None => {
                self.finish(text);
                self.summary.end.get_or_insert((Outcome::Ok, None));
            }
            // The engine's own error event has reached the client as it is.
            Some(error) => {
                let fault = Fault::of_error(error);
                let begun = self.summary.first_token_at.is_some();
                let class = match fault.class {
                    FailureClass::ServerError if begun => FailureClass::Interrupted,
                    class => class,
                };
                self.lease.fail(class);
                self.summary.end.get_or_insert((Outcome::UpstreamErrorEvent, Some(fault.code)));
            }
        }
    }

    /// The answer broke after part of it was handed on: the client is told in the stream where
    /// there is one, else by breaking its connection.
    fn end_badly(&mut self, fault: Fault) {
        self.upstream = None;
        if let Reader::Events(events) = &mut self.reader {
            // The client has been told already that this is the end, or that it failed.
            if events.is_done() || events.error().is_some() {
                return self.end_well();
            }
            self.phase = Phase::Ended;
            if events.has_sent_part() {
                self.ready.push_back(Bytes::from_static(b"\n\n"));
            }
            let error = ApiError::new(fault.code, fault.message);
            self.ready.push_back(self.limits.errors.event(&error, events.count()));
            self.ready_bytes = self.ready.iter().map(Bytes::len).sum();
        } else {
            self.phase = Phase::Broken;
        }
        self.lease.fail(fault.class);
        self.summary.end.get_or_insert((fault.outcome, Some(fault.code)));
    }

    /// Gives up the answer; its connection is kept if it has all arrived.
    pub(crate) fn discard(mut self) {
        if let Some(upstream) = self.upstream.take() {
            upstream.discard();
        }
    }
}
