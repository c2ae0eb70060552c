//! Calls of a tool that a chat was told to make, as vLLM streams them: the name first, then the
//! arguments piece by piece.

use std::fmt::Write as _;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::request::field;
use super::{Wire, quoted};

/// The call that every answer of a request is.
#[derive(Debug)]
pub(crate) struct ToolCall {
    name: String,
    /// How the engine says that it ended.
    reason: &'static str,
    /// Choices whose call has begun.
    begun: Mutex<Vec<usize>>,
}

impl ToolCall {
    /// The call that a chat body demands: of the tool it names, or of the first where any will do.
    pub(crate) fn demanded(body: &Value) -> Option<Self> {
        let choice = field(body, "tool_choice")?;
        let (name, reason) = match choice.as_str() {
            Some("required") => (&body["tools"][0]["function"]["name"], "tool_calls"),
            Some(_) => return None,
            None => (&choice["function"]["name"], "stop"),
        };
        Some(Self { name: name.as_str()?.to_owned(), reason, begun: Mutex::default() })
    }

    /// The words of an answer as arguments.
    fn arguments(words: &str) -> String {
        json!({"words": words}).to_string()
    }
}

impl Wire {
    /// One more word of a call's arguments, as an event or more.
    pub(super) fn tool_delta(
        &self,
        out: &mut String,
        call: &ToolCall,
        (index, text): (usize, &str),
        last: bool,
    ) {
        let quoted_text = quoted(text);
        let mut piece = quoted_text[1..quoted_text.len() - 1].to_owned();
        let mut begun = call.begun.lock();
        if !begun.contains(&index) {
            begun.push(index);
            let id = format!("chatcmpl-tool-{index}{}", self.plain_id);
            let function = json!({"name": call.name});
            self.tool_event(
                out,
                index,
                &json!({"id": id, "type": "function", "index": 0, "function": function}),
            );
            piece.insert_str(0, "{\"words\":\"");
        }
        if last {
            piece.push_str("\"}");
        }
        self.tool_event(out, index, &json!({"index": 0, "function": {"arguments": piece}}));
        if last {
            self.open(out, index);
            // Writing to a String cannot fail.
            let _ = write!(
                out,
                "\"delta\":{{}},\"logprobs\":null,\"finish_reason\":\"{}\",\"stop_reason\":null,\
                 \"token_ids\":null}}]}}\n\n",
                call.reason,
            );
        }
    }

    fn tool_event(&self, out: &mut String, index: usize, call: &Value) {
        self.open(out, index);
        let _ = write!(
            out,
            "\"delta\":{{\"content\":null,\"tool_calls\":[{call}]}},\"logprobs\":null,\
             \"finish_reason\":null,\"token_ids\":null}}]}}\n\n",
        );
    }

    /// One choice of an answer in one piece.
    pub(super) fn tool_choice(&self, call: &ToolCall, index: usize, words: &str) -> String {
        let function = json!({"name": call.name, "arguments": ToolCall::arguments(words)});
        let id = format!("chatcmpl-tool-{index}{}", self.plain_id);
        let message = json!({"role": "assistant", "content": "", "refusal": null,
            "annotations": null, "audio": null, "function_call": null,
            "tool_calls": [{"id": id, "type": "function", "function": function}],
            "reasoning": null});
        json!({"index": index, "message": message, "logprobs": null,
            "finish_reason": call.reason, "stop_reason": null, "token_ids": null,
            "routed_experts": null})
        .to_string()
    }
}
