//! What is kept of a choice, for those who ask later.

use domain::{Moment, Route, ScoreParts};
use scheduling::{Selection, score};

use super::State;
use super::decide::Prospect;
use super::rank::{Rank, Standing};
use crate::explain::{Line, Trace, Verdict};

impl State {
    pub(super) fn explain(
        &self,
        route: &Route,
        standings: &[Standing],
        prospects: &[Prospect],
        selection: &Selection,
        now: Moment,
    ) -> Trace {
        let mut trace = Trace::new(route);
        trace.reason = Some(selection.reason);
        let best = selection.ranked[0].total_seconds;
        for (place, scored) in selection.ranked.iter().enumerate() {
            let verdict = match place {
                0 => Verdict::Chosen,
                _ => Verdict::Behind { seconds: scored.total_seconds - best },
            };
            let prospect = &prospects[scored.index];
            trace.push_scored(|| self.line(prospect, verdict, scored.parts));
        }
        self.note_unranked(prospects, selection, now, &mut trace);
        self.note_barred(standings, &mut trace);
        trace
    }

    /// Candidates beyond the ranked ones, as far as there is room: first those that hold some of
    /// the prompt, since that is what one asks about.
    fn note_unranked(
        &self,
        prospects: &[Prospect],
        selection: &Selection,
        now: Moment,
        trace: &mut Trace,
    ) {
        let best = selection.ranked[0].total_seconds;
        let unranked = |i: &usize| selection.ranked.iter().all(|s| s.index != *i);
        let mut left = prospects.len() - selection.ranked.len();
        for warm in [true, false] {
            for i in (0..prospects.len()).filter(unranked) {
                if left == 0 || (prospects[i].matched_blocks > 0) != warm {
                    continue;
                }
                let noted = trace.push_scored(|| {
                    let view = self.candidate_view(&prospects[i], now);
                    let parts = score(&self.config, &view, selection.arrivals_per_rank);
                    let verdict = Verdict::Behind { seconds: parts.total_seconds() - best };
                    self.line(&prospects[i], verdict, parts)
                });
                if !noted {
                    trace.omitted += left;
                    return;
                }
                left -= 1;
            }
        }
    }

    fn line(&self, prospect: &Prospect, verdict: Verdict, parts: ScoreParts) -> Line {
        let rank = &self.ranks[prospect.at];
        Line {
            rank: rank.id.clone(),
            state: rank.seen.state,
            level: prospect.level,
            verdict,
            matched_blocks: prospect.matched_blocks,
            cached_tokens: prospect.cached_tokens,
            uncached_tokens: prospect.uncached_tokens,
            in_flight: rank.load.in_flight(),
            parts,
        }
    }

    pub(super) fn note_barred(&self, standings: &[Standing], trace: &mut Trace) {
        for (rank, standing) in self.ranks.iter().zip(standings) {
            let verdict = match standing {
                Standing::Eligible => continue,
                Standing::Excluded => Verdict::Excluded,
                Standing::NotReady => Verdict::NotReady,
                Standing::NotServed => Verdict::NotServed,
                Standing::Broken => Verdict::BreakerOpen,
            };
            if trace.chose(&rank.id) {
                continue;
            }
            let noted = trace.push_barred(|| Line {
                rank: rank.id.clone(),
                state: rank.seen.state,
                level: rank.level,
                verdict,
                matched_blocks: self.held(rank),
                cached_tokens: 0,
                uncached_tokens: 0,
                in_flight: rank.load.in_flight(),
                parts: Default::default(),
            });
            trace.omitted += usize::from(!noted);
        }
    }

    /// Leading blocks that a rank holds of the prompt that was looked up last.
    fn held(&self, rank: &Rank) -> u32 {
        rank.slots()
            .iter()
            .filter_map(|&(mirror, slot)| {
                let mirror = &self.mirrors[mirror];
                mirror.index.matched(&mirror.matches, slot)
            })
            .map(|m| m.blocks)
            .max()
            .unwrap_or(0)
    }
}
