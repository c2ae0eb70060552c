//! Realtime sessions as vLLM holds them: audio in, its words out, over a WebSocket.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderValue, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};

use super::body::DoubleBody;
use super::engine::{Engine, unix_seconds};
use super::pooling::digest;
use super::routes::{Exchange, respond};
use super::websocket::{WebSocket, accept};

/// Bytes of a second of audio: 16 kHz of 16 bits.
const BYTES_PER_SECOND: usize = 32_000;
/// Audio of one utterance that is taken: a bound, as everything has one.
const MAX_AUDIO_BYTES: usize = 16 << 20;
/// Words that are heard in a second, and at most in all.
const WORDS_PER_SECOND: usize = 3;
const MAX_WORDS: usize = 256;

/// Agrees to a WebSocket and leaves its session to the connection; `None` if none is asked for,
/// as vLLM has no such route for others.
pub(crate) fn open(exchange: &Exchange<'_>, upgrade: OnUpgrade) -> Option<Response<DoubleBody>> {
    let header = |name: &str| exchange.headers.get(name).and_then(|value| value.to_str().ok());
    header("upgrade").filter(|to| to.eq_ignore_ascii_case("websocket"))?;
    let accepted = accept(header("sec-websocket-key")?);
    let body = DoubleBody::whole(Bytes::new(), exchange.control);
    let mut response = respond(StatusCode::SWITCHING_PROTOCOLS, None, body);
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert("sec-websocket-accept", HeaderValue::from_str(&accepted).ok()?);
    exchange.control.switch_to(upgrade);
    Some(response)
}

/// Holds a session until one side ends it.
pub(crate) async fn carry(engine: &Engine, upgrade: OnUpgrade) {
    let Ok(io) = upgrade.await else { return };
    let session = Session {
        engine,
        socket: WebSocket::new(TokioIo::new(io)),
        model: false,
        began: false,
        audio: Vec::new(),
    };
    // A client that breaks off is an end like another.
    let _ = session.run().await;
}

struct Session<'a, S> {
    engine: &'a Engine,
    socket: WebSocket<S>,
    /// Whether the client has named a model that is served here.
    model: bool,
    /// Whether an utterance is being heard.
    began: bool,
    audio: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<'_, S> {
    async fn run(mut self) -> io::Result<()> {
        let id = format!("sess-{}", self.engine.fresh_id());
        let created = json!({"type": "session.created", "id": id, "created": unix_seconds()});
        self.send(&created).await?;
        while let Some(message) = self.socket.next().await? {
            let Ok(event) = serde_json::from_str::<Value>(&message) else {
                self.error("Invalid JSON", "invalid_json").await?;
                continue;
            };
            match event["type"].as_str() {
                Some("session.update") => self.update(&event).await?,
                Some("input_audio_buffer.append") => self.append(&event).await?,
                Some("input_audio_buffer.commit") => self.commit(&event).await?,
                kind => {
                    let message = format!("Unknown event type: {}", kind.unwrap_or("None"));
                    self.error(&message, "unknown_event").await?;
                }
            }
        }
        Ok(())
    }

    async fn send(&mut self, event: &Value) -> io::Result<()> {
        self.socket.text(&event.to_string()).await
    }

    async fn error(&mut self, message: &str, code: &str) -> io::Result<()> {
        self.send(&json!({"type": "error", "error": message, "code": code})).await
    }

    async fn update(&mut self, event: &Value) -> io::Result<()> {
        let Some(model) = event["model"].as_str() else {
            return self.error("Missing required field: model", "invalid_event").await;
        };
        self.model = self.engine.served(model).is_some();
        if self.model {
            return Ok(());
        }
        let message = format!("The model `{model}` does not exist.");
        self.error(&message, "model_not_found").await
    }

    async fn append(&mut self, event: &Value) -> io::Result<()> {
        let audio = event["audio"].as_str().and_then(|audio| STANDARD.decode(audio).ok());
        let room = MAX_AUDIO_BYTES - self.audio.len();
        match audio.filter(|audio| !audio.is_empty() && audio.len() <= room) {
            Some(audio) => {
                self.audio.extend(audio);
                Ok(())
            }
            None => self.error("Invalid audio data", "invalid_audio").await,
        }
    }

    async fn commit(&mut self, event: &Value) -> io::Result<()> {
        if !self.model {
            let message = "Model not validated. Make sure to validate the model by sending a \
                           session.update event.";
            return self.error(message, "model_not_validated").await;
        }
        if event["final"] != true {
            self.began = true;
            return Ok(());
        }
        if !std::mem::take(&mut self.began) {
            return Ok(());
        }
        let audio = std::mem::take(&mut self.audio);
        self.tell(&audio).await
    }

    /// The words that an utterance is heard as: the same for the same audio.
    async fn tell(&mut self, audio: &[u8]) -> io::Result<()> {
        let seconds = audio.len().div_ceil(BYTES_PER_SECOND);
        let words = (seconds * WORDS_PER_SECOND).min(MAX_WORDS);
        let seed = digest(0, audio);
        let mut text = String::new();
        for index in 0..words as u32 {
            let word = self.engine.vocabulary.word(seed, index).text.clone();
            text.push_str(&word);
            self.send(&json!({"type": "transcription.delta", "delta": word})).await?;
        }
        let usage = json!({"prompt_tokens": seconds, "total_tokens": seconds + words,
            "completion_tokens": words, "prompt_tokens_details": null,
            "completion_tokens_details": null});
        self.send(&json!({"type": "transcription.done", "text": text, "usage": usage})).await
    }
}
