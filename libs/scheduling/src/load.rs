//! How many seconds of prefill stand before one rank.
//!
//! The book follows the requests that were sent to the rank, in order. A prefill finishes at its
//! first token, at the first token of a later booking (engines take prompts in order), or, for an
//! answer that does not stream, at its predicted time. What has not finished, less the time
//! already spent on it, is the queue delay of the next request: seconds of work, never counts.
//!
//! **Overtaking.** Engines take prompts in the order in which they *arrive*. Of those that were sent
//! at about the same time that order is not known, least of all where several edges send them. So
//! a first token leaves such prompts before it in doubt, as many as fit one step: if their own do
//! not follow at once, they have not finished and stand in the queue again. Otherwise a burst whose last
//! prompt came first to an idle engine would look computed when only that one was, and the engine
//! many times as fast as it is.
//!
//! **Latency.** A request reaches the engine's queue a latency after it was sent, and requests on
//! their way at once have that latency at once. So the queue is counted in the engine's time: a
//! prefill begins when the one before it is done, or when it arrives, if that is later.
//!
//! **Batches.** Engines prefill several short prompts in one step, and their first tokens come
//! together. So the time since the last finish counts as work on every prompt that can share the
//! step ([`STEP_TOKENS`]), but on no more than that: one prefill that takes far longer than
//! predicted does not make the whole queue behind it look finished.
//!
//! **Samples.** For the same reason single gaps between first tokens say little. The book
//! measures *spans*: from a dispatch into an idle rank, or from a seen first token, up to the
//! first token that leaves nothing in the engine's queue or completes [`SPAN_TOKENS`] or
//! [`SPAN_PREFILLS`]. All prefills that finished in between share the time, and as the model is
//! linear in its coefficients, their mean is as good a sample as a single one. A span of one
//! request is exactly the time to first token of a request with nothing ahead of it. A span is
//! dropped when something in it is not known: a booking that ended in its prefill, an end that was
//! only predicted, or a prompt that had to wait for room in the cache.
//!
//! **Room.** Engines take prompts in order, and a prompt that does not fit beside the running
//! requests waits, with all behind it. The book cannot see blocks: whoever asks it for due starts
//! says which of them fit. From the first one that is refused its start on there is a line: who is
//! booked behind those that stood then waits for room, whatever itself needs, until the last of
//! them is through.
//!
//! **Foreign load.** Requests of the engine that are not ours are estimated from its metrics.
//! Those of them that still wait are assumed to take as long as our own prompts do on average and
//! are part of the queue delay; those that run count in [`LoadBook::foreign_requests`] only. So
//! are ours that the engine says wait though the book took them to be through: prompts that found
//! less in the cache than was foretold make such a line.

mod arrivals;
mod ceiling;
mod claims;
mod foreign;
mod overtaken;
mod pace;
mod snapshot;
mod span;
mod starts;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use domain::{LeaseId, LoadSample, Moment};

pub use self::arrivals::{Arrivals, Fading};
use self::ceiling::Ceiling;
use self::claims::Claims;
use self::foreign::Foreign;
use self::overtaken::Overtaken;
use self::pace::Pace;
pub use self::snapshot::LoadSnapshot;
use self::span::Span;
pub use self::span::{SPAN_PREFILLS, SPAN_TOKENS, Sample};
pub use self::starts::Due;
use crate::fit::STEP_TOKENS;
use crate::{Coefficients, PrefillFit};

/// Longest prefill that is believed, in seconds: a prediction beyond it is a fault elsewhere.
const MAX_PREFILL_SECONDS: f64 = 3_600.0;

/// Booked prefill that makes a line: some steps of any engine.
const LINE_SECONDS: f64 = 0.5;

/// Weight of a new booking in the mean prefill of our own requests.
const MEAN_GAIN: f64 = 0.05;

/// A prompt as one rank would find it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Tokens to be computed.
    pub uncached_tokens: u32,
    /// Tokens found in the cache.
    pub cached_tokens: u32,
    /// Its blocks.
    pub blocks: u32,
}

/// What a booked request is expected to cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Prompt tokens to be computed.
    pub uncached_tokens: u32,
    /// Prompt tokens found in the cache.
    pub cached_tokens: u32,
    /// Predicted time of the prefill.
    pub prefill_seconds: f64,
    /// Predicted time until it reaches the engine's queue.
    pub latency_seconds: f64,
    /// Blocks of the prompt.
    pub blocks: u32,
}

/// A prediction as a time.
fn believable(seconds: f64) -> Duration {
    if seconds.is_nan() {
        return Duration::ZERO;
    }
    Duration::from_secs_f64(seconds.clamp(0.0, MAX_PREFILL_SECONDS))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A booked prefill that has not finished.
#[derive(Clone, Debug)]
struct Prefill {
    lease: LeaseId,
    uncached: u32,
    cached: u32,
    /// Tokens that count towards the steps before it.
    step_tokens: u32,
    /// As foretold, and stretched by how slow the line is.
    foretold: Duration,
    predicted: Duration,
    sent: Moment,
    /// When it reaches the engine's queue.
    arrives: Moment,
    streaming: bool,
    /// Its start was handed out by [`LoadBook::start_due`].
    start_told: bool,
}

/// The load of one rank. See the [module's page](self).
///
/// Calls of one book are expected in the order of their `now`; a `now` that lies a little in the
/// past is taken as no time having passed.
#[derive(Clone, Debug)]
pub struct LoadBook {
    claims: Claims,
    /// Unfinished prefills in the order they were sent.
    queue: VecDeque<Prefill>,
    /// Those that may have finished.
    overtaken: Overtaken,
    /// Σ of their predicted times.
    queued: Duration,
    /// Σ over those that can share the first step …
    first_step: Duration,
    /// … and when that is over.
    first_step_ends: Moment,
    /// When the rank began to work on the front of the queue: the last finish, or the start of
    /// the busy period.
    since: Moment,
    /// The latency of the last booking.
    latency: Duration,
    /// An empty queue is taken for an idle engine from here on; later than the last finish where
    /// that was not seen.
    idle_from: Moment,
    span: Option<Span>,
    /// The front of the queue was refused its start.
    waits_for_room: bool,
    /// The last of those that stood in line when one was refused its start for want of room.
    line_ends: Option<LeaseId>,
    /// Leases whose prefill finished before its start was told.
    overdue_starts: Vec<LeaseId>,
    pace: Pace,
    mean_prefill_seconds: f64,
    arrivals: Arrivals,
    foreign: Foreign,
    ceiling: Ceiling,
}

impl Default for LoadBook {
    fn default() -> Self {
        Self::new()
    }
}

impl LoadBook {
    /// An empty book.
    pub fn new() -> Self {
        Self {
            claims: Claims::default(),
            queue: VecDeque::new(),
            overtaken: Overtaken::default(),
            queued: Duration::ZERO,
            first_step: Duration::ZERO,
            first_step_ends: Moment::ZERO,
            since: Moment::ZERO,
            latency: Duration::ZERO,
            idle_from: Moment::ZERO,
            span: None,
            waits_for_room: false,
            line_ends: None,
            overdue_starts: Vec::new(),
            pace: Pace::default(),
            // Until we have requests of our own, foreign ones are taken for a page of text.
            mean_prefill_seconds: Coefficients::DEFAULT.predict_seconds(1_000, 0),
            arrivals: Arrivals::default(),
            foreign: Foreign::default(),
            ceiling: Ceiling::default(),
        }
    }

    /// What a prompt is expected to cost that is sent to the rank now, its round trip taking
    /// `network_seconds`.
    ///
    /// Behind other prefills it shares their steps: the fixed cost is paid once, and only its
    /// tokens make the next one wait longer. Charged in full, a burst of one new prefix would
    /// soon look as if it were cheaper to compute that prefix elsewhere.
    pub fn work(
        &self,
        fit: &PrefillFit,
        prompt: Prompt,
        network_seconds: f64,
        now: Moment,
    ) -> Work {
        let Prompt { uncached_tokens: uncached, cached_tokens: cached, blocks } = prompt;
        let coefficients = fit.coefficients();
        let prefill_seconds = if self.booked_seconds(now) > 0.0 {
            let steps = f64::from(uncached / STEP_TOKENS);
            coefficients.token_seconds(uncached, cached)
                + coefficients.decode_seconds(steps, self.running())
        } else {
            coefficients.prefill_seconds(uncached, cached, self.running())
                + coefficients.step_wait_seconds(self.running())
        };
        Work {
            uncached_tokens: uncached,
            cached_tokens: cached,
            prefill_seconds,
            latency_seconds: network_seconds + coefficients.latency_seconds,
            blocks,
        }
    }

    /// Enters a request that is sent to the rank now. A lease that is booked already is entered
    /// anew, last in the queue.
    pub fn book(&mut self, lease: LeaseId, predicted: Work, streaming: bool, now: Moment) {
        self.end(lease, now);
        if self.queue.is_empty() && self.overtaken.is_empty() {
            self.since = now;
            self.span = (now >= self.idle_from).then(|| Span::from_dispatch(now));
        }
        self.latency = believable(predicted.latency_seconds);
        let stretch = if self.queue.is_empty() { 1.0 } else { self.pace.stretch() };
        let most_tokens = predicted.uncached_tokens.saturating_add(predicted.cached_tokens);
        let step_tokens = (f64::from(predicted.uncached_tokens) * stretch) as u32;
        let prefill = Prefill {
            lease,
            uncached: predicted.uncached_tokens,
            cached: predicted.cached_tokens,
            step_tokens: step_tokens.min(most_tokens),
            foretold: believable(predicted.prefill_seconds),
            predicted: believable(predicted.prefill_seconds * stretch),
            sent: now,
            arrives: now + self.latency,
            streaming,
            start_told: false,
        };
        let seconds = prefill.predicted.as_secs_f64();
        self.mean_prefill_seconds += MEAN_GAIN * (seconds - self.mean_prefill_seconds);
        self.queued += prefill.predicted;
        self.queue.push_back(prefill);
        self.plan_first_step();
        self.claims.book(lease, predicted.blocks);
        self.arrivals.record(now);
        self.record(now);
    }

    /// Enters a request that reached the rank without a decision of ours. It is in flight; of its
    /// prefill nothing is known, so nothing waits for it and nothing is learned from it.
    pub fn adopt(&mut self, lease: LeaseId, blocks: u32, now: Moment) {
        self.end(lease, now);
        self.claims.book(lease, blocks);
        self.claims.admit(lease);
        // Whatever is measured now has its prefill in it.
        self.span = None;
        self.record(now);
    }

    /// A first token came: the prefill of `lease` has finished, and that of every booking before it
    /// that it cannot have [overtaken](self). Returns a sample if the time since the last one is
    /// known to have been spent on the prefills in it. Later first tokens of one lease, and unknown
    /// leases, change nothing.
    pub fn first_token(&mut self, lease: LeaseId, now: Moment) -> Option<Sample> {
        self.settle(now);
        if let Some(prefill) = self.overtaken.take(lease) {
            self.pace.add(now.seconds_since(self.since), 0.0);
            self.finish(prefill, self.running(), now);
        } else {
            let place = self.queue.iter().position(|p| p.lease == lease)?;
            self.finish_up_to(place, now);
        }
        self.since = now;
        self.waits_for_room = false;
        self.plan_first_step();
        self.record(now);
        self.idle_from = now;
        let next = match self.overtaken.first().or(self.queue.front()) {
            None => None,
            // It was still on its way: the engine had nothing to do.
            Some(front) if front.arrives > now => Some(Span::from_dispatch(front.sent)),
            // What is in doubt may be in the time and not in the span.
            Some(_) if !self.overtaken.is_empty() => return None,
            Some(_) if self.span.as_ref().is_some_and(|span| !span.is_complete()) => return None,
            Some(_) => Some(Span::from_step(now)),
        };
        std::mem::replace(&mut self.span, next)?.sample(now)
    }

    /// The request is over, in whichever way and phase. `false` if the lease is not booked.
    pub fn end(&mut self, lease: LeaseId, now: Moment) -> bool {
        self.settle(now);
        if !self.claims.end(lease, now) {
            return false;
        }
        self.overdue_starts.retain(|l| *l != lease);
        if let Some(place) = self.queue.iter().position(|p| p.lease == lease)
            && let Some(prefill) = self.take(place)
        {
            // How much of it was computed is not known, and the engine may need a moment to
            // notice that it is gone.
            self.span = None;
            self.idle_from = now + prefill.predicted;
            if place == 0 {
                self.since = now;
                self.waits_for_room = false;
            }
            self.plan_first_step();
        } else if let Some(prefill) = self.overtaken.take(lease) {
            self.span = None;
            self.idle_from = now + prefill.predicted;
        }
        self.record(now);
        true
    }

    /// What a choice reads of the book.
    pub fn snapshot(&self) -> LoadSnapshot {
        let foreign = self.foreign.excess();
        let until = foreign.map_or(Moment::ZERO, |foreign| foreign.until());
        let waiting = foreign.map_or(0.0, |foreign| foreign.waiting(until));
        let requests = foreign.map_or(0.0, |foreign| foreign.requests(until));
        LoadSnapshot {
            first_step_ends: self.first_step_ends,
            rest_nanos: nanos(self.queued.saturating_sub(self.first_step)),
            latency_nanos: nanos(self.latency),
            foreign_seconds: waiting * self.mean_prefill_seconds,
            foreign_in_flight: requests.round() as u32,
            foreign_until: until,
            in_flight: self.in_flight(),
            running: self.running(),
            ceiling: self.ceiling.requests().unwrap_or(u32::MAX),
        }
    }

    /// [`LoadSnapshot::queue_delay_seconds`] of the book as it is.
    pub fn queue_delay_seconds(&self, now: Moment) -> f64 {
        self.snapshot().queue_delay_seconds(now)
    }

    /// [`LoadSnapshot::booked_seconds`] of the book as it is.
    pub fn booked_seconds(&self, now: Moment) -> f64 {
        self.snapshot().booked_seconds(now)
    }

    /// Whether so much stands before the next prompt that the moment of its start is a guess.
    pub fn has_line(&self, now: Moment) -> bool {
        self.booked_seconds(now) > LINE_SECONDS || self.line_ends.is_some()
    }

    /// Seconds that a prompt of so many blocks waits for room in the rank's cache: none if it
    /// `fits` beside the running requests and nothing before it was refused its start. Finite
    /// and ≥ 0.
    pub fn room_delay_seconds(&self, blocks: u32, fits: bool, now: Moment) -> f64 {
        if fits && self.line_ends.is_none() {
            return 0.0;
        }
        self.claims.wait_seconds(blocks, now)
    }

    /// The bookings of late, as far as a rate is made of them.
    pub fn arrivals(&self) -> Arrivals {
        self.arrivals
    }

    /// Requests booked per second, averaged over the last ten or so. Finite and ≥ 0.
    pub fn arrivals_per_second(&self, now: Moment) -> f64 {
        self.arrivals.per_second(&mut Fading::of_arrivals(now))
    }

    /// Requests booked and not ended.
    pub fn in_flight(&self) -> u32 {
        u32::try_from(self.claims.len()).unwrap_or(u32::MAX)
    }

    /// Leases booked and not ended, the youngest first: lease numbers rise.
    pub fn youngest_first(&self) -> impl Iterator<Item = LeaseId> + '_ {
        self.claims.youngest_first()
    }

    /// Requests past their prefill and not ended, as of the last change of the book.
    pub fn running(&self) -> u32 {
        u32::try_from(self.claims.len().saturating_sub(self.queue.len())).unwrap_or(u32::MAX)
    }

    /// Takes a reading of the engine's metrics. Each reading counts once, however often it is
    /// given; one from before the book's memory (about five seconds under load) is ignored.
    pub fn observe_load(&mut self, sample: &LoadSample, now: Moment) {
        self.settle(now);
        self.foreign.observe(sample);
        self.ceiling.observe(sample);
    }

    /// Requests that the engine was seen to run at once at most while others waited; `None` while
    /// that is not known.
    pub fn running_ceiling(&self) -> Option<u32> {
        self.ceiling.requests()
    }

    /// Requests at the engine that are not ours, smoothed; 0 if there is at most one, or if the
    /// last reading is older than ten seconds.
    pub fn foreign_requests(&self, now: Moment) -> f64 {
        self.foreign.excess().map_or(0.0, |foreign| foreign.requests(now))
    }

    /// Puts back what was thought to have finished and has not, and closes prefills of answers
    /// that do not stream, at their predicted time.
    fn settle(&mut self, now: Moment) {
        self.put_back_unheard(now);
        while let Some(front) = self.queue.front()
            && !front.streaming
            && !self.waits_for_room
            && self.since.max(front.arrives) + front.predicted <= now
        {
            let predicted = front.predicted;
            self.since = self.since.max(front.arrives) + predicted;
            let running = self.running();
            if let Some(prefill) = self.take(0) {
                self.finish(prefill, running, self.since);
            }
            self.plan_first_step();
            if self.queue.is_empty() {
                // It may take longer than predicted, and nobody will tell.
                self.span = None;
                self.idle_from = self.since + predicted;
            }
            self.record(self.since);
        }
    }

    /// Takes a prefill out of the queue. Where it was the last of those in line, that is now the
    /// one before it.
    fn take(&mut self, place: usize) -> Option<Prefill> {
        let prefill = self.queue.remove(place)?;
        self.queued -= prefill.predicted;
        if self.line_ends == Some(prefill.lease) {
            self.line_ends = place.checked_sub(1).map(|before| self.queue[before].lease);
        }
        Some(prefill)
    }

    fn finish(&mut self, prefill: Prefill, running: u32, at: Moment) {
        if !prefill.start_told {
            self.overdue_starts.push(prefill.lease);
        }
        self.claims.admit(prefill.lease);
        if let Some(span) = &mut self.span {
            span.add(prefill.uncached, prefill.cached, running, at);
        }
    }

    /// Follows the prompts that can share a step with the first of the queue. Time that passes
    /// counts as work on these, but on no more.
    fn plan_first_step(&mut self) {
        let (mut ends, mut tokens) = (self.since, 0_u32);
        self.first_step = Duration::ZERO;
        for prefill in &self.queue {
            ends = ends.max(prefill.arrives) + prefill.predicted;
            self.first_step += prefill.predicted;
            // What does not stream is over at its predicted time, if nothing before it is late.
            if prefill.streaming || tokens > 0 {
                tokens = tokens.saturating_add(prefill.step_tokens.max(1));
            }
            if tokens >= STEP_TOKENS {
                break;
            }
        }
        self.first_step_ends = ends;
    }

    fn record(&mut self, now: Moment) {
        let unheard = self.queue.len() + self.overtaken.len();
        let prefilling = u32::try_from(unheard).unwrap_or(u32::MAX);
        self.foreign.record(now, self.in_flight(), prefilling);
    }
}
