//! Tenants and their limits.

use serde::{Deserialize, Serialize};

use super::{Document, InvalidDocument, UnknownFields, check_id, check_model};
use crate::{ModelId, TenantId};

/// Who shares limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tenant {
    /// Its name in logs and answers.
    pub id: TenantId,
    /// Models that it may use; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<ModelId>>,
    /// Whether answers tell in headers which backend was chosen and why.
    #[serde(default)]
    pub debug_headers: bool,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

impl Document for Tenant {
    const KIND: &'static str = "tenants";
    const SCHEMA: (u16, u16) = (1, 0);

    fn id(&self) -> &str {
        self.id.as_str()
    }

    fn validate(&self) -> Result<(), InvalidDocument> {
        check_id("id", self.id.as_str())?;
        let models = self.models.iter().flatten();
        models.into_iter().try_for_each(|model| check_model("models", model.as_str()))
    }
}

/// How much one tenant may ask for. A document of its own, so that limits can be changed by
/// those who may not change who the tenants are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// The tenant.
    pub tenant: TenantId,
    /// Requests per minute; unlimited if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Requests open at once; unlimited if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<u32>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

impl Document for Limits {
    const KIND: &'static str = "limits";
    const SCHEMA: (u16, u16) = (1, 0);

    fn id(&self) -> &str {
        self.tenant.as_str()
    }

    fn validate(&self) -> Result<(), InvalidDocument> {
        check_id("tenant", self.tenant.as_str())
    }
}
