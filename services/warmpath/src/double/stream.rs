//! The body of a streamed answer: events for the tokens that exist, and the faults among them.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;

use super::body::Ending;
use super::core::Ticket;
use super::engine::Engine;
use super::fault::Plan;
use super::kept::Conversation;
use super::request::Delivery;
use super::socket::SocketControl;
use super::wire::{Usage, Wire};

/// What a stream is made of.
pub(crate) struct Parts {
    pub(crate) engine: Arc<Engine>,
    pub(crate) ticket: Ticket,
    pub(crate) wire: Wire,
    pub(crate) delivery: Delivery,
    /// Of the prompts: the rest is counted as it comes.
    pub(crate) prompt_usage: Usage,
    pub(crate) seeds: Vec<u64>,
    /// Choices of each prompt.
    pub(crate) choices: usize,
    pub(crate) plan: Plan,
    pub(crate) control: Arc<SocketControl>,
    /// The conversation that a response goes on with, to be kept with it.
    pub(crate) keep: Option<Conversation>,
}

/// A streamed answer. Dropping it takes the request out of the engine.
pub(crate) struct TokenStream {
    parts: Parts,
    /// Tokens sent of each sequence.
    sent: Vec<u32>,
    /// Content events in all.
    events: u32,
    opened: bool,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Comments,
    Tokens,
    Ending(Ending),
    Through,
}

impl std::fmt::Debug for TokenStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { sent, events, phase, .. } = self;
        f.debug_struct("TokenStream")
            .field("sent", sent)
            .field("events", events)
            .field("phase", phase)
            .finish_non_exhaustive()
    }
}

impl TokenStream {
    pub(crate) fn new(parts: Parts) -> Self {
        let phase = if parts.plan.comments > 0 { Phase::Comments } else { Phase::Tokens };
        let sent = vec![0; parts.ticket.sequences()];
        Self { parts, sent, events: 0, opened: false, phase }
    }

    /// The next bytes: the events of all tokens that came since the last call.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut self.phase {
            Phase::Comments => {
                self.phase = Phase::Tokens;
                let lines = ": keep-alive\n\n".repeat(self.parts.plan.comments as usize);
                Poll::Ready(Some(Ok(Frame::data(Bytes::from(lines)))))
            }
            Phase::Tokens => {
                // Registered before it looks, so that no token is missed in between.
                self.parts.ticket.answer.watch(cx);
                let mut out = String::new();
                self.write_ready(&mut out);
                if !out.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(Bytes::from(out)))));
                }
                match self.phase {
                    Phase::Tokens => Poll::Pending,
                    // A fault took effect and there was nothing left to send before it.
                    _ => self.poll(cx),
                }
            }
            Phase::Ending(ending) => ending.poll(cx),
            Phase::Through => Poll::Ready(None),
        }
    }

    fn write_ready(&mut self, out: &mut String) {
        let sequences = self.sent.len();
        loop {
            let mut progressed = false;
            for sequence in 0..sequences {
                if self.sent[sequence] >= self.parts.ticket.answer.tokens(sequence) {
                    continue;
                }
                progressed = true;
                self.open(out);
                if self.fault_is_due(self.events) {
                    return self.take_effect();
                }
                self.write_token(out, sequence);
            }
            if !progressed {
                break;
            }
        }
        if self.sent.iter().enumerate().all(|(i, sent)| *sent >= self.parts.ticket.wanted(i)) {
            self.close(out);
        }
    }

    /// The role events of all choices, before the first content.
    fn open(&mut self, out: &mut String) {
        if std::mem::replace(&mut self.opened, true) {
            return;
        }
        for sequence in 0..self.sent.len() {
            let usage = self.continuous_usage();
            self.parts.wire.role(out, sequence, usage);
        }
    }

    fn write_token(&mut self, out: &mut String, sequence: usize) {
        let parts = &self.parts;
        let index = self.sent[sequence];
        self.sent[sequence] += 1;
        if parts.plan.bad_json == Some(self.events) {
            parts.wire.bad_json(out);
        }
        let giant = parts.plan.giant.filter(|_| self.events == 0).map(|bytes| "x".repeat(bytes));
        self.events += 1;
        let word = parts.engine.vocabulary.word(parts.seeds[sequence], index);
        let text = giant.as_deref().unwrap_or(&word.text);
        let last = self.sent[sequence] == parts.ticket.wanted(sequence);
        let closing = last && !parts.delivery.include_usage && self.all_sent();
        let said = (text, word.token);
        parts.wire.content(out, sequence, said, last, closing, self.continuous_usage());
    }

    fn all_sent(&self) -> bool {
        self.sent.iter().enumerate().all(|(i, sent)| *sent == self.parts.ticket.wanted(i))
    }

    /// Whether a fault stops the stream before content event `events`.
    fn fault_is_due(&self, events: u32) -> bool {
        let plan = &self.parts.plan;
        plan.stall.is_some_and(|after| events >= after)
            || plan.cut.is_some_and(|(after, _)| events >= after)
    }

    fn take_effect(&mut self) {
        let plan = &self.parts.plan;
        let ending = match (plan.stall, plan.cut) {
            (Some(stall), Some((cut, _))) if stall < cut => Ending::Stall,
            (_, Some((_, how))) => Ending::cut(how, &self.parts.control),
            _ => Ending::Stall,
        };
        self.phase = Phase::Ending(ending);
    }

    fn close(&mut self, out: &mut String) {
        // A fault that waits for more tokens than there are comes now.
        if self.fault_is_due(u32::MAX) {
            return self.take_effect();
        }
        let parts = &self.parts;
        if parts.plan.bad_json.is_some_and(|after| after >= self.events) {
            parts.wire.bad_json(out);
        }
        if parts.delivery.include_usage {
            parts.wire.usage(out, self.usage());
        }
        if let Some(keep) = &parts.keep {
            parts.engine.kept.keep(keep, &parts.wire, &self.texts().concat(), self.usage());
        }
        parts.wire.done(out);
        self.phase = Phase::Through;
    }

    /// All texts of the answer.
    fn texts(&self) -> Vec<String> {
        let parts = &self.parts;
        let text = |(sequence, sent): (usize, &u32)| {
            let words = (0..*sent).map(|i| parts.engine.vocabulary.word(parts.seeds[sequence], i));
            words.map(|word| word.text.to_string()).collect()
        };
        self.sent.iter().enumerate().map(text).collect()
    }

    fn usage(&self) -> Usage {
        let parts = &self.parts;
        usage_so_far(&parts.ticket, parts.prompt_usage, parts.choices, &self.sent)
    }

    fn continuous_usage(&self) -> Option<Usage> {
        self.parts.delivery.continuous_usage.then(|| self.usage())
    }
}

/// The usage of an answer of which `sent` tokens are out. A prompt counts once for all its choices.
pub(crate) fn usage_so_far(
    ticket: &Ticket,
    prompt_usage: Usage,
    choices: usize,
    sent: &[u32],
) -> Usage {
    let first_choices = (0..ticket.sequences()).step_by(choices);
    let cached: u64 = first_choices.map(|i| u64::from(ticket.answer.cached_tokens(i))).sum();
    let full = prompt_usage.created_cache_tokens;
    Usage {
        completion_tokens: sent.iter().map(|sent| u64::from(*sent)).sum(),
        cached_tokens: cached,
        created_cache_tokens: full.saturating_sub(cached),
        ..prompt_usage
    }
}
