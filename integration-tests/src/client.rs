//! A client of the gateway, or of an engine, with one connection for each request, so that a test
//! says when a connection ends.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use openai_api::{ChunkView, FrameKind, SseSplitter};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::wait::PATIENCE;

/// Sends requests to one address.
#[derive(Clone, Debug)]
pub struct Client {
    address: SocketAddr,
    key: Option<String>,
}

/// An answer, read to its end.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// All headers.
    pub headers: HeaderMap,
    /// The body without its framing, as far as it came.
    pub body: Bytes,
    /// Whether the body came to the end that its framing says.
    pub whole: bool,
}

impl Client {
    /// A client without a key.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, key: None }
    }

    /// The same with a key, sent as a bearer token.
    #[must_use]
    pub fn with_key(&self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self.clone() }
    }

    /// A `GET`.
    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, &[], Bytes::new()).await
    }

    /// A `POST` of JSON.
    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> Reply {
        self.send(Method::POST, path, &[], body.into()).await
    }

    /// A chat request.
    pub async fn chat(&self, body: impl Into<Bytes>) -> Reply {
        self.post("/v1/chat/completions", body).await
    }

    /// Any request; further headers replace those of the same name.
    ///
    /// # Panics
    /// No answer comes, or not in time.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Reply {
        let reply = self.try_send(method, path, headers, body).await;
        reply.unwrap_or_else(|error| panic!("{path}: no answer: {error}"))
    }

    /// The same where the connection may break before an answer.
    ///
    /// # Errors
    /// It broke before the head of an answer.
    ///
    /// # Panics
    /// Nothing happens in time.
    pub async fn try_send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Reply, hyper::Error> {
        let request = self.request(method, path, headers, body);
        let stream = self.connect().await;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.expect("a fresh connection");
        let exchange = async move {
            let response = sender.send_request(request).await?;
            Ok(read(response).await)
        };
        // What breaks a connection is seen in the answer.
        let both = async { tokio::join!(exchange, connection).0 };
        tokio::time::timeout(PATIENCE, both).await.expect("an answer in time")
    }

    /// Any request over HTTP/2 without TLS, spoken without asking first.
    ///
    /// # Panics
    /// As [`send`](Self::send).
    pub async fn send_h2(&self, method: Method, path: &str, body: Bytes) -> Reply {
        let mut request = self.request(method, path, &[], body);
        let uri = format!("http://{}{path}", self.address);
        *request.uri_mut() = uri.parse().expect("an address and a path make a URL");
        request.headers_mut().remove(HOST);
        let stream = TokioIo::new(self.connect().await);
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), stream).await.expect("HTTP/2 is understood");
        let exchange =
            async move { read(sender.send_request(request).await.expect("an answer")).await };
        let both = async { tokio::join!(exchange, connection).0 };
        tokio::time::timeout(PATIENCE, both).await.expect("an answer in time")
    }

    /// Sends a request and leaves the answer to the caller, on a bare socket.
    pub async fn open(&self, path: &str, body: &str) -> Open {
        self.open_with(path, body.len(), body).await
    }

    /// Sends a request but for the second half of its body.
    pub async fn open_half(&self, path: &str, body: &str) -> Open {
        let half = body.floor_char_boundary(body.len() / 2);
        self.open_with(path, body.len(), &body[..half]).await
    }

    async fn open_with(&self, path: &str, length: usize, body: &str) -> Open {
        let mut stream = self.connect().await;
        let key =
            self.key.as_ref().map_or(String::new(), |k| format!("authorization: Bearer {k}\r\n"));
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n{key}\
             content-length: {length}\r\n\r\n"
        );
        stream.write_all((head + body).as_bytes()).await.expect("the request is taken");
        Open { stream, seen: Vec::new() }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().expect("a path");
        let own = request.headers_mut();
        own.insert(HOST, HeaderValue::from_static("gateway"));
        own.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(key) = &self.key {
            let value = format!("Bearer {key}").parse().expect("keys are printable");
            own.insert(AUTHORIZATION, value);
        }
        for (name, value) in headers {
            let name: HeaderName = name.parse().expect("a header's name");
            own.insert(name, value.parse().expect("a header's value"));
        }
        request
    }

    async fn connect(&self) -> TcpStream {
        let connecting = TcpStream::connect(self.address);
        let stream = tokio::time::timeout(PATIENCE, connecting).await.expect("in time");
        let stream = stream.unwrap_or_else(|e| panic!("{} takes connections: {e}", self.address));
        stream.set_nodelay(true).expect("a TCP socket");
        stream
    }
}

async fn read(response: http::Response<Incoming>) -> Reply {
    let (head, mut body) = response.into_parts();
    let (mut bytes, mut whole) = (Vec::new(), true);
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => bytes.extend(frame.into_data().unwrap_or_default()),
            Err(_) => {
                whole = false;
                break;
            }
        }
    }
    Reply { status: head.status, headers: head.headers, body: bytes.into(), whole }
}

impl Reply {
    /// A header's value; empty without one.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    /// A header that is a number.
    ///
    /// # Panics
    /// It is none.
    #[track_caller]
    pub fn number(&self, name: &str) -> u64 {
        self.header(name).parse().unwrap_or_else(|_| panic!("{name} in {:?}", self.headers))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// It is none.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {} {}", self.status, self.text()))
    }

    /// The backend that answered, from the debug header.
    pub fn backend(&self) -> &str {
        self.header("x-warmpath-backend")
    }

    /// What the body says as an event stream.
    pub fn events(&self) -> Events {
        Events::read(&self.body)
    }

    /// Fails unless this is an error of the gateway's own, with this status and code.
    #[track_caller]
    pub fn assert_error(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type"), "application/json");
        assert!(!self.header("x-request-id").is_empty());
        let body = self.json();
        let error = body["error"].as_object().expect("an error object");
        let mut names: Vec<&str> = error.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["code", "message", "param", "type"], "{body}");
        assert_eq!(error["code"], code, "{body}");
        let message = error["message"].as_str().expect("a message");
        assert!(!message.contains("127.0.0.1"), "{message}");
    }
}

/// What an event stream says, in numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Events {
    /// Events with content.
    pub contents: usize,
    /// Events that name the role and nothing else.
    pub roles: usize,
    /// Events with an error.
    pub errors: usize,
    /// Events with usage and no choices.
    pub usages: usize,
    /// End markers.
    pub dones: usize,
    /// The text of all choices, in the order it came.
    pub text: String,
    /// The different ids of the answers.
    pub ids: Vec<String>,
    /// The last usage.
    pub usage: Option<domain::Usage>,
}

impl Events {
    /// Reads a whole stream.
    pub fn read(body: &Bytes) -> Self {
        let mut events = Self::default();
        let mut splitter = SseSplitter::default();
        let mut frames: Vec<_> = splitter.feed(body.clone()).collect();
        frames.extend(splitter.finish());
        for frame in frames {
            if let FrameKind::Data(data) = frame.kind {
                events.note(&data);
            }
        }
        events
    }

    fn note(&mut self, data: &[u8]) {
        let chunk = ChunkView::parse(data);
        self.contents += usize::from(chunk.has_content);
        self.roles += usize::from(chunk.role_only);
        self.errors += usize::from(chunk.is_error);
        self.usages += usize::from(chunk.is_usage_only);
        self.dones += usize::from(chunk.is_done);
        self.usage = chunk.usage.or(self.usage);
        let value: Value = serde_json::from_slice(data).unwrap_or_default();
        if let Some(id) = value["id"].as_str()
            && !self.ids.iter().any(|known| known == id)
        {
            self.ids.push(id.to_owned());
        }
        for choice in value["choices"].as_array().into_iter().flatten() {
            let text = choice["delta"]["content"].as_str().or(choice["text"].as_str());
            self.text += text.unwrap_or_default();
        }
    }

    /// Whether it is a whole answer: content, an end marker, and no error.
    pub fn is_complete(&self) -> bool {
        self.contents > 0 && self.dones == 1 && self.errors == 0
    }

    /// Whether it broke off as it should: an error event, and then the end marker.
    pub fn is_interrupted(&self) -> bool {
        self.errors == 1 && self.dones == 1
    }
}

/// A connection that is kept for one request after the other.
pub struct Session {
    sender: http1::SendRequest<Full<Bytes>>,
    client: Client,
    _connection: JoinSet<()>,
}

impl Session {
    /// Connects.
    ///
    /// # Panics
    /// Nobody listens.
    pub async fn new(client: &Client) -> Self {
        let stream = TokioIo::new(client.connect().await);
        let (sender, connection) = http1::handshake(stream).await.expect("a fresh connection");
        let mut connections = JoinSet::new();
        connections.spawn(async move {
            // What breaks the connection is seen by the next request.
            let _ = connection.await;
        });
        Self { sender, client: client.clone(), _connection: connections }
    }

    /// A `POST` of JSON.
    ///
    /// # Panics
    /// No answer comes, or not in time.
    pub async fn post(&mut self, path: &str, body: impl Into<Bytes>) -> Reply {
        let request = self.client.request(Method::POST, path, &[], body.into());
        let exchange = async {
            self.sender.ready().await.expect("the connection is kept");
            read(self.sender.send_request(request).await.expect("an answer")).await
        };
        tokio::time::timeout(PATIENCE, exchange).await.expect("an answer in time")
    }
}

/// A request whose answer was not read yet. Dropping it closes the connection.
#[derive(Debug)]
pub struct Open {
    stream: TcpStream,
    seen: Vec<u8>,
}

impl Open {
    /// Reads until `marker` came `times` times; whether it did before the end of the answer.
    ///
    /// # Panics
    /// Neither happens in time.
    pub async fn read_until(&mut self, marker: &[u8], times: usize) -> bool {
        let reading = async {
            while memchr::memmem::find_iter(&self.seen, marker).count() < times {
                if self.stream.read_buf(&mut self.seen).await.unwrap_or(0) == 0 {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("an answer in time")
    }

    /// Reads to the end of the connection, and returns all that came, the head included.
    ///
    /// # Panics
    /// It does not end in time.
    pub async fn read_to_end(mut self) -> String {
        let reading = self.stream.read_to_end(&mut self.seen);
        // A connection that breaks has ended too.
        let _ = tokio::time::timeout(PATIENCE, reading).await.expect("an end in time");
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    /// Reads for so long, or to the end of the answer.
    pub async fn linger(&mut self, time: Duration) {
        let reading =
            async { while self.stream.read_buf(&mut self.seen).await.unwrap_or(0) > 0 {} };
        // Whether it ended does not matter.
        let _ = tokio::time::timeout(time, reading).await;
    }

    /// What came so far, the head included.
    pub fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    /// Closes the connection, with a RST when `reset`.
    pub fn hang_up(self, reset: bool) {
        if reset {
            let linger = Some(Duration::ZERO);
            socket2::SockRef::from(&self.stream).set_linger(linger).expect("a TCP socket");
        }
    }
}
