//! The prompts and the gateway's config of the overhead bench.

use bytes::Bytes;
use serde_json::json;
use sim::workload::document_text;

/// The model name in the bench.
pub(crate) const MODEL: &str = "bench";

/// An open-loop workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// 1 KB of text that was never seen.
    New1K,
    /// 32 KB, of which the first 31 KB were seen before.
    Known32K,
    /// 32 KB of text that was never seen.
    Cold32K,
}

impl Workload {
    /// Those measured at the fixed rate; the cold one has a ramp of its own.
    pub(crate) const OPEN_LOOP: [Workload; 2] = [Workload::New1K, Workload::Known32K];

    /// The name in the result.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Workload::New1K => "1-kb-new",
            Workload::Known32K => "32-kb-of-which-31-known",
            Workload::Cold32K => "32-kb-cold",
        }
    }

    /// Whether it has a part that must be seen beforehand.
    pub(crate) const fn is_warm(self) -> bool {
        matches!(self, Workload::Known32K)
    }

    /// `count` request bodies; `seed` tells measurements apart, so that nothing new was seen in
    /// an earlier one.
    pub(crate) fn bodies(self, count: usize, seed: u64) -> Vec<Bytes> {
        let known = if self.is_warm() { text(0, 0, 31 * 1024) } else { String::new() };
        let new = match self {
            Workload::New1K | Workload::Known32K => 1024,
            Workload::Cold32K => 32 * 1024,
        };
        (0..count)
            .map(|n| {
                // A conversation: what is known is earlier turns, what is new is the last one.
                let mut messages = Vec::new();
                if self.is_warm() {
                    messages.push(json!({"role": "user", "content": known}));
                    messages.push(json!({"role": "assistant", "content": "Noted."}));
                }
                messages.push(json!({"role": "user", "content": text(seed + 1, n, new)}));
                body(&messages)
            })
            .collect()
    }
}

fn body(messages: &[serde_json::Value]) -> Bytes {
    let body = json!({"model": MODEL, "stream": true, "max_tokens": 16, "messages": messages});
    Bytes::from(body.to_string())
}

fn text(seed: u64, index: usize, bytes: usize) -> String {
    // A word and its space take at least three bytes.
    let mut text = document_text(seed, index, bytes / 3 + 1);
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// The one body of the closed-loop part, about 390 bytes long.
pub(crate) fn fixed_body() -> Bytes {
    let system = "You are a helpful assistant. Answer shortly, in plain words, and say so when you do not know.";
    let user = "A train leaves at nine and travels for two hours and a half at eighty kilometres an hour. How far does it go, when does it arrive, and how many minutes late is it then?";
    body(&[json!({"role": "system", "content": system}), json!({"role": "user", "content": user})])
}

/// The gateway as a platform team would run it: key, limits, logs, metrics, `prefix`.
pub(crate) fn gateway_config(edge: u16, admin: u16, engine: &str, key_lines: &str) -> String {
    format!(
        r#"[edge]
listen = "127.0.0.1:{edge}"

[admin]
listen = "127.0.0.1:{admin}"

[router]
policy = "prefix"

[log]
level = "info"

[[backends]]
id = "engine"
url = "{engine}"

[[models]]
id = "{MODEL}"
folder = "builtin"

[[tenants]]
id = "bench"
requests_per_minute = 10000000
max_concurrency = 10000

{key_lines}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_the_size_they_are_named_after() {
        let length = |w: Workload| w.bodies(1, 1)[0].len();
        assert!((1024..1300).contains(&length(Workload::New1K)));
        assert!((32 * 1024..33 * 1024).contains(&length(Workload::Known32K)));
        assert!((32 * 1024..33 * 1024).contains(&length(Workload::Cold32K)));
        assert!((370..410).contains(&fixed_body().len()), "{}", fixed_body().len());
    }

    #[test]
    fn no_two_new_texts_are_alike() {
        let bodies = Workload::New1K.bodies(50, 1);
        let other = Workload::New1K.bodies(50, 2);
        let distinct: std::collections::HashSet<_> = bodies.iter().chain(&other).collect();
        assert_eq!(distinct.len(), 100);
    }
}
