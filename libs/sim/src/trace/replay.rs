//! A trace becomes a request set.

use std::collections::HashMap;
use std::time::Duration;

use domain::{BlockKey, Moment};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::{Entry, Trace};
use crate::Error;
use crate::request::{Request, RequestSet, Start};
use crate::workload::limits;

/// Which part of a trace is replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Slice {
    /// All of it.
    #[default]
    All,
    /// Its first half, by requests.
    First,
    /// Its second half.
    Second,
}

/// What fixes the time of a later turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The recorded time, even if the turn before has not ended.
    #[default]
    Trace,
    /// The end of the turn before and the recorded pause.
    Think,
}

/// How a trace is replayed.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Replay {
    /// Which part.
    pub slice: Slice,
    /// What fixes the times.
    pub mode: Mode,
    /// At most so many requests.
    #[serde(skip)]
    pub limit: usize,
    /// In think mode, where no pause was recorded: what a token of the turn before took, so that
    /// the rest of the time between the turns is the pause.
    pub recorded_itl_seconds: f64,
}

impl Default for Replay {
    fn default() -> Self {
        Self { slice: Slice::All, mode: Mode::Trace, limit: usize::MAX, recorded_itl_seconds: 0.02 }
    }
}

impl Replay {
    /// # Errors
    /// [`Error::Config`] names the first field that makes no sense.
    pub fn check(&self) -> Result<(), Error> {
        Error::first_broken([limits::time("recorded_itl_seconds", self.recorded_itl_seconds)])
    }
}

impl Trace {
    /// The requests of one seed.
    ///
    /// Clocks of traces are coarse: requests that share a timestamp came at some time before the
    /// next one. The seed spreads them uniformly over that time; their order stays.
    ///
    /// In think mode a turn follows the one that the trace names. A trace that names none is
    /// searched for prompts that go on where an earlier one ended.
    pub fn replay(&self, replay: &Replay, seed: u64) -> RequestSet {
        let half = self.entries.len() / 2;
        let range = match replay.slice {
            Slice::All => 0..self.entries.len(),
            Slice::First => 0..half,
            Slice::Second => half..self.entries.len(),
        };
        let end = range.end.min(range.start.saturating_add(replay.limit));
        let entries = &self.entries[range.start..end];
        let times = spread(entries, &mut StdRng::seed_from_u64(seed));
        let guessed = match replay.mode {
            Mode::Think if entries.iter().all(|entry| entry.previous.is_none()) => {
                continued(entries)
            }
            _ => vec![None; entries.len()],
        };
        let place = |entry: usize| entry.checked_sub(range.start).filter(|at| *at < entries.len());
        let requests = entries.iter().enumerate().map(|(i, entry)| {
            let told = entry.previous.and_then(|p| Some((place(p.entry)?, p.delay_seconds)));
            let previous = told.or(guessed[i].map(|parent| (parent, None)));
            let start = match (replay.mode, previous, entry.at) {
                (Mode::Think, Some((parent, delay)), _) | (_, Some((parent, delay)), None) => {
                    let before = &entries[parent];
                    let answered = f64::from(before.output_tokens) * replay.recorded_itl_seconds;
                    let between = times[i] - times[parent] - answered;
                    let gap = Duration::from_secs_f64(delay.unwrap_or(between).max(0.0));
                    Start::After { parent, gap }
                }
                _ => Start::At(Moment::from_secs_f64(times[i])),
            };
            Request {
                start,
                keys: entry.keys.clone(),
                prompt_tokens: entry.prompt_tokens,
                output_tokens: entry.output_tokens,
            }
        });
        let requests = in_order(requests.collect());
        RequestSet { block_tokens: self.block_tokens(), requests, callers: 0 }
    }
}

/// Times in seconds from the first request on, coarse ones spread. An entry without a time has
/// that of the entry before it.
fn spread(entries: &[Entry], random: &mut StdRng) -> Vec<f64> {
    let mut last = 0.0_f64;
    let coarse: Vec<f64> = entries
        .iter()
        .map(|entry| {
            last = entry.at.unwrap_or(last);
            last
        })
        .collect();
    let origin = coarse.iter().copied().fold(f64::INFINITY, f64::min);
    let span = coarse.iter().copied().fold(0.0, f64::max) - origin;
    let mean_gap = if span.is_finite() { span / coarse.len().max(1) as f64 } else { 0.0 };
    let mut times = Vec::with_capacity(coarse.len());
    for group in coarse.chunk_by(|a, b| a == b) {
        let following = coarse.get(times.len() + group.len());
        let width = following.map_or(mean_gap, |next| (next - group[0]).max(0.0));
        let mut offsets: Vec<f64> = group.iter().map(|_| width * random.random::<f64>()).collect();
        offsets.sort_by(f64::total_cmp);
        times.extend(offsets.into_iter().map(|offset| group[0] - origin + offset));
    }
    times
}

/// For each entry, the latest earlier one whose whole prompt it repeats and goes on from. A first
/// block alone says nothing: all conversations may share it.
fn continued(entries: &[Entry]) -> Vec<Option<usize>> {
    let mut ends: HashMap<BlockKey, usize> = HashMap::new();
    let find = |(i, entry): (usize, &Entry)| {
        let parent = entry.keys.iter().skip(1).rev().find_map(|key| ends.get(key).copied());
        if let Some(last) = entry.keys.last() {
            ends.insert(*last, i);
        }
        parent
    };
    entries.iter().enumerate().map(find).collect()
}

/// Requests with fixed times in the order of those times, each in the place of one such; the
/// parents that others name move with them.
fn in_order(requests: Vec<Request>) -> Vec<Request> {
    let fixed = |request: &Request| match request.start {
        Start::At(at) => Some(at),
        Start::After { .. } | Start::WhenFree => None,
    };
    let sorted = requests.iter().filter_map(fixed).is_sorted();
    if sorted {
        return requests;
    }
    let mut order: Vec<usize> = (0..requests.len()).collect();
    // A turn that follows another sorts behind it, at the time of the first of the chain.
    let mut times: Vec<Moment> = Vec::with_capacity(requests.len());
    for request in &requests {
        times.push(match request.start {
            Start::At(at) => at,
            Start::After { parent, .. } => times[parent],
            Start::WhenFree => Moment::ZERO,
        });
    }
    order.sort_by_key(|i| times[*i]);
    let mut place = vec![0; order.len()];
    order.iter().enumerate().for_each(|(new, old)| place[*old] = new);
    let mut sorted: Vec<Request> = order.into_iter().map(|old| requests[old].clone()).collect();
    for request in &mut sorted {
        if let Start::After { parent, .. } = &mut request.start {
            *parent = place[*parent];
        }
    }
    sorted
}
