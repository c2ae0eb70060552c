//! Prefills that a later one may have overtaken on the way to the engine.
//!
//! Prompts that were sent at the same time are often computed in one step, and their first tokens
//! come one right after the other, in any order. So they count as finished with the first of these,
//! but only for a moment: what is not heard of by then is still to be computed.

use std::collections::VecDeque;
use std::time::Duration;

use domain::{LeaseId, Moment};

use super::Prefill;

/// Requests that are sent within this time may reach the engine in either order, and first tokens
/// of one step are heard of within it: processes wait for their turn, connections are made.
const AT_ONCE: Duration = Duration::from_millis(50);

/// Whether the first token of what was sent then leaves open if this one, booked before it, has
/// finished. Of an answer that does not stream nothing better will be known.
pub(super) fn may_be(prefill: &Prefill, sent: Moment) -> bool {
    prefill.streaming && sent < prefill.sent + AT_ONCE
}

/// Those that are in doubt.
#[derive(Clone, Debug, Default)]
pub(super) struct Overtaken {
    /// With the end of their doubt, the first one first.
    prefills: VecDeque<(Moment, Prefill)>,
}

impl Overtaken {
    pub(super) fn is_empty(&self) -> bool {
        self.prefills.is_empty()
    }

    pub(super) fn first(&self) -> Option<&Prefill> {
        self.prefills.front().map(|(_, prefill)| prefill)
    }

    /// When the first doubt ends.
    pub(super) fn until(&self) -> Option<Moment> {
        self.prefills.front().map(|(until, _)| *until)
    }

    /// From now on in doubt. Its start counts as told.
    pub(super) fn add(&mut self, prefill: Prefill, now: Moment) {
        self.prefills.push_back((now + AT_ONCE, Prefill { start_told: true, ..prefill }));
    }

    pub(super) fn take(&mut self, lease: LeaseId) -> Option<Prefill> {
        let place = self.prefills.iter().position(|(_, prefill)| prefill.lease == lease)?;
        self.prefills.remove(place).map(|(_, prefill)| prefill)
    }

    /// One of those that were not heard of in time.
    pub(super) fn take_unheard(&mut self, now: Moment) -> Option<Prefill> {
        self.prefills.pop_front_if(|(until, _)| *until <= now).map(|(_, prefill)| prefill)
    }
}
