//! `/admin/v1/join-tokens`: with these engines announce themselves. A token is shown once, when
//! it is made; stored is the public key that announcements are checked with.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use config_store::Timestamp;
use config_store::typed::Stored;
use credentials::{CredentialError, MintedToken};
use domain::ModelId;
use domain::desired::{AddressRange, JoinToken, UnknownFields};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::auth::Author;
use super::extract::{Condition, Document, Id, Params, Tagged};
use super::page::{Page, PageQuery};
use super::problem::{Changing, Code, Creating, Listing, Problem, Reading};

/// Random bytes in the name of a token that was not given one.
const ID_BYTES: usize = 8;

/// Longest life of a token: ten years.
const MAX_TTL_SECONDS: u64 = 10 * 366 * 24 * 3600;

/// The scope of a token that is wanted.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct JoinTokenRequest {
    /// Its name; drawn if absent.
    #[schema(pattern = "^[!-~]{1,128}$")]
    id: Option<String>,
    /// The model that announced engines may serve; any if absent.
    #[schema(min_length = 1, max_length = 256)]
    model: Option<String>,
    /// The addresses that announced engines may have, as `10.0.0.0/8`; any if empty.
    #[serde(default)]
    #[schema(value_type = Vec<String>, max_items = 64)]
    addresses: Vec<AddressRange>,
    /// For how long it is good, in seconds: at most ten years.
    #[schema(minimum = 1, maximum = 316224000)]
    ttl_seconds: u64,
}

/// A token without its secret.
#[derive(Debug, Serialize, ToSchema)]
struct JoinTokenView {
    /// Its name.
    id: String,
    /// The model that announced engines may serve; any if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// The addresses that announced engines may have; any if empty.
    addresses: Vec<String>,
    /// From when on it is refused, in milliseconds since 1970.
    expires_at_ms: u64,
    /// Whether that is over.
    expired: bool,
    /// The revision at which it was made.
    revision: u64,
}

/// A new token, the only time that it is shown.
#[derive(Debug, Serialize, ToSchema)]
struct NewJoinToken {
    /// The token with its scope.
    #[serde(flatten)]
    view: JoinTokenView,
    /// What `warmpath announce` is given. It is stored nowhere.
    token: String,
}

impl From<Stored<JoinToken>> for JoinTokenView {
    fn from(stored: Stored<JoinToken>) -> Self {
        let Stored { document, revision, .. } = stored;
        Self {
            expired: document.expires_at_ms <= Timestamp::now().0,
            id: document.id,
            model: document.model.map(|model| model.to_string()),
            addresses: document.addresses.iter().map(AddressRange::to_string).collect(),
            expires_at_ms: document.expires_at_ms,
            revision: revision.0,
        }
    }
}

pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(get, revoke))
}

/// Lists the tokens, without secrets.
#[utoipa::path(get, path = "/admin/v1/join-tokens", tag = "join-tokens", params(PageQuery),
    responses((status = 200, body = Page<JoinTokenView>, description = "A page of tokens"),
        Listing))]
async fn list(
    State(api): State<Arc<Api>>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<JoinTokenView>>, Problem> {
    Ok(Json(api.page(&query, |_: &JoinToken| true, JoinTokenView::from).await?))
}

/// Makes a token. The answer holds its secret, this once.
#[utoipa::path(post, path = "/admin/v1/join-tokens", tag = "join-tokens",
    request_body = JoinTokenRequest,
    responses((status = 201, body = NewJoinToken, description = "Made",
        headers(("etag" = String, description = "Its revision"),
            ("location" = String, description = "Its path"))), Creating))]
async fn create(
    State(api): State<Arc<Api>>,
    by: Author,
    Document(request): Document<JoinTokenRequest>,
) -> Result<Tagged<NewJoinToken>, Problem> {
    if !(1..=MAX_TTL_SECONDS).contains(&request.ttl_seconds) {
        let detail = format!("1 to {MAX_TTL_SECONDS} is allowed");
        return Err(Problem::new(Code::InvalidDocument, detail).at("ttl_seconds"));
    }
    let drawn = |error: CredentialError| Problem::new(Code::StoreUnavailable, error.to_string());
    let id = match request.id {
        Some(id) => id,
        None => draw_id().map_err(drawn)?,
    };
    let minted = MintedToken::generate(&id).map_err(drawn)?;
    let token = JoinToken {
        id,
        public_key: minted.public_key_hex().to_owned(),
        model: request.model.map(ModelId::new),
        addresses: request.addresses,
        expires_at_ms: Timestamp::now().0.saturating_add(request.ttl_seconds * 1000),
        unknown: UnknownFields::new(),
    };
    let stored = api.create(&token, &by).await?;
    let revision = stored.revision;
    let location = format!("/admin/v1/join-tokens/{}", encode_segment(&token.id));
    let token = minted.secret_text().to_owned();
    Ok(Tagged::made(location, revision, NewJoinToken { view: stored.into(), token }))
}

fn draw_id() -> Result<String, CredentialError> {
    let mut id = [0; ID_BYTES];
    getrandom::fill(&mut id).map_err(|_| CredentialError::NoRandomness)?;
    Ok(credentials::hex(&id))
}

/// An id as one segment of a path.
fn encode_segment(id: &str) -> String {
    id.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}

/// Shows a token, without its secret.
#[utoipa::path(get, path = "/admin/v1/join-tokens/{id}", tag = "join-tokens",
    params(("id" = String, Path, description = "Its name", pattern = "^[!-~]{1,128}$")),
    responses((status = 200, body = JoinTokenView, description = "The token",
        headers(("etag" = String, description = "Its revision"))), Reading))]
async fn get(State(api): State<Arc<Api>>, Id(id): Id) -> Result<Tagged<JoinTokenView>, Problem> {
    let stored = api.get::<JoinToken>(&id).await?;
    Ok(Tagged::ok(stored.revision, stored.into()))
}

/// Revokes a token: announcements with it are refused from then on. Engines that were announced
/// with it are heard no more and so go the way of silent ones.
#[utoipa::path(delete, path = "/admin/v1/join-tokens/{id}", tag = "join-tokens",
    params(("id" = String, Path, description = "Its name", pattern = "^[!-~]{1,128}$"),
        ("if-match" = Option<String>, Header, description = "Only if it is at that ETag")),
    responses((status = 204, description = "Revoked"), Changing))]
async fn revoke(
    State(api): State<Arc<Api>>,
    by: Author,
    condition: Condition,
    Id(id): Id,
) -> Result<StatusCode, Problem> {
    api.delete::<JoinToken>(&id, &condition, &by).await?;
    Ok(StatusCode::NO_CONTENT)
}
