//! The routes: which path is which, and what they have in common.

use super::request::Dialect;

/// Where responses are, and what cancels one.
pub(crate) const RESPONSES: &str = "/v1/responses/";
pub(crate) const CANCEL: &str = "/cancel";

/// Whose form errors have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorForm {
    OpenAi,
    Anthropic,
    Cohere,
}

/// What the double knows to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Generate(Dialect),
    Embeddings,
    /// Cohere's.
    Embed,
    Rerank,
    Score,
    Render(Dialect),
    /// From generated token ids back to an answer.
    Derender(Dialect),
    CountTokens,
    /// A response that is kept; whether it is to be cancelled.
    Response(bool),
    Classify,
    Pooling,
    Transcription,
    Realtime,
    TokenizerInfo,
    Tokenize,
    Detokenize,
    Models,
    Health,
    Version,
    Load,
    Metrics,
    ResetPrefixCache,
    Faults,
    Stats,
    Records,
}

impl Route {
    pub(crate) fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Route::Generate(Dialect::Chat),
            "/v1/completions" => Route::Generate(Dialect::Completion),
            "/v1/embeddings" => Route::Embeddings,
            "/v2/embed" => Route::Embed,
            "/v1/rerank" | "/rerank" | "/v2/rerank" => Route::Rerank,
            "/v1/score" | "/score" => Route::Score,
            "/v1/chat/completions/batch" => Route::Generate(Dialect::Batch),
            "/v1/messages" => Route::Generate(Dialect::Messages),
            "/v1/responses" => Route::Generate(Dialect::Responses),
            "/inference/v1/generate" => Route::Generate(Dialect::Generate),
            "/cohere/v2/chat" => Route::Generate(Dialect::Cohere),
            "/generative_scoring" => Route::Generate(Dialect::Scoring),
            "/v1/messages/count_tokens" => Route::CountTokens,
            "/v1/chat/completions/render" => Route::Render(Dialect::Chat),
            "/v1/completions/render" => Route::Render(Dialect::Completion),
            "/v1/messages/render" => Route::Render(Dialect::Messages),
            "/v1/responses/render" => Route::Render(Dialect::Responses),
            "/cohere/v2/chat/render" => Route::Render(Dialect::Cohere),
            "/v1/chat/completions/derender" => Route::Derender(Dialect::Chat),
            "/v1/completions/derender" => Route::Derender(Dialect::Completion),
            "/classify" => Route::Classify,
            "/pooling" => Route::Pooling,
            "/v1/audio/transcriptions" | "/v1/audio/translations" => Route::Transcription,
            "/v1/realtime" => Route::Realtime,
            "/tokenizer_info" => Route::TokenizerInfo,
            "/tokenize" => Route::Tokenize,
            "/detokenize" => Route::Detokenize,
            "/v1/models" => Route::Models,
            "/health" | "/ping" => Route::Health,
            "/version" => Route::Version,
            "/load" => Route::Load,
            "/metrics" => Route::Metrics,
            "/reset_prefix_cache" => Route::ResetPrefixCache,
            "/fault" => Route::Faults,
            "/stats" => Route::Stats,
            "/records" => Route::Records,
            _ => {
                let id = path.strip_prefix(RESPONSES)?;
                Route::Response(id.ends_with(CANCEL))
            }
        })
    }

    pub(crate) fn methods(self) -> &'static str {
        match self {
            Route::Models | Route::Version | Route::Load | Route::Metrics => "GET",
            Route::TokenizerInfo | Route::Realtime | Route::Response(false) => "GET",
            Route::Stats | Route::Records => "GET",
            Route::Health => "GET, POST",
            Route::Faults => "GET, POST, DELETE",
            _ => "POST",
        }
    }

    pub(crate) fn is_inference(self) -> bool {
        matches!(
            self,
            Route::Generate(_)
                | Route::Embeddings
                | Route::Embed
                | Route::Rerank
                | Route::Score
                | Route::Classify
                | Route::Pooling
                | Route::Transcription
                | Route::Realtime
        )
    }

    /// How its errors are told.
    pub(crate) fn error_form(self) -> ErrorForm {
        match self {
            Route::Generate(Dialect::Messages) | Route::CountTokens => ErrorForm::Anthropic,
            Route::Generate(Dialect::Cohere) | Route::Render(Dialect::Cohere) => ErrorForm::Cohere,
            _ => ErrorForm::OpenAi,
        }
    }

    /// The double's own routes, which no fault touches.
    pub(crate) fn is_control(self) -> bool {
        matches!(self, Route::Faults | Route::Stats | Route::Records)
    }
}
