//! The same choice with fewer questions.
//!
//! What a prompt would evict is by far the dearest thing to know of a rank, and most ranks of a
//! large pool are out of the running without it: their queue alone is longer than all that the
//! best ones cost. A score without the eviction's cost is a lower bound of the score. So it is
//! asked for only of the candidates whose bound does not exceed the totals that decide: that of
//! the last one ranked, and the last that would tie with the best.

use super::field::Field;
use super::{Config, Leaders, Policy, Selection, outcome};

/// Candidates that are gone over at a time: a loop over one thing of each is faster than all of one
/// candidate after the other, and what one turns out to cost spares questions to later ones.
const BATCH: usize = 64;

/// [`select`](super::select()) of candidates that are asked what the prompt would evict where it could
/// matter: `evicted` tells it of the candidate at a place, and is asked at most once of each. The
/// outcome is that of asking for all of them.
pub fn select_sparing(
    config: &Config,
    field: &Field,
    mut evicted: impl FnMut(usize) -> f64,
) -> Selection {
    let mut totals = field.bounds();
    let mut first = Leaders::new(config.policy, field);
    for (place, bound) in totals.iter().enumerate() {
        first.add(*bound, place);
    }
    // Of those that were not asked it is nothing.
    let mut known = vec![0.0; field.len()];
    let mut is_asked = vec![false; field.len()];
    let mut leaders = Leaders::new(config.policy, field);
    for place in first.places() {
        is_asked[place] = true;
        known[place] = evicted(place);
        totals[place] = field.total(place, known[place]);
        leaders.add(totals[place], place);
    }
    if config.policy == Policy::Prefix {
        let mut limit = leaders.limit(config);
        let mut asked = Vec::with_capacity(BATCH);
        for start in (0..field.len()).step_by(BATCH) {
            let batch = start..field.len().min(start + BATCH);
            asked.clear();
            for place in batch.clone() {
                if totals[place] <= limit && !is_asked[place] {
                    known[place] = evicted(place);
                    asked.push(place);
                }
            }
            field.total_of(batch.clone(), &known[batch.clone()], &mut totals[batch]);
            let mut is_another = false;
            for place in &asked {
                is_another |= leaders.add(totals[*place], *place);
            }
            if is_another {
                limit = leaders.limit(config);
            }
        }
    }
    outcome(config, &leaders, &totals, |place| known[place])
}
