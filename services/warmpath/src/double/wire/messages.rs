//! Anthropic's Messages as vLLM answers them.

use std::fmt::Write as _;

use super::{Usage, Wire, quoted};

/// What a client pays for apart from what was cached.
fn counts(usage: Usage) -> String {
    let beside = usage.cached_tokens + usage.created_cache_tokens;
    format!(
        "{{\"input_tokens\":{},\"output_tokens\":{},\"cache_creation_input_tokens\":{},\
         \"cache_read_input_tokens\":{}}}",
        usage.prompt_tokens.saturating_sub(beside),
        usage.completion_tokens,
        usage.created_cache_tokens,
        usage.cached_tokens,
    )
}

impl Wire {
    pub(super) fn message_start(&self, out: &mut String, usage: Usage) {
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"id\":{},\
             \"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":{},\
             \"stop_reason\":null,\"stop_sequence\":null,\"usage\":{{\"input_tokens\":{},\
             \"output_tokens\":{}}}}}}}\n\n\
             event: content_block_start\ndata: {{\"type\":\"content_block_start\",\
             \"content_block\":{{\"type\":\"text\",\"text\":\"\"}},\"index\":0}}\n\n",
            self.id, self.model, usage.prompt_tokens, usage.completion_tokens,
        );
    }

    pub(super) fn message_delta(&self, out: &mut String, text: &str) {
        let _ = write!(
            out,
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"delta\":\
             {{\"type\":\"text_delta\",\"text\":{}}},\"index\":0}}\n\n",
            quoted(text),
        );
    }

    pub(super) fn message_end(&self, out: &mut String, usage: Usage) {
        let _ = write!(
            out,
            "event: content_block_stop\ndata: {{\"type\":\"content_block_stop\",\"index\":0}}\n\n\
             event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\
             \"max_tokens\",\"stop_sequence\":null}},\"usage\":{}}}\n\n",
            counts(usage),
        );
    }

    pub(super) fn message(&self, text: &str, usage: Usage) -> String {
        format!(
            "{{\"id\":{},\"type\":\"message\",\"role\":\"assistant\",\"content\":[{{\"type\":\
             \"text\",\"text\":{}}}],\"model\":{},\"stop_reason\":\"max_tokens\",\"usage\":{}}}",
            self.id,
            quoted(text),
            self.model,
            counts(usage),
        )
    }
}
