//! What vLLM makes of messages and tools before a template sees them.
//!
//! Messages are rebuilt from their known fields: the role, the content (a string, or a list of
//! parts where the template wants one), an assistant's tool calls with their arguments parsed,
//! its reasoning under the names that templates use, the id of the call a tool answers, the
//! name. Tools are written out with their fields in the order of the API's schema. Unknown roles
//! pass as they are. (Checked against vLLM 0.32.)

use std::borrow::Cow;

use indexmap::IndexMap;
use minijinja::Value;
use serde_json::{Map, Value as Json};

use super::ChatRequest;
use crate::error::RenderError;
use crate::template::{ContentFormat, Traits};

/// Stands in the rendered text where the first part that is not text would be. Private-use
/// characters: no client's text holds them by accident, and if it does, keys end early.
pub(crate) const PART_MARK: &str = "\u{f8f0}\u{f8f7}part\u{f8f7}\u{f8f0}";

/// Ends the final message when it is to be continued; cut off again after rendering. The
/// trailing space shows whether the template trims.
pub(crate) const CONTINUE_MARK: &str = "\u{f8f1}\u{f8f7}continue\u{f8f7}\u{f8f1} ";

/// Names under which reasoning may stand in a message.
const REASONING: [&str; 2] = ["reasoning", "reasoning_content"];

/// Whether `message` holds a part that is not text.
pub(crate) fn has_non_text(message: &Json) -> bool {
    let parts = message.get("content").and_then(Json::as_array);
    parts.is_some_and(|parts| parts.iter().any(|part| matches!(read(part), Part::Other)))
}

/// All messages of a request, as the template's `messages`.
pub(crate) fn conversation(
    request: &ChatRequest<'_>,
    traits: Traits,
) -> Result<Value, RenderError> {
    let last = request.messages.len().saturating_sub(1);
    let mut seen_other = false;
    let mut drafts = Vec::with_capacity(request.messages.len());
    for (at, message) in request.messages.iter().enumerate() {
        let fields = message.as_object().ok_or_else(super::not_messages)?;
        let mut draft = Draft::read(fields, traits.format, &mut seen_other);
        if request.continue_final_message && at == last {
            draft.content.append(CONTINUE_MARK)?;
        }
        drafts.push(draft);
    }
    if !traits.developer && drafts.iter().any(|draft| draft.role == "developer") {
        drafts = developer_to_system(drafts);
    }
    Ok(drafts.into_iter().map(Draft::into_value).collect())
}

/// A message on its way to the template.
struct Draft<'a> {
    role: &'a str,
    content: Content<'a>,
    /// The client's fields; `None` for a message made of several.
    fields: Option<&'a Map<String, Json>>,
}

enum Content<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<Cow<'a, str>>),
}

impl<'a> Draft<'a> {
    fn read(fields: &'a Map<String, Json>, format: ContentFormat, seen_other: &mut bool) -> Self {
        let role = fields.get("role").and_then(Json::as_str).unwrap_or_default();
        let (mut texts, has_other) = texts(fields.get("content"), seen_other);
        if role == "system" {
            texts = texts.into_iter().filter_map(without_billing_header).collect();
        }
        // Tool results become one string even where other contents are lists.
        let joined = format == ContentFormat::String || (role == "tool" && !has_other);
        let content = match (joined, has_other) {
            (false, _) => Content::Parts(texts.into_iter().map(Cow::Borrowed).collect()),
            // Engines put the placeholders of other parts before the text of a string content.
            (true, true) => {
                texts.retain(|text| !text.is_empty() && *text != PART_MARK);
                texts.insert(0, PART_MARK);
                Content::Text(texts.join("\n").into())
            }
            (true, false) => {
                if format == ContentFormat::String {
                    texts.retain(|text| !text.is_empty());
                }
                match texts.as_slice() {
                    [text] => Content::Text(Cow::Borrowed(*text)),
                    texts => Content::Text(texts.join("\n").into()),
                }
            }
        };
        Self { role, content, fields: Some(fields) }
    }

    fn into_value(self) -> Value {
        let mut out = Vec::with_capacity(8);
        let mut set = |name: &str, value: Value| out.push((Value::from(name), value));
        let empty = Map::new();
        let fields = self.fields.unwrap_or(&empty);
        let reasoning = (self.role == "assistant")
            .then(|| REASONING.iter().find_map(|name| fields.get(*name).filter(|v| !v.is_null())))
            .flatten()
            .map(value);
        if let Some(reasoning) = &reasoning {
            set("thinking", reasoning.clone());
        }
        set("role", Value::from(self.role));
        set("content", self.content.into_value());
        match self.role {
            "assistant" => {
                let calls = fields.get("tool_calls").and_then(Json::as_array);
                if let Some(calls) = calls.filter(|calls| !calls.is_empty()) {
                    set("tool_calls", calls.iter().map(tool_call).collect());
                }
                if let Some(reasoning) = reasoning {
                    set("reasoning", reasoning.clone());
                    set("reasoning_content", reasoning);
                }
            }
            "tool" => {
                if let Some(id) = fields.get("tool_call_id") {
                    set("tool_call_id", value(id));
                }
            }
            "developer" => set("tools", fields.get("tools").map_or(Value::from(()), value)),
            _ => {}
        }
        for name in ["name", "task"] {
            if let Some(text) = fields.get(name).and_then(Json::as_str) {
                set(name, Value::from(text));
            }
        }
        map(out)
    }
}

impl Content<'_> {
    fn append(&mut self, suffix: &str) -> Result<(), RenderError> {
        match self {
            Self::Text(text) => text.to_mut().push_str(suffix),
            Self::Parts(parts) => match parts.last_mut() {
                Some(part) => part.to_mut().push_str(suffix),
                None => {
                    return Err(RenderError::Body {
                        field: "continue_final_message",
                        reason: "needs text in the last message",
                    });
                }
            },
        }
        Ok(())
    }

    fn into_value(self) -> Value {
        match self {
            Self::Text(text) => Value::from(text),
            Self::Parts(parts) => parts
                .into_iter()
                .map(|text| {
                    map(vec![
                        (Value::from("type"), Value::from("text")),
                        (Value::from("text"), Value::from(text)),
                    ])
                })
                .collect(),
        }
    }
}

/// The texts of a content, with [`PART_MARK`] for the first part of the conversation that is not
/// text; whether it was in here.
fn texts<'a>(content: Option<&'a Json>, seen_other: &mut bool) -> (Vec<&'a str>, bool) {
    let mut has_other = false;
    let texts = match content {
        Some(Json::String(text)) => vec![text.as_str()],
        Some(Json::Array(parts)) => parts
            .iter()
            .filter_map(|part| match read(part) {
                Part::Text(text) => Some(text),
                Part::Nothing => None,
                Part::Other if *seen_other => None,
                Part::Other => {
                    (*seen_other, has_other) = (true, true);
                    Some(PART_MARK)
                }
            })
            .collect(),
        _ => Vec::new(),
    };
    (texts, has_other)
}

/// Some coding agents begin their system text with a line that changes at every request. vLLM
/// drops it, since no prefix would ever match behind it.
fn without_billing_header(text: &str) -> Option<&str> {
    if !text.starts_with("x-anthropic-billing-header") {
        return Some(text);
    }
    text.split_once('\n').map(|(_, rest)| rest).filter(|rest| !rest.is_empty())
}

/// A template that does not name the role `developer` gets such messages as `system` ones, and
/// all system messages as one at the front if they would stand elsewhere.
fn developer_to_system(mut drafts: Vec<Draft<'_>>) -> Vec<Draft<'_>> {
    for draft in &mut drafts {
        if draft.role == "developer" {
            draft.role = "system";
        }
    }
    if !drafts.iter().skip(1).any(|draft| draft.role == "system") {
        return drafts;
    }
    let (system, rest): (Vec<_>, Vec<_>) =
        drafts.into_iter().partition(|draft| draft.role == "system");
    let texts: Vec<String> = system
        .into_iter()
        .map(|draft| match draft.content {
            Content::Text(text) => text.into_owned(),
            Content::Parts(parts) => parts.join("\n"),
        })
        .filter(|text| !text.is_empty())
        .collect();
    let content = Content::Text(texts.join("\n\n").into());
    std::iter::once(Draft { role: "system", content, fields: None }).chain(rest).collect()
}

enum Part<'a> {
    Text(&'a str),
    Nothing,
    Other,
}

/// One part of a content list. The field that holds the text differs by type.
fn read(part: &Json) -> Part<'_> {
    if let Some(text) = part.as_str() {
        return Part::Text(text);
    }
    let field = match part.get("type").and_then(Json::as_str) {
        Some("text" | "input_text" | "output_text") => "text",
        Some("refusal") => "refusal",
        Some("thinking") => "thinking",
        _ => return Part::Other,
    };
    match part.get(field) {
        Some(Json::String(text)) => Part::Text(text),
        None | Some(Json::Null) => Part::Nothing,
        Some(_) => Part::Other,
    }
}

/// A tool call with its arguments parsed. What does not parse to an object becomes an empty one:
/// a broken call in the history must not end the conversation.
fn tool_call(call: &Json) -> Value {
    let Some(fields) = call.as_object() else { return value(call) };
    let fields = fields.iter().map(|(name, field)| {
        let field = match (name.as_str(), field.as_object()) {
            ("function", Some(function)) => function_call(function),
            _ => value(field),
        };
        (Value::from(name.as_str()), field)
    });
    map(fields.collect())
}

fn function_call(function: &Map<String, Json>) -> Value {
    let mut fields: Vec<(Value, Value)> = Vec::with_capacity(function.len() + 1);
    for (name, field) in function.iter().filter(|(name, _)| *name != "arguments") {
        fields.push((Value::from(name.as_str()), value(field)));
    }
    let parsed;
    let arguments = match function.get("arguments") {
        Some(Json::String(text)) => {
            parsed = serde_json::from_str::<Json>(text).unwrap_or(Json::Null);
            &parsed
        }
        Some(other) => other,
        None => &Json::Null,
    };
    let arguments = if arguments.is_object() { value(arguments) } else { map(Vec::new()) };
    // Its place among the fields: where the client wrote it, or last.
    let at = function.keys().position(|name| name == "arguments").unwrap_or(fields.len());
    fields.insert(at, (Value::from("arguments"), arguments));
    map(fields)
}

/// The template's `tools`: the fields of the API's schema in its order, others dropped. The
/// first three of a function are there even when the client left them out; the rest only when
/// set.
pub(crate) fn tools(tools: &[Json]) -> Value {
    tools.iter().map(tool).collect()
}

fn tool(tool: &Json) -> Value {
    let Some(function) = tool.get("function").and_then(Json::as_object) else { return value(tool) };
    let set = |fields: &Map<String, Json>, name: &str| {
        fields.get(name).filter(|v| !v.is_null()).map(|v| (Value::from(name), value(v)))
    };
    let null = |name: &str| (Value::from(name), Value::from(()));
    let mut out: Vec<_> = ["name", "description", "parameters"]
        .iter()
        .map(|name| set(function, name).unwrap_or_else(|| null(name)))
        .collect();
    out.extend(["strict", "defer_loading"].iter().filter_map(|name| set(function, name)));
    let kind = tool.get("type").map_or_else(|| Value::from("function"), value);
    map(vec![(Value::from("type"), kind), (Value::from("function"), map(out))])
}

/// A JSON value as the template engine's. Object keys keep their order.
pub(crate) fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Value::from(n),
            (_, Some(n)) => Value::from(n),
            _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(value).collect(),
        Json::Object(fields) => {
            map(fields.iter().map(|(k, v)| (Value::from(k.as_str()), value(v))).collect())
        }
    }
}

/// A map with its keys in the given order; of equal keys the last value counts.
pub(crate) fn map(entries: Vec<(Value, Value)>) -> Value {
    Value::from_object(entries.into_iter().collect::<IndexMap<Value, Value>>())
}
