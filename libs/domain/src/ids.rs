//! Identifiers. Each is its own type, so that a tenant can never stand where a model is meant.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps the given text as it is.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

string_id!(
    /// Who sends requests and shares limits. Comes from the key that was presented, never from
    /// a header of the client's.
    TenantId
);
string_id!(
    /// A model as clients name it and as the engines serve it.
    ModelId
);
string_id!(
    /// One engine endpoint, by the operator's name for it.
    BackendId
);
string_id!(
    /// One client request, over all its attempts. Minted by the edge, unique in a process.
    RequestId
);

/// One life of a backend. A backend that is removed and added again, or whose engine
/// restarted, is a new incarnation: nothing that was known of the old one's cache holds.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

/// The unit that is chosen: a data-parallel rank of one incarnation of a backend. Ranks behind
/// one address have caches of their own. An engine without data parallelism has rank 0 alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RankId {
    /// The backend.
    pub backend: BackendId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// The data-parallel rank, from 0.
    pub rank: u16,
}

impl fmt::Display for RankId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}#{}", self.backend, self.rank, self.incarnation.0)
    }
}

/// A booking of one attempt of one request on one rank. Issued by the router, never reused
/// within its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub u64);
