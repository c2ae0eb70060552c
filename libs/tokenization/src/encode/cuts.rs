//! Where a text may be cut so that the tokens of the pieces are the tokens of the whole.
//!
//! **Behind an added token.** Tokenizers look for added tokens (`<|im_end|>`) first, leftmost and
//! longest, and treat what lies between them separately. A cut right behind one found in the
//! whole text changes nothing, provided the token does not reach for the blanks behind it
//! (`rstrip`), no added token asks what stands before it (`single_word`), it is matched in the
//! raw text (not `normalized`), and the pre-tokenizer does not treat the text's beginning
//! specially (Metaspace with `first`).
//!
//! **Before a blank.** Byte-level tokenizers first split the text by a regular expression. In
//! every expression of [`KNOWN_PATTERNS`] no match spans a non-blank followed by a space, nor a
//! letter or digit followed by a line feed; none looks back; and the only look-ahead, `\s+(?!\S)`,
//! looks from inside a run of blanks. So the expression ends a match at such a place whatever
//! follows, and goes on from it whatever came before. NFC, the only normaliser admitted, composes
//! nothing across a blank. The same holds between a letter and the full-width comma, stop and
//! enumeration comma. An added token must not hold such a place inside.

use aho_corasick::{AhoCorasick, FindIter, MatchKind};
use serde::Deserialize;
use serde_json::Value as Json;
use tokenizers::Tokenizer;

/// A segment ends at the first place before a blank at or behind this length.
const SEGMENT_BYTES: usize = 1024;
/// A segment of at least this length ends at the next added token.
const SEGMENT_MIN_BYTES: usize = 256;

/// The splitting expressions of GPT-2 (built into `ByteLevel`), Llama 3, Qwen 2 and later, and
/// o200k, as they stand in published tokenizer files.
pub(super) const KNOWN_PATTERNS: [&str; 5] = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// The places of one tokenizer.
pub(super) struct Cuts {
    added: Option<AhoCorasick>,
    /// By pattern of `added`: whether the place behind it is one.
    behind: Vec<bool>,
    blanks: bool,
}

impl Cuts {
    /// Reads them out of the tokenizer and the file it came from.
    pub(super) fn of(tokenizer: &Tokenizer, json: &[u8]) -> Result<Self, String> {
        let shape: Shape = serde_json::from_slice(json).map_err(|e| e.to_string())?;
        let all = tokenizer.get_added_tokens_decoder();
        let free = all.values().all(|token| !token.single_word) && !starts_specially(&shape);
        let (mut patterns, mut behind) = (Vec::new(), Vec::new());
        for token in all.values().filter(|token| !token.normalized && !token.content.is_empty()) {
            patterns.push(token.content.as_str());
            behind.push(free && !token.rstrip);
        }
        let added = match patterns.is_empty() {
            true => None,
            false => Some(
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    .build(&patterns)
                    .map_err(|e| e.to_string())?,
            ),
        };
        let clear = all.values().all(|token| {
            let text = token.content.as_str();
            !token.rstrip && !(1..text.len()).any(|at| is_before_blank(text, at))
        });
        Ok(Self { added, behind, blanks: free && clear && splits_at_blanks(&shape) })
    }

    /// Whether there are places before blanks.
    pub(super) fn has_words(&self) -> bool {
        self.blanks
    }

    pub(super) fn drop_words(&mut self) {
        self.blanks = false;
    }

    pub(super) fn drop_all(&mut self) {
        self.blanks = false;
        self.behind.fill(false);
    }

    /// The text in segments, which together are the whole text. Where a segment ends depends on
    /// the text before that place (and, for an added token, on the bytes that would make it a
    /// longer one).
    pub(super) fn segments<'c, 't>(&'c self, text: &'t str) -> SegmentIter<'c, 't> {
        let added = self.added.as_ref().map(|added| added.find_iter(text));
        SegmentIter { cuts: self, text, added, start: 0, token: None }
    }

    /// The text in pieces that end before blanks; only with [`Cuts::has_words`].
    pub(super) fn words<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut start = 0;
        std::iter::from_fn(move || {
            if start == text.len() {
                return None;
            }
            let end = next_blank(text, start + 1, text.len()).unwrap_or(text.len());
            let word = &text[start..end];
            start = end;
            Some(word)
        })
    }

    /// The last place of either kind in `text`, its end included if that is behind an added
    /// token; 0 if there is none.
    pub(super) fn last(&self, text: &str) -> usize {
        let matches = self.added.iter().flat_map(|added| added.find_iter(text));
        let behind = matches
            .filter(|found| self.behind[found.pattern().as_usize()])
            .last()
            .map_or(0, |found| found.end());
        let blank = match self.blanks {
            true => (behind + 1..text.len()).rev().find(|&at| is_before_blank(text, at)),
            false => None,
        };
        blank.unwrap_or(behind)
    }
}

/// See [`Cuts::segments`].
pub(super) struct SegmentIter<'c, 't> {
    cuts: &'c Cuts,
    text: &'t str,
    added: Option<FindIter<'c, 't>>,
    start: usize,
    /// The end of an added token that was found and not yet passed.
    token: Option<usize>,
}

impl<'t> Iterator for SegmentIter<'_, 't> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        if self.start == self.text.len() {
            return None;
        }
        let end = self.end();
        let segment = &self.text[self.start..end];
        self.start = end;
        Some(segment)
    }
}

impl SegmentIter<'_, '_> {
    fn end(&mut self) -> usize {
        // From here on a place before a blank will do.
        let mut from = self.start + SEGMENT_BYTES;
        loop {
            let token = self.next_token();
            let until = token.unwrap_or(self.text.len());
            if self.cuts.blanks {
                if let Some(at) = next_blank(self.text, from, until) {
                    return at;
                }
                from = from.max(until);
            }
            let Some(end) = token else { return self.text.len() };
            self.token = None;
            if end - self.start >= SEGMENT_MIN_BYTES {
                return end;
            }
        }
    }

    fn next_token(&mut self) -> Option<usize> {
        if self.token.is_none() {
            let behind = &self.cuts.behind;
            self.token = self
                .added
                .as_mut()?
                .find(|found| behind[found.pattern().as_usize()])
                .map(|found| found.end());
        }
        self.token
    }
}

/// The first place before a blank in `from..until`.
fn next_blank(text: &str, from: usize, until: usize) -> Option<usize> {
    (from..until).find(|&at| is_before_blank(text, at))
}

/// Whether a tokenizer that splits at blanks may be cut at byte `at`, which is not 0.
fn is_before_blank(text: &str, at: usize) -> bool {
    let bytes = text.as_bytes();
    let before = bytes[at - 1];
    match bytes[at] {
        b' ' => before.is_ascii_graphic() || (before >= 0x80 && letter_before(text, at)),
        b'\n' => before.is_ascii_alphanumeric() || (before >= 0x80 && letter_before(text, at)),
        // The full-width enumeration comma, stop and comma.
        0xe3 => {
            matches!(bytes.get(at + 1..at + 3), Some([0x80, 0x81 | 0x82]))
                && letter_before(text, at)
        }
        0xef => matches!(bytes.get(at + 1..at + 3), Some([0xbc, 0x8c])) && letter_before(text, at),
        _ => false,
    }
}

/// Whether the character before `at` is a letter of a script whose letters stand alone: basic
/// Latin, Cyrillic, kana, unified ideographs, Hangul syllables.
fn letter_before(text: &str, at: usize) -> bool {
    // `at` is a character's first byte, so this slice is on a boundary.
    text.get(..at).and_then(|head| head.chars().next_back()).is_some_and(|c| {
        matches!(c,
            'A'..='Z' | 'a'..='z'
            | '\u{410}'..='\u{44f}'
            | '\u{3041}'..='\u{3096}'
            | '\u{30a1}'..='\u{30fa}'
            | '\u{4e00}'..='\u{9fa5}'
            | '\u{ac00}'..='\u{d7a3}')
    })
}

/// The parts of `tokenizer.json` that decide about cuts.
#[derive(Deserialize)]
struct Shape {
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    pre_tokenizer: Json,
    #[serde(default)]
    model: ModelShape,
}

#[derive(Deserialize, Default)]
struct ModelShape {
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f32>,
}

/// Whether the beginning of a text is tokenised unlike the beginning of what follows an added
/// token: Metaspace that prepends only `first` (which is also its older default).
fn starts_specially(shape: &Shape) -> bool {
    steps(&shape.pre_tokenizer, "pretokenizers")
        .iter()
        .filter(|part| part["type"] == "Metaspace")
        .any(|part| !matches!(part["prepend_scheme"].as_str(), Some("always" | "never")))
}

/// Whether this is a byte-level BPE whose splitting expression is a known one.
fn splits_at_blanks(shape: &Shape) -> bool {
    let nfc = steps(&shape.normalizer, "normalizers").iter().all(|part| part["type"] == "NFC");
    if !nfc || shape.model.kind.as_deref() != Some("BPE") || shape.model.dropout.is_some() {
        return false;
    }
    let mut split = false;
    for part in steps(&shape.pre_tokenizer, "pretokenizers") {
        match part["type"].as_str() {
            Some("Digits") => {}
            Some("Split") => {
                let pattern = part["pattern"]["Regex"].as_str().unwrap_or_default();
                let known = KNOWN_PATTERNS.contains(&pattern)
                    && part["behavior"] == "Isolated"
                    && part["invert"] != true;
                if !known {
                    return false;
                }
                split = true;
            }
            Some("ByteLevel") if part["add_prefix_space"] == false => {
                split |= part["use_regex"] != false;
            }
            _ => return false,
        }
    }
    split
}

/// A step of a pipeline, or all of a sequence of them.
fn steps<'j>(pipeline: &'j Json, list: &str) -> Vec<&'j Json> {
    match pipeline {
        Json::Null => Vec::new(),
        step if step["type"] == "Sequence" => {
            let inner = step[list].as_array();
            inner.into_iter().flatten().flat_map(|step| steps(step, list)).collect()
        }
        step => vec![step],
    }
}
