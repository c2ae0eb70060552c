//! Requests of other APIs as the chats that vLLM makes of them before its template.
//!
//! The chat that comes out has the fields of a chat body which decide the prompt, and no others.
//! What an engine would refuse, or what stands for a history that is kept at the engine, gives
//! `None`. (Checked against vLLM 0.32: `fixtures/dialects.json`.)

mod messages;
mod responses;

use serde_json::Value as Json;

pub use messages::chat_of_messages;
pub use responses::chat_of_responses;

/// What the engine decides once by trying the model's template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Habits {
    /// The template takes system messages at the front alone: those between the turns of a
    /// Messages request are put there.
    pub system_first: bool,
    /// The effort that stands for thinking switched off.
    pub disabled_thinking: &'static str,
}

impl Default for Habits {
    /// Those of a template that takes everything.
    fn default() -> Self {
        Self { system_first: false, disabled_thinking: "none" }
    }
}

/// A member that is there and not null.
fn field<'a>(object: &'a Json, name: &str) -> Option<&'a Json> {
    object.get(name).filter(|value| !value.is_null())
}

fn text<'a>(object: &'a Json, name: &str) -> Option<&'a str> {
    object.get(name).and_then(Json::as_str)
}

/// A tool as a chat has it. Members that are null are left out.
fn function_tool(fields: Vec<(&str, Option<Json>)>) -> Json {
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    serde_json::json!({"type": "function", "function": Json::Object(fields.collect())})
}

#[cfg(test)]
mod tests;
