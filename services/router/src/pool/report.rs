//! What became of a lease.

use std::time::Duration;

use domain::{BlockUnit, FailureClass, KeyList, LeaseId, Moment, Report, Usage};
use kv_index::feedback::{Ended, Heard};
use replication::LeaseChange;

use super::change::{Change, Left};
use super::feedback::heard;
use super::lease::{BookedBlocks, Lease};
use super::rank::RankKey;
use super::{Mirror, State, start};
use crate::explain::{Ending, Outcome};

/// Output tokens after which a trial of a broken rank has shown that its engine generates. One
/// token does not: an engine may die with the first words out.
const TRIAL_TOKENS: u32 = 16;

/// Samples after which a rank's fit is told to copies again.
const LEARNED_EVERY: u64 = 64;

/// Weight of one request in the smoothed bytes per token.
const BYTES_PER_TOKEN_WEIGHT: f64 = 0.05;

/// What a tokenizer can make of text; anything else is a request whose usage counts more than
/// its first prompt.
const BYTES_PER_TOKEN_RANGE: std::ops::RangeInclusive<f64> = 0.5..=16.0;

/// Relative change of the bytes per token that is worth resizing the text mirrors for.
const RESCALE_AT: f64 = 0.05;

impl State {
    pub(super) fn report(&mut self, report: &Report, now: Moment) -> Option<Outcome> {
        let id = report.lease();
        let lease = self.leases.get_mut(&id)?;
        lease.heard = now;
        if let Some(at) = self.ranks.position(lease.rank) {
            self.advance_rank(at, now);
        }
        match *report {
            Report::FirstToken { .. } => self.first_token(id, now),
            Report::Progress { generated, .. } => {
                self.progress(id, generated);
                None
            }
            Report::Finished { usage, ref output_keys, .. } => {
                self.finished(id, usage, output_keys, now)
            }
            Report::Failed { class, retry_after, .. } => self.failed(id, class, retry_after, now),
            Report::Cancelled { .. } => {
                let lease = self.close(id, Closing::default(), now)?;
                let seconds = now.seconds_since(lease.at);
                Some(Outcome::Ended { ending: Ending::Cancelled, seconds })
            }
        }
    }

    fn first_token(&mut self, id: LeaseId, now: Moment) -> Option<Outcome> {
        let lease = self.leases.get_mut(&id)?;
        if std::mem::replace(&mut lease.first_token, true) {
            return None;
        }
        let (key, forecast) = (lease.rank, lease.forecast);
        let seconds = now.seconds_since(lease.at);
        let at = self.ranks.position(key)?;
        let rank = &mut self.ranks[at];
        rank.pacing.answered();
        if let Some(sample) = rank.load.first_token(id, now) {
            let network = rank.seen.network.as_secs_f64();
            rank.fit.observe(&sample.shape, sample.engine_seconds(network));
            rank.measured_at = Some(now);
            // Rarely enough to cost nothing, often enough to pass on what was learned early.
            let samples = rank.fit.samples();
            if samples.is_power_of_two() || samples.is_multiple_of(LEARNED_EVERY) {
                self.changes.record(|| self.ranks[at].learned_change());
            }
            if samples.is_power_of_two() {
                self.share_prior();
            }
        }
        self.metrics.first_token(&self.ranks[at].metrics, forecast.ttft_seconds, seconds);
        // What was booked before it has begun as well, and in that order.
        self.advance_rank(at, now);
        start(&mut self.mirrors, self.leases.get_mut(&id)?, &mut self.changes);
        Some(Outcome::FirstToken { seconds })
    }

    fn progress(&mut self, id: LeaseId, generated: u32) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        lease.generated = lease.generated.max(generated);
        start(&mut self.mirrors, lease, &mut self.changes);
        if let Some(blocks) = &mut lease.blocks {
            let output = blocks.measure.output_blocks(lease.generated);
            self.mirrors[blocks.mirror].index.grow(&mut blocks.booking, output);
        }
        if lease.trial && lease.generated >= TRIAL_TOKENS {
            lease.trial = false;
            let key = lease.rank;
            if let Some(rank) = self.ranks.by_key_mut(key) {
                rank.succeeded(true);
            }
        }
    }

    fn finished(
        &mut self,
        id: LeaseId,
        usage: Option<Usage>,
        output_keys: &[KeyList],
        now: Moment,
    ) -> Option<Outcome> {
        let lease = self.leases.get_mut(&id)?;
        if let Some(usage) = usage {
            let told = u32::try_from(usage.completion_tokens).unwrap_or(u32::MAX);
            lease.generated = lease.generated.max(told);
        }
        // It ran, even if its first token was not seen.
        start(&mut self.mirrors, lease, &mut self.changes);
        let trial = std::mem::take(&mut lease.trial);
        let is_first_heard = !lease.first_token;
        let lease = self.close(id, Closing { usage, output_keys }, now)?;
        if let Some(rank) = self.ranks.by_key_mut(lease.rank) {
            if is_first_heard {
                rank.pacing.answered();
            }
            rank.succeeded(trial);
            let told = usage.and_then(|u| u.cached_tokens).filter(|_| !lease.adopted);
            if let Some(delivered) = told {
                let forecast = lease.forecast;
                rank.metrics.cached(
                    u64::from(forecast.cached_tokens),
                    delivered,
                    u64::from(forecast.grain),
                );
            }
        }
        if let Some(usage) = usage {
            self.learn_bytes_per_token(lease.forecast.text_bytes, usage.prompt_tokens);
        }
        let seconds = now.seconds_since(lease.at);
        Some(Outcome::Ended { ending: Ending::Finished(usage), seconds })
    }

    fn failed(
        &mut self,
        id: LeaseId,
        class: FailureClass,
        retry_after: Option<Duration>,
        now: Moment,
    ) -> Option<Outcome> {
        let trial = std::mem::take(&mut self.leases.get_mut(&id)?.trial);
        let lease = self.close(id, Closing::default(), now)?;
        let model = self.model.clone();
        if let Some(rank) = self.ranks.by_key_mut(lease.rank) {
            if class == FailureClass::BackPressure {
                rank.pacing.full(retry_after, now);
            }
            if rank.breaker.failed(class, trial, now) {
                rank.metrics.ejections.inc();
                tracing::warn!(
                    %model, backend.id = %rank.id.backend, rank = rank.id.rank,
                    class = class.as_str(), "breaker opens",
                );
            }
        }
        let seconds = now.seconds_since(lease.at);
        Some(Outcome::Ended { ending: Ending::Failed(class), seconds })
    }

    /// Ends a lease everywhere: load book, index, breaker trial. Without effect on ranks that
    /// are gone.
    pub(super) fn close(
        &mut self,
        id: LeaseId,
        closing: Closing<'_>,
        now: Moment,
    ) -> Option<ClosedLease> {
        let lease = self.leases.remove(&id)?;
        self.metrics.leases.set(self.leases.len() as i64);
        let trial = lease.trial;
        if let Some(rank) = self.ranks.by_key_mut(lease.rank) {
            rank.end(id, now);
            if trial {
                rank.breaker.released();
            }
        }
        let Lease { rank, at, blocks, forecast, generated, key, adopted, .. } = lease;
        let left = blocks.and_then(|blocks| self.release(rank, blocks, generated, closing));
        if let Some(key) = key {
            self.remote.forget(&key);
            self.remote.book.apply(&LeaseChange::Ended { key: key.clone() });
            self.changes.record(|| Change::Closed { lease: key, left: left.map(Box::new) });
        }
        Some(ClosedLease { rank, at, forecast, adopted })
    }

    /// Blocks of a prefill that began stay in the engine's cache until they are evicted; those
    /// of one that did not were never there.
    fn release(
        &mut self,
        rank: RankKey,
        blocks: BookedBlocks,
        generated: u32,
        closing: Closing<'_>,
    ) -> Option<Left> {
        let BookedBlocks { mirror: number, mut booking, sample, started, measure, keyed } = blocks;
        let Mirror { unit, index, feedback, .. } = &mut self.mirrors[number];
        if started {
            let output_blocks = measure.output_blocks(generated);
            index.grow(&mut booking, output_blocks);
            let heard = heard(&measure, keyed, closing.usage);
            if let Heard::Found { blocks, .. } = heard {
                self.answers.observe(index, &booking, f64::from(blocks));
            }
            let answer = closing.output_keys.iter().find(|list| list.unit == *unit);
            let ended = Ended {
                output_cached_blocks: measure.cached_output_blocks(generated, keyed),
                answer_keys: answer.map_or(&[][..], |list| &list.keys),
                heard,
            };
            let correction = feedback.finish(index, booking, sample, ended);
            self.corrected(rank, number, &correction);
            let found = correction.compared.map(|(_, found)| found);
            Some(Left {
                output_blocks,
                cached_blocks: ended.output_cached_blocks,
                answer_keys: ended.answer_keys.to_vec(),
                keep_blocks: found.filter(|_| correction.purged_blocks > 0),
                emptied: correction.purged_rank,
                capacity: correction.capacity,
            })
        } else {
            index.rollback(booking);
            self.metrics.rollbacks.inc();
            None
        }
    }

    fn learn_bytes_per_token(&mut self, text_bytes: u32, prompt_tokens: u64) {
        if prompt_tokens == 0 || text_bytes == 0 {
            return;
        }
        let observed = f64::from(text_bytes) / prompt_tokens as f64;
        if !BYTES_PER_TOKEN_RANGE.contains(&observed) {
            return;
        }
        self.bytes_per_token += BYTES_PER_TOKEN_WEIGHT * (observed - self.bytes_per_token);
        if (self.bytes_per_token / self.scaled_by - 1.0).abs() < RESCALE_AT {
            return;
        }
        self.scaled_by = self.bytes_per_token;
        for rank in self.ranks.iter() {
            for &(mirror, slot) in rank.slots() {
                let mirror = &mut self.mirrors[mirror];
                if mirror.unit == BlockUnit::TEXT {
                    let told = rank.profile.told(mirror.unit, self.scaled_by);
                    mirror.set_told_capacity(slot, told, &rank.id, &mut self.changes);
                }
            }
        }
    }
}

/// What is told of a request at its end; nothing of one that was not answered to the end.
#[derive(Clone, Copy, Default)]
pub(super) struct Closing<'a> {
    /// What the engine counted.
    pub(super) usage: Option<Usage>,
    /// Keys of the answer's blocks, where they are known.
    pub(super) output_keys: &'a [KeyList],
}

/// What is left of a lease that is closed.
pub(super) struct ClosedLease {
    rank: RankKey,
    at: Moment,
    forecast: super::lease::Forecast,
    adopted: bool,
}
