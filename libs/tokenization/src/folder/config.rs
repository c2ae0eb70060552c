//! `tokenizer_config.json`: the special tokens by name, and templates where they stand in it.

use minijinja::Value;
use serde_json::{Map, Value as Json};

/// What is read out of the file.
pub(super) struct TokenizerConfig {
    /// Name and text of each special token, as templates see them (`bos_token`).
    pub(super) special_tokens: Vec<(String, Value)>,
    /// Chat templates by name; of a lone one the name is `default`.
    pub(super) templates: Vec<(String, String)>,
}

impl TokenizerConfig {
    /// # Errors
    /// What is wrong, in one line.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let json: Json = serde_json::from_slice(bytes).map_err(|e| format!("is not JSON: {e}"))?;
        let fields = json.as_object().ok_or("is not an object")?;
        Ok(Self { special_tokens: special_tokens(fields)?, templates: templates(fields)? })
    }
}

/// Every `…_token` with a text, `additional_special_tokens`, and the named ones of
/// `extra_special_tokens`.
fn special_tokens(fields: &Map<String, Json>) -> Result<Vec<(String, Value)>, String> {
    let mut out = Vec::new();
    for (name, field) in fields {
        match name.as_str() {
            "extra_special_tokens" => {
                for (name, field) in field.as_object().into_iter().flatten() {
                    let token = token(name, field)?;
                    out.extend(token.map(|token| (name.clone(), Value::from(token))));
                }
            }
            "additional_special_tokens" => {
                let list = field.as_array().into_iter().flatten();
                let list = list.map(|field| token(name, field)).collect::<Result<Vec<_>, _>>()?;
                out.push((name.clone(), list.into_iter().flatten().map(Value::from).collect()));
            }
            // `add_bos_token` and its like are switches.
            _ if name.ends_with("_token") && !field.is_boolean() => {
                let token = token(name, field)?;
                out.extend(token.map(|token| (name.clone(), Value::from(token))));
            }
            _ => {}
        }
    }
    Ok(out)
}

/// A token as a string, or as an object with its `content`.
fn token<'a>(name: &str, field: &'a Json) -> Result<Option<&'a str>, String> {
    let content = if field.is_object() { &field["content"] } else { field };
    match content {
        Json::Null => Ok(None),
        Json::String(text) => Ok(Some(text)),
        _ => Err(format!("`{name}` is neither a string nor an object with `content`")),
    }
}

fn templates(fields: &Map<String, Json>) -> Result<Vec<(String, String)>, String> {
    match fields.get("chat_template") {
        None | Some(Json::Null) => Ok(Vec::new()),
        Some(Json::String(source)) => Ok(vec![("default".to_owned(), source.clone())]),
        Some(Json::Array(list)) => list
            .iter()
            .map(|entry| match (entry["name"].as_str(), entry["template"].as_str()) {
                (Some(name), Some(source)) => Ok((name.to_owned(), source.to_owned())),
                _ => Err("`chat_template` has an entry without `name` and `template`".to_owned()),
            })
            .collect(),
        Some(_) => Err("`chat_template` is neither a string nor a list".to_owned()),
    }
}
