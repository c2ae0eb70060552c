//! The choice among the ranks that may be chosen.
//!
//! Each round below goes over one thing of all ranks, which stands in one piece of memory: a loop
//! over so little keeps all it needs in the CPU's registers.

use domain::Moment;
use scheduling::{Config, Fading, Field, Line, LoadSnapshot, Policy, Selection, select_sparing};

use super::State;
use super::keeper::Kept;
use super::prospect::{Asked, Found};
use crate::explain::SCORED_LINES;

/// A choice and what it rests on.
pub(super) struct Choice {
    pub(super) selection: Selection,
    /// Every eligible rank's part in it.
    pub(super) field: Field,
    /// What each would find.
    pub(super) found: Vec<Found>,
    /// Where several would find equally much.
    pub(super) kept: Option<Kept>,
    /// Places among the eligible ranks of those that are told of beside the ranked ones, if there
    /// is room: the first of those that hold some of the prompt, since that is what one asks
    /// about, and then the first of the others.
    pub(super) noted: Vec<usize>,
}

/// What stands before a rank at one moment.
#[derive(Clone, Copy)]
struct Queue {
    booked_seconds: f64,
    delay_seconds: f64,
    in_flight: u32,
    saturated: bool,
}

impl Queue {
    #[inline(always)]
    fn of(load: &LoadSnapshot, now: Moment) -> Self {
        let booked_seconds = load.booked_seconds(now);
        let delay_seconds = booked_seconds + load.foreign_seconds(now);
        let in_flight = load.all_in_flight(now);
        let saturated = load.saturated(delay_seconds, in_flight);
        Self { booked_seconds, delay_seconds, in_flight, saturated }
    }
}

impl State {
    pub(super) fn choose(&mut self, asked: &Asked<'_>, eligible: &[usize]) -> Choice {
        let config = self.config.get().scheduling;
        let policy = if asked.prompt.is_none() { Policy::LeastLoad } else { config.policy };
        let config = Config { policy, ..config };
        let found: Vec<Found> =
            eligible.iter().map(|at| asked.found(&self.ranks, &self.mirrors, *at)).collect();
        let field = self.field(&config, eligible, &found, asked.now);
        let kept = Kept::of(self, asked, (eligible, &found));
        let mirrors = &mut self.mirrors;
        let selection = select_sparing(&config, &field, |place| {
            asked.evicted_ask_tokens(mirrors, (place, &found[place]), kept.as_ref())
        });
        Choice { selection, field, noted: noted(&found), found, kept }
    }

    fn field(&self, config: &Config, eligible: &[usize], found: &[Found], now: Moment) -> Field {
        let columns = self.ranks.columns();
        let loads = &columns.loads[..];
        let queues: Vec<Queue> = eligible.iter().map(|at| Queue::of(&loads[*at], now)).collect();
        let mut fading = Fading::of_arrivals(now);
        let rates = &columns.arrivals[..];
        let arrivals: Vec<f64> =
            eligible.iter().map(|at| rates[*at].per_second(&mut fading)).collect();
        let (terms, last_chosen) = (&columns.terms[..], &columns.last_chosen[..]);
        let each = eligible.iter().zip(found).zip(&queues).zip(&arrivals);
        let lines = each.map(|(((at, found), queue), arrivals)| Line {
            terms: terms[*at],
            cached_tokens: found.cached_tokens,
            uncached_tokens: found.uncached_tokens,
            hot_tokens: found.hot_tokens,
            in_flight: queue.in_flight,
            queue_delay_seconds: queue.delay_seconds,
            booked_seconds: queue.booked_seconds,
            arrivals_per_second: *arrivals,
            last_chosen: last_chosen[*at],
            saturated: queue.saturated,
        });
        Field::new(config, lines)
    }
}

fn noted(found: &[Found]) -> Vec<usize> {
    let is_warm = |place: &usize| found[*place].matched_blocks > 0;
    let warm = (0..found.len()).filter(is_warm).take(SCORED_LINES);
    let cold = (0..found.len()).filter(|place| !is_warm(place)).take(SCORED_LINES);
    warm.chain(cold).collect()
}
