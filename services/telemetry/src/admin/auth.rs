//! Who asks: bearer tokens.

use std::fmt;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use credentials::key::digest;
use credentials::presented;
use subtle::ConstantTimeEq;

use super::api::Api;
use super::problem::{Code, Problem};

/// Whoever sent a request that was let in, by the name of the token.
#[derive(Clone, Debug)]
pub(super) struct Author(pub(super) Arc<str>);

/// The known tokens, by name; only hashes are kept.
#[derive(Clone, Default)]
pub(super) struct Tokens(Vec<(Arc<str>, [u8; 32])>);

impl Tokens {
    /// Adds one; `false` if it is there under another name.
    pub(super) fn insert(&mut self, name: Arc<str>, token: &str) -> bool {
        let hash = digest(token);
        let known = self.0.iter().any(|(_, known)| *known == hash);
        if !known {
            self.0.push((name, hash));
        }
        !known
    }

    /// Whose token a request carries. All are compared, each in constant time, so that nothing
    /// can be told from how long a refusal takes.
    fn identify(&self, headers: &HeaderMap) -> Option<Author> {
        let given = digest(bearer(headers).unwrap_or_default());
        let mut found = None;
        for (name, hash) in &self.0 {
            if bool::from(given.ct_eq(hash)) {
                found = Some(Author(name.clone()));
            }
        }
        found
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// The token, if there is exactly one credential and it is of that kind.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    presented::bearer(headers.get_all(AUTHORIZATION).iter().map(HeaderValue::as_bytes))
}

/// Lets nobody in without a token, whatever the route: also what does not exist is not told.
pub(super) async fn require_token(
    State(api): State<Arc<Api>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(author) = api.tokens.load().identify(request.headers()) else {
        api.metrics.refused.inc();
        return Problem::new(Code::Unauthorized, "a bearer token of this API is needed")
            .into_response();
    };
    request.extensions_mut().insert(author);
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn tokens() -> Tokens {
        let mut tokens = Tokens::default();
        assert!(tokens.insert("ops".into(), "token-of-ops"));
        assert!(tokens.insert("ci".into(), "token-of-ci"));
        assert!(!tokens.insert("other".into(), "token-of-ci"));
        tokens
    }

    fn asked(values: &[&'static str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_static(value));
        }
        tokens().identify(&headers).map(|author| author.0.to_string())
    }

    #[test]
    fn a_token_names_its_holder() {
        assert_eq!(asked(&["Bearer token-of-ops"]).as_deref(), Some("ops"));
        assert_eq!(asked(&["bearer token-of-ci"]).as_deref(), Some("ci"));
    }

    #[test]
    fn everything_else_is_nobody() {
        for odd in
            ["", "Bearer", "Bearer ", "Basic token-of-ops", "Bearer token-of-ops ", "Bearer  ci"]
        {
            assert_eq!(asked(&[odd]), None, "{odd:?}");
        }
        assert_eq!(asked(&[]), None);
        assert_eq!(asked(&["Bearer token-of-ops", "Bearer token-of-ops"]), None);
        assert_eq!(Tokens::default().identify(&HeaderMap::new()).map(|a| a.0), None);
    }
}
