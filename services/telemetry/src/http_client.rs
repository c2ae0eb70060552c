//! Short requests to one engine: bounded in time and in bytes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, SERVER};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::Notify;

use crate::Error;
use crate::config::BackendConfig;

/// Engines close idle connections after five seconds; ours go before that.
const IDLE: Duration = Duration::from_secs(4);

/// One connection serves a backend's requests in turn; a second is for when it is slow to free.
const IDLE_CONNECTIONS: usize = 2;

/// Interim answers (1xx) that are taken before a request is given up. Engines send none, or one.
const MOST_INTERIM: usize = 16;

pub(crate) type Connector = HttpsConnector<HttpConnector>;

/// Connectors for all backends. The machine's certificates are read only once one needs them.
pub(crate) struct Connectors {
    plain: Connector,
    tls: OnceLock<Connector>,
    connect_timeout: Duration,
}

impl Connectors {
    /// # Errors
    /// TLS cannot be set up at all.
    pub(crate) fn new(connect_timeout: Duration) -> Result<Self, Error> {
        let plain = connector(false, connect_timeout)?;
        Ok(Self { plain, tls: OnceLock::new(), connect_timeout })
    }

    /// Whether https can be used.
    ///
    /// # Errors
    /// The machine's certificates cannot be read.
    pub(crate) fn check(&self) -> Result<(), Error> {
        connector(true, self.connect_timeout).map(|made| drop(self.tls.set(made)))
    }

    /// The connector for a scheme. Without the machine's certificates no https backend connects.
    pub(crate) fn get(&self, https: bool) -> Connector {
        if https
            && self.tls.get().is_none()
            && let Err(error) = self.check()
        {
            tracing::error!(%error, "https backends cannot be reached");
        }
        self.tls.get().filter(|_| https).unwrap_or(&self.plain).clone()
    }
}

fn connector(tls: bool, connect_timeout: Duration) -> Result<Connector, Error> {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(connect_timeout));
    let provider = rustls::crypto::ring::default_provider();
    let builder = HttpsConnectorBuilder::new();
    let builder = if tls {
        builder.with_provider_and_native_roots(provider).map_err(|e| Error::Tls(e.to_string()))?
    } else {
        let config = ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::Tls(e.to_string()))?
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        builder.with_tls_config(config)
    };
    Ok(builder.https_or_http().enable_http1().wrap_connector(tcp))
}

/// A client of one backend, with connections of its own.
#[derive(Clone)]
pub(crate) struct EngineClient {
    client: Client<Connector, Full<Bytes>>,
    base: String,
    authorization: Option<HeaderValue>,
}

/// An answer, whatever its status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// The `server` header.
    pub(crate) server: Option<String>,
    pub(crate) body: Bytes,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("no answer in time")]
    Timeout,
    #[error("no connection")]
    Connect,
    #[error("the connection broke")]
    Broken,
    #[error("the answer is larger than allowed")]
    TooLarge,
    #[error("the answer has a status that is no success")]
    Status,
}

impl Fault {
    pub(crate) const ALL: [Fault; 5] =
        [Fault::Timeout, Fault::Connect, Fault::Broken, Fault::TooLarge, Fault::Status];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Fault::Timeout => "timeout",
            Fault::Connect => "connect",
            Fault::Broken => "broken",
            Fault::TooLarge => "too_large",
            Fault::Status => "status",
        }
    }
}

impl Answer {
    /// The answer, if it is a success.
    pub(crate) fn success(self) -> Result<Self, Fault> {
        if self.status.is_success() { Ok(self) } else { Err(Fault::Status) }
    }

    /// Whether the engine has no such route, or not for this method.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(
            self.status,
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
        )
    }
}

impl EngineClient {
    pub(crate) fn new(connector: Connector, backend: &BackendConfig) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build(connector);
        Self { client, base: backend.url.to_string(), authorization: backend.authorization.clone() }
    }

    /// Fetches `path`; the whole answer has to arrive within `limit`.
    ///
    /// # Errors
    /// See [`Fault`]; any status is an answer.
    pub(crate) async fn get(
        &self,
        path: &str,
        max_bytes: usize,
        limit: Duration,
    ) -> Result<Answer, Fault> {
        self.send(Method::GET, path, Bytes::new(), max_bytes, limit).await
    }

    /// Posts JSON.
    ///
    /// # Errors
    /// See [`Fault`]; any status is an answer.
    pub(crate) async fn post(
        &self,
        path: &str,
        json: Vec<u8>,
        max_bytes: usize,
        limit: Duration,
    ) -> Result<Answer, Fault> {
        self.send(Method::POST, path, json.into(), max_bytes, limit).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        max_bytes: usize,
        limit: Duration,
    ) -> Result<Answer, Fault> {
        let mut request = Request::new(Full::new(body));
        *request.uri_mut() = format!("{}{path}", self.base).parse().map_err(|_| Fault::Connect)?;
        if method == Method::POST {
            let json = HeaderValue::from_static("application/json");
            request.headers_mut().insert(CONTENT_TYPE, json);
        }
        *request.method_mut() = method;
        if let Some(value) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, value.clone());
        }
        tokio::time::timeout(limit, self.exchange(request, max_bytes))
            .await
            .unwrap_or(Err(Fault::Timeout))
    }

    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        max_bytes: usize,
    ) -> Result<Answer, Fault> {
        let (mut request, flooded) = (request, Arc::new(Notify::new()));
        let (interim, told) = (AtomicUsize::new(0), flooded.clone());
        hyper::ext::on_informational(&mut request, move |_| {
            if interim.fetch_add(1, Ordering::Relaxed) == MOST_INTERIM {
                told.notify_one();
            }
        });
        let answered = tokio::select! {
            answered = self.client.request(request) => answered,
            // The library would read on until the time limit, as fast as they come.
            () = flooded.notified() => return Err(Fault::Broken),
        };
        let response =
            answered.map_err(|e| if e.is_connect() { Fault::Connect } else { Fault::Broken })?;
        let status = response.status();
        let server = response.headers().get(SERVER).and_then(|v| v.to_str().ok());
        let server = server.map(str::to_owned);
        let body = Limited::new(response.into_body(), max_bytes).collect().await;
        let body =
            body.map_err(
                |e| {
                    if e.is::<LengthLimitError>() { Fault::TooLarge } else { Fault::Broken }
                },
            )?;
        Ok(Answer { status, server, body: body.to_bytes() })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::{Config, RawBackend, RawConfig};

    #[tokio::test]
    async fn a_flood_of_interim_answers_ends_the_request_and_its_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let raw = RawBackend { id: "a".into(), url, engine: None, api_key: None, credential: None };
        let config = Config::new(RawConfig::default(), vec![raw]).expect("valid");
        let connectors = Connectors::new(Duration::from_secs(60)).expect("without TLS");
        let client = EngineClient::new(connectors.get(false), &config.backends[0]);
        let flood = async {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            while stream.write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n").await.is_ok() {}
        };
        let limit = Duration::from_secs(3600);
        let ((), answer) = tokio::join!(flood, client.get("/health", 100, limit));
        assert_eq!(answer.err(), Some(Fault::Broken));
    }
}
