//! Layered settings with errors that name the key, and secrets that do not print.
//!
//! A service describes its settings as a `serde` struct with `deny_unknown_fields` whose defaults
//! live in the struct. [`load`] fills it from four layers, later ones winning key by key:
//!
//! 1. the defaults of the struct;
//! 2. a TOML file;
//! 3. the environment: `WARMPATH__EDGE__LISTEN=127.0.0.1:8080` sets `edge.listen`;
//! 4. flags: a dotted key with its value, as from [`parse_override`].
//!
//! Whatever is wrong comes back as one line that names the place and the full key:
//! ``gateway.toml: edge.timeouts.conect: unknown key; did you mean `connect`? …``. A service that
//! cannot be configured exits with [`EXIT_CONFIG`].
//!
//! ```
//! use serde::Deserialize;
//! use settings::{HumanDuration, load_str};
//!
//! #[derive(Debug, Deserialize)]
//! #[serde(deny_unknown_fields, default)]
//! struct Timeouts {
//!     connect: HumanDuration,
//! }
//!
//! impl Default for Timeouts {
//!     fn default() -> Self {
//!         Self { connect: HumanDuration::from_secs(2) }
//!     }
//! }
//!
//! let error = load_str::<Timeouts>("gateway.toml", "conect = '1s'").unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "gateway.toml: conect: unknown key; did you mean `connect`? allowed keys: connect (line 1)"
//! );
//! ```
//!
//! This is the only crate that reads the environment.

mod credential;
mod error;
mod human;
mod layers;
mod locate;
mod secret;
mod suspects;

pub use credential::{NamedCredential, resolve_credentials};
pub use error::{EXIT_CONFIG, SettingsError};
pub use human::HumanDuration;
pub use layers::{Layers, load, load_str, parse_override, to_toml};
pub use secret::{Redacted, SecretRef};
