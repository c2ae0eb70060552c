//! Whether an engine is there and serves what its token allows: asked before it is stored.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::desired::JoinToken;
use domain::{ModelId, ServedModel};
use events::Verdict;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::check::Refusal;
use crate::http_client::{Connector, Connectors};

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(2);

/// Bytes of an answer that are read; the largest is a model list.
const MAX_BYTES: usize = 1 << 20;

/// Asks engines. Keeps no connections between two questions.
#[derive(Clone)]
pub(super) struct Probe {
    connectors: Arc<Connectors>,
}

impl Probe {
    /// # Errors
    /// TLS cannot be set up at all.
    pub(super) fn new() -> Result<Self, crate::Error> {
        Ok(Self { connectors: Arc::new(Connectors::new(LIMIT)?) })
    }

    fn client(&self, url: &str) -> Client<Connector, Full<Bytes>> {
        let connector = self.connectors.get(url.starts_with("https:"));
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_max_idle_per_host(0).build(connector)
    }

    /// `GET /health`; and the model list, if the token is for one model.
    pub(super) async fn ask(&self, url: &str, token: &JoinToken) -> Result<(), Refusal> {
        let unreachable = |detail: String| Refusal::new(Verdict::Unreachable, detail);
        let (mut status, _) = self.get(url, "/health").await.map_err(unreachable)?;
        if matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
            (status, _) = self.get(url, "/v1/models").await.map_err(unreachable)?;
        }
        if !status.is_success() {
            return Err(unreachable(format!("its health is {status}")));
        }
        let Some(model) = &token.model else { return Ok(()) };
        let (status, list) = self.get(url, "/v1/models").await.map_err(unreachable)?;
        if !status.is_success() {
            return Err(unreachable(format!("its model list is {status}")));
        }
        let list = engine::models::parse(&list)
            .map_err(|error| unreachable(format!("its model list: {error}")))?;
        serves_only(model, &list.models)
    }

    async fn get(&self, url: &str, path: &str) -> Result<(StatusCode, Bytes), String> {
        let mut request = Request::new(Full::new(Bytes::new()));
        let uri = format!("{}{path}", url.strip_suffix('/').unwrap_or(url));
        *request.uri_mut() = uri.parse().map_err(|_| "its URL is none".to_owned())?;
        let exchange = async {
            let answer = self.client(url).request(request).await;
            let answer = answer.map_err(|_| "no connection, or it broke".to_owned())?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MAX_BYTES).collect().await;
            let body = body.map_err(|_| "the answer broke off or is too large".to_owned())?;
            Ok((status, body.to_bytes()))
        };
        let no_answer = || Err(format!("no answer within {LIMIT:?}"));
        tokio::time::timeout(LIMIT, exchange).await.unwrap_or_else(|_| no_answer())
    }
}

/// A token for one model lets in what serves that model, adapters over it, other names of it, and
/// nothing else.
fn serves_only(model: &ModelId, served: &[ServedModel]) -> Result<(), Refusal> {
    let refuse = |detail: String| Err(Refusal::new(Verdict::OutOfScope, detail));
    let is_it = |entry: &ServedModel| {
        entry.id == *model || entry.base.as_ref().is_some_and(|base| base.model == *model)
    };
    if !served.iter().any(|entry| entry.id == *model) {
        return refuse(format!("it does not serve `{model}`, which the token is for"));
    }
    match served.iter().find(|entry| !is_it(entry)) {
        Some(other) => refuse(format!("it serves `{}`, which the token is not for", other.id)),
        None => Ok(()),
    }
}
