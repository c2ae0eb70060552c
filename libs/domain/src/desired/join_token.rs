//! Tokens with which engines announce themselves.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Document, InvalidDocument, UnknownFields, check_hex, check_id, check_model};
use crate::ModelId;

/// Lets the holder announce backends, within its scope and time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JoinToken {
    /// Its name.
    pub id: String,
    /// The Ed25519 public key that announcements are checked with, 64 lower-case hex digits. The
    /// holder has the private half; the store could not announce anything.
    pub public_key: String,
    /// The model that announced backends may serve; any if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelId>,
    /// The addresses that announced backends may have; any if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<AddressRange>,
    /// From when on it is refused, in milliseconds since 1970.
    pub expires_at_ms: u64,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// Ranges in one token.
const MAX_RANGES: usize = 64;

impl JoinToken {
    /// Whether a backend at this address is within the scope.
    pub fn covers(&self, address: IpAddr) -> bool {
        self.addresses.is_empty() || self.addresses.iter().any(|range| range.contains(address))
    }
}

impl Document for JoinToken {
    const KIND: &'static str = "join-tokens";
    const SCHEMA: (u16, u16) = (1, 0);

    fn id(&self) -> &str {
        &self.id
    }

    fn validate(&self) -> Result<(), InvalidDocument> {
        check_id("id", &self.id)?;
        check_hex("public_key", &self.public_key)?;
        if let Some(model) = &self.model {
            check_model("model", model.as_str())?;
        }
        if self.addresses.len() > MAX_RANGES {
            let reason = format!("at most {MAX_RANGES} ranges are allowed");
            return Err(InvalidDocument::new("addresses", reason));
        }
        Ok(())
    }
}

/// Addresses that begin with the same bits, written `10.0.0.0/8` or `fd00::/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AddressRange {
    first: IpAddr,
    bits: u8,
}

impl AddressRange {
    /// Whether an address is one of them. An IPv4 address written as IPv6 counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (first, address) = (self.first.to_canonical(), address.to_canonical());
        match (first, address) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                let differing = first.to_bits() ^ address.to_bits();
                differing.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                let differing = first.to_bits() ^ address.to_bits();
                differing.leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }
}

impl FromStr for AddressRange {
    type Err = InvalidDocument;

    fn from_str(text: &str) -> Result<Self, InvalidDocument> {
        let wrong = || {
            let form = "ADDRESS/BITS is allowed, as in 10.0.0.0/8, without bits set behind those";
            InvalidDocument::new("addresses", form)
        };
        let (first, bits) = text.split_once('/').ok_or_else(wrong)?;
        let first: IpAddr = first.parse().map_err(|_| wrong())?;
        let bits: u8 = bits.parse().map_err(|_| wrong())?;
        // An IPv4 range is written as IPv4: the count of bits would be another.
        if first != first.to_canonical() {
            return Err(wrong());
        }
        let (width, behind) = match first {
            IpAddr::V4(v4) => (32, v4.to_bits().checked_shl(bits.into()).unwrap_or(0) != 0),
            IpAddr::V6(v6) => (128, v6.to_bits().checked_shl(bits.into()).unwrap_or(0) != 0),
        };
        if bits > width || behind { Err(wrong()) } else { Ok(Self { first, bits }) }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

impl TryFrom<String> for AddressRange {
    type Error = InvalidDocument;

    fn try_from(text: String) -> Result<Self, InvalidDocument> {
        text.parse()
    }
}

impl From<AddressRange> for String {
    fn from(range: AddressRange) -> Self {
        range.to_string()
    }
}
