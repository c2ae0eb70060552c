//! OpenAI's Responses as vLLM answers them.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::{Usage, Wire};

/// The one output item of an answer.
const ITEM: &str = "msg_double";

impl Wire {
    /// The whole response, in course while there is no usage.
    pub(crate) fn response(&self, text: &str, usage: Option<Usage>) -> Value {
        let part =
            json!({"annotations": [], "text": text, "type": "output_text", "logprobs": null});
        let item = json!({"id": ITEM, "content": [part], "role": "assistant",
            "status": "completed", "type": "message", "phase": null});
        let counts = usage.map(|usage| {
            json!({
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {
                    "cached_tokens": usage.cached_tokens,
                    "cache_write_tokens": usage.created_cache_tokens,
                },
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            })
        });
        let cut = usage.map(|_| json!({"reason": "max_output_tokens"}));
        json!({
            "id": self.plain_id,
            "created_at": self.created,
            "incomplete_details": cut,
            "instructions": null,
            "metadata": null,
            "model": self.plain_model,
            "object": "response",
            "output": if usage.is_some() { vec![item] } else { Vec::new() },
            "parallel_tool_calls": true,
            "tool_choice": "none",
            "tools": [],
            "background": false,
            "previous_response_id": null,
            "status": if usage.is_some() { "incomplete" } else { "in_progress" },
            "usage": counts,
        })
    }

    fn event(&self, out: &mut String, kind: &str, mut fields: Value) {
        if let Some(fields) = fields.as_object_mut() {
            let number = self.events.fetch_add(1, Ordering::Relaxed);
            fields.insert("sequence_number".to_owned(), number.into());
            fields.insert("type".to_owned(), kind.into());
        }
        // Writing to a String cannot fail.
        let _ = write!(out, "event: {kind}\ndata: {fields}\n\n");
    }

    pub(super) fn response_start(&self, out: &mut String) {
        let response = self.response("", None);
        self.event(out, "response.created", json!({"response": response}));
        self.event(out, "response.in_progress", json!({"response": response}));
        let item = json!({"id": ITEM, "content": [], "role": "assistant",
            "status": "in_progress", "type": "message"});
        self.event(out, "response.output_item.added", json!({"item": item, "output_index": 0}));
        let part = json!({"annotations": [], "text": "", "type": "output_text"});
        let at = json!({"content_index": 0, "item_id": ITEM, "output_index": 0, "part": part});
        self.event(out, "response.content_part.added", at);
    }

    pub(super) fn response_delta(&self, out: &mut String, text: &str) {
        self.said.lock().push_str(text);
        let delta = json!({"content_index": 0, "delta": text, "item_id": ITEM, "logprobs": [],
            "output_index": 0});
        self.event(out, "response.output_text.delta", delta);
    }

    pub(super) fn response_end(&self, out: &mut String, usage: Usage) {
        let text = self.said.lock().clone();
        let done = json!({"content_index": 0, "item_id": ITEM, "output_index": 0, "text": text});
        self.event(out, "response.output_text.done", done);
        let response = self.response(&text, Some(usage));
        let item = json!({"item": response["output"][0], "output_index": 0});
        self.event(out, "response.output_item.done", item);
        self.event(out, "response.completed", json!({"response": response}));
    }
}
