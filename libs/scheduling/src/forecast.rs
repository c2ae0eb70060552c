//! What a choice tells of the winner, beyond the score it won by.

use domain::ScoreParts;

use crate::{Coefficients, Prompt};

/// The winner's score with what the choice goes without: the wait of `room_seconds` for room in its
/// cache, which passes while it waits in line, and the prefill of what the prompt would find `now`
/// and will not have found `then`, when its turn comes.
pub fn forecast(
    score: ScoreParts,
    fit: &Coefficients,
    (now, then): (Prompt, Prompt),
    room_seconds: f64,
) -> ScoreParts {
    let prefill = |found: Prompt| fit.token_seconds(found.uncached_tokens, found.cached_tokens);
    ScoreParts {
        queue_delay_seconds: score.queue_delay_seconds.max(room_seconds),
        prefill_seconds: score.prefill_seconds + (prefill(then) - prefill(now)).max(0.0),
        ..score
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_room_passes_in_line_and_what_is_lost_is_computed() {
        let score =
            ScoreParts { queue_delay_seconds: 2.0, prefill_seconds: 0.1, ..ScoreParts::default() };
        let fit = Coefficients {
            per_token_seconds: 0.001,
            per_pair_seconds: 0.0,
            ..Coefficients::DEFAULT
        };
        let found =
            |cached| Prompt { uncached_tokens: 1_000 - cached, cached_tokens: cached, blocks: 63 };
        let told = forecast(score, &fit, (found(900), found(400)), 3.0);
        assert_eq!((told.queue_delay_seconds, told.prefill_seconds), (3.0, 0.6));
        let told = forecast(score, &fit, (found(400), found(400)), 1.0);
        assert_eq!(told, score);
    }
}
