//! Text to tokens, with what was tokenised before remembered.
//!
//! A text is cut at places where its tokens provably do not depend on what lies across the cut
//! (see [`cuts`]). Two memories make use of that:
//!
//! - **Segments**: runs of about a kilobyte, found again by hash. The cuts depend only on the
//!   text before them, so a text that begins like an earlier one has the same segments up to
//!   where they part, and pays for those one hash and one copy.
//! - **Words**: pieces of a few bytes inside a segment that was not found. Most words of a new
//!   text have been seen, so the tokenizer itself is asked only for the rest.
//!
//! At load every way is compared with the plain tokenizer on [`SAMPLES`]; one that differs
//! anywhere is not used for this model.

mod cuts;
mod segments;
mod words;

use tokenizers::Tokenizer;

use crate::error::RenderError;
use cuts::Cuts;
pub use segments::CacheStats;
use segments::Segments;
use words::{WordPool, Words};

/// Bytes that the segments of one model may take by default: about ten million tokens.
pub(crate) const DEFAULT_CACHE_BYTES: usize = 64 << 20;

/// The most that the tokenizer is asked for at once. It takes some 150 times as many bytes for a
/// piece that it cannot take apart, such as one endless word; where texts are cut, pieces are a
/// thousandth of this, and where they cannot be, this is a message of a quarter million tokens.
const MAX_PIECE_BYTES: usize = 1 << 20;

/// Of a longer text, tokens beyond the guess get room for as many as there are bytes, and not twice
/// what they have: with the old ones beside, these would be eight times the text.
const GUESSED_BYTES: usize = 64 << 10;

/// A segment shorter than this is tokenised anew: its words are known in no more time.
const MIN_SEGMENT_BYTES: usize = 64;

/// A tokenizer with its memories. Shared by all threads.
pub(crate) struct Encoder {
    tokenizer: Tokenizer,
    cuts: Cuts,
    segments: Segments,
    words: WordPool,
    around: Option<Around>,
}

/// The special tokens that the tokenizer puts around a text when asked to.
struct Around {
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Encoder {
    /// Reads `tokenizer.json`.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub(crate) fn new(json: &[u8], cache_bytes: usize) -> Result<Self, String> {
        let mut tokenizer = Tokenizer::from_bytes(json).map_err(|e| e.to_string())?;
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        tokenizer.with_padding(None);
        let cuts = Cuts::of(&tokenizer, json)?;
        let mut encoder = Self {
            tokenizer,
            cuts,
            segments: Segments::new(cache_bytes),
            words: WordPool::default(),
            around: None,
        };
        encoder.check().map_err(|e| e.to_string())?;
        Ok(encoder)
    }

    /// The tokens of `text`.
    ///
    /// # Errors
    /// [`RenderError::Tokenizer`], [`RenderError::TooLong`].
    pub(crate) fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, RenderError> {
        if special && self.around.is_none() {
            return self.plain(text, true);
        }
        let mut out = Vec::with_capacity(text.len() / 3 + 16);
        let around = self.around.as_ref().filter(|_| special);
        out.extend(around.into_iter().flat_map(|around| &around.before));
        self.append(text, &mut out)?;
        out.extend(around.into_iter().flat_map(|around| &around.after));
        Ok(out)
    }

    fn append(&self, text: &str, out: &mut Vec<u32>) -> Result<(), RenderError> {
        let mut words = None;
        let result = self.append_segments(text, &mut words, out);
        if let Some(words) = words {
            self.words.put_back(words);
        }
        result
    }

    fn append_segments(
        &self,
        text: &str,
        words: &mut Option<Words>,
        out: &mut Vec<u32>,
    ) -> Result<(), RenderError> {
        let mut left = text.len();
        for segment in self.cuts.segments(text) {
            if text.len() > GUESSED_BYTES && out.capacity() - out.len() < segment.len() {
                out.reserve_exact(left);
            }
            left -= segment.len();
            if segment.len() < MIN_SEGMENT_BYTES {
                self.append_words(segment, words, out)?;
                continue;
            }
            let key = self.segments.key(segment);
            if self.segments.get(key, segment.len(), out) {
                continue;
            }
            let from = out.len();
            self.append_words(segment, words, out)?;
            self.segments.insert(key, &out[from..]);
        }
        Ok(())
    }

    fn append_words(
        &self,
        segment: &str,
        words: &mut Option<Words>,
        out: &mut Vec<u32>,
    ) -> Result<(), RenderError> {
        if !self.cuts.has_words() {
            out.extend(self.plain(segment, false)?);
            return Ok(());
        }
        let words = words.get_or_insert_with(|| self.words.take());
        for word in self.cuts.words(segment) {
            if words.get(word, out) {
                continue;
            }
            let tokens = self.plain(word, false)?;
            words.insert(word, &tokens);
            out.extend(tokens);
        }
        Ok(())
    }

    /// The tokenizer itself, without any memory of ours.
    ///
    /// # Errors
    /// [`RenderError::Tokenizer`], [`RenderError::TooLong`].
    pub(crate) fn plain(&self, text: &str, special: bool) -> Result<Vec<u32>, RenderError> {
        if text.len() > MAX_PIECE_BYTES {
            return Err(RenderError::TooLong);
        }
        self.tokenizer
            .encode_fast(text, special)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|e| RenderError::Tokenizer(e.to_string()))
    }

    /// How many special tokens stand before the text's own.
    pub(crate) fn tokens_before(&self, special: bool) -> usize {
        self.around.as_ref().filter(|_| special).map_or(0, |around| around.before.len())
    }

    /// Bytes of `text` whose tokens are not in memory.
    pub(crate) fn uncached_bytes(&self, text: &str) -> usize {
        self.cuts
            .segments(text)
            .filter(|s| s.len() < MIN_SEGMENT_BYTES || !self.segments.has(self.segments.key(s)))
            .map(str::len)
            .sum()
    }

    /// The end of the longest part of `text` whose tokens stay the same whatever follows it.
    pub(crate) fn last_cut(&self, text: &str) -> usize {
        self.cuts.last(text)
    }

    /// The text of `tokens`, without special tokens. Tokens the model does not know are skipped.
    pub(crate) fn decode(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(tokens, true).unwrap_or_default()
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub(crate) fn stats(&self) -> CacheStats {
        CacheStats { word_bytes: self.words.bytes(), ..self.segments.stats() }
    }

    /// Compares every way of encoding with the plain one, and drops those that differ.
    fn check(&mut self) -> Result<(), RenderError> {
        if self.cuts.has_words() && !self.agrees()? {
            self.cuts.drop_words();
        }
        if !self.agrees()? {
            self.cuts.drop_all();
        }
        self.around = self.find_around()?;
        self.segments.reset();
        Ok(())
    }

    fn agrees(&self) -> Result<bool, RenderError> {
        self.segments.reset();
        self.words.reset();
        for sample in samples(&self.tokenizer) {
            let want = self.plain(&sample, false)?;
            // Twice: from the tokenizer, then from memory.
            for _ in 0..2 {
                let mut got = Vec::new();
                self.append(&sample, &mut got)?;
                if got != want {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// What stands before and after the tokens of a text, if that is the same for every text.
    fn find_around(&self) -> Result<Option<Around>, RenderError> {
        let mut around: Option<Around> = None;
        for sample in SAMPLES.iter().filter(|sample| !sample.is_empty()) {
            let (inner, whole) = (self.plain(sample, false)?, self.plain(sample, true)?);
            let Some(at) = whole.windows(inner.len().max(1)).position(|w| w == inner) else {
                return Ok(None);
            };
            let (before, after) = (&whole[..at], &whole[at + inner.len()..]);
            match &around {
                Some(known) if known.before != before || known.after != after => return Ok(None),
                Some(_) => {}
                None => around = Some(Around { before: before.into(), after: after.into() }),
            }
        }
        Ok(around)
    }
}

/// Texts that show where tokenizers look across a cut: runs of blanks and line ends, digits,
/// contractions, punctuation, scripts without blanks, combining marks, joined emoji.
const SAMPLES: [&str; 12] = [
    "The quick brown fox jumps over the lazy dog, doesn't it? I'll say: \"we've been there\".",
    "two  spaces   three\n\nparagraph \n mixed\t\ttabs \r\n windows\r\n\r\nend  \n",
    "digits 1 22 333 4444 55555 3.14159 1,000,000 2026-11-29T17:05:09Z v1.2.3-rc4",
    "fn main() {\n    let x = vec![1, 2, 3];\n    println!(\"{}\", x.len());\n}\n\n// done;\n",
    "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": [1, 2, 3]}}",
    "中文没有空格，所以分词器不同。日本語のテキスト、かな カナ。한국어 문장 입니다.",
    "Ελληνικά и русский текст, العربية עברית हिन्दी ไทย",
    "e\u{301}tude cafe\u{301} n\u{303} a\u{308} o\u{302}\u{301} \u{1f469}\u{200d}\u{1f4bb} \u{1f1e8}\u{1f1ed} \u{fb01}",
    "...!!! ??? --- *** ((nested [brackets] {here})) <tag attr='x'/> & $100 50% a/b\\c @me #tag",
    "'s 't 're 'S 'LL O'Neill rock'n'roll DON'T ''quoted'' 's",
    " leading space and trailing space ",
    "",
];

/// The samples, each also among special tokens and repeated to several segments.
fn samples(tokenizer: &Tokenizer) -> Vec<String> {
    let mut specials: Vec<String> = tokenizer
        .get_added_tokens_decoder()
        .into_values()
        .filter(|token| !token.content.is_empty())
        .map(|token| token.content)
        .collect();
    specials.sort();
    specials.truncate(8);
    let mut all: Vec<String> = SAMPLES.iter().map(|sample| (*sample).to_owned()).collect();
    for special in &specials {
        all.push(SAMPLES.join(special));
        all.push(format!("{special}user\n{}{special}{special} x{special}\n", SAMPLES.join(" ")));
    }
    all.push(SAMPLES.join(" ").repeat(4));
    all.push(SAMPLES.join("\n").repeat(4));
    all
}

#[cfg(test)]
mod tests;
