//! Every name that spans use, in one place: OpenTelemetry's conventions for generative AI and HTTP
//! as of the schema below, and what is ours under `warmpath.`. The conventions for generative AI
//! are still in development; a change of theirs is a change of this table.

use crate::endpoint::Endpoint;

/// The version of the conventions.
pub(crate) const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.41.0";
/// `service.name`.
pub(crate) const SERVICE: &str = "warmpath-edge";

pub(super) const OPERATION: &str = "gen_ai.operation.name";
pub(super) const PROVIDER: &str = "gen_ai.provider.name";
pub(super) const REQUEST_MODEL: &str = "gen_ai.request.model";
pub(super) const STREAM: &str = "gen_ai.request.stream";
pub(super) const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub(super) const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
/// Part of the input tokens.
pub(super) const CACHE_READ_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
/// Seconds.
pub(super) const FIRST_CHUNK: &str = "gen_ai.response.time_to_first_chunk";
pub(super) const ERROR_TYPE: &str = "error.type";
pub(super) const SERVER_ADDRESS: &str = "server.address";
pub(super) const SERVER_PORT: &str = "server.port";
pub(super) const STATUS: &str = "http.response.status_code";
pub(super) const RESEND_COUNT: &str = "http.request.resend_count";

pub(super) const ROUTE_SPAN: &str = "route";
pub(super) const ROUTE: &str = "warmpath.route";
pub(super) const REQUEST: &str = "warmpath.request.id";
pub(super) const TENANT: &str = "warmpath.tenant.id";
pub(super) const OUTCOME: &str = "warmpath.outcome";
pub(super) const ATTEMPTS: &str = "warmpath.attempts";
pub(super) const BACKEND: &str = "warmpath.backend.id";
pub(super) const REASON: &str = "warmpath.decision.reason";
pub(super) const MATCHED_BLOCKS: &str = "warmpath.matched_blocks";
pub(super) const PREDICTED_CACHED: &str = "warmpath.predicted.cached_tokens";
/// Seconds.
pub(super) const PREDICTED_TTFT: &str = "warmpath.predicted.time_to_first_token";

/// `gen_ai.operation.name` of a route: the conventions' own where they have one.
pub(super) const fn operation(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Chat => "chat",
        Endpoint::Completions => "text_completion",
        other => other.as_str(),
    }
}
