//! What a request costs before it is routed: rendering, tokenising cold and behind a known
//! prefix, and block keys.

use std::fmt::Write;
use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use domain::ModelId;
use serde_json::json;
use tokenization::{ChatRequest, KeySpace, ModelFolder};
use tokenizers::Tokenizer;

/// Text of about `bytes` bytes; other seeds give other words from the same list.
fn prose(bytes: usize, seed: u64) -> String {
    const WORDS: [&str; 24] = [
        "the", "cache", "holds", "every", "prefix", "that", "an", "engine", "has", "computed",
        "before", "and", "requests", "which", "share", "it", "arrive", "sooner", "than", "those",
        "without", "one;", "however,", "memory",
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let word = WORDS[(state % 24) as usize];
        match state >> 32 & 31 {
            0 => writeln!(text, "{word}.").expect("a string takes all"),
            1 => write!(text, "{word}{} ", state % 10_000).expect("a string takes all"),
            _ => write!(text, "{word} ").expect("a string takes all"),
        }
    }
    text
}

/// Text of about `bytes` bytes in words of random letters, so that hardly any occurs twice.
fn babble(bytes: usize, seed: u64) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        for letter in 0..4 + state % 5 {
            text.push(char::from(b'a' + (state >> (8 + 5 * letter) & 31).min(25) as u8));
        }
        text.push(' ');
    }
    text
}

fn benches(criterion: &mut Criterion) {
    let folder = ModelFolder::builtin();
    let mut group = criterion.benchmark_group("tokenize");
    group.throughput(Throughput::Bytes(32 << 10));
    // The tokenizer without any memory of ours, for comparison.
    let bare = Tokenizer::from_bytes(include_bytes!("../builtin/tokenizer.json"))
        .expect("the builtin tokenizer loads");
    let mut seed = 0;
    for (name, text) in
        [("cold 32 KB", prose as fn(usize, u64) -> String), ("unseen words", babble)]
    {
        let mut fresh = || {
            seed += 1;
            text(32 << 10, seed)
        };
        group.bench_function(name, |b| {
            b.iter_batched(
                &mut fresh,
                |text| folder.tokenize_text(&text, false).map(black_box),
                BatchSize::SmallInput,
            );
        });
        group.bench_function(format!("{name}, bare"), |b| {
            b.iter_batched(
                &mut fresh,
                |text| black_box(bare.encode_fast(text, false)).is_ok(),
                BatchSize::SmallInput,
            );
        });
    }
    let known = prose(31 << 10, 1 << 40);
    let mut fresh_tail = {
        let mut seed = 1 << 50;
        move || {
            seed += 1;
            format!("{known}\n{}", prose(1 << 10, seed))
        }
    };
    folder.tokenize_text(&fresh_tail(), false).expect("the builtin tokenizer takes any text");
    group.bench_function("31 KB known + 1 KB new", |b| {
        b.iter_batched(
            &mut fresh_tail,
            |text| folder.tokenize_text(&text, false).map(black_box),
            BatchSize::SmallInput,
        );
    });
    let text = fresh_tail();
    group.bench_function("estimate of 32 KB", |b| {
        b.iter(|| black_box(folder.estimate_uncached_bytes(&text)));
    });
    group.finish();

    let body = json!({"messages": [
        {"role": "system", "content": prose(16 << 10, 7)},
        {"role": "user", "content": prose(16 << 10, 8)},
    ]});
    criterion.bench_function("render 32 KB", |b| {
        b.iter(|| {
            let request = ChatRequest::from_body(&body).expect("a chat body");
            folder.render_chat(&request).map(black_box)
        });
    });

    let tokens: Vec<u32> = (0..32_768).collect();
    let space = KeySpace::new(b"secret", &ModelId::new("model"), None, None);
    criterion.bench_function("keys of 32k tokens", |b| {
        b.iter(|| black_box(space.keys(&tokens, 16)));
    });
}

criterion_group!(all, benches);
criterion_main!(all);
