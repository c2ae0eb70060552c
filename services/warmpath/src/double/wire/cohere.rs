//! Cohere's chat as vLLM answers it: bare `data:` lines, each event with its `type`.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::{Usage, Wire, quoted};

/// What was used; Cohere counts in fractions.
fn counts(usage: Usage) -> Value {
    let tokens = json!({
        "input_tokens": usage.prompt_tokens as f64,
        "output_tokens": usage.completion_tokens as f64,
    });
    json!({
        "billed_units": tokens,
        "tokens": tokens,
        "cached_tokens": usage.cached_tokens as f64,
    })
}

impl Wire {
    pub(super) fn cohere_start(&self, out: &mut String) {
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "data: {{\"id\":{},\"delta\":{{\"message\":{{\"role\":\"assistant\"}}}},\
             \"type\":\"message-start\"}}\n\n",
            self.id,
        );
    }

    /// A piece of text; the first opens its block.
    pub(super) fn cohere_delta(&self, out: &mut String, text: &str) {
        if self.events.fetch_add(1, Ordering::Relaxed) == 0 {
            out.push_str(
                "data: {\"index\":0,\"delta\":{\"message\":{\"content\":{\"text\":\"\",\
                 \"type\":\"text\"}}},\"type\":\"content-start\"}\n\n",
            );
        }
        let _ = write!(
            out,
            "data: {{\"index\":0,\"delta\":{{\"message\":{{\"content\":{{\"text\":{}}}}}}},\
             \"type\":\"content-delta\"}}\n\n",
            quoted(text),
        );
    }

    pub(super) fn cohere_end(&self, out: &mut String, usage: Usage) {
        let _ = write!(
            out,
            "data: {{\"index\":0,\"type\":\"content-end\"}}\n\n\
             data: {{\"id\":{},\"delta\":{{\"finish_reason\":\"MAX_TOKENS\",\"usage\":{}}},\
             \"type\":\"message-end\"}}\n\n",
            self.id,
            counts(usage),
        );
    }

    pub(super) fn cohere_answer(&self, text: &str, usage: Usage) -> String {
        json!({
            "id": self.plain_id,
            "finish_reason": "MAX_TOKENS",
            "message": {"role": "assistant", "content": [{"type": "text", "text": text}]},
            "usage": counts(usage),
        })
        .to_string()
    }
}
