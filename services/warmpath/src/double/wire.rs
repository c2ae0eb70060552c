//! Answers in the shapes vLLM 0.32 sends, written without a detour through JSON values.

mod cohere;
mod messages;
mod responses;
mod tools;

use std::fmt::Write as _;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use serde_json::json;

use super::request::Dialect;
pub(crate) use tools::ToolCall;

/// What marks this engine in answers.
pub(crate) const FINGERPRINT: &str = "vllm-0.32.0-double";

/// Token counts of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) created_cache_tokens: u64,
}

/// The parts of an answer that are the same in all its events.
#[derive(Debug)]
pub(crate) struct Wire {
    dialect: Dialect,
    /// `"id":…,"object":…,"created":…,"model":…,"choices":[` for events.
    event_head: String,
    /// The same for an answer in one piece.
    answer_head: String,
    /// As JSON strings.
    id: String,
    model: String,
    plain_id: String,
    plain_model: String,
    created: u64,
    /// Events so far, and what they said, of a response.
    events: AtomicU64,
    said: Mutex<String>,
    /// What a chat says instead of text.
    tool: Option<ToolCall>,
}

/// A text as a JSON string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl Wire {
    /// `id` without the dialect's prefix; `created` in Unix seconds.
    pub(crate) fn new(dialect: Dialect, id: &str, created: u64, model: &str) -> Self {
        let (prefix, event, answer) = match dialect {
            Dialect::Completion => ("cmpl-", "text_completion", "text_completion"),
            Dialect::Responses => ("resp_", "", ""),
            Dialect::Generate => ("generate-tokens-", "", ""),
            Dialect::Scoring => ("generative-scoring-", "", ""),
            Dialect::Chat | Dialect::Batch | Dialect::Messages | Dialect::Cohere => {
                ("chatcmpl-", "chat.completion.chunk", "chat.completion")
            }
        };
        let (plain_id, plain_model) = (format!("{prefix}{id}"), model.to_owned());
        let (id, model) = (quoted(&plain_id), quoted(model));
        let head = |object: &str| match dialect {
            Dialect::Generate => {
                format!(
                    "{{\"request_id\":{id},\"model\":{model},\"created\":{created},\"choices\":["
                )
            }
            _ => format!(
                "{{\"id\":{id},\"object\":\"{object}\",\"created\":{created},\"model\":{model},\
                 \"choices\":["
            ),
        };
        Self {
            dialect,
            event_head: head(event),
            answer_head: head(answer),
            id,
            model,
            plain_id,
            plain_model,
            created,
            events: AtomicU64::new(0),
            said: Mutex::default(),
            tool: None,
        }
    }

    /// Answers with a call of a tool.
    pub(crate) fn calling(self, tool: Option<ToolCall>) -> Self {
        Self { tool, ..self }
    }

    /// The event that opens a choice; completions have none.
    pub(crate) fn role(&self, out: &mut String, index: usize, usage: Option<Usage>) {
        match self.dialect {
            Dialect::Completion | Dialect::Generate | Dialect::Scoring => return,
            Dialect::Cohere => return self.cohere_start(out),
            Dialect::Messages => return self.message_start(out, usage.unwrap_or_default()),
            Dialect::Responses => return self.response_start(out),
            Dialect::Chat | Dialect::Batch => {}
        }
        self.open(out, index);
        out.push_str(
            "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\
             \"finish_reason\":null}]",
        );
        push_running_usage(out, usage);
        out.push_str(",\"prompt_token_ids\":null,\"prompt_text\":null}\n\n");
    }

    /// A content event. `last` is the choice's last one, which tells why it ends; `closing` the
    /// last of the whole answer when no usage event follows.
    pub(crate) fn content(
        &self,
        out: &mut String,
        index: usize,
        (text, token): (&str, u32),
        last: bool,
        closing: bool,
        usage: Option<Usage>,
    ) {
        match self.dialect {
            Dialect::Messages => return self.message_delta(out, text),
            Dialect::Responses => return self.response_delta(out, text),
            Dialect::Cohere => return self.cohere_delta(out, text),
            _ => {}
        }
        if let Some(call) = &self.tool {
            return self.tool_delta(out, call, (index, text), last);
        }
        self.open(out, index);
        let text = quoted(text);
        let reason = if last { "\"length\"" } else { "null" };
        // Writing to a String cannot fail.
        let _ = match self.dialect {
            Dialect::Generate => write!(
                out,
                "\"token_ids\":[{token}],\"logprobs\":null,\"finish_reason\":{reason},\
                 \"stop_reason\":null}}]"
            ),
            Dialect::Completion => write!(
                out,
                "\"text\":{text},\"logprobs\":null,\"finish_reason\":{reason},\
                 \"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}}]"
            ),
            _ => {
                let stop = if last { "\"stop_reason\":null," } else { "" };
                write!(
                    out,
                    "\"delta\":{{\"content\":{text}}},\"logprobs\":null,\
                     \"finish_reason\":{reason},{stop}\"token_ids\":null}}]"
                )
            }
        };
        push_running_usage(out, usage);
        if closing && self.dialect == Dialect::Chat {
            let _ = write!(out, ",\"system_fingerprint\":\"{FINGERPRINT}\"");
        }
        out.push_str("}\n\n");
    }

    /// The event that carries the usage alone.
    pub(crate) fn usage(&self, out: &mut String, usage: Usage) {
        let details = match self.dialect {
            Dialect::Messages => return self.message_end(out, usage),
            Dialect::Responses => return self.response_end(out, usage),
            Dialect::Cohere => return self.cohere_end(out, usage),
            Dialect::Chat | Dialect::Batch => {
                format!(",\"created_cache_tokens\":{}", usage.created_cache_tokens)
            }
            Dialect::Completion | Dialect::Generate | Dialect::Scoring => String::new(),
        };
        let _ = write!(
            out,
            "data: {}],\"usage\":{{{},\"prompt_tokens_details\":{{\"cached_tokens\":{}{details}}}}},\
             \"system_fingerprint\":\"{FINGERPRINT}\"}}\n\n",
            self.event_head,
            counts(usage),
            usage.cached_tokens,
        );
    }

    /// The end of a stream.
    pub(crate) fn done(&self, out: &mut String) {
        out.push_str(match self.dialect {
            Dialect::Messages => "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
            Dialect::Responses => "",
            _ => "data: [DONE]\n\n",
        });
    }

    /// An event whose data stops in the middle of a string.
    pub(crate) fn bad_json(&self, out: &mut String) {
        let _ =
            write!(out, "data: {}{{\"index\":0,\"delta\":{{\"content\":\"\n\n", self.event_head);
    }

    /// An answer of token ids in one piece.
    pub(crate) fn answer_of_ids(&self, lists: &[Vec<u32>], usage: Usage) -> String {
        let choices = lists.iter().enumerate().map(|(index, ids)| {
            json!({"index": index, "finish_reason": "length", "stop_reason": null,
                "token_ids": ids, "routed_experts": null, "logprobs": null})
        });
        json!({
            "request_id": self.plain_id,
            "model": self.plain_model,
            "created": self.created,
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
                "completion_tokens": usage.completion_tokens,
                "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            },
            "prompt_logprobs": null,
            "output_mode": "tokens",
            "choices": choices.collect::<Vec<_>>(),
        })
        .to_string()
    }

    /// The answer of generative scoring: what each item got.
    pub(crate) fn answer_of_scores(&self, scores: &[f64], usage: Usage) -> String {
        let data = scores
            .iter()
            .enumerate()
            .map(|(index, score)| json!({"index": index, "object": "score", "score": score}));
        json!({
            "id": self.plain_id,
            "object": "list",
            "created": self.created,
            "model": self.plain_model,
            "data": data.collect::<Vec<_>>(),
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
                "completion_tokens": usage.completion_tokens,
                "prompt_tokens_details": null,
                "completion_tokens_details": null,
            },
        })
        .to_string()
    }

    /// An answer in one piece.
    pub(crate) fn answer(&self, texts: &[String], usage: Usage) -> String {
        let first = texts.first().map_or("", String::as_str);
        match self.dialect {
            Dialect::Messages => return self.message(first, usage),
            Dialect::Responses => return self.response(first, Some(usage)).to_string(),
            Dialect::Cohere => return self.cohere_answer(first, usage),
            _ => {}
        }
        let mut out = self.answer_head.clone();
        for (index, text) in texts.iter().enumerate() {
            out.push_str(if index > 0 { "," } else { "" });
            if let Some(call) = &self.tool {
                out.push_str(&self.tool_choice(call, index, text));
                continue;
            }
            let text = quoted(text);
            let _ = match self.dialect {
                Dialect::Chat | Dialect::Batch => write!(
                    out,
                    "{{\"index\":{index},\"message\":{{\"role\":\"assistant\",\"content\":{text},\
                     \"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\
                     \"reasoning\":null}},\"logprobs\":null,\"finish_reason\":\"length\",\
                     \"stop_reason\":null,\"token_ids\":null,\"routed_experts\":null}}"
                ),
                _ => write!(
                    out,
                    "{{\"index\":{index},\"text\":{text},\"logprobs\":null,\
                     \"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null,\
                     \"prompt_logprobs\":null,\"prompt_token_ids\":null,\"routed_experts\":null}}"
                ),
            };
        }
        let prompt = match self.dialect {
            Dialect::Chat | Dialect::Batch => {
                "\"prompt_logprobs\":null,\"prompt_token_ids\":null,\"prompt_text\":null,"
            }
            _ => "",
        };
        let _ = write!(
            out,
            "],\"service_tier\":null,\"system_fingerprint\":\"{FINGERPRINT}\",\"usage\":{{{},\
             \"prompt_tokens_details\":{{\"cached_tokens\":{},\"created_cache_tokens\":{},\
             \"multimodal_tokens\":null}},\"completion_tokens_details\":null}},{prompt}\
             \"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}}",
            counts(usage),
            usage.cached_tokens,
            usage.created_cache_tokens,
        );
        out
    }

    fn open(&self, out: &mut String, index: usize) {
        let _ = write!(out, "data: {}{{\"index\":{index},", self.event_head);
    }
}

fn counts(usage: Usage) -> String {
    format!(
        "\"prompt_tokens\":{},\"total_tokens\":{},\"completion_tokens\":{}",
        usage.prompt_tokens,
        usage.prompt_tokens + usage.completion_tokens,
        usage.completion_tokens,
    )
}

/// The counts so far, as `continuous_usage_stats` wants them in every event.
fn push_running_usage(out: &mut String, usage: Option<Usage>) {
    if let Some(usage) = usage {
        let _ = write!(out, ",\"usage\":{{{},\"completion_tokens_details\":null}}", counts(usage));
    }
}

#[cfg(test)]
mod tests;
