//! API keys of tenants.

use serde::{Deserialize, Serialize};

use super::{Document, InvalidDocument, UnknownFields, check_hex, check_id};
use crate::TenantId;

/// One API key `sk-wp-<public id>-<secret>`. Revoking it is deleting the document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApiKey {
    /// The public part.
    pub id: String,
    /// Whose key it is.
    pub tenant: TenantId,
    /// The sha256 of the secret part, 64 lower-case hex digits. The secret is stored nowhere.
    pub sha256: String,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

impl Document for ApiKey {
    const KIND: &'static str = "keys";
    const SCHEMA: (u16, u16) = (1, 0);

    fn id(&self) -> &str {
        &self.id
    }

    fn validate(&self) -> Result<(), InvalidDocument> {
        check_id("id", &self.id)?;
        check_id("tenant", self.tenant.as_str())?;
        check_hex("sha256", &self.sha256)
    }
}
