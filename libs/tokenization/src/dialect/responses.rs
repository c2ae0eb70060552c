//! OpenAI's Responses.

use serde_json::{Map, Value as Json, json};

use super::{field, function_tool, text};

/// The chat that vLLM makes of a Responses body. `None` where the conversation goes on from a
/// response that the engine keeps.
pub fn chat_of_responses(body: &Json) -> Option<Json> {
    if field(body, "previous_response_id").is_some() {
        return None;
    }
    let mut messages = Vec::new();
    let instructions = text(body, "instructions").filter(|text| !text.is_empty());
    messages.extend(instructions.map(|text| json!({"role": "system", "content": text})));
    let mut goes_on = false;
    match body.get("input")? {
        Json::String(text) => messages.push(json!({"role": "user", "content": text})),
        Json::Array(items) => {
            // Items of one answer are put together; the instructions are no part of that.
            let from = messages.len();
            for item in items {
                add_item(item, from, &mut messages)?;
            }
            goes_on = items.last().is_some_and(is_unfinished);
        }
        _ => return None,
    }
    let mut chat = Map::new();
    chat.insert("messages".to_owned(), messages.into());
    if let Some(tools) = field(body, "tools") {
        chat.insert("tools".to_owned(), tools.as_array()?.iter().map(tool).collect::<Option<_>>()?);
    }
    if goes_on {
        chat.insert("add_generation_prompt".to_owned(), false.into());
        chat.insert("continue_final_message".to_owned(), true.into());
    }
    let choice = field(body, "tool_choice").filter(|choice| choice.is_string()).cloned();
    let effort = body.get("reasoning").and_then(|reasoning| field(reasoning, "effort")).cloned();
    let kwargs = field(body, "chat_template_kwargs").cloned();
    let given =
        [("tool_choice", choice), ("reasoning_effort", effort), ("chat_template_kwargs", kwargs)];
    chat.extend(given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    Some(Json::Object(chat))
}

/// Adds one item: a message, or a part of the assistant's message before it.
fn add_item(item: &Json, from: usize, messages: &mut Vec<Json>) -> Option<()> {
    match (text(item, "type"), text(item, "role")) {
        (Some("function_call"), _) => {
            let call = call(item)?;
            match open(messages, from) {
                Some(fields) => {
                    let calls = fields.entry("tool_calls").or_insert_with(|| json!([]));
                    calls.as_array_mut()?.push(call);
                }
                None => messages.push(json!({"role": "assistant", "tool_calls": [call]})),
            }
        }
        (Some("reasoning"), _) => add_part("reasoning", &reasoning(item)?, from, messages),
        (Some("function_call_output"), _) => {
            let (output, id) = (item.get("output")?, item.get("call_id")?);
            messages.push(json!({"role": "tool", "content": output, "tool_call_id": id}));
        }
        (None | Some("message"), Some("assistant")) => {
            let said = match item.get("content")? {
                Json::String(text) => text,
                Json::Array(parts) => text(parts.first()?, "text")?,
                _ => return None,
            };
            add_part("content", said, from, messages);
        }
        (None | Some("message"), Some(_)) => messages.push(item.clone()),
        _ => return None,
    }
    Some(())
}

/// The message before, if it is the assistant's and of the input.
fn open(messages: &mut [Json], from: usize) -> Option<&mut Map<String, Json>> {
    let last = messages.get_mut(from..)?.last_mut()?;
    last.as_object_mut().filter(|last| last.get("role").and_then(Json::as_str) == Some("assistant"))
}

/// Gives the open message of the assistant a part, or begins another if it has that part.
fn add_part(name: &str, said: &str, from: usize, messages: &mut Vec<Json>) {
    match open(messages, from).filter(|fields| fields.get(name).is_none_or(Json::is_null)) {
        Some(fields) => {
            fields.insert(name.to_owned(), said.into());
        }
        None => messages.push(json!({"role": "assistant", name: said})),
    }
}

fn call(item: &Json) -> Option<Json> {
    if field(item, "namespace").is_some() {
        return None;
    }
    let function = json!({"name": text(item, "name")?, "arguments": text(item, "arguments")?});
    Some(json!({"id": text(item, "call_id")?, "function": function, "type": "function"}))
}

fn reasoning(item: &Json) -> Option<String> {
    if field(item, "encrypted_content").is_some_and(|c| c.as_str() != Some("")) {
        return None;
    }
    let first = |name| field(item, name)?.as_array()?.first();
    match first("content").or_else(|| first("summary")) {
        None => Some(String::new()),
        Some(part) => text(part, "text").map(str::to_owned),
    }
}

/// Whether the answer is to go on from this last item.
fn is_unfinished(item: &Json) -> bool {
    matches!(text(item, "type").unwrap_or("message"), "message" | "reasoning")
        && matches!(text(item, "status"), Some("in_progress" | "incomplete"))
}

/// A tool of the client's. Those that the engine brings, and groups of tools, are not known here.
fn tool(tool: &Json) -> Option<Json> {
    if text(tool, "type") != Some("function") {
        return None;
    }
    let names = ["name", "description", "parameters", "strict", "defer_loading"];
    Some(function_tool(names.map(|name| (name, field(tool, name).cloned())).into()))
}
