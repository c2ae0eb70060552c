//! Request sets over documents that share a system prompt: which document each request asks
//! about, and the text. Everything is a function of its arguments, seeds included.
//!
//! The reference set: 15 documents of 96 blocks behind 2 shared blocks, each request one document
//! drawn at random and a question of its own, shorter than a block. Texts are longer than needed
//! and their prefixes are stable, so that a caller with a tokenizer can cut them to exact blocks.

mod agents;
mod customers;
mod documents;
#[cfg(test)]
mod generated_tests;
pub(crate) mod limits;
mod span;

pub use agents::AgentSessions;
pub use customers::{CustomerGroups, Ladder};
pub use documents::{DocumentCallers, SteadyDocuments, reference_draws};
pub use span::Span;

use rand::Rng as _;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

/// Tokens of a block, unless a workload is told otherwise.
pub(crate) const BLOCK_TOKENS: u32 = 16;

/// The reference set's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferenceDocuments {
    /// Different documents.
    pub documents: usize,
    /// Blocks of each document, after the shared ones.
    pub document_blocks: u32,
    /// Blocks of the system prompt that all requests share.
    pub shared_blocks: u32,
    /// Requests in the end-to-end run.
    pub requests: usize,
    /// Requests in flight at once in the end-to-end run.
    pub concurrency: usize,
}

impl Default for ReferenceDocuments {
    fn default() -> Self {
        Self {
            documents: 15,
            document_blocks: 96,
            shared_blocks: 2,
            requests: 900,
            concurrency: 32,
        }
    }
}

impl ReferenceDocuments {
    /// The share of requests that can find their document cached at all: everything but each
    /// document's first request, 0 to 1.
    pub fn ceiling_request_hit_rate(&self, drawn: &[usize]) -> f64 {
        if drawn.is_empty() {
            return 0.0;
        }
        1.0 - self.distinct(drawn) as f64 / drawn.len() as f64
    }

    /// The share of full prompt blocks that one infinite cache would hit, 0 to 1: all but each
    /// document's first sight and the very first sight of the shared blocks.
    pub fn ceiling_block_hit_rate(&self, drawn: &[usize]) -> f64 {
        let per_request = u64::from(self.document_blocks) + u64::from(self.shared_blocks);
        let all = drawn.len() as u64 * per_request;
        if all == 0 {
            return 0.0;
        }
        let cold = self.distinct(drawn) as u64 * u64::from(self.document_blocks)
            + u64::from(self.shared_blocks);
        1.0 - cold as f64 / all as f64
    }

    fn distinct(&self, drawn: &[usize]) -> usize {
        let mut seen = vec![false; self.documents];
        drawn.iter().for_each(|&document| seen[document] = true);
        seen.into_iter().filter(|&seen| seen).count()
    }
}

/// How documents are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Draw {
    /// Each with the same probability.
    #[default]
    Uniform,
    /// Document `i` with a weight of 1 / (i + 1).
    Skewed,
}

/// The document of each of `requests` requests. Empty if there are no documents.
pub fn draws(draw: Draw, documents: usize, requests: usize, seed: u64) -> Vec<usize> {
    if documents == 0 {
        return Vec::new();
    }
    let cumulative = cumulative_weights(draw, documents);
    let mut random = StdRng::seed_from_u64(seed);
    (0..requests)
        .map(|_| {
            let point = random.random::<f64>() * cumulative[documents - 1];
            cumulative.partition_point(|&end| end <= point).min(documents - 1)
        })
        .collect()
}

/// Running sums of the documents' weights.
fn cumulative_weights(draw: Draw, documents: usize) -> Vec<f64> {
    let weight = |rank: usize| match draw {
        Draw::Uniform => 1.0,
        Draw::Skewed => 1.0 / (rank as f64 + 1.0),
    };
    let sums = (0..documents).scan(0.0, |total, rank| {
        *total += weight(rank);
        Some(*total)
    });
    sums.collect()
}

/// `words` words of pseudo-prose: sentences and paragraphs without a meaning. The text differs
/// from that of any other index or seed from its first words on, and a shorter text is a prefix of
/// a longer one.
pub fn document_text(seed: u64, index: usize, words: usize) -> String {
    let mut random = StdRng::seed_from_u64(seed ^ (index as u64 + 1).wrapping_mul(SPREAD));
    let mut text = format!("Report {index}-{:06x}.", random.random::<u32>() >> 8);
    let mut left_in_sentence = 0;
    let mut sentences = 0;
    for _ in 0..words {
        let word = WORDS[random.random_range(0..WORDS.len())];
        if left_in_sentence == 0 {
            left_in_sentence = random.random_range(6..18);
            // A paragraph every few sentences; the separator belongs to the sentence it opens.
            text.push_str(if sentences % 7 == 6 { "\n\n" } else { " " });
            sentences += 1;
            text.push_str(&word[..1].to_uppercase());
            text.push_str(&word[1..]);
        } else {
            text.push(' ');
            text.push_str(word);
        }
        left_in_sentence -= 1;
        if left_in_sentence == 0 {
            text.push('.');
        }
    }
    text
}

/// The system prompt that all requests of a set share: as [`document_text`], an instruction first.
pub fn system_text(seed: u64, words: usize) -> String {
    let body = document_text(seed ^ SPREAD.rotate_left(17), 0, words);
    format!("You answer questions about one report, briefly. {body}")
}

/// The golden ratio in 64 bits: neighbouring indices get unrelated seeds.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Plain words, all ASCII and lower case.
const WORDS: [&str; 96] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "with", "as", "on", "by", "at", "from",
    "river", "market", "engine", "harbour", "valley", "signal", "window", "garden", "letter",
    "bridge", "winter", "summer", "copper", "silver", "paper", "water", "stone", "glass", "field",
    "train", "cloud", "storm", "light", "shadow", "north", "south", "early", "later", "slowly",
    "often", "never", "again", "before", "after", "under", "above", "between", "against", "large",
    "small", "quiet", "heavy", "narrow", "broad", "simple", "common", "modern", "ancient", "local",
    "report", "shows", "found", "moved", "built", "opened", "closed", "carried", "measured",
    "planned", "reached", "crossed", "followed", "number", "season", "people", "town", "road",
    "wall", "tower", "mill", "forest", "island", "coast", "ship", "crew", "cargo", "price",
    "trade", "record", "survey", "figure", "result",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_text_is_a_prefix_of_a_longer_one() {
        let long = document_text(1, 3, 2000);
        for words in [0, 1, 10, 999, 2000] {
            assert!(long.starts_with(document_text(1, 3, words).trim_end_matches('.')));
        }
        assert!(long.split_whitespace().count() >= 2000);
        let system = system_text(1, 100);
        assert!(system.starts_with(system_text(1, 50).trim_end_matches('.')));
    }

    #[test]
    fn documents_differ_from_their_first_words_on() {
        let heads: std::collections::HashSet<String> = (0..50)
            .flat_map(|index| [document_text(1, index, 8), document_text(2, index, 8)])
            .map(|text| text.chars().take(20).collect())
            .collect();
        assert_eq!(heads.len(), 100);
    }

    #[test]
    fn uniform_draws_are_even_and_skewed_ones_follow_the_rank() {
        let share = |draw, document| {
            let drawn = draws(draw, 15, 30_000, 1);
            drawn.iter().filter(|&&d| d == document).count() as f64 / 30_000.0
        };
        let near = |a: f64, b: f64| assert!((a - b).abs() < 0.01, "{a} is not about {b}");
        near(share(Draw::Uniform, 0), 1.0 / 15.0);
        near(share(Draw::Uniform, 14), 1.0 / 15.0);
        let harmonic: f64 = (1..=15).map(|rank| 1.0 / f64::from(rank)).sum();
        near(share(Draw::Skewed, 0), 1.0 / harmonic);
        near(share(Draw::Skewed, 14), 1.0 / 15.0 / harmonic);
    }

    #[test]
    fn a_seed_fixes_the_draws() {
        assert_eq!(draws(Draw::Uniform, 15, 100, 7), draws(Draw::Uniform, 15, 100, 7));
        assert_ne!(draws(Draw::Uniform, 15, 100, 7), draws(Draw::Uniform, 15, 100, 8));
        assert!(draws(Draw::Skewed, 0, 10, 7).is_empty());
    }

    #[test]
    fn the_ceilings_of_the_reference_set_are_the_published_ones() {
        let set = ReferenceDocuments::default();
        let drawn = draws(Draw::Uniform, set.documents, set.requests, 1);
        let percent = |rate: f64| (rate * 10_000.0).round() / 100.0;
        assert_eq!(percent(set.ceiling_request_hit_rate(&drawn)), 98.33);
        let drawn = draws(Draw::Uniform, set.documents, 3000, 1);
        assert_eq!(percent(set.ceiling_block_hit_rate(&drawn)), 99.51);
    }
}
