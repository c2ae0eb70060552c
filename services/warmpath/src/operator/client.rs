//! One request, one answer or one clear failure.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, ETAG, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rpc::RawTls;
use rpc::https::{self, Identity};
use rustls::RootCertStore;
use serde_json::Value;
use settings::{Redacted, SettingsError};

/// Longest answer: a page of a thousand engines with all that was seen of them.
const MAX_ANSWER: usize = 32 << 20;

/// How long an answer may take. Following events waits 20 s by itself.
const LIMIT: Duration = Duration::from_secs(40);

/// A client of either scheme.
pub(crate) type Http = HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Why a command did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The settings cannot be used.
    #[error("{0}")]
    Settings(SettingsError),
    /// Nobody answers.
    #[error("{url} does not answer: {reason}")]
    Unreachable {
        /// Who was asked.
        url: String,
        /// What happened instead.
        reason: String,
    },
    /// The API said no.
    #[error("{detail} ({code})")]
    Refused {
        /// The status of the answer.
        status: StatusCode,
        /// The API's code.
        code: String,
        /// What is wrong.
        detail: String,
    },
    /// Something that should not be.
    #[error("{0}")]
    Odd(String),
}

impl Failure {
    /// Whether the API said that there is no such thing.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Failure::Refused { status: StatusCode::NOT_FOUND, .. })
    }
}

/// A success.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) body: Value,
    pub(super) etag: Option<HeaderValue>,
}

/// What a change expects of the present state.
#[derive(Clone, Debug)]
pub(super) enum Expect {
    Anything,
    Absent,
    Present,
    At(HeaderValue),
}

impl Expect {
    fn header(self) -> Option<(HeaderName, HeaderValue)> {
        let any = HeaderValue::from_static("*");
        match self {
            Expect::Anything => None,
            Expect::Absent => Some((http::header::IF_NONE_MATCH, any)),
            Expect::Present => Some((http::header::IF_MATCH, any)),
            Expect::At(tag) => Some((http::header::IF_MATCH, tag)),
        }
    }
}

/// A client of one admin API, and of the routers that explain.
pub struct Client {
    http: Http,
    admin: String,
    authorization: Option<HeaderValue>,
    routers: Vec<String>,
}

impl Client {
    pub(super) fn new(
        admin: &str,
        token: Option<Redacted<String>>,
        routers: Vec<String>,
        tls: Tls,
        allow_plaintext: bool,
    ) -> Result<Self, SettingsError> {
        let admin = base(admin).map_err(|message| SettingsError::new("admin", message))?;
        if token.is_some() && !allow_plaintext && is_plain_and_far(&admin) {
            let message = "without TLS the token would cross the network as it is: https://HOST:PORT \
                           is allowed, or http:// with --allow-plaintext";
            return Err(SettingsError::new("admin", message));
        }
        let check = |(n, url): (usize, &String)| {
            base(url).map_err(|message| SettingsError::new(format!("routers[{n}]"), message))
        };
        let routers = routers.iter().enumerate().map(check).collect::<Result<Vec<_>, _>>()?;
        let authorization = token.map(|token| bearer(&token)).transpose()?;
        let any = std::iter::once(&admin).chain(&routers).any(|url| url.starts_with("https:"));
        Ok(Self { http: http_client(any.then_some(tls))?, admin, authorization, routers })
    }

    /// The routers' ports for operators.
    pub(super) fn routers(&self) -> &[String] {
        &self.routers
    }

    /// Reads from the admin API.
    pub(super) async fn get(&self, path: &str) -> Result<Answer, Failure> {
        self.call(Method::GET, path, Expect::Anything, None).await
    }

    /// Reads a page of a list from the admin API.
    pub(super) async fn page(&self, path: &str) -> Result<Value, Failure> {
        let said = self.get(path).await?.body;
        if said["items"].is_array() {
            return Ok(said);
        }
        Err(foreign(&self.admin, &format!("/admin/v1{path}")))
    }

    /// All pages of a list as one.
    pub(super) async fn list(&self, path: &str, query: &str) -> Result<Value, Failure> {
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let mut said = self.page(&format!("{path}?{query}{after}")).await?;
            if let Value::Array(items) = said["items"].take() {
                all.extend(items);
            }
            match said["next"].as_str() {
                Some(next) => after = format!("&after={}", encode(next)),
                None => {
                    return Ok(serde_json::json!({ "items": all, "revision": said["revision"] }));
                }
            }
        }
    }

    /// Asks the admin API for something.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        expect: Expect,
        body: Option<&Value>,
    ) -> Result<Answer, Failure> {
        let mut request = Request::new(Full::new(Bytes::new()));
        let headers = request.headers_mut();
        headers.extend(self.authorization.clone().map(|value| (AUTHORIZATION, value)));
        headers.extend(expect.header());
        if let Some(body) = body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            *request.body_mut() = Full::new(Bytes::from(body.to_string()));
        }
        *request.method_mut() = method;
        self.send(&self.admin, &format!("/admin/v1{path}"), request)
            .await
            .map_err(|f| self.explain(f))
    }

    /// Says what to look at where the answer was not of an admin API.
    fn explain(&self, failure: Failure) -> Failure {
        let admin = &self.admin;
        match failure {
            // Its own refusals have a code.
            Failure::Refused { status, code, .. } if code == status.to_string() => {
                Failure::Odd(format!(
                    "{admin} answers {status}, but not as an admin API does: give the address of \
                     `admin_api.listen` (port 9091 unless it is set) with --admin, not that of \
                     `admin.listen` or of the edge"
                ))
            }
            Failure::Unreachable { url, reason } if reason.contains("refused") => {
                let reason = format!(
                    "{reason}. It is `admin_api.listen` of warmpath serve or warmpath-telemetry, \
                     which serve it only where [[admin_api.tokens]] has an entry; --admin names \
                     another"
                );
                Failure::Unreachable { url, reason }
            }
            other => other,
        }
    }

    /// Reads from a router's port, which asks for no token.
    pub(super) async fn ask_router(&self, router: &str, path: &str) -> Result<Answer, Failure> {
        self.send(router, path, Request::new(Full::new(Bytes::new()))).await
    }

    async fn send(
        &self,
        base: &str,
        path: &str,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Answer, Failure> {
        let uri: Result<Uri, _> = format!("{base}{path}").parse();
        *request.uri_mut() = uri.map_err(|_| Failure::Odd(format!("`{path}` is no path")))?;
        let unreachable = |reason: String| Failure::Unreachable { url: base.to_owned(), reason };
        let exchange = async {
            let answer =
                self.http.request(request).await.map_err(|e| unreachable(broken(base, &e)))?;
            let (parts, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await;
            let body = body.map_err(|error| unreachable(error.to_string()))?.to_bytes();
            Ok((parts, body))
        };
        let (parts, body) = tokio::time::timeout(LIMIT, exchange)
            .await
            .map_err(|_| unreachable(format!("no answer within {LIMIT:?}")))??;
        let said: Option<Value> = serde_json::from_slice(&body).ok();
        if !parts.status.is_success() {
            return Err(refused(parts.status, &said.unwrap_or(Value::Null)));
        }
        let body = match said {
            Some(said) if said.is_object() => said,
            _ if parts.status == StatusCode::NO_CONTENT => Value::Null,
            _ => return Err(foreign(base, path)),
        };
        Ok(Answer { body, etag: parts.headers.get(ETAG).cloned() })
    }
}

/// A success that is none of ours: a proxy's page, another server.
fn foreign(base: &str, path: &str) -> Failure {
    Failure::Odd(format!("{base}{path} answers, but not as Warmpath does: is the address right?"))
}

/// A problem of RFC 9457, or whatever else came instead.
fn refused(status: StatusCode, body: &Value) -> Failure {
    let code = body["code"].as_str().map_or_else(|| status.to_string(), str::to_owned);
    let detail = body["detail"].as_str().or_else(|| body["error"]["message"].as_str());
    let mut detail = detail.unwrap_or("the answer is no success").to_owned();
    if let Some(field) = body["field"].as_str() {
        detail = format!("{field}: {detail}");
    }
    if status == StatusCode::UNAUTHORIZED {
        detail.push_str("; give one with --token-file or --token-env");
    }
    Failure::Refused { status, code, detail }
}

/// Why there was no answer, and what to do about it where that can be told.
fn broken(base: &str, error: &dyn std::error::Error) -> String {
    let what = innermost(error);
    let hint = match base.starts_with("https:") {
        // The latter is of another authority with the same name.
        true if what.contains("UnknownIssuer") || what.contains("BadSignature") => {
            "; its certificate goes back to an authority that is not known here: name that one's \
             certificate with --ca"
        }
        true if what.contains("InvalidContentType") => "; it does not speak TLS: write http://",
        true if what.contains("CertificateRequired") => {
            "; it asks for a certificate: give one with --cert and --cert-key"
        }
        // What a TLS alert looks like to who expects HTTP, and what other servers do.
        false
            if ["invalid HTTP version", "connection closed", "reset"]
                .iter()
                .any(|sign| what.contains(sign)) =>
        {
            "; if it has TLS, write https://"
        }
        _ => "",
    };
    what + hint
}

/// The error that says what happened: those around it say only that something did.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

fn bearer(token: &Redacted<String>) -> Result<HeaderValue, SettingsError> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", token.expose()))
        .map_err(|_| SettingsError::new("token", "it cannot stand in a header"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Whether a URL leads beyond this machine without TLS.
fn is_plain_and_far(url: &str) -> bool {
    let Some(authority) = url.strip_prefix("http://") else { return false };
    let Ok(authority) = authority.parse::<http::uri::Authority>() else { return false };
    let host = authority.host().trim_matches(['[', ']']);
    host != "localhost" && !host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Scheme and authority of a URL, nothing behind.
fn base(url: &str) -> Result<String, String> {
    let form = "http://HOST:PORT or https://HOST:PORT is allowed, without path or user";
    let trimmed = url.strip_suffix('/').unwrap_or(url);
    let uri: Uri = trimmed.parse().map_err(|_| form.to_owned())?;
    let plain = matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
        && matches!(uri.path(), "" | "/")
        && uri.query().is_none();
    if plain { Ok(trimmed.to_owned()) } else { Err(form.to_owned()) }
}

/// How an API over TLS is known, and this client to it. By default the machine's certificates are
/// trusted, and none is shown.
#[derive(Default)]
pub(crate) struct Tls {
    roots: Option<RootCertStore>,
    identity: Option<Identity>,
}

impl Tls {
    /// Reads the certificates. The key in the error is relative to the section.
    pub(crate) fn new(raw: &RawTls) -> Result<Self, SettingsError> {
        let roots = raw.ca.as_deref().map(|path| https::roots("ca", path)).transpose()?;
        Ok(Self { roots, identity: https::identity(raw)? })
    }

    fn config(self) -> Result<rustls::ClientConfig, String> {
        let provider = rustls::crypto::ring::default_provider();
        let builder = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?;
        let builder = match self.roots {
            Some(roots) => builder.with_root_certificates(roots),
            None => builder.with_native_roots().map_err(|e| e.to_string())?,
        };
        match self.identity {
            None => Ok(builder.with_no_client_auth()),
            Some((chain, key)) => {
                builder.with_client_auth_cert(chain, key).map_err(|e| e.to_string())
            }
        }
    }
}

/// A client. Without TLS no certificates are read, and nothing is called that has it.
///
/// # Errors
/// TLS is needed and cannot be set up.
pub(crate) fn http_client(tls: Option<Tls>) -> Result<Http, SettingsError> {
    let nobody = || Tls { roots: Some(RootCertStore::empty()), identity: None };
    let config = tls.unwrap_or_else(nobody).config();
    let config = config.map_err(|error| SettingsError::new("admin", format!("TLS: {error}")))?;
    let connector = HttpsConnectorBuilder::new().with_tls_config(config);
    let connector = connector.https_or_http().enable_http1().build();
    Ok(HttpClient::builder(TokioExecutor::new()).build(connector))
}

/// A name as one segment of a path, or as a value in a query.
pub(super) fn encode(name: &str) -> String {
    name.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}
