//! Cohere's embeddings and vLLM's generative scoring.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::engine::Engine;
use super::errors::EngineError;
use super::pooling::{count, embedding, texts, unit};
use super::request::{field, missing, token_ids};

/// What an embedding can be told as.
const EMBEDDING_TYPES: [&str; 4] = ["float", "binary", "ubinary", "base64"];

/// `POST /v2/embed`.
///
/// # Errors
/// No texts, or a type that does not exist.
pub(crate) fn embed(engine: &Engine, body: &Value) -> Result<String, EngineError> {
    let inputs = match (field(body, "texts"), field(body, "inputs")) {
        (Some(_), None) => texts(engine, body, "texts")?,
        (None, Some(inputs)) => texts_of_inputs(inputs)?,
        _ => return Err(one_of()),
    };
    let mut embeddings = Map::new();
    for kind in kinds(body)? {
        let told = inputs.iter().map(|text| told_as(&kind, &embedding(text))).collect::<Vec<_>>();
        embeddings.insert(kind, told.into());
    }
    let mut answer = json!({
        "id": format!("embd-{}", engine.fresh_id()),
        "embeddings": embeddings,
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"input_tokens": count(engine, &inputs)?, "image_tokens": 0},
        },
        "response_type": "embeddings_by_type",
    });
    if let Some(texts) = field(body, "texts") {
        answer["texts"] = texts.clone();
    }
    Ok(answer.to_string())
}

fn one_of() -> EngineError {
    let message = "Value error, Exactly one of texts, images, or inputs must be provided, and it must be non-empty";
    EngineError::validation("value_error", "body", message, "<dict>")
}

/// The texts of `inputs`: content blocks, put together.
fn texts_of_inputs(inputs: &Value) -> Result<Vec<String>, EngineError> {
    let block = |block: &Value| block.get("text").and_then(Value::as_str).map(str::to_owned);
    let input = |input: &Value| {
        let content = input.get("content").and_then(Value::as_array)?;
        content.iter().map(block).collect::<Option<String>>()
    };
    let inputs = inputs.as_array().filter(|inputs| !inputs.is_empty());
    let texts = inputs.and_then(|inputs| inputs.iter().map(input).collect());
    texts.ok_or_else(one_of)
}

fn kinds(body: &Value) -> Result<Vec<String>, EngineError> {
    let Some(asked) = field(body, "embedding_types").and_then(Value::as_array) else {
        return Ok(vec!["float".to_owned()]);
    };
    let known = |kind: &Value| {
        kind.as_str().filter(|kind| EMBEDDING_TYPES.contains(kind)).map(str::to_owned).ok_or_else(
            || {
                let message = "Input should be 'float', 'binary', 'ubinary' or 'base64'";
                let location = "body.embedding_types.0";
                EngineError::validation("literal_error", location, message, &kind.to_string())
            },
        )
    };
    asked.iter().map(known).collect()
}

/// One embedding as Cohere tells it: numbers, bits of their signs, or bytes of 32-bit floats.
fn told_as(kind: &str, numbers: &[f64]) -> Value {
    let bits = || {
        numbers.chunks(8).map(|byte| {
            let bit = |(place, number): (usize, &f64)| u8::from(*number >= 0.0) << (7 - place);
            byte.iter().enumerate().map(bit).fold(0u8, |byte, bit| byte | bit)
        })
    };
    match kind {
        "binary" => bits().map(|byte| i16::from(byte) - 128).collect::<Vec<_>>().into(),
        "ubinary" => bits().collect::<Vec<_>>().into(),
        "base64" => {
            let bytes = numbers.iter().flat_map(|number| (*number as f32).to_le_bytes());
            STANDARD.encode(bytes.collect::<Vec<_>>()).into()
        }
        _ => numbers.into(),
    }
}

/// The prompts of generative scoring: the query with each item behind or before it.
///
/// # Errors
/// A field that is missing or wrong.
pub(crate) fn prompts(engine: &Engine, body: &Value) -> Result<Vec<Vec<u32>>, EngineError> {
    let flag = |name: &str, otherwise: bool| {
        field(body, name).and_then(Value::as_bool).unwrap_or(otherwise)
    };
    let query = field(body, "query").ok_or_else(|| missing(body, "query"))?;
    let items = field(body, "items").and_then(Value::as_array);
    let items = items.ok_or_else(|| missing(body, "items"))?;
    let labels = field(body, "label_token_ids").and_then(token_ids);
    let labels = labels.ok_or_else(|| missing(body, "label_token_ids"))?;
    let size = engine.folder.vocabulary_size();
    if let Some(label) = labels.iter().find(|label| **label as usize >= size) {
        return Err(EngineError::unrenderable(format!(
            "label_token_id {label} is out of vocabulary range [0, {size}). Please provide valid \
             token IDs."
        )));
    }
    for (missing, what) in [(labels.is_empty(), "label_token_ids"), (items.is_empty(), "items")] {
        if missing {
            let one = if what == "items" { "item" } else { "token ID" };
            let message = format!("{what} must contain at least one {one}.");
            return Err(EngineError::unrenderable(message));
        }
    }
    let query = tokens(engine, query, "query", flag("add_special_tokens", true))?;
    let item_first = flag("item_first", false);
    let prompt = |item: &Value| {
        let item = tokens(engine, item, "items", false)?;
        Ok(if item_first { [item, query.clone()].concat() } else { [query.clone(), item].concat() })
    };
    items.iter().map(prompt).collect()
}

fn tokens(
    engine: &Engine,
    value: &Value,
    name: &str,
    special: bool,
) -> Result<Vec<u32>, EngineError> {
    match value {
        Value::String(text) => {
            let tokens = engine.folder.tokenize_text(text, special);
            tokens.map_err(|error| EngineError::unrenderable(error.to_string()))
        }
        ids => token_ids(ids).ok_or_else(|| {
            EngineError::bad_request(name, format!("{name} must be texts or lists of token ids"))
        }),
    }
}

/// What the first label got for each prompt, told apart by the prompts' seeds.
pub(crate) fn of(seeds: &[u64], body: &Value) -> Vec<f64> {
    let label = body["label_token_ids"][0].to_string();
    seeds.iter().map(|seed| unit(*seed, &label)).collect()
}
