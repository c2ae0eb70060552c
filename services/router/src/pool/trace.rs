//! What is kept of a choice, for those who ask later.

use domain::Route;
use scheduling::Selection;

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
    ) -> Trace {
        let mut trace = Trace::new(route);
        trace.reason = Some(selection.reason);
        let best = selection.ranked[0].total_seconds;
        for (place, scored) in selection.ranked.iter().enumerate() {
            let prospect = &prospects[scored.index];
            let verdict = if place == 0 {
                Verdict::Chosen
            } else {
                Verdict::Behind { seconds: scored.total_seconds - best }
            };
            let full = !trace.push_scored(|| {
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
                    parts: scored.parts,
                }
            });
            if full {
                trace.omitted += selection.ranked.len() - place;
                break;
            }
        }
        self.note_barred(standings, &mut trace);
        trace
    }

    pub(super) fn note_barred(&self, standings: &[Standing], trace: &mut Trace) {
        for (rank, standing) in self.ranks.iter().zip(standings) {
            let verdict = match standing {
                Standing::Eligible => continue,
                Standing::Excluded => Verdict::Excluded,
                Standing::NotReady => Verdict::NotReady,
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
            .filter_map(|&(mirror, slot)| self.mirrors[mirror].matches.get(slot))
            .map(|m| m.blocks)
            .max()
            .unwrap_or(0)
    }
}
