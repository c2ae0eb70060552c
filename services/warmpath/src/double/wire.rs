//! Answers in the shapes vLLM 0.32 sends, written without a detour through JSON values.

use std::fmt::Write as _;

use super::request::Dialect;

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
}

/// A text as a JSON string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl Wire {
    /// `id` without the dialect's prefix; `created` in Unix seconds.
    pub(crate) fn new(dialect: Dialect, id: &str, created: u64, model: &str) -> Self {
        let (prefix, event, answer) = match dialect {
            Dialect::Chat => ("chatcmpl", "chat.completion.chunk", "chat.completion"),
            Dialect::Completion => ("cmpl", "text_completion", "text_completion"),
        };
        let id = quoted(&format!("{prefix}-{id}"));
        let model = quoted(model);
        let head = |object: &str| {
            format!(
                "{{\"id\":{id},\"object\":\"{object}\",\"created\":{created},\"model\":{model},\
                 \"choices\":["
            )
        };
        Self { dialect, event_head: head(event), answer_head: head(answer) }
    }

    /// The event that opens a choice; completions have none.
    pub(crate) fn role(&self, out: &mut String, index: usize, usage: Option<Usage>) {
        if self.dialect == Dialect::Completion {
            return;
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
        text: &str,
        last: bool,
        closing: bool,
        usage: Option<Usage>,
    ) {
        self.open(out, index);
        let text = quoted(text);
        let reason = if last { "\"length\"" } else { "null" };
        // Writing to a String cannot fail.
        let _ = match self.dialect {
            Dialect::Chat => {
                let stop = if last { "\"stop_reason\":null," } else { "" };
                write!(
                    out,
                    "\"delta\":{{\"content\":{text}}},\"logprobs\":null,\
                     \"finish_reason\":{reason},{stop}\"token_ids\":null}}]"
                )
            }
            Dialect::Completion => write!(
                out,
                "\"text\":{text},\"logprobs\":null,\"finish_reason\":{reason},\
                 \"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}}]"
            ),
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
            Dialect::Chat => format!(",\"created_cache_tokens\":{}", usage.created_cache_tokens),
            Dialect::Completion => String::new(),
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
    pub(crate) fn done(out: &mut String) {
        out.push_str("data: [DONE]\n\n");
    }

    /// An event whose data stops in the middle of a string.
    pub(crate) fn bad_json(&self, out: &mut String) {
        let _ =
            write!(out, "data: {}{{\"index\":0,\"delta\":{{\"content\":\"\n\n", self.event_head);
    }

    /// An answer in one piece.
    pub(crate) fn answer(&self, texts: &[String], usage: Usage) -> String {
        let mut out = self.answer_head.clone();
        for (index, text) in texts.iter().enumerate() {
            out.push_str(if index > 0 { "," } else { "" });
            let text = quoted(text);
            let _ = match self.dialect {
                Dialect::Chat => write!(
                    out,
                    "{{\"index\":{index},\"message\":{{\"role\":\"assistant\",\"content\":{text},\
                     \"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\
                     \"reasoning\":null}},\"logprobs\":null,\"finish_reason\":\"length\",\
                     \"stop_reason\":null,\"token_ids\":null,\"routed_experts\":null}}"
                ),
                Dialect::Completion => write!(
                    out,
                    "{{\"index\":{index},\"text\":{text},\"logprobs\":null,\
                     \"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null,\
                     \"prompt_logprobs\":null,\"prompt_token_ids\":null,\"routed_experts\":null}}"
                ),
            };
        }
        let prompt = match self.dialect {
            Dialect::Chat => {
                "\"prompt_logprobs\":null,\"prompt_token_ids\":null,\"prompt_text\":null,"
            }
            Dialect::Completion => "",
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
mod tests {
    use super::*;

    /// The part of a recorded event that does not depend on the run.
    fn tail(event: &str) -> &str {
        event.split_once("\"choices\":").expect("an event with choices").1
    }

    const USAGE: Usage = Usage {
        prompt_tokens: 37,
        completion_tokens: 12,
        cached_tokens: 32,
        created_cache_tokens: 0,
    };

    #[test]
    fn chat_events_have_the_recorded_shape() {
        let wire = Wire::new(Dialect::Chat, "8fc3d40e6c5f6d5f", 1795967078, "smollm2");
        let mut out = String::new();
        wire.role(&mut out, 0, None);
        assert_eq!(
            out,
            "data: {\"id\":\"chatcmpl-8fc3d40e6c5f6d5f\",\"object\":\"chat.completion.chunk\",\
             \"created\":1795967078,\"model\":\"smollm2\",\"choices\":[{\"index\":0,\"delta\":\
             {\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}],\
             \"prompt_token_ids\":null,\"prompt_text\":null}\n\n"
        );
        out.clear();
        wire.content(&mut out, 0, "'m", false, false, None);
        assert_eq!(
            tail(&out),
            "[{\"index\":0,\"delta\":{\"content\":\"'m\"},\"logprobs\":null,\
             \"finish_reason\":null,\"token_ids\":null}]}\n\n"
        );
        out.clear();
        wire.content(&mut out, 0, " help", true, true, None);
        assert_eq!(
            tail(&out),
            "[{\"index\":0,\"delta\":{\"content\":\" help\"},\"logprobs\":null,\
             \"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null}],\
             \"system_fingerprint\":\"vllm-0.32.0-double\"}\n\n"
        );
        out.clear();
        wire.usage(&mut out, USAGE);
        assert_eq!(
            tail(&out),
            "[],\"usage\":{\"prompt_tokens\":37,\"total_tokens\":49,\"completion_tokens\":12,\
             \"prompt_tokens_details\":{\"cached_tokens\":32,\"created_cache_tokens\":0}},\
             \"system_fingerprint\":\"vllm-0.32.0-double\"}\n\n"
        );
    }

    #[test]
    fn continuous_usage_stands_in_every_event() {
        let wire = Wire::new(Dialect::Chat, "a", 1, "m");
        let mut out = String::new();
        let usage = Usage { completion_tokens: 1, ..USAGE };
        wire.content(&mut out, 0, "I", false, false, Some(usage));
        assert_eq!(
            tail(&out),
            "[{\"index\":0,\"delta\":{\"content\":\"I\"},\"logprobs\":null,\
             \"finish_reason\":null,\"token_ids\":null}],\"usage\":{\"prompt_tokens\":37,\
             \"total_tokens\":38,\"completion_tokens\":1,\"completion_tokens_details\":null}}\n\n"
        );
    }

    #[test]
    fn completion_events_have_the_recorded_shape() {
        let wire = Wire::new(Dialect::Completion, "a5ad821fb653c55d", 1795967122, "smollm2");
        let mut out = String::new();
        wire.role(&mut out, 0, None);
        wire.content(&mut out, 0, ":", true, true, None);
        assert_eq!(
            out,
            "data: {\"id\":\"cmpl-a5ad821fb653c55d\",\"object\":\"text_completion\",\
             \"created\":1795967122,\"model\":\"smollm2\",\"choices\":[{\"index\":0,\"text\":\":\",\
             \"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\
             \"prompt_token_ids\":null,\"token_ids\":null}]}\n\n"
        );
        out.clear();
        wire.usage(&mut out, USAGE);
        assert!(tail(&out).contains("\"prompt_tokens_details\":{\"cached_tokens\":32}}"));
    }

    #[test]
    fn an_answer_in_one_piece_has_the_recorded_shape() {
        let wire = Wire::new(Dialect::Chat, "882cff3b8205b0f5", 1795967077, "smollm2");
        let usage = Usage { cached_tokens: 0, created_cache_tokens: 32, ..USAGE };
        assert_eq!(
            wire.answer(&["I'm glad".to_owned()], usage),
            "{\"id\":\"chatcmpl-882cff3b8205b0f5\",\"object\":\"chat.completion\",\
             \"created\":1795967077,\"model\":\"smollm2\",\"choices\":[{\"index\":0,\"message\":\
             {\"role\":\"assistant\",\"content\":\"I'm glad\",\"refusal\":null,\
             \"annotations\":null,\"audio\":null,\"function_call\":null,\"reasoning\":null},\
             \"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\
             \"token_ids\":null,\"routed_experts\":null}],\"service_tier\":null,\
             \"system_fingerprint\":\"vllm-0.32.0-double\",\"usage\":{\"prompt_tokens\":37,\
             \"total_tokens\":49,\"completion_tokens\":12,\"prompt_tokens_details\":\
             {\"cached_tokens\":0,\"created_cache_tokens\":32,\"multimodal_tokens\":null},\
             \"completion_tokens_details\":null},\"prompt_logprobs\":null,\
             \"prompt_token_ids\":null,\"prompt_text\":null,\"kv_transfer_params\":null,\
             \"ec_transfer_params\":null,\"metrics\":null}"
        );
        let wire = Wire::new(Dialect::Completion, "9104", 1, "smollm2");
        let answer = wire.answer(&["-by-date".to_owned(), ",".to_owned()], usage);
        let parsed: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(parsed["choices"][1]["text"], ",");
        assert_eq!(parsed["choices"][1]["index"], 1);
    }
}
