//! Fields of a request that are the operator's: they reach into the engine's scheduling, its caches
//! or its templates. For each there is one of three ways, by tenant; nothing else is touched.

use domain::ErrorCode;
use http::HeaderMap;
use http::header::HeaderName;
use openai_api::{ApiError, BodyView, Field};
use serde::{Deserialize, Serialize};

/// What becomes of such a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// It passes.
    Allow,
    /// It is taken out.
    Strip,
    /// The request is refused.
    Reject,
}

macro_rules! guarded {
    ($($(#[$doc:meta])* $name:ident: $field:expr, $default:ident;)*) => {
        /// Section `[edge.fields]`, and `fields` of `[[tenants]]`: what is absent is as in the
        /// section, and there as the default.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct RawFields {
            $($(#[$doc])* #[serde(skip_serializing_if = "Option::is_none")]
            pub $name: Option<Policy>,)*
        }

        /// The way of every field.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct Policies {
            $($name: Policy,)*
        }

        impl Default for Policies {
            fn default() -> Self {
                Self { $($name: Policy::$default,)* }
            }
        }

        impl Policies {
            /// These, but for what is given.
            pub(crate) fn with(self, given: &RawFields) -> Self {
                Self { $($name: given.$name.unwrap_or(self.$name),)* }
            }

            /// The fields of a body, each with its way.
            fn of_body(&self) -> impl Iterator<Item = (Field, Policy)> {
                [$(($field, self.$name),)*]
                    .into_iter()
                    .filter_map(|(field, policy)| Some((field?, policy)))
            }
        }
    };
}

guarded! {
    /// Scheduling priority, as a field and as `x-vllm-priority`.
    priority: Some(Field::Priority), Strip;
    /// The engine's own request id.
    request_id: Some(Field::RequestId), Strip;
    /// Which data-parallel rank runs it: `x-data-parallel-rank`.
    data_parallel_rank: None, Strip;
    /// Where KV blocks come from and go to.
    kv_transfer_params: Some(Field::KvTransferParams), Reject;
    /// The same of encoder caches.
    ec_transfer_params: Some(Field::EcTransferParams), Reject;
    /// Parameters for extensions of the engine.
    vllm_xargs: Some(Field::VllmXargs), Reject;
    /// A template of the client's.
    chat_template: Some(Field::ChatTemplate), Reject;
}

/// What must be taken out of a body.
///
/// # Errors
/// A field that is there and must not be.
pub(crate) fn check(view: &BodyView<'_>, policies: &Policies) -> Result<Vec<Field>, ApiError> {
    let mut out = Vec::new();
    for (field, policy) in policies.of_body() {
        if view.raw(field).is_none_or(|raw| raw == "null") {
            continue;
        }
        match policy {
            Policy::Allow => {}
            Policy::Strip => out.push(field),
            Policy::Reject => return Err(refused(field.as_str())),
        }
    }
    Ok(out)
}

/// The headers among them: taken out of what an engine is sent, or in the way.
///
/// # Errors
/// A header that is there and must not be.
pub(crate) fn check_headers(
    client: &HeaderMap,
    policies: &Policies,
    engine: &mut HeaderMap,
) -> Result<(), ApiError> {
    for (name, policy) in
        [(PRIORITY, policies.priority), (DATA_PARALLEL_RANK, policies.data_parallel_rank)]
    {
        let Some(value) = client.get(&name) else { continue };
        match policy {
            Policy::Allow => {
                engine.insert(name, value.clone());
            }
            Policy::Strip => {}
            Policy::Reject => return Err(refused(name.as_str())),
        }
    }
    Ok(())
}

const PRIORITY: HeaderName = HeaderName::from_static("x-vllm-priority");
const DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");

fn refused(name: &str) -> ApiError {
    let message =
        format!("'{name}' is not open to this key; leave it out, or ask the operator to allow it");
    ApiError::new(ErrorCode::InvalidRequest, message).with_param(name)
}
