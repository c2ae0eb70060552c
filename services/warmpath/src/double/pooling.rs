//! Embeddings, classes, rerank and score: the shapes of vLLM's pooling endpoints around numbers
//! that only depend on the text.

use domain::block::mix;
use serde_json::{Value, json};

use super::engine::{Engine, unix_seconds};
use super::errors::EngineError;
use super::request::{field, missing, text_tokens, token_ids};

/// Numbers in an embedding.
const DIMENSIONS: u64 = 16;
/// Inputs of one request: a bound, as everything has one.
const MAX_INPUTS: usize = 2048;

/// A number for a text or other bytes: FNV-1a, its bits spread.
pub(crate) fn digest(seed: u64, bytes: impl AsRef<[u8]>) -> u64 {
    mix(bytes.as_ref().iter().fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    }))
}

/// A number in 0 to 1 for a text.
pub(crate) fn unit(seed: u64, text: &str) -> f64 {
    (digest(seed, text) >> 11) as f64 / (1u64 << 53) as f64
}

pub(crate) fn embedding(text: &str) -> Vec<f64> {
    let raw: Vec<f64> = (1..=DIMENSIONS).map(|i| unit(i, text) * 2.0 - 1.0).collect();
    let length = raw.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
    raw.into_iter().map(|x| x / length).collect()
}

/// The texts of a field that holds one, several, or token ids.
pub(crate) fn texts(engine: &Engine, body: &Value, name: &str) -> Result<Vec<String>, EngineError> {
    let value = field(body, name).ok_or_else(|| missing(body, name))?;
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(parts) => parts.get("text")?.as_str().map(str::to_owned),
        _ => token_ids(value).map(|ids| engine.folder.decode(&ids)),
    };
    let texts = match value {
        Value::Array(items) if items.first().is_none_or(|item| !item.is_u64()) => {
            items.iter().map(text).collect()
        }
        one => text(one).map(|text| vec![text]),
    };
    let message = || format!("{name} must be a text, a list of texts, or token ids");
    let texts: Vec<String> = texts.ok_or_else(|| EngineError::bad_request(name, message()))?;
    if texts.is_empty() || texts.len() > MAX_INPUTS {
        let message = format!("{name} must hold 1 to {MAX_INPUTS} entries");
        return Err(EngineError::bad_request(name, message));
    }
    Ok(texts)
}

pub(crate) fn count(engine: &Engine, texts: &[String]) -> Result<usize, EngineError> {
    texts.iter().map(|text| Ok(text_tokens(engine, text)?.len())).sum()
}

fn usage(tokens: usize) -> Value {
    json!({
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": null,
    })
}

/// `POST /v1/embeddings`.
pub(crate) fn embeddings(engine: &Engine, body: &Value) -> Result<String, EngineError> {
    let inputs = texts(engine, body, "input")?;
    let tokens = count(engine, &inputs)?;
    let data = inputs.iter().enumerate().map(|(index, text)| {
        json!({"index": index, "object": "embedding", "embedding": embedding(text)})
    });
    Ok(json!({
        "id": format!("embd-{}", engine.fresh_id()),
        "object": "list",
        "created": unix_seconds(),
        "model": engine.config.model,
        "data": data.collect::<Vec<_>>(),
        "usage": usage(tokens),
    })
    .to_string())
}

/// `POST /v1/rerank`: documents by their relevance, the highest first.
pub(crate) fn rerank(engine: &Engine, body: &Value) -> Result<String, EngineError> {
    let query =
        field(body, "query").and_then(Value::as_str).ok_or_else(|| missing(body, "query"))?;
    let documents = texts(engine, body, "documents")?;
    let tokens = count(engine, &documents)? + text_tokens(engine, query)?.len() * documents.len();
    let seed = digest(0, query);
    let mut results: Vec<(f64, usize)> =
        documents.iter().map(|text| unit(seed, text)).zip(0..).collect();
    results.sort_by(|a, b| b.0.total_cmp(&a.0));
    let top = field(body, "top_n").and_then(Value::as_u64).filter(|n| *n > 0);
    results.truncate(top.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX));
    let results = results.iter().map(|&(relevance, index)| {
        json!({
            "index": index,
            "document": {"text": documents[index], "multi_modal": null},
            "relevance_score": relevance,
        })
    });
    Ok(json!({
        "id": format!("rerank-{}", engine.fresh_id()),
        "model": engine.config.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "results": results.collect::<Vec<_>>(),
    })
    .to_string())
}

/// `POST /v1/score`: one text against many, or pair by pair.
pub(crate) fn score(engine: &Engine, body: &Value) -> Result<String, EngineError> {
    let left = texts(engine, body, "text_1")?;
    let right = texts(engine, body, "text_2")?;
    if left.len() != 1 && left.len() != right.len() {
        let message = "Input lengths must be either 1:1, 1:N or N:N";
        return Err(EngineError::bad_request("text_1", message));
    }
    let tokens = count(engine, &left)? + count(engine, &right)?;
    let data = right.iter().enumerate().map(|(index, text)| {
        let seed = digest(0, left.get(index).unwrap_or(&left[0]));
        json!({"index": index, "object": "score", "score": unit(seed, text)})
    });
    Ok(json!({
        "id": format!("score-{}", engine.fresh_id()),
        "object": "list",
        "created": unix_seconds(),
        "model": engine.config.model,
        "data": data.collect::<Vec<_>>(),
        "usage": usage(tokens),
    })
    .to_string())
}

/// `POST /classify`: two classes.
pub(crate) fn classify(engine: &Engine, body: &Value) -> Result<String, EngineError> {
    let inputs = texts(engine, body, "input")?;
    let tokens = count(engine, &inputs)?;
    let data = inputs.iter().enumerate().map(|(index, text)| {
        let first = unit(0, text);
        let label = if first >= 0.5 { "LABEL_0" } else { "LABEL_1" };
        json!({"index": index, "label": label, "probs": [first, 1.0 - first], "num_classes": 2})
    });
    Ok(json!({
        "id": format!("classify-{}", engine.fresh_id()),
        "object": "list",
        "created": unix_seconds(),
        "model": engine.config.model,
        "data": data.collect::<Vec<_>>(),
        "usage": usage(tokens),
    })
    .to_string())
}

/// `POST /pooling`: what the model made of each text.
pub(crate) fn pooling(engine: &Engine, body: &Value) -> Result<String, EngineError> {
    let inputs = texts(engine, body, "input")?;
    let tokens = count(engine, &inputs)?;
    let data = inputs
        .iter()
        .enumerate()
        .map(|(index, text)| json!({"index": index, "object": "pooling", "data": embedding(text)}));
    Ok(json!({
        "id": format!("pool-{}", engine.fresh_id()),
        "object": "list",
        "created": unix_seconds(),
        "model": engine.config.model,
        "data": data.collect::<Vec<_>>(),
        "usage": usage(tokens),
    })
    .to_string())
}
