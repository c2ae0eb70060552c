//! What is kept of a choice, for those who ask later.

use domain::{Route, ScoreParts};

use super::State;
use super::choice::Choice;
use super::prospect::{Asked, Prospect};
use super::rank::{Eligibility, Rank};
use crate::explain::{Line, Trace, Verdict};

impl State {
    /// `selection` names ranks by their places among all.
    pub(super) fn explain(
        &mut self,
        route: &Route,
        asked: &Asked<'_>,
        choice: &Choice,
        (eligibilities, eligible): (&[Eligibility], &[usize]),
    ) -> Trace {
        let selection = &choice.selection;
        let mut trace = Trace::new(route);
        trace.reason = Some(selection.reason);
        let best = selection.ranked[0].total_seconds;
        for (place, scored) in selection.ranked.iter().enumerate() {
            let verdict = match place {
                0 => Verdict::Chosen,
                _ => Verdict::Behind { seconds: scored.total_seconds - best },
            };
            let prospect = self.prospect(scored.index, asked);
            trace.push_scored(|| self.line(&prospect, verdict, scored.parts));
        }
        self.note_unranked(asked, choice, eligible, &mut trace);
        trace.omitted += eligible.len() - trace.scored();
        if eligible.len() < eligibilities.len() {
            self.note_barred(eligibilities, &mut trace);
        }
        trace
    }

    /// Candidates beyond the ranked ones, as far as there is room: first those that hold some of
    /// the prompt, since that is what one asks about.
    fn note_unranked(
        &mut self,
        asked: &Asked<'_>,
        Choice { selection, field, found, noted, kept }: &Choice,
        eligible: &[usize],
        trace: &mut Trace,
    ) {
        let best = selection.ranked[0].total_seconds;
        for &place in noted {
            let at = eligible[place];
            if selection.ranked.iter().any(|scored| scored.index == at) {
                continue;
            }
            let has_room = trace.push_scored(|| {
                let prospect = self.prospect(at, asked);
                let found = (place, &found[place]);
                let evicted = asked.evicted_ask_tokens(&mut self.mirrors, found, kept.as_ref());
                let parts = field.score(place, evicted);
                let verdict = Verdict::Behind { seconds: parts.total_seconds() - best };
                self.line(&prospect, verdict, parts)
            });
            if !has_room {
                return;
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

    pub(super) fn note_barred(&self, eligibilities: &[Eligibility], trace: &mut Trace) {
        for (rank, eligibility) in self.ranks.iter().zip(eligibilities) {
            let verdict = match eligibility {
                Eligibility::Eligible => continue,
                Eligibility::Excluded => Verdict::Excluded,
                Eligibility::NotReady => Verdict::NotReady,
                Eligibility::NotServed => Verdict::NotServed,
                Eligibility::Broken => Verdict::BreakerOpen,
                Eligibility::Held(hold) => Verdict::Held(*hold),
            };
            if trace.chose(&rank.id) {
                continue;
            }
            let noted = trace.push_barred(|| Line {
                rank: rank.id.clone(),
                state: rank.seen.state,
                level: rank.level,
                verdict,
                matched_blocks: self.matched_blocks(rank),
                cached_tokens: 0,
                uncached_tokens: 0,
                in_flight: rank.load.in_flight(),
                parts: Default::default(),
            });
            trace.omitted += usize::from(!noted);
        }
    }

    /// Leading blocks that a rank holds of the prompt that was looked up last.
    fn matched_blocks(&self, rank: &Rank) -> u32 {
        let matched =
            rank.slots().iter().map(|&(mirror, slot)| self.mirrors[mirror].matched_blocks(slot));
        matched.max().unwrap_or(0)
    }
}
