//! The conversation between edge and router, and the port it goes through.
//!
//! `Route` → `Decision` or `Rejected`; then, for the lease that the decision carries,
//! `FirstToken`, `Progress`…, and exactly one of `Finished`, `Failed`, `Cancelled`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use serde::{Deserialize, Serialize};

use crate::{
    ErrorCode, EvidenceLevel, Fleet, KeyList, LeaseId, ModelId, RankId, RequestId, TenantId,
};

/// A future that can cross threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
/// A stream that can cross threads.
pub type BoxStream<'a, T> = Pin<Box<dyn Stream<Item = T> + Send + 'a>>;

/// Asks where one attempt of a request should go.
#[derive(Clone, Debug)]
pub struct Route {
    /// The client's request, the same over all attempts.
    pub request: RequestId,
    /// What the client calls it, if it does. Not unique: clients choose it as they like.
    pub client_request: Option<Arc<str>>,
    /// 0 for the first try.
    pub attempt: u32,
    /// Whose request it is.
    pub tenant: TenantId,
    /// The model the engine will be asked for.
    pub model: ModelId,
    /// What is known of the prompt. `None` for routes that go by load alone.
    pub prompt: Option<Prompt>,
    /// Output tokens the client allows, over all choices, if it said.
    pub max_output_tokens: Option<u32>,
    /// Whether the answer streams: without a stream there is no first token to see.
    pub stream: bool,
    /// Ranks that must not be chosen: they failed this request already.
    pub excluded: Vec<RankId>,
    /// How long a decision is waited for while no backend of the model is ready.
    pub hold: Duration,
    /// What is left of the last attempt's [`Decision::others`], best first: where this one goes
    /// when no router answers.
    pub ranked: Vec<Candidate>,
}

/// A prompt as far as routing needs it.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Its length in tokens, of several prompts in one request all of theirs: exact with a
    /// tokenizer, estimated from bytes without.
    pub tokens: u32,
    /// The same in bytes of canonical text.
    pub text_bytes: u32,
    /// One list for each unit in use among the model's backends. Of several prompts in one
    /// request, the first one's.
    pub keys: Vec<KeyList>,
}

/// Where the attempt should go, and why.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The booking. It must be ended by exactly one closing [`Report`].
    pub lease: LeaseId,
    /// The chosen rank.
    pub chosen: Candidate,
    /// The other candidates, best first; what the edge falls back on when no router answers.
    pub others: Vec<Candidate>,
    /// What the choice rested on.
    pub evidence: Evidence,
}

/// A rank that could take the attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The rank.
    pub rank: RankId,
    /// Its address: scheme, host and port.
    pub url: Arc<str>,
    /// Whether the rank must be named to the engine, as there are several behind one address.
    pub pin_rank: bool,
}

/// What a decision rested on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// Leading blocks of the prompt that the rank is believed to hold.
    pub matched_blocks: u32,
    /// Prompt tokens the engine is expected to find in its cache.
    pub predicted_cached_tokens: u32,
    /// Expected time to first token.
    pub predicted_ttft: Duration,
    /// The score's parts.
    pub parts: ScoreParts,
    /// How well the rank's cache is known.
    pub level: EvidenceLevel,
    /// Why this rank won.
    pub reason: DecisionReason,
}

/// The parts of a score, in seconds; lower wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScoreParts {
    /// Round trip to the engine.
    pub network_seconds: f64,
    /// Wait until the rank can begin this prompt's prefill.
    pub queue_delay_seconds: f64,
    /// Prefill of the uncached tokens.
    pub prefill_seconds: f64,
    /// Prefill that others will pay for what this prompt evicts, weighted.
    pub eviction_cost_seconds: f64,
    /// Wait that this prompt's prefill adds to requests that come to the rank after it.
    pub others_delay_seconds: f64,
    /// What a rank is charged for a hot prefix that it holds, when another should get it, too.
    pub hot_prefix_seconds: f64,
}

impl ScoreParts {
    /// The sum that is compared.
    pub fn total_seconds(&self) -> f64 {
        self.network_seconds
            + self.queue_delay_seconds
            + self.prefill_seconds
            + self.eviction_cost_seconds
            + self.others_delay_seconds
            + self.hot_prefix_seconds
    }

    /// The part of it that this request itself waits for.
    pub fn ttft_seconds(&self) -> f64 {
        self.network_seconds + self.queue_delay_seconds + self.prefill_seconds
    }
}

/// Why a rank won.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionReason {
    /// The only candidate.
    OnlyCandidate,
    /// Lowest estimated time to first token, with cached blocks of this prompt.
    WarmPrefix,
    /// Lowest estimated time to first token, though another rank holds a longer prefix.
    WarmerRankTooBusy,
    /// One more holder for a prefix that is asked for more than its holders should bear.
    HotPrefix,
    /// Lowest estimated time to first token; no candidate holds any of it.
    Cold,
    /// Every candidate is saturated; still the lowest score.
    AllSaturated,
    /// By load, as the route or the policy says.
    LeastLoad,
    /// By turn, as the policy says.
    RoundRobin,
    /// No router answered: the edge went by what it knew.
    EdgeAlone,
}

impl DecisionReason {
    /// Every reason.
    pub const ALL: [DecisionReason; 9] = [
        DecisionReason::OnlyCandidate,
        DecisionReason::WarmPrefix,
        DecisionReason::WarmerRankTooBusy,
        DecisionReason::HotPrefix,
        DecisionReason::Cold,
        DecisionReason::AllSaturated,
        DecisionReason::LeastLoad,
        DecisionReason::RoundRobin,
        DecisionReason::EdgeAlone,
    ];

    /// The name in labels, logs and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            DecisionReason::OnlyCandidate => "only_candidate",
            DecisionReason::WarmPrefix => "warm_prefix",
            DecisionReason::WarmerRankTooBusy => "warmer_rank_too_busy",
            DecisionReason::HotPrefix => "hot_prefix",
            DecisionReason::Cold => "cold",
            DecisionReason::AllSaturated => "all_saturated",
            DecisionReason::LeastLoad => "least_load",
            DecisionReason::RoundRobin => "round_robin",
            DecisionReason::EdgeAlone => "edge_alone",
        }
    }
}

/// No decision.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", reason.message())]
pub struct Rejected {
    /// Why.
    pub reason: RejectReason,
    /// When it is worth asking again.
    pub retry_after: Option<Duration>,
}

/// Why there was no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RejectReason {
    /// No backend has ever listed that model.
    UnknownModel,
    /// Backends of that model exist; none is ready.
    NoReadyBackend,
    /// Every ready backend is in `excluded`.
    AllExcluded,
    /// What is to be told of the prompt is more than a message to a router may hold.
    TooLarge,
    /// The router could not make sense of the request.
    NotTaken,
}

impl RejectReason {
    /// Every reason.
    pub const ALL: [RejectReason; 5] = [
        RejectReason::UnknownModel,
        RejectReason::NoReadyBackend,
        RejectReason::AllExcluded,
        RejectReason::TooLarge,
        RejectReason::NotTaken,
    ];

    /// The name in labels, logs and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            RejectReason::UnknownModel => "unknown_model",
            RejectReason::NoReadyBackend => "no_ready_backend",
            RejectReason::AllExcluded => "all_excluded",
            RejectReason::TooLarge => "too_large",
            RejectReason::NotTaken => "not_taken",
        }
    }

    /// Whether a backend that comes would change the answer, so that a request may wait for one.
    pub const fn may_pass(self) -> bool {
        matches!(self, RejectReason::UnknownModel | RejectReason::NoReadyBackend)
    }

    /// A sentence for logs and error bodies.
    pub const fn message(self) -> &'static str {
        match self {
            RejectReason::UnknownModel => "no backend serves this model",
            RejectReason::NoReadyBackend => "no backend of this model is ready",
            RejectReason::AllExcluded => {
                "every ready backend of this model has failed this request"
            }
            RejectReason::TooLarge => "the prompt is too long to be routed",
            RejectReason::NotTaken => "the router could not take this request",
        }
    }

    /// The error code a client gets.
    pub const fn code(self) -> ErrorCode {
        match self {
            RejectReason::UnknownModel => ErrorCode::ModelNotFound,
            RejectReason::NoReadyBackend | RejectReason::AllExcluded => {
                ErrorCode::UpstreamUnavailable
            }
            RejectReason::TooLarge => ErrorCode::RequestTooLarge,
            RejectReason::NotTaken => ErrorCode::Internal,
        }
    }
}

/// What became of a lease. The first two may come any number of times, the others end it.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// The first content token arrived.
    FirstToken {
        /// The lease.
        lease: LeaseId,
    },
    /// So many output tokens exist by now.
    Progress {
        /// The lease.
        lease: LeaseId,
        /// Output tokens so far, all choices together.
        generated: u32,
    },
    /// The engine answered to the end.
    Finished {
        /// The lease.
        lease: LeaseId,
        /// What the engine counted, where it told.
        usage: Option<Usage>,
        /// The keys of the full blocks that the answer's tokens fill, as far as the engine's
        /// cache holds them: they continue the lists of [`Prompt::keys`], one list per unit.
        /// Empty where the answer's tokens are not known.
        output_keys: Vec<KeyList>,
    },
    /// The attempt failed.
    Failed {
        /// The lease.
        lease: LeaseId,
        /// How.
        class: FailureClass,
        /// How long the engine wants to be left alone, where it is full and said so.
        retry_after: Option<Duration>,
    },
    /// The client went away.
    Cancelled {
        /// The lease.
        lease: LeaseId,
    },
}

impl Report {
    /// The lease it is about.
    pub const fn lease(&self) -> LeaseId {
        match *self {
            Report::FirstToken { lease }
            | Report::Progress { lease, .. }
            | Report::Finished { lease, .. }
            | Report::Failed { lease, .. }
            | Report::Cancelled { lease } => lease,
        }
    }
}

/// Token counts as the engine reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Prompt tokens, all prompts of the request together.
    pub prompt_tokens: u64,
    /// Output tokens, all choices together.
    pub completion_tokens: u64,
    /// Prompt tokens found in the cache, where the engine tells.
    pub cached_tokens: Option<u64>,
}

/// How an attempt failed. It decides what is learned from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// No connection, or it broke before any byte of the answer.
    Connection,
    /// A 5xx other than 503 before the first token.
    ServerError,
    /// The connection broke, or an error event came, after bytes of the answer.
    Interrupted,
    /// Nothing came in time.
    Timeout,
    /// 429 or 503: the engine is full. No sign of ill health.
    BackPressure,
    /// Any other 4xx: the client's own fault.
    ClientError,
}

impl FailureClass {
    /// Every class.
    pub const ALL: [FailureClass; 6] = [
        FailureClass::Connection,
        FailureClass::ServerError,
        FailureClass::Interrupted,
        FailureClass::Timeout,
        FailureClass::BackPressure,
        FailureClass::ClientError,
    ];

    /// Whether it speaks against the backend's health.
    pub const fn counts_against_backend(self) -> bool {
        !matches!(self, FailureClass::BackPressure | FailureClass::ClientError)
    }

    /// The name in labels and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            FailureClass::Connection => "connection",
            FailureClass::ServerError => "server_error",
            FailureClass::Interrupted => "interrupted",
            FailureClass::Timeout => "timeout",
            FailureClass::BackPressure => "back_pressure",
            FailureClass::ClientError => "client_error",
        }
    }
}

/// The way to a router, in this process or far away; the caller cannot tell.
pub trait RoutingClient: Send + Sync + 'static {
    /// Chooses and books a rank. The booking lives until its closing report.
    ///
    /// # Errors
    /// [`Rejected`] when no candidate is left.
    fn route(&self, route: Route) -> BoxFuture<'_, Result<Decision, Rejected>>;

    /// Tells what became of a lease. Never waits; reports for unknown leases are ignored.
    fn report(&self, report: Report);

    /// The backends as last seen.
    fn fleet(&self) -> Arc<Fleet>;

    /// Every later state of the backends. States may be skipped, the newest never is.
    fn watch_fleet(&self) -> BoxStream<'static, Arc<Fleet>>;
}
