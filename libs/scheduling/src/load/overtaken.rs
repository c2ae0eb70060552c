//! Prefills that a later one may have overtaken on the way to the engine.
//!
//! Prompts that were sent at the same time are often computed in one step, and their first tokens
//! come one right after the other, in any order. So they count as finished with the first of these,
//! but only for a moment: what is not heard of by then is still to be computed.

use std::collections::VecDeque;
use std::time::Duration;

use domain::{LeaseId, Moment};

use super::{LoadBook, Prefill};
use crate::fit::STEP_TOKENS;

/// Requests that are sent within this time may reach the engine in either order, and first tokens
/// of one step are heard of within it: processes wait for their turn, connections are made. Between
/// processes of one machine the order differs by some milliseconds, and a step takes tens.
const AT_ONCE: Duration = Duration::from_millis(50);

/// Those that are in doubt, the one whose doubt ends first in front.
#[derive(Clone, Debug, Default)]
pub(super) struct Overtaken(VecDeque<Doubt>);

#[derive(Clone, Debug)]
struct Doubt {
    until: Moment,
    prefill: Prefill,
}

impl Overtaken {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn first(&self) -> Option<&Prefill> {
        self.0.front().map(|doubt| &doubt.prefill)
    }

    /// When the first doubt ends.
    pub(super) fn until(&self) -> Option<Moment> {
        self.0.front().map(|doubt| doubt.until)
    }

    pub(super) fn take(&mut self, lease: LeaseId) -> Option<Prefill> {
        let place = self.0.iter().position(|doubt| doubt.prefill.lease == lease)?;
        self.0.remove(place).map(|doubt| doubt.prefill)
    }
}

impl LoadBook {
    /// The prefill at that place of the queue has finished, and so have those before it, but for
    /// what was sent at about the same time: as much of that as fits one step is in doubt, and
    /// the rest cannot have been computed together with it.
    pub(super) fn finish_up_to(&mut self, place: usize, now: Moment) {
        let arrived = self.queue.front().map_or(now, |front| front.arrives);
        let measured = now.seconds_since(self.since.max(arrived));
        let Prefill { lease, sent, step_tokens, .. } = self.queue[place];
        let running = self.running();
        let (mut tokens, mut foretold) = (step_tokens.max(1), Duration::ZERO);
        let mut at = 0;
        for _ in 0..=place {
            let next = &self.queue[at];
            // Of an answer that does not stream nothing better will be known.
            let may_be = next.lease != lease && next.streaming && sent < next.sent + AT_ONCE;
            if may_be && tokens >= STEP_TOKENS {
                at += 1;
                continue;
            }
            let Some(prefill) = self.take(at) else { break };
            foretold += prefill.foretold;
            if may_be {
                tokens = tokens.saturating_add(prefill.step_tokens.max(1));
                self.doubt(prefill, now);
            } else {
                self.finish(prefill, running, now);
            }
        }
        // With what is in doubt: a line that is taken for faster than it is for a moment does less
        // harm than one that is taken for many times as slow.
        if !self.waits_for_room {
            self.pace.add(measured, foretold.as_secs_f64());
        }
    }

    /// From now on it may have finished. It has begun, in any case.
    fn doubt(&mut self, prefill: Prefill, now: Moment) {
        self.overdue_starts.extend((!prefill.start_told).then_some(prefill.lease));
        let prefill = Prefill { start_told: true, ..prefill };
        self.overtaken.0.push_back(Doubt { until: now + AT_ONCE, prefill });
    }

    /// Puts those whose first token has not come in time back to where they stood.
    pub(super) fn put_back_unheard(&mut self, now: Moment) {
        while let Some(Doubt { prefill, .. }) =
            self.overtaken.0.pop_front_if(|doubt| doubt.until <= now)
        {
            self.queued += prefill.predicted;
            let key = |prefill: &Prefill| (prefill.sent, prefill.lease);
            let place = self.queue.partition_point(|other| key(other) <= key(&prefill));
            self.queue.insert(place, prefill);
            self.plan_first_step();
            self.record(now);
        }
    }
}
