//! Anthropic's Messages.

use serde_json::{Map, Value as Json, json};

use super::{Habits, field, function_tool, text};

/// Some coding agents send a line that changes at every request; vLLM leaves such texts out.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// The chat that vLLM makes of a Messages body.
pub fn chat_of_messages(body: &Json, habits: Habits) -> Option<Json> {
    let turns = body.get("messages")?.as_array()?;
    let mut messages = Vec::with_capacity(turns.len() + 1);
    let mut system = match field(body, "system") {
        None => String::new(),
        Some(Json::String(text)) => text.clone(),
        Some(Json::Array(blocks)) => texts_of(blocks),
        Some(_) => return None,
    };
    if habits.system_first {
        let inline = turns.iter().filter(|turn| text(turn, "role") == Some("system"));
        system.extend(inline.filter_map(|turn| system_text(turn.get("content")?)));
    }
    if !system.is_empty() {
        messages.push(json!({"role": "system", "content": system}));
    }
    for turn in turns {
        add_turn(turn, habits, &mut messages)?;
    }
    let mut chat = Map::new();
    chat.insert("messages".to_owned(), messages.into());
    if let Some(tools) = tools(body, turns)? {
        chat.insert("tools".to_owned(), tools);
    }
    if let Some("none") = body.get("tool_choice").and_then(|choice| text(choice, "type")) {
        chat.insert("tool_choice".to_owned(), "none".into());
    }
    let off = body.get("thinking").and_then(|thinking| text(thinking, "type")) == Some("disabled");
    let effort = body.get("output_config").and_then(|config| field(config, "effort")).cloned();
    let effort = if off { Some(habits.disabled_thinking.into()) } else { effort };
    let kwargs = field(body, "chat_template_kwargs").cloned();
    let given = [("reasoning_effort", effort), ("chat_template_kwargs", kwargs)];
    chat.extend(given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    Some(Json::Object(chat))
}

/// The text blocks of a system prompt, one behind the other.
fn texts_of(blocks: &[Json]) -> String {
    let texts = blocks.iter().filter(|block| text(block, "type") == Some("text"));
    let texts = texts.filter_map(|block| text(block, "text"));
    texts.filter(|text| !text.starts_with(BILLING_HEADER)).collect()
}

/// The text of a system message between the turns, if there is any.
fn system_text(content: &Json) -> Option<String> {
    let text = match content {
        Json::String(text) if text.starts_with(BILLING_HEADER) => return None,
        Json::String(text) => text.clone(),
        Json::Array(blocks) => texts_of(blocks),
        _ => return None,
    };
    Some(text).filter(|text| !text.is_empty())
}

fn add_turn(turn: &Json, habits: Habits, messages: &mut Vec<Json>) -> Option<()> {
    let (role, content) = (text(turn, "role")?, turn.get("content")?);
    if role == "system" {
        if !habits.system_first
            && let Some(text) = system_text(content)
        {
            messages.push(json!({"role": role, "content": text}));
        }
        return Some(());
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), role.into());
    match content {
        Json::String(_) => {
            message.insert("content".to_owned(), content.clone());
        }
        Json::Array(blocks) => {
            let mut turn = Turn::default();
            for block in blocks {
                turn.add(block, role, messages)?;
            }
            turn.into_message(&mut message);
        }
        _ => return None,
    }
    // A user's turn of results alone has become messages of its own.
    if role != "user" || message.contains_key("content") {
        messages.push(Json::Object(message));
    }
    Some(())
}

/// The blocks of one turn, sorted.
#[derive(Default)]
struct Turn {
    parts: Vec<Json>,
    calls: Vec<Json>,
    reasoning: Option<String>,
}

impl Turn {
    /// Adds a block; results of tools become messages before the turn's own.
    fn add(&mut self, block: &Json, role: &str, messages: &mut Vec<Json>) -> Option<()> {
        match text(block, "type")? {
            "text" => {
                let text = text(block, "text").filter(|text| !text.is_empty());
                self.parts.extend(text.map(|text| json!({"type": "text", "text": text})));
            }
            "image" => self.parts.extend(field(block, "source").map(image)),
            "thinking" => {
                if let Some(thought) = text(block, "thinking") {
                    self.reasoning.get_or_insert_default().push_str(thought);
                }
            }
            "tool_use" => self.calls.push(call(block)),
            "tool_result" if role == "user" => add_result(block, messages)?,
            "tool_result" => {
                let result = match field(block, "content") {
                    None => "",
                    Some(Json::String(text)) => text,
                    // Printed as Python prints it.
                    Some(_) => return None,
                };
                let text = format!("Tool result: {result}");
                self.parts.push(json!({"type": "text", "text": text}));
            }
            "redacted_thinking" | "tool_reference" => {}
            _ => return None,
        }
        Some(())
    }

    fn into_message(self, message: &mut Map<String, Json>) {
        if let Some(reasoning) = self.reasoning {
            message.insert("reasoning".to_owned(), reasoning.into());
        }
        if !self.calls.is_empty() {
            message.insert("tool_calls".to_owned(), self.calls.into());
        }
        let content = match self.parts.as_slice() {
            [] => return,
            [only] if text(only, "type") == Some("text") => only["text"].clone(),
            _ => Json::Array(self.parts),
        };
        message.insert("content".to_owned(), content);
    }
}

/// A call with its members in the order that the engine prints them in.
fn call(block: &Json) -> Json {
    let input = field(block, "input").cloned().unwrap_or_else(|| json!({}));
    json!({
        "id": text(block, "id").unwrap_or_default(),
        "function": {"arguments": input, "name": text(block, "name").unwrap_or_default()},
        "type": "function",
    })
}

/// Only that there is an image matters: keys end before it.
fn image(source: &Json) -> Json {
    json!({"type": "image_url", "image_url": {"url": source.get("url")}})
}

/// The result of a tool call: a tool's message, and another for what a tool's message cannot hold.
fn add_result(block: &Json, messages: &mut Vec<Json>) -> Option<()> {
    let id = text(block, "tool_use_id").unwrap_or_default();
    let (mut texts, mut images, mut references) = (Vec::new(), Vec::new(), Vec::new());
    match field(block, "content") {
        None => {}
        Some(Json::String(text)) => texts.push(text.as_str()),
        Some(Json::Array(items)) => {
            for item in items {
                match text(item, "type") {
                    Some("text") => texts.push(text(item, "text").unwrap_or_default()),
                    Some("image") => images.push(image(item.get("source")?)),
                    Some("tool_reference") => {
                        let name = text(item, "tool_name").or_else(|| text(item, "name"));
                        let name = name.filter(|name| !name.is_empty());
                        let reference = |name| json!({"type": "tool_reference", "name": name});
                        references.extend(name.map(reference));
                    }
                    _ => {}
                }
            }
        }
        Some(_) => return None,
    }
    let tool = |content: Json| json!({"role": "tool", "tool_call_id": id, "content": content});
    messages.push(tool(texts.join("\n").into()));
    if !images.is_empty() {
        messages.push(json!({"role": "user", "content": images}));
    }
    if !references.is_empty() {
        messages.push(tool(references.into()));
    }
    Some(())
}

/// The tools in effect at the end of the conversation. The outer `None`: the engine refuses them.
fn tools(body: &Json, turns: &[Json]) -> Option<Option<Json>> {
    let declared = match field(body, "tools") {
        None => None,
        Some(tools) => Some(tools.as_array()?),
    };
    let blocks = turns.iter().filter_map(|turn| turn.get("content")?.as_array()).flatten();
    let mut changes = blocks
        .filter(|block| matches!(text(block, "type"), Some("tool_addition" | "tool_removal")))
        .peekable();
    if changes.peek().is_none() {
        return Some(declared.map(|tools| tools.iter().map(tool).collect()));
    }
    let mut tools: Vec<(&str, Json, bool)> = Vec::new();
    for tool in declared.into_iter().flatten() {
        put(&mut tools, tool)?;
    }
    for change in changes {
        let added = text(change, "type") == Some("tool_addition");
        let what = change.get("tool")?;
        if let Some(definition) = what.get("definition") {
            put(&mut tools, definition)?;
            continue;
        }
        let name = text(what, "name")?;
        let (_, tool, present) = tools.iter_mut().find(|(known, ..)| *known == name)?;
        *present = added;
        if let (true, Some(fields)) = (added, tool.as_object_mut()) {
            fields.shift_remove("defer_loading");
        }
    }
    let present = tools.into_iter().filter(|(_, _, present)| *present);
    Some(Some(present.map(|(_, definition, _)| tool(&definition)).collect()))
}

/// Declares a tool; one of the same name is replaced where it stands.
fn put<'a>(tools: &mut Vec<(&'a str, Json, bool)>, tool: &'a Json) -> Option<()> {
    let name = text(tool, "name")?;
    match tools.iter_mut().find(|(known, ..)| *known == name) {
        Some((_, known, present)) => (*known, *present) = (tool.clone(), true),
        None => tools.push((name, tool.clone(), true)),
    }
    Some(())
}

fn tool(tool: &Json) -> Json {
    let mut schema = field(tool, "input_schema").cloned();
    if let Some(Json::Object(schema)) = &mut schema {
        schema.entry("type").or_insert_with(|| "object".into());
    }
    let given = |name| field(tool, name).cloned();
    function_tool(vec![
        ("name", given("name")),
        ("description", given("description")),
        ("parameters", schema),
        ("strict", given("strict")),
        ("defer_loading", given("defer_loading")),
    ])
}
