//! What the double says: plain words, each one token of its tokenizer, chosen by a seed.

use tokenization::ModelFolder;

/// Fewer words than this that are one token each, and the text falls back on pseudo tokens.
const ENOUGH: usize = 8;

/// One output token.
#[derive(Clone, Debug)]
pub(crate) struct Word {
    pub(crate) token: u32,
    pub(crate) text: Box<str>,
}

/// The words a double can say. Text generated from single-token words is tokenised to the same
/// tokens when it comes back in the next turn, so that output blocks can be hit as in a real
/// engine.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// For the first position, without a leading space.
    first: Vec<Word>,
    rest: Vec<Word>,
}

impl Vocabulary {
    pub(crate) fn new(folder: &ModelFolder) -> Self {
        Self {
            first: single_tokens(folder, WORDS.iter().map(|word| (*word).to_owned())),
            rest: single_tokens(folder, WORDS.iter().map(|word| format!(" {word}"))),
        }
    }

    /// Output token `index` of an answer: the same for the same seed.
    pub(crate) fn word(&self, seed: u64, index: u32) -> &Word {
        let words = if index == 0 { &self.first } else { &self.rest };
        &words[(domain::block::mix(seed ^ u64::from(index)) % words.len() as u64) as usize]
    }
}

/// The words that are one token. Without enough of them: all, with ids made up for the purpose,
/// which no tokenizer gives.
fn single_tokens(folder: &ModelFolder, words: impl Iterator<Item = String>) -> Vec<Word> {
    let words: Vec<String> = words.collect();
    let token = |text: &String| match folder.tokenize_text(text, false).ok()?[..] {
        [token] => Some(Word { token, text: text.as_str().into() }),
        _ => None,
    };
    let single: Vec<Word> = words.iter().filter_map(token).collect();
    if single.len() >= ENOUGH {
        return single;
    }
    let pseudo = |(index, text): (u32, String)| Word { token: u32::MAX - index, text: text.into() };
    (0..).zip(words).map(pseudo).collect()
}

/// Short and common, so that most tokenizers have one token for each.
const WORDS: [&str; 64] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by",
    "on", "not", "he", "his", "but", "at", "are", "this", "have", "from", "or", "had", "an",
    "they", "which", "one", "you", "were", "all", "her", "she", "there", "would", "their", "we",
    "him", "been", "has", "when", "who", "will", "no", "more", "if", "out", "so", "up", "said",
    "what", "its", "about", "than", "into", "them", "can", "only", "other", "time", "new", "some",
];
