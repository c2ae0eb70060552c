//! Backends and the models that have a folder.

use serde::{Deserialize, Serialize};

use super::{Document, InvalidDocument, UnknownFields, check_id, check_model};
use crate::{BackendId, EngineKind, ModelId};

/// An engine that is to be part of the fleet. Removing it is deleting the document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Backend {
    /// The operator's name for it.
    pub id: BackendId,
    /// Scheme, host and port, nothing behind: `http://10.0.0.7:8000`.
    pub url: String,
    /// The software behind it; found out by itself if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineKind>,
    /// The name of the credential for it in the services' own config; it needs none if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// What is wanted of it.
    #[serde(default)]
    pub wish: LifecycleWish,
    /// How it announced itself; absent where an operator added it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announced: Option<Announced>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// Where a backend that announced itself stands with its announcements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announced {
    /// The join token that it did so with.
    pub token: String,
    /// Whether the wish to drain it comes from its own farewell or silence, and not from an
    /// operator: then its next announcement takes the wish back.
    #[serde(default)]
    pub withdrawn: bool,
}

/// What an operator wants of a backend. What it is, is observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LifecycleWish {
    /// It takes requests once probes succeed.
    #[default]
    Ready,
    /// It finishes what it has and takes nothing new.
    Draining,
    /// It is out of service; its probes raise no alarm.
    Maintenance,
}

impl LifecycleWish {
    /// The name in documents, labels and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            LifecycleWish::Ready => "ready",
            LifecycleWish::Draining => "draining",
            LifecycleWish::Maintenance => "maintenance",
        }
    }
}

impl Document for Backend {
    const KIND: &'static str = "backends";
    const SCHEMA: (u16, u16) = (1, 0);

    fn id(&self) -> &str {
        self.id.as_str()
    }

    fn validate(&self) -> Result<(), InvalidDocument> {
        check_id("id", self.id.as_str())?;
        check_url(&self.url)?;
        if let Some(announced) = &self.announced {
            check_id("announced", &announced.token)?;
        }
        self.credential.as_deref().map_or(Ok(()), |name| check_id("credential", name))
    }
}

/// What can be told of a URL without a URL library; telemetry parses it in full.
fn check_url(url: &str) -> Result<(), InvalidDocument> {
    let form = "http://HOST:PORT or https://HOST:PORT is allowed, without path, user or query";
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let host = |c: char| c.is_ascii_alphanumeric() || "-._~:[]".contains(c);
    match rest {
        Some(rest) if !rest.is_empty() && url.len() <= 512 && rest.chars().all(host) => Ok(()),
        _ => Err(InvalidDocument::new("url", form)),
    }
}

/// A model whose prompts are followed by tokens: where its tokenizer is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The name as the engines list it.
    pub id: ModelId,
    /// The folder of the tokenizer on the machines of the services, or `builtin`.
    pub folder: String,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

impl Document for Model {
    const KIND: &'static str = "models";
    const SCHEMA: (u16, u16) = (1, 0);

    fn id(&self) -> &str {
        self.id.as_str()
    }

    fn validate(&self) -> Result<(), InvalidDocument> {
        check_model("id", self.id.as_str())?;
        let folder = &self.folder;
        if folder.is_empty() || folder.len() > 4096 || folder.chars().any(char::is_control) {
            return Err(InvalidDocument::new("folder", "a path of at most 4096 bytes is needed"));
        }
        Ok(())
    }
}
