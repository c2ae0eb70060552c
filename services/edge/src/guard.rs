//! Fields of a request that are the operator's: they reach into the engine's scheduling, its caches
//! or its templates. For each there is one of three ways, by tenant; nothing else is touched.

use bytes::Bytes;
use domain::ErrorCode;
use http::HeaderMap;
use http::header::HeaderName;
use openai_api::{ApiError, BodyView, Field, Member, Object, Splice};
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

            /// The way of one; what is not among them passes.
            fn of(&self, field: Field) -> Policy {
                let found = self.of_body().find(|(guarded, _)| *guarded == field);
                found.map_or(Policy::Allow, |(_, policy)| policy)
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

/// Objects inside fields whose members are such fields by other ways: vLLM keeps what a request
/// says of transfers in the arguments for its extensions, and takes those of
/// `/inference/v1/generate` there alone; SGLang hands the variables of a template on as arguments,
/// of which the template is one.
const INSIDE: [Inside; 3] = [
    Inside {
        field: Field::SamplingParams,
        path: &["extra_args"],
        members: TRANSFERS,
        others: Some(Field::VllmXargs),
    },
    Inside { field: Field::VllmXargs, path: &[], members: TRANSFERS, others: None },
    Inside {
        field: Field::ChatTemplateKwargs,
        path: &[],
        members: &[Field::ChatTemplate],
        others: None,
    },
];

const TRANSFERS: &[Field] = &[Field::KvTransferParams, Field::EcTransferParams];

/// Such an object.
struct Inside {
    field: Field,
    path: &'static [&'static str],
    /// Fields that may be members of it.
    members: &'static [Field],
    /// The field whose way all other members go, if they are the operator's.
    others: Option<Field>,
}

impl Inside {
    fn path(&self) -> String {
        let keys = std::iter::once(self.field.as_str()).chain(self.path.iter().copied());
        keys.collect::<Vec<_>>().join(".")
    }

    /// The field that a member is, if it is the operator's and says anything.
    fn field_of(&self, member: &Member<'_>) -> Option<Field> {
        if member.raw == "null" {
            return None;
        }
        let is_it = |field: &&Field| member.name.as_deref() == Some(field.as_str());
        self.members.iter().find(is_it).copied().or(self.others)
    }

    /// The objects of which members must be taken out.
    fn check<'a>(
        &self,
        view: &BodyView<'a>,
        policies: &Policies,
    ) -> Result<Vec<Object<'a>>, ApiError> {
        let mut objects = Vec::new();
        for object in view.objects(self.field, self.path) {
            let mut strips = false;
            for member in &object.members {
                let Some(field) = self.field_of(member) else { continue };
                match policies.of(field) {
                    Policy::Allow => {}
                    Policy::Strip => strips = true,
                    // Another key is the client's own word, and may be long.
                    Policy::Reject if Some(field) == self.others => {
                        return Err(refused(&self.path()));
                    }
                    Policy::Reject => {
                        return Err(refused(&format!("{}.{}", self.path(), field.as_str())));
                    }
                }
            }
            if strips {
                objects.push(object);
            }
        }
        Ok(objects)
    }
}

/// What must be taken out of a body.
#[derive(Default)]
pub(crate) struct Removals<'a> {
    fields: Vec<Field>,
    inside: Vec<(&'static Inside, Object<'a>)>,
}

impl Removals<'_> {
    /// What is left of a body, if there is anything to take out.
    pub(crate) fn without(
        &self,
        (view, body): (&BodyView<'_>, &Bytes),
        policies: &Policies,
    ) -> Option<Vec<Bytes>> {
        if self.fields.is_empty() && self.inside.is_empty() {
            return None;
        }
        let splice = self.fields.iter().copied().fold(Splice::new(view), Splice::remove);
        let splice = self.inside.iter().fold(splice, |splice, (inside, object)| {
            splice.remove_members(object, |member| {
                inside.field_of(member).is_some_and(|f| policies.of(f) == Policy::Strip)
            })
        });
        Some(splice.pieces(body))
    }
}

/// Finds what must be taken out of a body.
///
/// # Errors
/// A field that is there and must not be.
pub(crate) fn check<'a>(
    view: &BodyView<'a>,
    policies: &Policies,
) -> Result<Removals<'a>, ApiError> {
    let mut removals = Removals::default();
    for (field, policy) in policies.of_body() {
        if view.raw(field).is_none_or(|raw| raw == "null") {
            continue;
        }
        match policy {
            Policy::Allow => {}
            Policy::Strip => removals.fields.push(field),
            Policy::Reject => return Err(refused(field.as_str())),
        }
    }
    for inside in &INSIDE {
        if !removals.fields.contains(&inside.field) {
            let objects = inside.check(view, policies)?;
            removals.inside.extend(objects.into_iter().map(|object| (inside, object)));
        }
    }
    Ok(removals)
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
