//! The same choice with fewer questions.
//!
//! What a prompt would evict is by far the dearest thing to know of a rank, and most ranks of a
//! large pool are out of the running without it: their queue alone is longer than all that the
//! best ones cost. A score without the eviction's cost is a lower bound of the score. So it is
//! asked for only of the candidates whose bound does not exceed the totals that decide: that of
//! the last one ranked, and the last that would tie with the best.

use super::{CandidateView, Config, Policy, RANKED_LIMIT, Selection, arrivals_per_rank};
use super::{ranking, score, tie_limit};

/// [`select`](super::select()) of candidates whose `evicted_ask_tokens` are not known yet: given as
/// zero, asked of `evicted` by the candidate and its place where they could matter, and filled in. The
/// outcome is that of asking for all of them.
pub fn select_sparing(
    config: &Config,
    candidates: &mut [CandidateView<'_>],
    mut evicted: impl FnMut(usize, &CandidateView<'_>) -> f64,
) -> Selection {
    let arrivals = arrivals_per_rank(candidates);
    let total = |view: &CandidateView<'_>| score(config, view, arrivals).total_seconds();
    let mut totals: Vec<f64> = candidates.iter().map(total).collect();
    let mut places: Vec<usize> = (0..totals.len()).collect();
    if config.policy != Policy::Prefix {
        // Totals do not count, but those of the ranked are told.
        places.retain({
            let ranked = ranking(config, candidates, (&totals, &places), arrivals).ranked;
            move |place| ranked.iter().any(|scored| scored.index == *place)
        });
        for place in places.iter().copied() {
            candidates[place].evicted_ask_tokens = evicted(place, &candidates[place]);
            totals[place] = total(&candidates[place]);
        }
        return ranking(config, candidates, (&totals, &places), arrivals);
    }
    let (mut best, mut first) = (Lowest::default(), Lowest::default());
    totals.iter().zip(&places).for_each(|(bound, place)| first.add(*bound, *place));
    let mut ask = |place: usize, totals: &mut [f64]| {
        candidates[place].evicted_ask_tokens = evicted(place, &candidates[place]);
        totals[place] = total(&candidates[place]);
        best.add(totals[place], place);
        best.limit(config)
    };
    let mut limit = f64::INFINITY;
    let mut is_asked = vec![false; places.len()];
    for place in first.places() {
        is_asked[place] = true;
        limit = ask(place, &mut totals);
    }
    for place in places.iter().copied() {
        if totals[place] <= limit && !is_asked[place] {
            limit = ask(place, &mut totals);
        }
    }
    places.retain(|place| totals[*place] <= limit);
    ranking(config, candidates, (&totals, &places), arrivals)
}

/// The lowest totals so far, as many as are ranked.
#[derive(Default)]
struct Lowest {
    ascending: Vec<(f64, usize)>,
}

impl Lowest {
    fn add(&mut self, total: f64, place: usize) {
        if self.ascending.len() == RANKED_LIMIT {
            if self.ascending[RANKED_LIMIT - 1].0 <= total {
                return;
            }
            self.ascending.pop();
        }
        let at = self.ascending.partition_point(|(kept, _)| *kept <= total);
        self.ascending.insert(at, (total, place));
    }

    fn places(&self) -> impl Iterator<Item = usize> {
        self.ascending.iter().map(|(_, place)| *place)
    }

    /// A candidate whose total is above this is neither ranked nor ties with the best.
    fn limit(&self, config: &Config) -> f64 {
        match (self.ascending.first(), self.ascending.get(RANKED_LIMIT - 1)) {
            (Some((best, _)), Some((last, _))) => last.max(tie_limit(config, *best)),
            _ => f64::INFINITY,
        }
    }
}
