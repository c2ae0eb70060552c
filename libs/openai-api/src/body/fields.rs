//! The names of the fields that the gateway owns or reads.

use super::RouteKind;

macro_rules! fields {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A top-level field of a request that the gateway owns or reads. A body that holds one
        /// of them twice is refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Field {
            $($(#[$doc])* $variant,)*
        }

        impl Field {
            /// Every field.
            pub const ALL: &[Field] = &[$(Field::$variant,)*];

            /// The key as it stands in a body.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Field::$variant => $name,)*
                }
            }

            /// The field of that key, unescaped.
            pub fn from_name(name: &str) -> Option<Field> {
                match name {
                    $($name => Some(Field::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

fields! {
    /// The model.
    Model = "model",
    /// The conversation of a chat.
    Messages = "messages",
    /// The prompt of a completion.
    Prompt = "prompt",
    /// The text of an embedding.
    Input = "input",
    /// Whether to stream.
    Stream = "stream",
    /// What a stream carries besides content.
    StreamOptions = "stream_options",
    /// Output limit.
    MaxTokens = "max_tokens",
    /// Output limit, the newer name.
    MaxCompletionTokens = "max_completion_tokens",
    /// Choices.
    N = "n",
    /// Candidates per choice.
    BestOf = "best_of",
    /// Salt of the engine's block hashes.
    CacheSalt = "cache_salt",
    /// Tools the model may call.
    Tools = "tools",
    /// Which tool it must call.
    ToolChoice = "tool_choice",
    /// A chat template of the client's.
    ChatTemplate = "chat_template",
    /// Variables for the chat template.
    ChatTemplateKwargs = "chat_template_kwargs",
    /// Whether the template ends with the head of the answer.
    AddGenerationPrompt = "add_generation_prompt",
    /// Whether the last message is to be continued.
    ContinueFinalMessage = "continue_final_message",
    /// Whether the tokenizer adds its special tokens.
    AddSpecialTokens = "add_special_tokens",
    /// Documents for the template.
    Documents = "documents",
    /// Effort of reasoning; some templates read it.
    ReasoningEffort = "reasoning_effort",
    /// Scheduling priority in the engine.
    Priority = "priority",
    /// The engine's own request id.
    RequestId = "request_id",
    /// Where KV blocks come from and go to.
    KvTransferParams = "kv_transfer_params",
    /// The same of encoder caches.
    EcTransferParams = "ec_transfer_params",
    /// Parameters for extensions of the engine.
    VllmXargs = "vllm_xargs",
    /// The end user.
    User = "user",
    /// The session.
    SessionId = "session_id",
    /// Cuts the prompt to so many tokens.
    TruncatePromptTokens = "truncate_prompt_tokens",
    /// The system prompt of a Messages request.
    System = "system",
    /// Whether and how much a model thinks, of a Messages request.
    Thinking = "thinking",
    /// Effort and form of a Messages request's output.
    OutputConfig = "output_config",
    /// The system prompt of a Responses request.
    Instructions = "instructions",
    /// The response that a Responses request goes on from.
    PreviousResponseId = "previous_response_id",
    /// Effort of reasoning of a Responses request.
    Reasoning = "reasoning",
    /// Output limit of a Responses request.
    MaxOutputTokens = "max_output_tokens",
    /// A prompt as token ids.
    TokenIds = "token_ids",
    /// What else is in a prompt of token ids, as features.
    Features = "features",
    /// What else is in a prompt of token ids, as parts.
    ContentParts = "content_parts",
    /// How a prompt of token ids is sampled.
    SamplingParams = "sampling_params",
    /// The text that others are scored against.
    Query = "query",
    /// The texts that are scored.
    Items = "items",
    /// Whether they stand before the query.
    ItemFirst = "item_first",
}

impl RouteKind {
    /// What decides the tokens of the prompt, the part that grows from turn to turn last.
    pub(crate) const fn prompt_fields(self) -> &'static [Field] {
        match self {
            RouteKind::Chat => &[
                Field::Tools,
                Field::ToolChoice,
                Field::Documents,
                Field::ChatTemplate,
                Field::ChatTemplateKwargs,
                Field::ReasoningEffort,
                Field::AddGenerationPrompt,
                Field::ContinueFinalMessage,
                Field::AddSpecialTokens,
                Field::TruncatePromptTokens,
                Field::Messages,
            ],
            RouteKind::ChatBatch => &[
                Field::ChatTemplate,
                Field::ChatTemplateKwargs,
                Field::AddGenerationPrompt,
                Field::ContinueFinalMessage,
                Field::AddSpecialTokens,
                Field::Messages,
            ],
            RouteKind::Completions => {
                &[Field::AddSpecialTokens, Field::TruncatePromptTokens, Field::Prompt]
            }
            RouteKind::Messages => &[
                Field::Tools,
                Field::ToolChoice,
                Field::Thinking,
                Field::OutputConfig,
                Field::ChatTemplateKwargs,
                Field::System,
                Field::Messages,
            ],
            RouteKind::Responses => &[
                Field::Tools,
                Field::ToolChoice,
                Field::Reasoning,
                Field::ChatTemplateKwargs,
                Field::PreviousResponseId,
                Field::Instructions,
                Field::Input,
            ],
            RouteKind::Generate => &[Field::Features, Field::ContentParts, Field::TokenIds],
            RouteKind::CohereChat => &[
                Field::Tools,
                Field::Documents,
                Field::Thinking,
                Field::ChatTemplateKwargs,
                Field::Messages,
            ],
            RouteKind::GenerativeScoring => {
                &[Field::AddSpecialTokens, Field::ItemFirst, Field::Query, Field::Items]
            }
            RouteKind::ByLoad => &[],
        }
    }
}
