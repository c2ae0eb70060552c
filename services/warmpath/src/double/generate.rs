//! Chat and text completions, answered by the model.

use std::sync::Arc;

use http::{Response, StatusCode};
use serde_json::json;

use super::body::DoubleBody;
use super::core::Ticket;
use super::engine::unix_seconds;
use super::errors::EngineError;
use super::request::{Dialect, Generation, response_chat};
use super::routes::{EVENT_STREAM, Exchange, respond};
use super::stream::{Parts, TokenStream, usage_so_far};
use super::wire::{Usage, Wire};

/// Bodies above this are parsed and tokenised off the threads that serve the sockets.
const LONG_BODY_BYTES: usize = 32 << 10;

/// Reads the body, queues the request and answers as it asks.
///
/// # Errors
/// What vLLM refuses.
pub(crate) async fn answer(
    exchange: &Exchange<'_>,
    dialect: Dialect,
) -> Result<Response<DoubleBody>, EngineError> {
    let engine = exchange.engine;
    let mut generation = read(exchange, dialect).await?;
    let keep = match dialect {
        Dialect::Responses => Some(response_chat(engine, &exchange.parsed()?)?.1),
        _ => None,
    };
    let request_id = exchange.headers.get("x-request-id").and_then(|id| id.to_str().ok());
    let request_id: Arc<str> = request_id.map_or_else(|| engine.fresh_id().into(), Arc::from);
    let rank = engine.rank_for(&exchange.headers)?;
    let wire = Wire::new(dialect, &request_id, unix_seconds(), &generation.model);
    let wire = wire.calling(generation.tool.take());
    let prompt_usage = prompt_usage(&generation, engine.config.engine.block_size);
    let jobs = std::mem::take(&mut generation.jobs);
    let ticket = rank
        .submit(&request_id, jobs)
        .map_err(|error| EngineError::unrenderable(error.to_string()))?;
    if generation.delivery.stream {
        let stream = TokenStream::new(Parts {
            engine: Arc::clone(engine),
            ticket,
            wire,
            delivery: generation.delivery,
            prompt_usage,
            seeds: generation.seeds,
            choices: generation.choices,
            plan: exchange.plan.clone(),
            control: Arc::clone(exchange.control),
            keep,
        });
        let body = DoubleBody::tokens(stream, exchange.control);
        return Ok(respond(StatusCode::OK, Some(EVENT_STREAM), body));
    }
    ticket.finished().await;
    let texts = texts(exchange, &ticket, &generation.seeds);
    let sent: Vec<u32> = (0..ticket.sequences()).map(|i| ticket.wanted(i)).collect();
    let usage = usage_so_far(&ticket, prompt_usage, generation.choices, &sent);
    if let Some(keep) = keep {
        engine.kept.keep(&keep, &wire, &texts.concat(), usage);
    }
    if dialect == Dialect::Generate {
        let ids = |i: usize| {
            let words =
                (0..ticket.wanted(i)).map(|at| engine.vocabulary.word(generation.seeds[i], at));
            words.map(|word| word.token).collect()
        };
        let lists: Vec<Vec<u32>> = (0..ticket.sequences()).map(ids).collect();
        return Ok(exchange.json(wire.answer_of_ids(&lists, usage)));
    }
    if dialect == Dialect::Scoring {
        let scores = super::scores::of(&generation.seeds, &exchange.parsed()?);
        return Ok(exchange.json(wire.answer_of_scores(&scores, usage)));
    }
    Ok(exchange.json(wire.answer(&texts, usage)))
}

async fn read(exchange: &Exchange<'_>, dialect: Dialect) -> Result<Generation, EngineError> {
    if exchange.body.len() <= LONG_BODY_BYTES {
        return Generation::read(exchange.engine, dialect, &exchange.parsed()?);
    }
    let (engine, body) = (Arc::clone(exchange.engine), exchange.body.clone());
    let read = move || {
        let body = super::request::parse(&body)?;
        super::request::check_model(&body, &engine)?;
        Generation::read(&engine, dialect, &body)
    };
    let read = tokio::task::spawn_blocking(read).await;
    read.unwrap_or_else(|error| Err(EngineError::unrenderable(error.to_string())))
}

/// The counts that stand before the first token; `created_cache_tokens` still holds all tokens in
/// full blocks, those that will turn out to be cached included.
fn prompt_usage(generation: &Generation, block_size: u32) -> Usage {
    let prompts = generation.jobs.iter().step_by(generation.choices).map(|job| job.prompt_tokens);
    let mut usage = Usage::default();
    for tokens in prompts {
        usage.prompt_tokens += u64::from(tokens);
        usage.created_cache_tokens += u64::from(tokens - tokens % block_size);
    }
    usage
}

fn texts(exchange: &Exchange<'_>, ticket: &Ticket, seeds: &[u64]) -> Vec<String> {
    let vocabulary = &exchange.engine.vocabulary;
    let words = |sequence: usize| {
        (0..ticket.wanted(sequence)).map(move |i| &*vocabulary.word(seeds[sequence], i).text)
    };
    let mut texts: Vec<String> = (0..ticket.sequences()).map(|i| words(i).collect()).collect();
    if let (Some(bytes), Some(first)) = (exchange.plan.giant, texts.first_mut()) {
        *first = "x".repeat(bytes);
    }
    texts
}

/// What `…/render` answers: the prompt's tokens, as the engine would run them.
///
/// # Errors
/// What the endpoint itself would refuse.
pub(crate) fn render(exchange: &Exchange<'_>, dialect: Dialect) -> Result<String, EngineError> {
    let engine = exchange.engine;
    let body = exchange.parsed()?;
    let prefix = match dialect {
        Dialect::Completion => "cmpl",
        Dialect::Responses => "resp",
        _ => "chatcmpl",
    };
    let rendered = super::request::prompts(engine, dialect, &body)?.into_iter().map(|tokens| {
        json!({
            "request_id": format!("{prefix}-{}", engine.fresh_id()),
            "token_ids": tokens,
            "token_offsets": null,
            "features": null,
            "content_parts": null,
            "sampling_params": {"max_tokens": body.get("max_tokens")},
            "model": super::request::asked_model(&body, engine),
            "stream": body.get("stream").and_then(serde_json::Value::as_bool).unwrap_or(false),
            "stream_options": body.get("stream_options"),
            "cache_salt": body.get("cache_salt"),
            "priority": 0,
        })
    });
    let mut rendered: Vec<serde_json::Value> = rendered.collect();
    // A chat has one prompt and is answered without a list.
    Ok(match dialect {
        Dialect::Completion => serde_json::Value::from(rendered).to_string(),
        _ => rendered.swap_remove(0).to_string(),
    })
}

/// What `/v1/messages/count_tokens` answers.
///
/// # Errors
/// What the endpoint itself would refuse.
pub(crate) fn count_tokens(exchange: &Exchange<'_>) -> Result<String, EngineError> {
    let body = exchange.parsed()?;
    let prompts = super::request::prompts(exchange.engine, Dialect::Messages, &body)?;
    let count = prompts.iter().map(Vec::len).sum::<usize>();
    let management = json!({"original_input_tokens": count});
    Ok(json!({"input_tokens": count, "context_management": management}).to_string())
}
