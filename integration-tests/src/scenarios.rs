//! Longer runs that end in figures. Tests check small ones; `integration-tests/show` prints them
//! in full.

pub mod admin;
pub mod bytes;
pub mod hangups;
pub mod kill;

use serde_json::{Value, json};

/// A chat request for the doubles' model.
pub fn chat(content: &str, max_tokens: u32, stream: bool) -> String {
    chat_with(content, json!({"max_tokens": max_tokens, "stream": stream}))
}

/// A chat request with further fields.
///
/// # Panics
/// `fields` is no object.
pub fn chat_with(content: &str, fields: Value) -> String {
    let mut body = json!({
        "model": crate::cluster::MODEL,
        "messages": [{"role": "user", "content": content}],
    });
    let object = body.as_object_mut().expect("an object");
    object.extend(fields.as_object().expect("an object").clone());
    body.to_string()
}

/// A text of so many words that no other `seed` gives.
pub fn document(seed: u64, words: usize) -> String {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut text = format!("Document {seed}.");
    for _ in 0..words {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text += " ";
        text += WORDS[(state % WORDS.len() as u64) as usize];
    }
    text
}

const WORDS: [&str; 16] = [
    "river", "stone", "light", "window", "garden", "paper", "winter", "market", "bridge", "letter",
    "music", "kitchen", "forest", "train", "evening", "harbour",
];
