//! A chat request: the fields of its body that decide the tokens of its prompt.

mod messages;

use minijinja::Value;
use serde_json::{Map, Value as Json};

use crate::error::RenderError;
use crate::template::Traits;

pub(crate) use messages::{CONTINUE_MARK, PART_MARK};

/// Which end of a prompt is cut off when it is longer than `truncate_prompt_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TruncationSide {
    /// The beginning goes; what engines do for generation unless told otherwise.
    Left,
    /// The end goes.
    Right,
}

/// The part of a chat body that a template can read, borrowed from the parsed body.
#[derive(Clone, Debug)]
pub struct ChatRequest<'a> {
    /// The conversation; never empty.
    pub messages: &'a [Json],
    /// Tools offered to the model. `None` if the body has none.
    pub tools: Option<&'a [Json]>,
    /// Documents for templates that quote them.
    pub documents: Option<&'a Json>,
    /// Variables the client sets for the template (`enable_thinking` and the like).
    pub chat_template_kwargs: Option<&'a Map<String, Json>>,
    /// `reasoning_effort`, which engines hand to the template.
    pub reasoning_effort: Option<&'a Json>,
    /// Whether the prompt ends with the opening of an assistant's turn.
    pub add_generation_prompt: bool,
    /// Whether the last message is left open for the model to go on with.
    pub continue_final_message: bool,
    /// Whether the body says `"tool_choice": "none"`.
    pub tool_choice_none: bool,
    /// Whether tools are left out of the prompt when the tool choice is `none`. vLLM does so only
    /// when it was started with `--exclude-tools-when-tool-choice-none`; off by default there and
    /// here.
    pub exclude_tools_when_none: bool,
    /// The template in the body. Read only if [`ChatRequest::trust_chat_template`] is set.
    pub chat_template: Option<&'a str>,
    /// Whether the body's own template is honoured. Off by default, as engines refuse such
    /// requests unless they are told to trust them; the model's template is rendered then.
    pub trust_chat_template: bool,
    /// Whether the tokenizer adds its special tokens around the rendered text. Off by default:
    /// templates write them.
    pub add_special_tokens: bool,
    /// At most so many tokens are kept, from which side the rest is cut.
    pub truncate: Option<(usize, TruncationSide)>,
}

impl<'a> ChatRequest<'a> {
    /// Reads the whole parsed body of a chat request. Unknown fields are passed over.
    ///
    /// # Errors
    /// [`RenderError::Body`] for a field of a shape no engine could render.
    pub fn from_body(body: &'a Json) -> Result<Self, RenderError> {
        let field = |name: &str| body.get(name).filter(|v| !v.is_null());
        let flag = |name: &str, default| field(name).and_then(Json::as_bool).unwrap_or(default);
        let messages = field("messages").and_then(Json::as_array).ok_or_else(not_messages)?;
        if messages.is_empty() || !messages.iter().all(Json::is_object) {
            return Err(not_messages());
        }
        let tools = match field("tools") {
            None => None,
            Some(tools) => Some(
                tools
                    .as_array()
                    .ok_or(RenderError::Body { field: "tools", reason: "is not an array" })?,
            ),
        };
        let kwargs = match field("chat_template_kwargs") {
            None => None,
            Some(kwargs) => Some(kwargs.as_object().ok_or(RenderError::Body {
                field: "chat_template_kwargs",
                reason: "is not an object",
            })?),
        };
        let request = Self {
            messages,
            // An empty list is no list: engines hand `None` to the template.
            tools: tools.map(Vec::as_slice).filter(|tools| !tools.is_empty()),
            documents: field("documents"),
            chat_template_kwargs: kwargs,
            reasoning_effort: field("reasoning_effort"),
            add_generation_prompt: flag("add_generation_prompt", true),
            continue_final_message: flag("continue_final_message", false),
            tool_choice_none: field("tool_choice").and_then(Json::as_str) == Some("none"),
            exclude_tools_when_none: false,
            chat_template: field("chat_template").and_then(Json::as_str),
            trust_chat_template: false,
            add_special_tokens: flag("add_special_tokens", false),
            truncate: truncation(body),
        };
        if request.continue_final_message && request.add_generation_prompt {
            return Err(RenderError::Body {
                field: "continue_final_message",
                reason: "cannot be set together with `add_generation_prompt`",
            });
        }
        Ok(request)
    }

    /// Whether any message holds a part that is not text (an image, a sound, a file). Block keys
    /// end before the first such part.
    pub fn has_non_text(&self) -> bool {
        self.messages.iter().any(messages::has_non_text)
    }

    /// The template's variables, over `special_tokens` which are the lowest layer. The first part
    /// that is not text is replaced by [`PART_MARK`]; later ones are left out.
    pub(crate) fn context(
        &self,
        traits: Traits,
        special_tokens: &[(String, Value)],
    ) -> Result<Value, RenderError> {
        let mut variables: Vec<(Value, Value)> = Vec::with_capacity(special_tokens.len() + 8);
        let mut set = |name: &str, value: Value| variables.push((Value::from(name), value));
        for (name, token) in special_tokens {
            set(name, token.clone());
        }
        set("tools", self.tools_seen().map_or(Value::from(()), messages::tools));
        set("documents", Value::from(()));
        for (name, value) in self.chat_template_kwargs.into_iter().flatten() {
            set(name, messages::value(value));
        }
        set("messages", messages::conversation(self, traits)?);
        set("add_generation_prompt", Value::from(self.add_generation_prompt));
        set("continue_final_message", Value::from(self.continue_final_message));
        if let Some(documents) = self.documents {
            set("documents", messages::value(documents));
        }
        if let Some(effort) = self.reasoning_effort {
            set("reasoning_effort", messages::value(effort));
            let said = self.chat_template_kwargs.is_some_and(|k| k.contains_key("enable_thinking"));
            if !said {
                set("enable_thinking", Value::from(effort.as_str() != Some("none")));
            }
        }
        Ok(messages::map(variables))
    }

    /// The tools that reach the template.
    pub(crate) fn tools_seen(&self) -> Option<&'a [Json]> {
        self.tools.filter(|_| !(self.tool_choice_none && self.exclude_tools_when_none))
    }

    /// The body's template, if it is to be used.
    pub(crate) fn own_template(&self) -> Option<&'a str> {
        self.chat_template.filter(|_| self.trust_chat_template)
    }
}

fn not_messages() -> RenderError {
    RenderError::Body { field: "messages", reason: "is not a non-empty array of objects" }
}

/// `truncate_prompt_tokens` and `truncation_side`. −1 stands for the engine's own limit, which no
/// prompt that it accepts exceeds.
pub(crate) fn truncation(body: &Json) -> Option<(usize, TruncationSide)> {
    let keep = body.get("truncate_prompt_tokens")?.as_u64().filter(|&n| n > 0)?;
    let side = match body.get("truncation_side").and_then(Json::as_str) {
        Some("right") => TruncationSide::Right,
        _ => TruncationSide::Left,
    };
    Some((usize::try_from(keep).ok()?, side))
}

#[cfg(test)]
mod tests;
