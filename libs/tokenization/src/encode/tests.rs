use proptest::prelude::*;
use std::sync::LazyLock;

use super::*;

static BUILTIN: LazyLock<Encoder> = LazyLock::new(|| {
    Encoder::new(include_bytes!("../../builtin/tokenizer.json"), DEFAULT_CACHE_BYTES).unwrap()
});
static SMOLLM2: LazyLock<Encoder> = LazyLock::new(|| {
    let json = include_bytes!("../../fixtures/smollm2/tokenizer.json");
    Encoder::new(json, DEFAULT_CACHE_BYTES).unwrap()
});

/// The built-in tokenizer with parts of its file replaced.
fn changed(edit: impl FnOnce(&mut serde_json::Value)) -> Encoder {
    let mut file = serde_json::from_slice(include_bytes!("../../builtin/tokenizer.json")).unwrap();
    edit(&mut file);
    Encoder::new(&serde_json::to_vec(&file).unwrap(), DEFAULT_CACHE_BYTES).unwrap()
}

/// A tokenizer as Llama 3 and Qwen have them, down to the splitting expression.
fn with_pattern(pattern: &str, normalizer: &serde_json::Value) -> Encoder {
    changed(|file| {
        file["normalizer"] = normalizer.clone();
        file["pre_tokenizer"] = serde_json::json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]});
    })
}

static PATTERNS: LazyLock<Vec<Encoder>> = LazyLock::new(|| {
    let nfc = serde_json::json!({"type": "NFC"});
    let none = serde_json::Value::Null;
    cuts::KNOWN_PATTERNS
        .iter()
        .enumerate()
        .map(|(at, pattern)| with_pattern(pattern, if at % 2 == 0 { &nfc } else { &none }))
        .collect()
});

/// Text of pieces on which tokenizers look across boundaries.
fn text() -> impl Strategy<Value = String> {
    const PIECES: [&str; 48] = [
        " ",
        " ",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\r\n",
        "\t",
        "\u{a0}",
        "\u{3000}",
        "\u{2028}",
        "word",
        "Word",
        "WORDS",
        "a",
        "'s",
        "'S",
        "'ll",
        "'",
        "\"",
        ".",
        ",",
        "...",
        "/",
        "//",
        "-",
        "(",
        ")",
        "{",
        "1",
        "123",
        "2026",
        "½",
        "é",
        "e\u{301}",
        "\u{301}",
        "中文",
        "，",
        "。",
        "、",
        "かな",
        "한글",
        "слово",
        "\u{1f469}\u{200d}\u{1f4bb}",
        "<|im_end|>",
        "<|im_start|>",
        "<|im_",
        "|>",
    ];
    let piece = prop_oneof![
        8 => proptest::sample::select(&PIECES[..]).prop_map(str::to_owned),
        2 => "[ -~]{1,12}",
        1 => any::<char>().prop_map(String::from),
    ];
    proptest::collection::vec(piece, 0..400).prop_map(|pieces| pieces.concat())
}

fn same(encoder: &Encoder, text: &str) -> Result<(), TestCaseError> {
    let want = encoder.plain(text, false).unwrap();
    for _ in 0..2 {
        prop_assert_eq!(&encoder.encode(text, false).unwrap(), &want);
    }
    let segments: Vec<&str> = encoder.cuts.segments(text).collect();
    prop_assert_eq!(segments.concat(), text);
    // What stands before the last cut is the same whatever follows.
    let cut = encoder.last_cut(text);
    prop_assert!(want.starts_with(&encoder.plain(&text[..cut], false).unwrap()));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn memory_changes_no_token(text in text()) {
        same(&BUILTIN, &text)?;
        same(&SMOLLM2, &text)?;
        for encoder in PATTERNS.iter() {
            same(encoder, &text)?;
        }
    }

    #[test]
    fn memory_changes_no_token_of_a_text_that_begins_like_another(
        head in text(), a in text(), b in text(),
    ) {
        for encoder in [&*BUILTIN, &*SMOLLM2] {
            same(encoder, &(head.clone() + &a))?;
            same(encoder, &(head.clone() + &b))?;
        }
    }
}

#[test]
fn known_tokenizers_are_cut_at_words() {
    assert!(BUILTIN.cuts.has_words() && SMOLLM2.cuts.has_words());
    assert!(PATTERNS.iter().all(|encoder| encoder.cuts.has_words()));
}

#[test]
fn a_tokenizer_that_is_not_known_is_cut_at_added_tokens_only() {
    let text = format!("<|im_start|>user\n{}<|im_end|>\n", "some words here ".repeat(200));
    let text = text.repeat(3);
    let unknown = [
        with_pattern(r"\w+\s|[^\w]+", &serde_json::Value::Null),
        with_pattern(cuts::KNOWN_PATTERNS[1], &serde_json::json!({"type": "Lowercase"})),
        changed(|file| file["pre_tokenizer"]["add_prefix_space"] = true.into()),
        changed(|file| {
            file["pre_tokenizer"] = serde_json::Value::Null;
            file["normalizer"] = serde_json::json!({"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "\u{120}"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u{120}"},
            ]});
        }),
        changed(|file| file["added_tokens"][0]["content"] = "a b".into()),
        changed(|file| file["added_tokens"][0]["rstrip"] = true.into()),
    ];
    for encoder in unknown {
        assert!(!encoder.cuts.has_words());
        assert!(encoder.cuts.segments(&text).count() >= 3);
        same(&encoder, &text).unwrap();
    }
}

#[test]
fn a_tokenizer_that_looks_at_the_beginning_is_not_cut_at_all() {
    let text = "<|im_start|>user hello<|im_end|> hello<|im_end|> ".repeat(20);
    let whole = [
        changed(|file| {
            file["pre_tokenizer"] = serde_json::json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"});
        }),
        changed(|file| file["added_tokens"][1]["single_word"] = true.into()),
    ];
    for encoder in whole {
        assert_eq!(encoder.cuts.segments(&text).count(), 1);
        same(&encoder, &text).unwrap();
    }
}

#[test]
fn tokenising_is_linear_where_nothing_can_be_cut() {
    // One word, one run of blanks, digits: no place in them; and no hang.
    for text in ["x".repeat(60_000), " ".repeat(60_000), "7".repeat(60_000), "\n".repeat(60_000)] {
        same(&BUILTIN, &text).unwrap();
        same(&PATTERNS[1], &text).unwrap();
    }
}

#[test]
fn the_tokens_of_a_long_text_have_no_more_room_than_it_has_bytes() {
    // Half of it has a token for every other byte: the guess is too low, and twice that too high.
    let text = "a b c d e f g h i j some words here ".repeat(10_000);
    let tokens = BUILTIN.encode(&text, false).unwrap();
    let [guess, most] = [text.len() / 3 + 1000, text.len() / 5 * 3];
    assert!((guess..most).contains(&tokens.len()), "{} of {}", tokens.len(), text.len());
    assert!(tokens.capacity() < most, "{} of {}", tokens.capacity(), text.len());
}

#[test]
fn a_piece_too_long_for_the_tokenizers_memory_is_refused_and_a_long_text_is_not() {
    let text = "x".repeat(MAX_PIECE_BYTES + 1);
    assert_eq!(BUILTIN.encode(&text, false), Err(RenderError::TooLong));
    let text = "some words here ".repeat(MAX_PIECE_BYTES / 8);
    assert!(BUILTIN.encode(&text, false).is_ok());
}

#[test]
fn threads_share_one_memory() {
    let texts: Vec<String> = (0..8)
        .map(|n| format!("thread {n} says {}", "the same thing again ".repeat(300)))
        .collect();
    let want: Vec<_> = texts.iter().map(|text| BUILTIN.plain(text, false).unwrap()).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for (text, want) in texts.iter().zip(&want) {
                    assert_eq!(&BUILTIN.encode(text, false).unwrap(), want);
                }
            });
        }
    });
    assert!(BUILTIN.stats().word_bytes > 0);
}
