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
//! This is the only crate that reads the environment.

mod error;
mod human;
mod layers;
mod locate;
mod secret;

pub use error::{EXIT_CONFIG, SettingsError};
pub use human::{ByteSize, HumanDuration};
pub use layers::{Layers, load, load_str, parse_override, to_toml};
pub use secret::{Redacted, SecretRef};
