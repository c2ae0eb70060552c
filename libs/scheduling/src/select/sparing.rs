//! The same choice with fewer questions.
//!
//! What a prompt would evict is by far the dearest thing to know of a rank, and most ranks of a
//! large pool are out of the running without it: their queue alone is longer than all that the
//! best ones cost. A score without the eviction's cost is a lower bound of the score. So it is
//! asked for only of the candidates whose bound does not exceed the totals that decide: that of
//! the last one ranked, and the last that would tie with the best.

use super::field::Field;
use super::{Config, Policy, RANKED_LIMIT, Selection, Totals, ranking, tie_limit};

/// [`select`](super::select()) of candidates that are asked what the prompt would evict where it could
/// matter: `evicted` tells it of the candidate at a place, and is asked at most once of each. The
/// outcome is that of asking for all of them.
pub fn select_sparing(
    config: &Config,
    field: &Field,
    mut evicted: impl FnMut(usize) -> f64,
) -> Selection {
    let count = field.len();
    let mut known = Totals { totals: field.bounds(), evicted: vec![0.0; count] };
    let mut ask = |place: usize, known: &mut Totals| {
        known.evicted[place] = evicted(place);
        known.totals[place] = field.total(place, known.evicted[place]);
    };
    if config.policy != Policy::Prefix {
        // Totals do not count, but those of the ranked are told.
        let all: Vec<usize> = (0..count).collect();
        let ranked = ranking(config, field, &known, &all).ranked;
        let places: Vec<usize> =
            all.into_iter().filter(|place| ranked.iter().any(|s| s.index == *place)).collect();
        places.iter().for_each(|place| ask(*place, &mut known));
        return ranking(config, field, &known, &places);
    }
    let (mut best, mut first) = (Lowest::default(), Lowest::default());
    known.totals.iter().enumerate().for_each(|(place, bound)| {
        first.add(*bound, place);
    });
    let mut is_asked = vec![false; count];
    for place in first.places() {
        is_asked[place] = true;
        ask(place, &mut known);
        best.add(known.totals[place], place);
    }
    let mut limit = best.limit(config);
    for (place, is_asked) in is_asked.into_iter().enumerate() {
        if known.totals[place] <= limit && !is_asked {
            ask(place, &mut known);
            if best.add(known.totals[place], place) {
                limit = best.limit(config);
            }
        }
    }
    let places: Vec<usize> = (0..count).filter(|place| known.totals[*place] <= limit).collect();
    ranking(config, field, &known, &places)
}

/// The lowest totals so far, as many as are ranked.
#[derive(Default)]
struct Lowest {
    ascending: Vec<(f64, usize)>,
}

impl Lowest {
    /// Returns whether it is one of them.
    #[inline]
    fn add(&mut self, total: f64, place: usize) -> bool {
        let is_low = !self.ascending.get(RANKED_LIMIT - 1).is_some_and(|(last, _)| *last <= total);
        if is_low {
            self.insert(total, place);
        }
        is_low
    }

    fn insert(&mut self, total: f64, place: usize) {
        self.ascending.truncate(RANKED_LIMIT - 1);
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
