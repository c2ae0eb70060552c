//! Inference requests as the engine reads them: fields, prompts as tokens, jobs for the model.

use domain::ModelId;
use serde_json::Value;
use tokenization::{ChatRequest, KeySpace, chat_of_messages, chat_of_responses};

use super::core::Job;
use super::engine::Engine;
use super::errors::EngineError;
use super::kept::Conversation;
use super::wire::ToolCall;

/// Sequences that one request may ask for, prompts × choices: a bound, as everything has one.
const MAX_SEQUENCES: usize = 256;

/// Which of the generating endpoints is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
    /// `/v1/chat/completions/batch`.
    Batch,
    /// `/v1/messages`.
    Messages,
    /// `/v1/responses`.
    Responses,
    /// `/inference/v1/generate`.
    Generate,
    /// `/cohere/v2/chat`.
    Cohere,
    /// `/generative_scoring`.
    Scoring,
}

/// What kind of answer is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
}

/// A request that the model can take.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) delivery: Delivery,
    /// The model or adapter.
    pub(crate) model: String,
    /// One for each prompt and choice, prompt by prompt.
    pub(crate) jobs: Vec<Job>,
    /// The seed of each sequence's text.
    pub(crate) seeds: Vec<u64>,
    /// Choices of each prompt.
    pub(crate) choices: usize,
    /// What is said instead of text.
    pub(crate) tool: Option<ToolCall>,
}

/// The whole parsed body, an object.
///
/// # Errors
/// An empty body, no JSON, or no object.
pub(crate) fn parse(body: &[u8]) -> Result<Value, EngineError> {
    if body.is_empty() {
        return Err(EngineError::validation("missing", "body", "Field required", "None"));
    }
    let value: Value = serde_json::from_slice(body).map_err(|error| {
        let location = format!("body.{}", error.column());
        EngineError::validation("json_invalid", &location, "JSON decode error", "<dict of 0 items>")
    })?;
    if !value.is_object() {
        let message = "Input should be a valid dictionary";
        return Err(EngineError::validation("dict_type", "body", message, "<not a dict>"));
    }
    Ok(value)
}

/// A field that is there and not null.
pub(crate) fn field<'a>(body: &'a Value, name: &str) -> Option<&'a Value> {
    body.get(name).filter(|value| !value.is_null())
}

/// The error for a required field that is not there.
pub(crate) fn missing(body: &Value, name: &str) -> EngineError {
    let input = format!("<dict of {} items>", body.as_object().map_or(0, serde_json::Map::len));
    EngineError::validation("missing", &format!("body.{name}"), "Field required", &input)
}

fn flag(body: &Value, name: &str) -> Result<bool, EngineError> {
    let Some(value) = field(body, name) else { return Ok(false) };
    value.as_bool().ok_or_else(|| {
        let message = "Input should be a valid boolean, unable to interpret input";
        EngineError::validation("bool_parsing", &format!("body.{name}"), message, &plain(value))
    })
}

/// An integer field; strings that hold one are taken, as pydantic takes them.
fn integer(body: &Value, name: &str) -> Result<Option<i64>, EngineError> {
    let Some(value) = field(body, name) else { return Ok(None) };
    let text = value.as_str().and_then(|text| text.trim().parse().ok());
    value.as_i64().or(text).map(Some).ok_or_else(|| {
        let message = "Input should be a valid integer, unable to parse string as an integer";
        EngineError::validation("int_parsing", &format!("body.{name}"), message, &plain(value))
    })
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Whether the request names a model that this engine serves. None is taken as the model itself.
pub(crate) fn check_model(body: &Value, engine: &Engine) -> Result<(), EngineError> {
    match field(body, "model").map(plain) {
        Some(asked) if engine.served(&asked).is_none() => {
            Err(EngineError::unknown_model(&asked, &engine.config.model))
        }
        _ => Ok(()),
    }
}

/// The name that the request asked for and an answer gives back.
pub(crate) fn asked_model(body: &Value, engine: &Engine) -> String {
    field(body, "model").map_or_else(|| engine.config.model.clone(), plain)
}

/// The tokens of a chat body's prompt.
///
/// # Errors
/// Messages that are missing or cannot be rendered.
pub(crate) fn chat_tokens(engine: &Engine, body: &Value) -> Result<Vec<u32>, EngineError> {
    let messages = field(body, "messages").ok_or_else(|| missing(body, "messages"))?;
    let Some(messages) = messages.as_array() else {
        let message = "Input should be a valid list";
        let input = plain(messages);
        return Err(EngineError::validation("list_type", "body.messages", message, &input));
    };
    if messages.is_empty() {
        return Err(EngineError::empty_conversation());
    }
    let unrenderable =
        |error: tokenization::RenderError| EngineError::unrenderable(error.to_string());
    let chat = ChatRequest::from_body(body).map_err(unrenderable)?;
    if chat.has_non_text() {
        return Err(EngineError::unrenderable("At most 0 image(s) may be provided in one prompt."));
    }
    Ok(engine.folder.tokenize_chat(&chat).map_err(unrenderable)?.tokens)
}

/// The tokens of each prompt of a body; a chat has one.
///
/// # Errors
/// A prompt that is missing, of a wrong shape, or cannot be rendered.
pub(crate) fn prompts(
    engine: &Engine,
    dialect: Dialect,
    body: &Value,
) -> Result<Vec<Vec<u32>>, EngineError> {
    match dialect {
        Dialect::Chat | Dialect::Cohere => Ok(vec![chat_tokens(engine, body)?]),
        Dialect::Completion => completion_tokens(engine, body),
        Dialect::Batch => {
            let lists = field(body, "messages").and_then(Value::as_array);
            let lists = lists.ok_or_else(|| missing(body, "messages"))?;
            let chat = |messages: &Value| {
                let mut chat = body.clone();
                chat["messages"] = messages.clone();
                chat_tokens(engine, &chat)
            };
            lists.iter().map(chat).collect()
        }
        Dialect::Messages => {
            field(body, "messages").ok_or_else(|| missing(body, "messages"))?;
            let chat = chat_of_messages(body, engine.folder.habits());
            Ok(vec![chat_tokens(engine, &chat.ok_or_else(not_understood)?)?])
        }
        Dialect::Responses => {
            let (chat, _) = response_chat(engine, body)?;
            Ok(vec![chat_tokens(engine, &chat)?])
        }
        Dialect::Generate => {
            let ids = field(body, "token_ids").ok_or_else(|| missing(body, "token_ids"))?;
            Ok(vec![token_ids(ids).ok_or_else(not_understood)?])
        }
        Dialect::Scoring => super::scores::prompts(engine, body),
    }
}

fn not_understood() -> EngineError {
    EngineError::unrenderable("the prompt has a part that cannot be rendered")
}

/// The chat that a Responses body stands for, with the conversation that it goes on from, and what
/// is to be kept of it.
///
/// # Errors
/// A body that cannot be rendered, or goes on from a response that is not kept here.
pub(crate) fn response_chat(
    engine: &Engine,
    body: &Value,
) -> Result<(Value, Conversation), EngineError> {
    field(body, "input").ok_or_else(|| missing(body, "input"))?;
    let mut own = body.clone();
    let previous = own.as_object_mut().and_then(|own| own.remove("previous_response_id"));
    let mut chat = chat_of_responses(&own).ok_or_else(not_understood)?;
    let messages = chat["messages"].as_array().cloned().unwrap_or_default();
    let (system, new): (Vec<_>, Vec<_>) =
        messages.into_iter().partition(|message| message["role"] == "system");
    let mut conversation = match previous.as_ref().and_then(Value::as_str) {
        None => Conversation::default(),
        Some(id) => {
            engine.kept.conversation(id).ok_or_else(|| EngineError::unknown_response(id))?
        }
    };
    conversation.0.extend(new);
    chat["messages"] = system.into_iter().chain(conversation.0.iter().cloned()).collect();
    Ok((chat, conversation))
}

/// The tokens of each prompt of a completion body.
fn completion_tokens(engine: &Engine, body: &Value) -> Result<Vec<Vec<u32>>, EngineError> {
    let prompt = field(body, "prompt").ok_or_else(|| missing(body, "prompt"))?;
    let wrong = || {
        EngineError::bad_request(
            "prompt",
            "prompt must be a string, a list of strings, a list of token ids, or a list of those",
        )
    };
    match prompt {
        Value::String(text) => Ok(vec![text_tokens(engine, text)?]),
        Value::Array(items) if items.first().is_some_and(Value::is_u64) => {
            Ok(vec![token_ids(prompt).ok_or_else(wrong)?])
        }
        Value::Array(items) if !items.is_empty() => items
            .iter()
            .map(|item| match item {
                Value::String(text) => text_tokens(engine, text),
                _ => token_ids(item).ok_or_else(wrong),
            })
            .collect(),
        _ => Err(wrong()),
    }
}

/// The tokens of a plain text.
pub(crate) fn text_tokens(engine: &Engine, text: &str) -> Result<Vec<u32>, EngineError> {
    let tokens = engine.folder.tokenize_text(text, true);
    tokens.map_err(|error| EngineError::unrenderable(error.to_string()))
}

/// A list of token ids.
pub(crate) fn token_ids(value: &Value) -> Option<Vec<u32>> {
    let id = |item: &Value| item.as_u64().and_then(|id| u32::try_from(id).ok());
    value.as_array()?.iter().map(id).collect()
}

impl Generation {
    /// Reads a body of the given endpoint.
    ///
    /// # Errors
    /// What vLLM refuses, in its words.
    pub(crate) fn read(
        engine: &Engine,
        dialect: Dialect,
        body: &Value,
    ) -> Result<Self, EngineError> {
        let delivery = delivery(dialect, body)?;
        let one = matches!(dialect, Dialect::Generate | Dialect::Scoring);
        let choices = if one { 1 } else { choices(body)? };
        let limit = output_limit(engine, dialect, body)?;
        check_temperature(body)?;
        let prompts = prompts(engine, dialect, body)?;
        if prompts.len() * choices > MAX_SEQUENCES {
            let message = format!("at most {MAX_SEQUENCES} prompts times choices in one request");
            return Err(EngineError::bad_request("n", message));
        }
        let salt = field(body, "cache_salt").and_then(Value::as_str);
        let name = asked_model(body, engine);
        let unknown = || EngineError::unknown_model(&name, &engine.config.model);
        let (model, adapter) = engine.served(&name).ok_or_else(unknown)?;
        let keys = KeySpace::new(KEY_SECRET, model, adapter.map(ModelId::as_str), salt);
        let (jobs, seeds) = (Vec::new(), Vec::new());
        let tool = if dialect == Dialect::Chat { ToolCall::demanded(body) } else { None };
        let mut generation = Self { delivery, model: name, jobs, seeds, choices, tool };
        for prompt in prompts {
            let output = output_tokens(engine, prompt.len(), limit)?;
            generation.add(engine, &keys, prompt, output);
        }
        Ok(generation)
    }

    fn add(&mut self, engine: &Engine, keys: &KeySpace, mut tokens: Vec<u32>, output: u32) {
        let prompt_tokens = tokens.len();
        let block_size = engine.config.engine.block_size;
        // The same prompt gets the same answer, as with a temperature of zero.
        let last = keys.keys(&tokens, prompt_tokens as u32).last().map_or(0, |key| key.0);
        for choice in 0..self.choices {
            let seed = last ^ choice as u64;
            tokens.truncate(prompt_tokens);
            // The last output token never gets KV.
            let words = (0..output - 1).map(|i| engine.vocabulary.word(seed, i).token);
            tokens.extend(words);
            let block_hashes = keys.keys(&tokens, block_size).iter().map(|key| key.0).collect();
            self.seeds.push(seed);
            self.jobs.push(Job {
                block_hashes,
                prompt_tokens: prompt_tokens as u32,
                max_output_tokens: output,
            });
        }
    }
}

/// Block hashes are the engine's own business: any fixed secret will do.
const KEY_SECRET: &[u8] = b"engine";

fn delivery(dialect: Dialect, body: &Value) -> Result<Delivery, EngineError> {
    if dialect == Dialect::Scoring {
        return Ok(Delivery::default());
    }
    let stream = flag(body, "stream")?;
    if matches!(dialect, Dialect::Messages | Dialect::Responses | Dialect::Cohere) {
        // Their streams always tell usage.
        return Ok(Delivery { stream, include_usage: true, continuous_usage: true });
    }
    if stream && dialect == Dialect::Batch {
        let message = "Streaming is not supported for batch chat completions.";
        return Err(EngineError::bad_request("stream", message));
    }
    let Some(options) = field(body, "stream_options") else {
        return Ok(Delivery { stream, ..Delivery::default() });
    };
    if !stream {
        return Err(EngineError::bad_request(
            "stream_options",
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
        ));
    }
    let include_usage = flag(options, "include_usage")?;
    // vLLM heeds it only together with `include_usage`.
    let continuous_usage = include_usage && flag(options, "continuous_usage_stats")?;
    Ok(Delivery { stream, include_usage, continuous_usage })
}

fn choices(body: &Value) -> Result<usize, EngineError> {
    let n = integer(body, "n")?.unwrap_or(1);
    usize::try_from(n).ok().filter(|n| (1..=MAX_SEQUENCES).contains(n)).ok_or_else(|| {
        let bound =
            if n < 1 { "at least 1".to_owned() } else { format!("at most {MAX_SEQUENCES}") };
        EngineError::bad_request(
            "n",
            format!("n must be {bound}, got {n}. (parameter=n, value={n})"),
        )
    })
}

fn check_temperature(body: &Value) -> Result<(), EngineError> {
    match field(body, "temperature").and_then(Value::as_f64) {
        Some(value) if value < 0.0 => Err(EngineError::bad_request(
            "temperature",
            format!(
                "temperature must be non-negative, got {value:?}. \
                 (parameter=temperature, value={value:?})"
            ),
        )),
        _ => Ok(()),
    }
}

/// The client's limit of output tokens, if it set one.
fn output_limit(
    engine: &Engine,
    dialect: Dialect,
    body: &Value,
) -> Result<Option<u32>, EngineError> {
    let sampling = field(body, "sampling_params");
    let body = sampling.filter(|_| dialect == Dialect::Generate).unwrap_or(body);
    let name = match dialect {
        // It reads the probabilities of one token.
        Dialect::Scoring => return Ok(Some(1)),
        Dialect::Responses => "max_output_tokens",
        Dialect::Chat if field(body, "max_completion_tokens").is_some() => "max_completion_tokens",
        _ => "max_tokens",
    };
    let Some(limit) = integer(body, name)? else { return Ok(None) };
    if limit < 1 {
        return Err(EngineError::bad_request(
            "max_tokens",
            format!(
                "max_tokens must be at least 1, got {limit}. (parameter=max_tokens, value={limit})"
            ),
        ));
    }
    let longest = engine.config.max_model_len;
    u32::try_from(limit).ok().filter(|limit| *limit <= longest).map(Some).ok_or_else(|| {
        EngineError::bad_request(
            "max_tokens",
            format!(
                "max_tokens={limit} cannot be greater than max_model_len={longest}. Please request \
                 fewer output tokens. (parameter=max_tokens, value={limit})"
            ),
        )
    })
}

/// Output tokens of one prompt, after the context's length.
fn output_tokens(engine: &Engine, prompt: usize, limit: Option<u32>) -> Result<u32, EngineError> {
    let longest = engine.config.max_model_len;
    if prompt == 0 {
        return Err(EngineError::unrenderable("The decoder prompt cannot be empty"));
    }
    let room = u32::try_from(prompt).ok().and_then(|prompt| longest.checked_sub(prompt));
    let Some(room) = room.filter(|room| *room > 0) else {
        return Err(EngineError::bad_request(
            "input_tokens",
            format!(
                "This model's maximum context length is {longest} tokens. However, your prompt \
                 contains at least {prompt} input tokens, which exceeds this limit even without any \
                 output tokens. Please reduce the length of the input prompt. \
                 (parameter=input_tokens, value={prompt})"
            ),
        ));
    };
    match limit {
        None => Ok(room.min(engine.config.default_max_tokens)),
        Some(limit) if limit <= room => Ok(limit),
        Some(limit) => Err(EngineError::bad_request(
            "input_tokens",
            format!(
                "This model's maximum context length is {longest} tokens. However, you requested \
                 {limit} output tokens and your prompt contains at least {prompt} input tokens, for \
                 a total of at least {} tokens. Please reduce the length of the input prompt or the \
                 number of requested output tokens. (parameter=input_tokens, value={prompt})",
                u64::from(limit) + prompt as u64,
            ),
        )),
    }
}
