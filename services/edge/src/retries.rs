//! How often the requests of a pool are tried again, all together.
//!
//! What each request may do is bounded by `max_attempts`; but where most requests fail, all of them
//! doing so would put a multiple of its load on a pool that is in trouble already. So attempts
//! beyond the first are a share of the requests of the last seconds, and a few more, which are for
//! pools with little to do and for the moment in which one engine of a busy pool dies.

use std::collections::HashMap;
use std::sync::Arc;

use domain::{ModelId, Moment};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use settings::SettingsError;

/// Seconds that are looked back on. Long enough to span the time in which a dead engine's requests
/// come back, short enough that a quiet night buys no storm in the morning.
pub(crate) const WINDOW_SECONDS: usize = 10;

/// Pools with a budget of their own, over the life of a process; all others share one.
const MAX_POOLS: usize = 1024;

/// Twenty in a hundred: the usual share, which leaves a pool of five engines its load when one of
/// them refuses everything.
const RATIO: f64 = 0.2;
/// Largest share: as good as none.
const MAX_RATIO: f64 = 100.0;
/// A hundred over the window: about what waits and runs on one engine that dies.
const PER_SECOND: u32 = 10;

/// Section `[edge.retry_budget]`: attempts beyond the first, of all requests of a pool together.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawRetryBudget {
    /// Their share of the requests of the last ten seconds.
    pub ratio: f64,
    /// How many there may be a second besides.
    pub per_second: u32,
}

impl Default for RawRetryBudget {
    fn default() -> Self {
        Self { ratio: RATIO, per_second: PER_SECOND }
    }
}

impl RawRetryBudget {
    pub(crate) fn check(&self) -> Result<RetryTerms, SettingsError> {
        let Self { ratio, per_second } = *self;
        if !(0.0..=MAX_RATIO).contains(&ratio) {
            let message = format!("{ratio} is out of range, allowed is 0 to {MAX_RATIO}");
            return Err(SettingsError::new("edge.retry_budget.ratio", message));
        }
        Ok(RetryTerms { ratio, per_second })
    }
}

/// How large a budget is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RetryTerms {
    /// Attempts beyond the first for each request.
    pub(crate) ratio: f64,
    /// Those that are always allowed.
    pub(crate) per_second: u32,
}

/// The budget of one pool.
#[derive(Default)]
pub(crate) struct RetryBudget(Mutex<Window>);

/// An attempt that may be made.
#[derive(Debug)]
#[must_use]
pub(crate) struct Turn {
    /// The second that it was taken in, if it is not a request's first one.
    retry_in: Option<u64>,
}

/// What there was in the last seconds, each in its place.
#[derive(Default)]
struct Window([Second; WINDOW_SECONDS]);

#[derive(Clone, Copy, Default)]
struct Second {
    /// Which one it is, counted from 1.
    number: u64,
    requests: u32,
    retries: u32,
}

impl Window {
    fn at(&mut self, number: u64) -> &mut Second {
        let second = &mut self.0[(number % WINDOW_SECONDS as u64) as usize];
        if second.number != number {
            *second = Second { number, ..Second::default() };
        }
        second
    }

    /// Requests and retries of the seconds that are in sight from this one.
    fn sums(&self, number: u64) -> (u64, u64) {
        let is_seen = |second: &&Second| second.number + WINDOW_SECONDS as u64 > number;
        self.0.iter().filter(is_seen).fold((0, 0), |(requests, retries), second| {
            (requests + u64::from(second.requests), retries + u64::from(second.retries))
        })
    }
}

impl RetryBudget {
    /// A request is about to be tried; `attempt` counts from 0. `None`: not again.
    pub(crate) fn turn(&self, terms: RetryTerms, attempt: u32, now: Moment) -> Option<Turn> {
        let number = now.as_nanos() / 1_000_000_000 + 1;
        let mut window = self.0.lock();
        if attempt == 0 {
            window.at(number).requests += 1;
            return Some(Turn { retry_in: None });
        }
        let (requests, retries) = window.sums(number);
        let reserve = f64::from(terms.per_second) * WINDOW_SECONDS as f64;
        if (retries + 1) as f64 > reserve + terms.ratio * requests as f64 {
            return None;
        }
        window.at(number).retries += 1;
        Some(Turn { retry_in: Some(number) })
    }

    /// Nothing was sent after all.
    pub(crate) fn unused(&self, turn: Turn) {
        let Some(number) = turn.retry_in else { return };
        let mut window = self.0.lock();
        let second = &mut window.0[(number % WINDOW_SECONDS as u64) as usize];
        if second.number == number {
            second.retries = second.retries.saturating_sub(1);
        }
    }
}

/// The budgets of all pools.
#[derive(Default)]
pub(crate) struct RetryBudgets {
    pools: Mutex<HashMap<ModelId, Arc<RetryBudget>>>,
    others: Arc<RetryBudget>,
}

impl RetryBudgets {
    /// The budget of the pool of that model, the same for as long as the process lives.
    pub(crate) fn of(&self, pool: &ModelId) -> Arc<RetryBudget> {
        let mut pools = self.pools.lock();
        if let Some(budget) = pools.get(pool) {
            return Arc::clone(budget);
        }
        if pools.len() >= MAX_POOLS {
            return Arc::clone(&self.others);
        }
        let budget = Arc::<RetryBudget>::default();
        pools.insert(pool.clone(), Arc::clone(&budget));
        budget
    }

    /// That of models that no ready backend serves.
    pub(crate) fn others(&self) -> &Arc<RetryBudget> {
        &self.others
    }
}

#[cfg(test)]
mod tests;
