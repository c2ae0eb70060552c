//! The routes that exist. Everything else is refused: engines have routes that no client may
//! reach (sleep, cache resets, weight updates), and new versions bring more.

use http::Method;
use openai_api::{Dialect, MAX_RESPONSE_ID_BYTES, RouteKind};

/// A known route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Endpoint {
    Chat,
    ChatBatch,
    Completions,
    Messages,
    CountTokens,
    Responses,
    Generate,
    GenerativeScoring,
    CohereChat,
    Embeddings,
    Rerank,
    Score,
    Classify,
    Pooling,
    Transcription,
    Realtime,
    Tokenize,
    Detokenize,
    TokenizerInfo,
    /// From a request to token ids.
    Render,
    /// And back.
    Derender,
    /// The list of models, or one of them.
    Models,
    /// Whether the gateway answers at all.
    Health,
    /// The gateway's version.
    Version,
    /// No known route: only a label.
    Unknown,
}

/// How a path and a method were understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matched<'a> {
    /// A request to pass on, with a body to read.
    Forward(Endpoint, RouteKind),
    /// A request to pass on whose body is a form with a file.
    Form(Endpoint),
    /// A request to pass on that has no body; the query may name the model.
    Bodyless(Endpoint),
    /// A WebSocket.
    Realtime,
    /// A request about the response of that id, which one engine keeps.
    Response(&'a str),
    /// The same of an id that is longer than ids are.
    EndlessResponse,
    /// The list of models.
    Models,
    /// One model, with its name as it stands in the path.
    Model(&'a str),
    Health,
    Version,
    /// The route exists, the method does not; what does.
    WrongMethod(Endpoint, &'static str),
    NotFound,
}

const MODEL_PREFIX: &str = "/v1/models/";
const RESPONSE_PREFIX: &str = "/v1/responses/";
const CANCEL: &str = "/cancel";

impl Endpoint {
    pub(crate) const COUNT: usize = Endpoint::ALL.len();

    pub(crate) const ALL: [Endpoint; 25] = [
        Endpoint::Chat,
        Endpoint::ChatBatch,
        Endpoint::Completions,
        Endpoint::Messages,
        Endpoint::CountTokens,
        Endpoint::Responses,
        Endpoint::Generate,
        Endpoint::GenerativeScoring,
        Endpoint::CohereChat,
        Endpoint::Embeddings,
        Endpoint::Rerank,
        Endpoint::Score,
        Endpoint::Classify,
        Endpoint::Pooling,
        Endpoint::Transcription,
        Endpoint::Realtime,
        Endpoint::Tokenize,
        Endpoint::Detokenize,
        Endpoint::TokenizerInfo,
        Endpoint::Render,
        Endpoint::Derender,
        Endpoint::Models,
        Endpoint::Health,
        Endpoint::Version,
        Endpoint::Unknown,
    ];

    /// The route of that name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let known = Self::ALL.into_iter().filter(|endpoint| *endpoint != Endpoint::Unknown);
        known.into_iter().find(|endpoint| endpoint.as_str() == name)
    }

    /// The name in labels and logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Endpoint::Chat => "chat",
            Endpoint::ChatBatch => "chat_batch",
            Endpoint::Completions => "completions",
            Endpoint::Messages => "messages",
            Endpoint::CountTokens => "count_tokens",
            Endpoint::Responses => "responses",
            Endpoint::Generate => "generate",
            Endpoint::GenerativeScoring => "generative_scoring",
            Endpoint::CohereChat => "cohere_chat",
            Endpoint::Embeddings => "embeddings",
            Endpoint::Rerank => "rerank",
            Endpoint::Score => "score",
            Endpoint::Classify => "classify",
            Endpoint::Pooling => "pooling",
            Endpoint::Transcription => "transcription",
            Endpoint::Realtime => "realtime",
            Endpoint::Tokenize => "tokenize",
            Endpoint::Detokenize => "detokenize",
            Endpoint::TokenizerInfo => "tokenizer_info",
            Endpoint::Render => "render",
            Endpoint::Derender => "derender",
            Endpoint::Models => "models",
            Endpoint::Health => "health",
            Endpoint::Version => "version",
            Endpoint::Unknown => "unknown",
        }
    }

    /// Whether an engine could find part of the prompt in its cache and tell.
    pub(crate) const fn tells_cached_tokens(self) -> bool {
        matches!(
            self,
            Endpoint::Chat
                | Endpoint::ChatBatch
                | Endpoint::Completions
                | Endpoint::Messages
                | Endpoint::Responses
                | Endpoint::Generate
                | Endpoint::CohereChat
        )
    }
}

impl Matched<'_> {
    pub(crate) fn endpoint(self) -> Endpoint {
        match self {
            Matched::Forward(endpoint, _)
            | Matched::Form(endpoint)
            | Matched::Bodyless(endpoint)
            | Matched::WrongMethod(endpoint, _) => endpoint,
            Matched::Realtime => Endpoint::Realtime,
            Matched::Response(_) | Matched::EndlessResponse => Endpoint::Responses,
            Matched::Models | Matched::Model(_) => Endpoint::Models,
            Matched::Health => Endpoint::Health,
            Matched::Version => Endpoint::Version,
            Matched::NotFound => Endpoint::Unknown,
        }
    }
}

/// Whose form the gateway's own errors have on a path, known or not.
pub(crate) fn dialect(path: &str) -> Dialect {
    let below = |prefix: &str| {
        path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    match path {
        _ if below("/v1/messages") => Dialect::Anthropic,
        _ if below("/v1/responses") => Dialect::Responses,
        _ if below("/cohere") => Dialect::Cohere,
        _ => Dialect::OpenAi,
    }
}

/// Finds the route of a request. Paths are compared as they are: a second slash or a trailing
/// one makes another path.
pub(crate) fn find<'a>(method: &Method, path: &'a str) -> Matched<'a> {
    if let Some((endpoint, kind)) = with_body(path) {
        return match *method {
            Method::POST => Matched::Forward(endpoint, kind),
            _ => Matched::WrongMethod(endpoint, "POST"),
        };
    }
    match path {
        "/v1/models" => read_only(method, Endpoint::Models, Matched::Models),
        "/health" => read_only(method, Endpoint::Health, Matched::Health),
        "/ping" => match *method {
            Method::POST => Matched::Health,
            _ => read_only(method, Endpoint::Health, Matched::Health),
        },
        "/version" => read_only(method, Endpoint::Version, Matched::Version),
        "/v1/audio/transcriptions" | "/v1/audio/translations" => match *method {
            Method::POST => Matched::Form(Endpoint::Transcription),
            _ => Matched::WrongMethod(Endpoint::Transcription, "POST"),
        },
        "/v1/realtime" => match *method {
            Method::GET => Matched::Realtime,
            _ => Matched::WrongMethod(Endpoint::Realtime, "GET"),
        },
        "/tokenizer_info" => match *method {
            Method::GET => Matched::Bodyless(Endpoint::TokenizerInfo),
            _ => Matched::WrongMethod(Endpoint::TokenizerInfo, "GET"),
        },
        _ => below(method, path),
    }
}

/// Routes that name a thing in their path.
fn below<'a>(method: &Method, path: &'a str) -> Matched<'a> {
    if let Some(name) = path.strip_prefix(MODEL_PREFIX).filter(|name| !name.is_empty()) {
        return read_only(method, Endpoint::Models, Matched::Model(name));
    }
    let Some(rest) = path.strip_prefix(RESPONSE_PREFIX) else { return Matched::NotFound };
    let (id, wanted) = match rest.strip_suffix(CANCEL) {
        Some(id) => (id, Method::POST),
        None => (rest, Method::GET),
    };
    match () {
        () if !is_plain(id) => Matched::NotFound,
        () if *method == wanted && id.len() > MAX_RESPONSE_ID_BYTES => Matched::EndlessResponse,
        () if *method == wanted => Matched::Response(id),
        () if wanted == Method::POST => Matched::WrongMethod(Endpoint::Responses, "POST"),
        () => Matched::WrongMethod(Endpoint::Responses, "GET"),
    }
}

/// Whether a text is the id of a response, as engines take it in a path.
pub(crate) fn is_response_id(id: &str) -> bool {
    is_plain(id) && id.len() <= MAX_RESPONSE_ID_BYTES
}

/// Whether an id can stand in a path and name nothing else there.
fn is_plain(id: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b':' | b'.');
    id.bytes().all(plain) && !id.is_empty() && !id.starts_with('.')
}

/// Routes with a body in JSON.
fn with_body(path: &str) -> Option<(Endpoint, RouteKind)> {
    use RouteKind::ByLoad;
    Some(match path {
        "/v1/chat/completions" => (Endpoint::Chat, RouteKind::Chat),
        "/v1/chat/completions/batch" => (Endpoint::ChatBatch, RouteKind::ChatBatch),
        "/v1/completions" => (Endpoint::Completions, RouteKind::Completions),
        "/v1/messages" => (Endpoint::Messages, RouteKind::Messages),
        "/v1/messages/count_tokens" => (Endpoint::CountTokens, ByLoad),
        "/v1/responses" => (Endpoint::Responses, RouteKind::Responses),
        "/inference/v1/generate" => (Endpoint::Generate, RouteKind::Generate),
        "/generative_scoring" => (Endpoint::GenerativeScoring, RouteKind::GenerativeScoring),
        "/cohere/v2/chat" => (Endpoint::CohereChat, RouteKind::CohereChat),
        "/v1/embeddings" | "/v2/embed" => (Endpoint::Embeddings, ByLoad),
        "/v1/rerank" | "/v2/rerank" | "/rerank" => (Endpoint::Rerank, ByLoad),
        "/v1/score" | "/score" => (Endpoint::Score, ByLoad),
        "/classify" => (Endpoint::Classify, ByLoad),
        "/pooling" => (Endpoint::Pooling, ByLoad),
        "/tokenize" => (Endpoint::Tokenize, ByLoad),
        "/detokenize" => (Endpoint::Detokenize, ByLoad),
        "/v1/chat/completions/render"
        | "/v1/completions/render"
        | "/v1/messages/render"
        | "/v1/responses/render"
        | "/cohere/v2/chat/render" => (Endpoint::Render, ByLoad),
        "/v1/chat/completions/derender" | "/v1/completions/derender" => {
            (Endpoint::Derender, ByLoad)
        }
        _ => return None,
    })
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
            "/V1/chat/completions",
            "/sleep",
            "/reset_prefix_cache",
            "/v1/load_lora_adapter",
            "/invocations",
            "/metrics",
            "/v1/models/",
            "/v1/responses/",
            "/v1/responses//cancel",
            "/v1/responses/a/b",
            "/v1/responses/..",
            "/v1/responses/%2e%2e%2fsleep",
            "/v1/messages/batches",
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
        let found = find(&Method::DELETE, "/v1/responses/resp_1");
        assert_eq!(found, Matched::WrongMethod(Endpoint::Responses, "GET"));
        let found = find(&Method::GET, "/v1/responses/resp_1/cancel");
        assert_eq!(found, Matched::WrongMethod(Endpoint::Responses, "POST"));
    }

    #[test]
    fn a_models_name_may_hold_slashes() {
        assert_eq!(find(&Method::GET, "/v1/models/a/b"), Matched::Model("a/b"));
        assert_eq!(find(&Method::GET, "/v1/models/a%2Fb"), Matched::Model("a%2Fb"));
    }

    #[test]
    fn a_response_is_named_by_its_id() {
        let found = find(&Method::GET, "/v1/responses/resp_1");
        assert_eq!(found, Matched::Response("resp_1"));
        let found = find(&Method::POST, "/v1/responses/resp_1/cancel");
        assert_eq!(found, Matched::Response("resp_1"));
        let longest = "x".repeat(MAX_RESPONSE_ID_BYTES);
        let found =
            find(&Method::GET, &format!("/v1/responses/{longest}")) == Matched::Response(&longest);
        assert!(found && is_response_id(&longest));
        let path = format!("/v1/responses/{longest}x");
        assert_eq!(find(&Method::GET, &path), Matched::EndlessResponse);
        assert_eq!(find(&Method::POST, &format!("{path}/cancel")), Matched::EndlessResponse);
        assert!(!is_response_id(&format!("{longest}x")));
    }

    #[test]
    fn the_dialect_is_that_of_the_path_even_where_there_is_no_route() {
        assert_eq!(dialect("/v1/messages/batches"), Dialect::Anthropic);
        assert_eq!(dialect("/v1/messages/count_tokens"), Dialect::Anthropic);
        assert_eq!(dialect("/v1/messagesque"), Dialect::OpenAi);
        assert_eq!(dialect("/v1/responses/x"), Dialect::Responses);
        assert_eq!(dialect("/cohere/v2/chat"), Dialect::Cohere);
        assert_eq!(dialect("/v1/models"), Dialect::OpenAi);
    }
}
