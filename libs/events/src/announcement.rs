//! Engines that announce themselves: signed, so that a bus that others reach may carry them.

use credentials::{JoinKey, join};
use serde::{Deserialize, Serialize};

use crate::{EventError, decode};

/// What stands before the body when it is signed, so that no other signature of the same key
/// could be taken for one of an announcement.
const CONTEXT: &[u8] = b"warmpath-announcement-v1\n";

/// Whether an engine is there or leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It is there. Said again every few seconds.
    Here,
    /// It is about to stop: nothing new, please.
    Leaving,
}

/// What an engine says of itself: the body of an [`Envelope`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// The region that it wants to be part of.
    pub region: String,
    /// The name that it wants.
    pub backend: String,
    /// Where the services reach it: scheme, host and port.
    pub url: String,
    /// The software: `vllm`, `sglang`, `llama-cpp`, `other`; found out if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// The name under which the services' own config has the credential for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// Whether it is there or leaves.
    pub phase: Phase,
    /// When it was signed, in milliseconds since 1970.
    pub at_ms: u64,
    /// Random, 32 hex digits: no two announcements are alike.
    pub nonce: String,
}

/// An announcement as it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// The join token that signed it.
    pub token: String,
    /// The announcement as JSON text: what was signed, byte for byte.
    pub body: String,
    /// The Ed25519 signature of `warmpath-announcement-v1`, a line feed and the body, in hex.
    pub signature: String,
}

impl Envelope {
    /// Signs an announcement.
    pub fn seal(announcement: &Announcement, key: &JoinKey) -> Self {
        // A struct of strings and numbers always serialises.
        let body = serde_json::to_string(announcement).unwrap_or_default();
        let signature = key.sign(&signed(&body));
        Self { token: key.id().to_owned(), body, signature }
    }

    /// Whether the holder of the token with this public key (in hex digits) signed it.
    pub fn is_signed_by(&self, public_key: &str) -> bool {
        join::verify(public_key, &signed(&self.body), &self.signature)
    }

    /// What was signed.
    ///
    /// # Errors
    /// It is no announcement.
    pub fn open(&self) -> Result<Announcement, EventError> {
        decode(self.body.as_bytes())
    }
}

fn signed(body: &str) -> Vec<u8> {
    [CONTEXT, body.as_bytes()].concat()
}

/// What became of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The backend is part of the fleet from now on.
    Joined,
    /// It is known, and was heard.
    Heard,
    /// It is being drained.
    Leaving,
    /// It is no longer part of the fleet: it can stop.
    Gone,
    /// The token is not known, or the signature is not of it.
    Unsigned,
    /// The token's time is over.
    Expired,
    /// It was signed too long ago, in the future, or was seen before.
    Replayed,
    /// It is for another region.
    OtherRegion,
    /// The address or a model is not within the token's scope.
    OutOfScope,
    /// A name, a URL or an engine is not of its form.
    Invalid,
    /// Another backend has the name or the URL.
    Taken,
    /// The engine did not answer as one.
    Unreachable,
    /// Telemetry cannot store it now. To be tried again.
    Unavailable,
}

impl Verdict {
    /// Every verdict, for metrics that show one series for each.
    pub const ALL: [Verdict; 13] = [
        Verdict::Joined,
        Verdict::Heard,
        Verdict::Leaving,
        Verdict::Gone,
        Verdict::Unsigned,
        Verdict::Expired,
        Verdict::Replayed,
        Verdict::OtherRegion,
        Verdict::OutOfScope,
        Verdict::Invalid,
        Verdict::Taken,
        Verdict::Unreachable,
        Verdict::Unavailable,
    ];

    /// The name in payloads, labels and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verdict::Joined => "joined",
            Verdict::Heard => "heard",
            Verdict::Leaving => "leaving",
            Verdict::Gone => "gone",
            Verdict::Unsigned => "unsigned",
            Verdict::Expired => "expired",
            Verdict::Replayed => "replayed",
            Verdict::OtherRegion => "other_region",
            Verdict::OutOfScope => "out_of_scope",
            Verdict::Invalid => "invalid",
            Verdict::Taken => "taken",
            Verdict::Unreachable => "unreachable",
            Verdict::Unavailable => "unavailable",
        }
    }

    /// Whether the announcement did what it should.
    pub const fn is_success(self) -> bool {
        matches!(self, Verdict::Joined | Verdict::Heard | Verdict::Leaving | Verdict::Gone)
    }
}

/// Telemetry's answer to an announcement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The name that was asked for.
    pub backend: String,
    /// The nonce of the announcement that this answers.
    pub nonce: String,
    /// What became of it.
    pub verdict: Verdict,
    /// What is wrong, for people; absent where nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

#[cfg(test)]
mod tests {
    use credentials::MintedToken;

    use super::*;

    fn announcement() -> Announcement {
        Announcement {
            region: "default".to_owned(),
            backend: "gpu-0".to_owned(),
            url: "http://10.0.0.7:8000".to_owned(),
            engine: None,
            credential: None,
            phase: Phase::Here,
            at_ms: 1,
            nonce: "00".repeat(16),
        }
    }

    #[test]
    fn what_is_sealed_opens_and_nothing_in_it_can_be_changed() {
        let token = MintedToken::generate("rack-1").unwrap();
        let key = JoinKey::parse(token.secret_text()).unwrap();
        let sealed = Envelope::seal(&announcement(), &key);
        assert!(sealed.is_signed_by(token.public_key_hex()));
        assert_eq!(sealed.open().unwrap(), announcement());
        let moved =
            Envelope { body: sealed.body.replace("10.0.0.7", "10.0.0.8"), ..sealed.clone() };
        assert!(!moved.is_signed_by(token.public_key_hex()));
        let bare = Envelope { signature: key.sign(sealed.body.as_bytes()), ..sealed };
        assert!(!bare.is_signed_by(token.public_key_hex()), "a signature of another kind");
    }

    #[test]
    fn verdicts_are_written_as_they_are_named() {
        for verdict in Verdict::ALL {
            assert_eq!(serde_json::to_value(verdict).unwrap(), verdict.as_str());
        }
    }
}
