//! Which path does what.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use openai_api::FormScanner;
use serde_json::{Value, json};

use super::body::DoubleBody;
use super::canned;
use super::derender;
use super::engine::{Engine, SeenRequest, unix_seconds};
use super::errors::EngineError;
use super::fault::{Cut, Fault, Plan};
use super::generate;
use super::metrics;
use super::pooling;
use super::realtime;
use super::request::{self, Dialect};
use super::route::{CANCEL, ErrorForm, RESPONSES, Route};
use super::scores;
use super::socket::SocketControl;

/// The largest body that is read.
const MAX_BODY_BYTES: usize = 128 << 20;

pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(crate) const EVENT_STREAM: HeaderValue =
    HeaderValue::from_static("text/event-stream; charset=utf-8");
const PROMETHEUS: HeaderValue =
    HeaderValue::from_static("text/plain; version=1.0.0; charset=utf-8");

/// One request on one connection.
pub(crate) struct Exchange<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) control: &'a Arc<SocketControl>,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) plan: Plan,
}

impl Exchange<'_> {
    /// A whole JSON answer, the plan's faults in its middle.
    pub(crate) fn json(&self, body: impl Into<Bytes>) -> Response<DoubleBody> {
        let body = DoubleBody::with_faults(body.into(), &self.plan, self.control);
        respond(StatusCode::OK, Some(JSON), body)
    }

    fn error(&self, error: &EngineError, form: ErrorForm) -> Response<DoubleBody> {
        let body = match form {
            ErrorForm::OpenAi => error.body(),
            ErrorForm::Anthropic => error.anthropic_body(),
            ErrorForm::Cohere => {
                let id = self.headers.get("x-request-id").and_then(|id| id.to_str().ok());
                error.cohere_body(id)
            }
        };
        respond(error.status, Some(JSON), DoubleBody::whole(body, self.control))
    }

    fn detail(&self, status: StatusCode) -> Response<DoubleBody> {
        let reason = status.canonical_reason().unwrap_or_default();
        let body = json!({ "detail": reason }).to_string();
        respond(status, Some(JSON), DoubleBody::whole(body.into(), self.control))
    }

    fn empty(&self) -> Response<DoubleBody> {
        respond(StatusCode::OK, None, DoubleBody::whole(Bytes::new(), self.control))
    }
}

pub(crate) fn respond(
    status: StatusCode,
    content_type: Option<HeaderValue>,
    body: DoubleBody,
) -> Response<DoubleBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    if let Some(content_type) = content_type {
        response.headers_mut().insert(CONTENT_TYPE, content_type);
    }
    response
}

/// Answers a request.
///
/// # Errors
/// The connection is to be closed without an answer.
pub(crate) async fn handle(
    engine: &Arc<Engine>,
    control: &Arc<SocketControl>,
    mut request: Request<Incoming>,
) -> io::Result<Response<DoubleBody>> {
    control.begin();
    let upgrade = hyper::upgrade::on(&mut request);
    let (head, body) = request.into_parts();
    let body = Limited::new(body, MAX_BODY_BYTES).collect().await.map_err(io::Error::other)?;
    let body = body.to_bytes();
    let route = Route::of(head.uri.path());
    engine.note_seen(|| SeenRequest {
        method: head.method.clone(),
        target: head.uri.to_string(),
        headers: head.headers.clone(),
        body: body.clone(),
    });
    let inference = route.is_some_and(Route::is_inference);
    if inference {
        engine.requests.fetch_add(1, Ordering::Relaxed);
    }
    let plan = match route {
        Some(route) if route.is_control() => Plan::default(),
        _ => engine.faults.plan(inference),
    };
    let path = head.uri.path().to_owned();
    let exchange = Exchange { engine, control, path, headers: head.headers, body, plan };
    if let Some(response) = exchange.early_fault().await? {
        return Ok(response);
    }
    let Some(route) = route else { return Ok(exchange.detail(StatusCode::NOT_FOUND)) };
    if !route.methods().split(", ").any(|method| method == head.method.as_str()) {
        let mut response = exchange.detail(StatusCode::METHOD_NOT_ALLOWED);
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(route.methods()));
        return Ok(response);
    }
    if route == Route::Realtime {
        return Ok(realtime::open(&exchange, upgrade)
            .unwrap_or_else(|| exchange.detail(StatusCode::NOT_FOUND)));
    }
    let answer = exchange.answer(route, &head.method).await;
    Ok(answer.unwrap_or_else(|error| exchange.error(&error, route.error_form())))
}

impl Exchange<'_> {
    /// The faults that come before anything is computed.
    async fn early_fault(&self) -> io::Result<Option<Response<DoubleBody>>> {
        if self.plan.one_byte_writes {
            self.control.write_byte_by_byte();
        }
        if let Some(delay) = self.plan.delay {
            tokio::time::sleep(delay).await;
        }
        if let Some(how) = self.plan.drop {
            if how == Cut::Reset {
                self.control.reset_on_close();
            }
            return Err(io::Error::other("the connection is closed on purpose"));
        }
        if let Some((status, retry_after)) = self.plan.status {
            let mut response = self.error(&EngineError::injected(status), ErrorForm::OpenAi);
            if let Some(seconds) = retry_after {
                response.headers_mut().insert(RETRY_AFTER, seconds.into());
            }
            return Ok(Some(response));
        }
        if self.plan.silent {
            let kind = if canned::asks_for_stream(&self.body) { EVENT_STREAM } else { JSON };
            let body = DoubleBody::silent(self.control);
            return Ok(Some(respond(StatusCode::OK, Some(kind), body)));
        }
        Ok(None)
    }

    async fn answer(
        &self,
        route: Route,
        method: &Method,
    ) -> Result<Response<DoubleBody>, EngineError> {
        let engine = self.engine;
        match route {
            Route::Generate(dialect @ (Dialect::Chat | Dialect::Completion))
                if engine.config.static_response =>
            {
                Ok(canned::answer(self, dialect))
            }
            Route::Generate(dialect) => generate::answer(self, dialect).await,
            Route::Embeddings => Ok(self.json(pooling::embeddings(engine, &self.parsed()?)?)),
            Route::Rerank => Ok(self.json(pooling::rerank(engine, &self.parsed()?)?)),
            Route::Score => Ok(self.json(pooling::score(engine, &self.parsed()?)?)),
            Route::Render(dialect) => Ok(self.json(generate::render(self, dialect)?)),
            Route::CountTokens => Ok(self.json(generate::count_tokens(self)?)),
            Route::Response(cancel) => self.response(cancel),
            Route::Classify => Ok(self.json(pooling::classify(engine, &self.parsed()?)?)),
            Route::Pooling => Ok(self.json(pooling::pooling(engine, &self.parsed()?)?)),
            Route::Embed => Ok(self.json(scores::embed(engine, &self.parsed()?)?)),
            Route::Derender(dialect) => {
                Ok(self.json(derender::answer(engine, dialect, &self.parsed()?)?))
            }
            Route::Transcription => self.transcription(),
            // Answered before.
            Route::Realtime => Ok(self.detail(StatusCode::NOT_FOUND)),
            Route::TokenizerInfo => {
                let info = json!({"tokenizer_class": "Double",
                    "vocab_size": engine.folder.vocabulary_size()});
                Ok(self.json(info.to_string()))
            }
            Route::Tokenize => self.tokenize(),
            Route::Detokenize => self.detokenize(),
            Route::Models => Ok(self.json(models(engine))),
            Route::Health => Ok(self.empty()),
            Route::Version => Ok(self.json(json!({"version": VERSION}).to_string())),
            Route::Load => {
                let stats = engine.stats();
                let load = stats.running + stats.waiting;
                Ok(self.json(json!({ "server_load": load }).to_string()))
            }
            Route::Metrics => {
                let page = DoubleBody::whole(metrics::page(engine).into(), self.control);
                Ok(respond(StatusCode::OK, Some(PROMETHEUS), page))
            }
            Route::ResetPrefixCache => {
                let done = engine.reset_prefix_cache();
                tracing::debug!(done, "prefix cache reset asked for");
                Ok(self.empty())
            }
            Route::Faults => self.faults(method),
            Route::Stats => Ok(self.json(to_json(&engine.stats()))),
            Route::Records => {
                let ranks = engine.ranks().iter();
                let records: Vec<_> = ranks.flat_map(|rank| rank.records()).collect();
                Ok(self.json(to_json(&records)))
            }
        }
    }

    /// The body as JSON, of a model that is served here.
    pub(crate) fn parsed(&self) -> Result<Value, EngineError> {
        let body = request::parse(&self.body)?;
        request::check_model(&body, self.engine)?;
        Ok(body)
    }

    fn tokenize(&self) -> Result<Response<DoubleBody>, EngineError> {
        let body = self.parsed()?;
        let tokens = if request::field(&body, "messages").is_some() {
            request::chat_tokens(self.engine, &body)?
        } else {
            let prompt = request::field(&body, "prompt").and_then(Value::as_str);
            let prompt = prompt.ok_or_else(|| request::missing(&body, "prompt"))?;
            let special = body.get("add_special_tokens").and_then(Value::as_bool).unwrap_or(true);
            let tokens = self.engine.folder.tokenize_text(prompt, special);
            tokens.map_err(|error| EngineError::unrenderable(error.to_string()))?
        };
        let answer = json!({
            "count": tokens.len(),
            "max_model_len": self.engine.config.max_model_len,
            "tokens": tokens,
            "token_strs": null,
        });
        Ok(self.json(answer.to_string()))
    }

    /// A response that was kept; those of the double are never in course.
    fn response(&self, cancel: bool) -> Result<Response<DoubleBody>, EngineError> {
        let id = self.path.strip_prefix(RESPONSES).unwrap_or_default();
        let id = id.strip_suffix(CANCEL).unwrap_or(id);
        let response =
            self.engine.kept.response(id).ok_or_else(|| EngineError::unknown_response(id))?;
        if cancel { Err(EngineError::not_cancellable()) } else { Ok(self.json(response)) }
    }

    /// What a form's file says: how many bytes there were.
    fn transcription(&self) -> Result<Response<DoubleBody>, EngineError> {
        let kind = self.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let mut form = kind.and_then(FormScanner::new).ok_or_else(|| {
            EngineError::validation("missing", "body.file", "Field required", "None")
        })?;
        let read = form.feed(&self.body).and_then(|()| form.finish());
        read.map_err(|fault| EngineError::bad_request("file", fault.to_string()))?;
        let model = form.model().map_or(json!({}), |model| json!({"model": model.name}));
        request::check_model(&model, self.engine)?;
        let text = format!("{} bytes", self.body.len());
        let usage = json!({"type": "duration", "seconds": 1});
        Ok(self.json(json!({"text": text, "usage": usage}).to_string()))
    }

    fn detokenize(&self) -> Result<Response<DoubleBody>, EngineError> {
        let body = self.parsed()?;
        let tokens = request::field(&body, "tokens").and_then(request::token_ids);
        let tokens = tokens.ok_or_else(|| request::missing(&body, "tokens"))?;
        Ok(self.json(json!({ "prompt": self.engine.folder.decode(&tokens) }).to_string()))
    }

    /// Reads, replaces or clears the faults: `{"faults": ["close,times=2", …]}`.
    fn faults(&self, method: &Method) -> Result<Response<DoubleBody>, EngineError> {
        let faults = &self.engine.faults;
        if *method == Method::DELETE {
            faults.set(Vec::new());
        } else if *method == Method::POST {
            let body = request::parse(&self.body)?;
            let specs = body.get("faults").and_then(Value::as_array);
            let specs = specs.ok_or_else(|| request::missing(&body, "faults"))?;
            let parsed: Result<Vec<Fault>, _> =
                specs.iter().map(|spec| spec.as_str().unwrap_or_default().parse()).collect();
            let parsed =
                parsed.map_err(|error| EngineError::bad_request("faults", format!("{error}")))?;
            faults.set(parsed);
        }
        let specs: Vec<String> = faults.current().iter().map(ToString::to_string).collect();
        Ok(self.json(json!({ "faults": specs }).to_string()))
    }
}

/// The vLLM version whose behaviour this is.
const VERSION: &str = "0.32.0";

/// The list of models. vLLM puts its adapters behind the model, each with the model as parent.
fn models(engine: &Engine) -> String {
    let config = &engine.config;
    let card = |name: &str, root: &str, parent: Option<&str>, longest: Option<u32>| {
        json!({
            "id": name,
            "object": "model",
            "created": unix_seconds(),
            "owned_by": "vllm",
            "root": root,
            "parent": parent,
            "max_model_len": longest,
            "permission": [permission(engine)],
        })
    };
    let mut data = vec![card(&config.model, &config.model, None, Some(config.max_model_len))];
    data.extend(
        config
            .adapters
            .iter()
            .map(|name| card(name, &format!("/adapters/{name}"), Some(&config.model), None)),
    );
    json!({"object": "list", "data": data}).to_string()
}

fn permission(engine: &Engine) -> Value {
    json!({
        "id": format!("modelperm-{:016x}", engine.started),
        "object": "model_permission",
        "created": engine.started,
        "allow_create_engine": false,
        "allow_sampling": true,
        "allow_logprobs": true,
        "allow_search_indices": false,
        "allow_view": true,
        "allow_fine_tuning": false,
        "organization": "*",
        "group": null,
        "is_blocking": false,
    })
}

fn to_json(value: &impl serde::Serialize) -> String {
    // Plain structs of numbers and strings always serialise.
    serde_json::to_string(value).unwrap_or_default()
}
