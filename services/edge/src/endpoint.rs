//! The routes that exist. Everything else is refused: engines have routes that no client may
//! reach (sleep, cache resets, weight updates), and new versions bring more.

use http::Method;
use openai_api::RouteKind;

/// A known route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Endpoint {
    Chat,
    Completions,
    Embeddings,
    Rerank,
    Score,
    Tokenize,
    Detokenize,
    /// The list of models, or one of them.
    Models,
    /// Whether the gateway answers at all.
    Health,
    /// No known route: only a label.
    Unknown,
}

/// How a path and a method were understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matched<'a> {
    /// A request to pass on.
    Forward(Endpoint, RouteKind),
    /// The list of models.
    Models,
    /// One model, with its name as it stands in the path.
    Model(&'a str),
    Health,
    /// The route exists, the method does not; what does.
    WrongMethod(Endpoint, &'static str),
    NotFound,
}

const MODEL_PREFIX: &str = "/v1/models/";

impl Endpoint {
    pub(crate) const COUNT: usize = Endpoint::Unknown as usize + 1;

    /// The name in labels and logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Endpoint::Chat => "chat",
            Endpoint::Completions => "completions",
            Endpoint::Embeddings => "embeddings",
            Endpoint::Rerank => "rerank",
            Endpoint::Score => "score",
            Endpoint::Tokenize => "tokenize",
            Endpoint::Detokenize => "detokenize",
            Endpoint::Models => "models",
            Endpoint::Health => "health",
            Endpoint::Unknown => "unknown",
        }
    }
}

impl Matched<'_> {
    pub(crate) fn endpoint(self) -> Endpoint {
        match self {
            Matched::Forward(endpoint, _) | Matched::WrongMethod(endpoint, _) => endpoint,
            Matched::Models | Matched::Model(_) => Endpoint::Models,
            Matched::Health => Endpoint::Health,
            Matched::NotFound => Endpoint::Unknown,
        }
    }
}

/// Finds the route of a request. Paths are compared as they are: a second slash or a trailing
/// one makes another path.
pub(crate) fn find<'a>(method: &Method, path: &'a str) -> Matched<'a> {
    let (endpoint, kind) = match path {
        "/v1/chat/completions" => (Endpoint::Chat, RouteKind::Chat),
        "/v1/completions" => (Endpoint::Completions, RouteKind::Completions),
        "/v1/embeddings" => (Endpoint::Embeddings, RouteKind::Embeddings),
        "/v1/rerank" | "/v2/rerank" | "/rerank" => (Endpoint::Rerank, RouteKind::Rerank),
        "/v1/score" | "/score" => (Endpoint::Score, RouteKind::Score),
        "/tokenize" => (Endpoint::Tokenize, RouteKind::Tokenize),
        "/detokenize" => (Endpoint::Detokenize, RouteKind::Tokenize),
        "/v1/models" => return read_only(method, Endpoint::Models, Matched::Models),
        "/health" => return read_only(method, Endpoint::Health, Matched::Health),
        _ => {
            return match path.strip_prefix(MODEL_PREFIX).filter(|name| !name.is_empty()) {
                Some(name) => read_only(method, Endpoint::Models, Matched::Model(name)),
                None => Matched::NotFound,
            };
        }
    };
    match *method {
        Method::POST => Matched::Forward(endpoint, kind),
        _ => Matched::WrongMethod(endpoint, "POST"),
    }
}

fn read_only<'a>(method: &Method, endpoint: Endpoint, found: Matched<'a>) -> Matched<'a> {
    match *method {
        Method::GET | Method::HEAD => found,
        _ => Matched::WrongMethod(endpoint, "GET, HEAD"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_routes_exist() {
        for path in [
            "/",
            "/v1",
            "/v1/chat/completions/",
            "//v1/chat/completions",
            "/v1/chat/completions/render",
            "/V1/chat/completions",
            "/sleep",
            "/reset_prefix_cache",
            "/v1/load_lora_adapter",
            "/invocations",
            "/metrics",
            "/v1/models/",
        ] {
            assert_eq!(find(&Method::POST, path), Matched::NotFound, "{path}");
        }
    }

    #[test]
    fn a_known_route_with_another_method_names_the_right_ones() {
        let found = find(&Method::GET, "/v1/chat/completions");
        assert_eq!(found, Matched::WrongMethod(Endpoint::Chat, "POST"));
        let found = find(&Method::DELETE, "/v1/models/a/b");
        assert_eq!(found, Matched::WrongMethod(Endpoint::Models, "GET, HEAD"));
        let found = find(&Method::OPTIONS, "/rerank");
        assert_eq!(found, Matched::WrongMethod(Endpoint::Rerank, "POST"));
    }

    #[test]
    fn a_models_name_may_hold_slashes() {
        assert_eq!(find(&Method::GET, "/v1/models/a/b"), Matched::Model("a/b"));
        assert_eq!(find(&Method::GET, "/v1/models/a%2Fb"), Matched::Model("a%2Fb"));
    }
}
