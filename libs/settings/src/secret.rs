//! Secrets: values that do not print, and settings that only say where a secret is kept.

use std::fmt;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::SettingsError;

/// A value that never shows in logs, errors or `Debug` output. It cannot be serialised, so a
/// masked copy can never be written back over the real one.
#[derive(Clone, PartialEq, Eq)]
pub struct Redacted<T>(T);

impl<T> Redacted<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value itself. Every call is a place where a secret could leak.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl<T> fmt::Display for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Redacted<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The error of `T` would quote the value.
        T::deserialize(deserializer)
            .map(Self)
            .map_err(|_| de::Error::custom("does not have the form it should; it is not shown"))
    }
}

/// Where a secret is kept: `{ env = "NAME" }` or `{ file = "PATH" }`. The value itself never
/// stands in the settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SecretRef {
    /// An environment variable.
    Env(String),
    /// A file that only its owner can read. One line break at its end is not part of the secret.
    File(PathBuf),
}

/// No key or token comes near this size; it bounds what a wrong path can load.
const MAX_SECRET_BYTES: u64 = 64 << 10;

/// Permission bits of the group and of others.
const GROUP_AND_OTHERS: u32 = 0o077;

impl SecretRef {
    /// Fetches the secret.
    ///
    /// # Errors
    /// The variable is not set; the file cannot be read, is not a regular file, is open to the
    /// group or to others, or holds more than 64 KiB; the secret is empty or not UTF-8. The error
    /// names the reference, never the content, and has no key: add it with
    /// [`SettingsError::under`].
    pub fn resolve(&self) -> Result<Redacted<String>, SettingsError> {
        let found = match self {
            SecretRef::Env(name) => from_environment(name),
            SecretRef::File(path) => from_file(path),
        };
        let secret = found.map_err(|message| SettingsError::new("", message))?;
        if secret.is_empty() {
            return Err(SettingsError::new("", format!("{self} holds an empty secret")));
        }
        Ok(Redacted(secret))
    }
}

impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretRef::Env(name) => write!(f, "environment variable {name}"),
            SecretRef::File(path) => write!(f, "file {}", path.display()),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this crate is where the environment is read")]
fn from_environment(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|error| match error {
        std::env::VarError::NotPresent => format!("environment variable {name} is not set"),
        std::env::VarError::NotUnicode(_) => format!("environment variable {name} is not UTF-8"),
    })
}

fn from_file(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| format!("file {shown} cannot be read: {error}");
    // A named pipe would block the open for ever, so the kind is asked first.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(format!("file {shown} is not a regular file"));
    }
    let file = std::fs::File::open(path).map_err(unreadable)?;
    // Asked of the open file, so that it cannot be swapped between check and read.
    let mode = file.metadata().map_err(unreadable)?.permissions().mode() & 0o777;
    if mode & GROUP_AND_OTHERS != 0 {
        return Err(format!(
            "file {shown} is open to others than its owner (mode {mode:04o}): chmod 600 it"
        ));
    }
    let mut bytes = Vec::new();
    file.take(MAX_SECRET_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_SECRET_BYTES {
        return Err(format!("file {shown} holds more than {MAX_SECRET_BYTES} bytes"));
    }
    let mut secret = String::from_utf8(bytes).map_err(|_| format!("file {shown} is not UTF-8"))?;
    if secret.ends_with('\n') {
        secret.pop();
        if secret.ends_with('\r') {
            secret.pop();
        }
    }
    Ok(secret)
}

/// What is said of a secret that stands where its reference belongs.
pub(crate) const WRITTEN_IN_PLAIN: &str = "a secret is never written here";

const REFERENCE_FORM: &str = r#"{ env = "NAME" } or { file = "PATH" }"#;

impl<'de> Deserialize<'de> for SecretRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReferenceVisitor)
    }
}

/// Written by hand: the derived one would quote a secret that was put where its reference belongs.
struct ReferenceVisitor;

impl<'de> Visitor<'de> for ReferenceVisitor {
    type Value = SecretRef;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REFERENCE_FORM)
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<SecretRef, E> {
        Err(E::custom(format!("{WRITTEN_IN_PLAIN}; say where it is: {REFERENCE_FORM}")))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SecretRef, A::Error> {
        let wrong = || de::Error::custom(format!("expected exactly one of {REFERENCE_FORM}"));
        let reference = match map.next_key::<String>()?.as_deref() {
            Some("env") => SecretRef::Env(map.next_value()?),
            Some("file") => SecretRef::File(map.next_value()?),
            _ => return Err(wrong()),
        };
        match map.next_key::<String>()? {
            None => Ok(reference),
            Some(_) => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file_with(content: &[u8], mode: u32) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    fn resolve(file: &tempfile::NamedTempFile) -> Result<String, String> {
        let reference = SecretRef::File(file.path().to_owned());
        reference.resolve().map(|s| s.expose().clone()).map_err(|e| e.to_string())
    }

    #[test]
    fn a_secret_never_prints() {
        let secret = Redacted::new("hunter2".to_owned());
        assert_eq!(format!("{secret} {secret:?} {secret:#?}"), "[redacted] [redacted] [redacted]");
        assert_eq!(secret.expose(), "hunter2");
    }

    #[test]
    fn a_wrong_type_does_not_quote_the_secret() {
        let error = toml::Value::from("hunter2").try_into::<Redacted<u16>>().unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[test]
    fn a_secret_in_place_of_its_reference_is_refused_unquoted() {
        for text in [
            r#"s = "hunter2""#,
            r#"s = { env = "A", file = "hunter2" }"#,
            "s = { hunter2 = 1 }",
            "s = {}",
        ] {
            let table: toml::Table = text.parse().unwrap();
            let error = table["s"].clone().try_into::<SecretRef>().unwrap_err().to_string();
            assert!(error.contains(REFERENCE_FORM), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_file_loses_one_line_break_and_nothing_else() {
        assert_eq!(resolve(&file_with(b" a b \n", 0o600)).unwrap(), " a b ");
        assert_eq!(resolve(&file_with(b"a\r\n", 0o400)).unwrap(), "a");
        assert_eq!(resolve(&file_with(b"a\n\n", 0o600)).unwrap(), "a\n");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        for mode in [0o644, 0o640, 0o604, 0o660] {
            let error = resolve(&file_with(b"a", mode)).unwrap_err();
            assert!(error.contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn an_absent_empty_or_huge_secret_is_an_error() {
        assert!(resolve(&file_with(b"\n", 0o600)).unwrap_err().contains("empty"));
        let huge = vec![b'a'; MAX_SECRET_BYTES as usize + 1];
        assert!(resolve(&file_with(&huge, 0o600)).unwrap_err().contains("more than"));
        assert!(resolve(&file_with(&[0xff], 0o600)).unwrap_err().contains("UTF-8"));
        let unset = SecretRef::Env("WARMPATH_SETTINGS_TEST_UNSET".to_owned()).resolve();
        assert!(unset.unwrap_err().to_string().contains("WARMPATH_SETTINGS_TEST_UNSET is not set"));
        let folder = SecretRef::File(std::env::temp_dir()).resolve();
        assert!(folder.unwrap_err().to_string().contains("not a regular file"));
    }

    #[test]
    fn a_reference_to_the_environment_reads_it() {
        // PATH is set in every environment that can run this test.
        let path = SecretRef::Env("PATH".to_owned()).resolve().unwrap();
        assert!(!path.expose().is_empty());
    }
}
