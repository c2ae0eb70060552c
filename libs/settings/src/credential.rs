//! Secrets that documents refer to by name: the name is public, what it stands for is configured
//! wherever it is used.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::{Redacted, SecretRef, SettingsError};

/// One entry of `[[credentials]]`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NamedCredential {
    /// The name that documents give.
    pub name: String,
    /// The key that it stands for.
    pub api_key: SecretRef,
}

/// Fetches the secrets of `[[credentials]]`, by name.
///
/// # Errors
/// A name that is empty or given twice, or a secret that cannot be fetched. The error names the
/// key in full (`credentials[1].api_key`).
pub fn resolve_credentials(
    list: &[NamedCredential],
) -> Result<HashMap<String, Redacted<String>>, SettingsError> {
    let mut found = HashMap::with_capacity(list.len());
    for (n, entry) in list.iter().enumerate() {
        let fault = |key: &str, message: &str| {
            SettingsError::new(format!("credentials[{n}].{key}"), message)
        };
        if entry.name.is_empty() {
            return Err(fault("name", "must not be empty"));
        }
        let key =
            entry.api_key.resolve().map_err(|e| e.under(&format!("credentials[{n}].api_key")))?;
        if found.insert(entry.name.clone(), key).is_some() {
            return Err(fault("name", "another credential has this name"));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, variable: &str) -> NamedCredential {
        NamedCredential { name: name.to_owned(), api_key: SecretRef::Env(variable.to_owned()) }
    }

    #[test]
    fn faults_name_their_key() {
        let fault = |list: &[NamedCredential]| {
            resolve_credentials(list).expect_err("not valid").key().to_owned()
        };
        assert_eq!(fault(&[entry("a", "WARMPATH_NO_SUCH_VARIABLE")]), "credentials[0].api_key");
        assert_eq!(fault(&[entry("a", "PATH"), entry("", "PATH")]), "credentials[1].name");
        assert_eq!(fault(&[entry("a", "PATH"), entry("a", "PATH")]), "credentials[1].name");
        let found = resolve_credentials(&[entry("a", "PATH"), entry("b", "PATH")]).expect("valid");
        assert_eq!(found.len(), 2);
        assert!(!format!("{found:?}").contains('/'), "what they stand for is not shown");
    }

    #[test]
    fn a_misspelt_key_is_refused() {
        let text = "[[credentials]]\nname = \"a\"\napi_kye = { env = \"PATH\" }\n";
        #[derive(Debug, Deserialize)]
        struct File {
            #[allow(dead_code, reason = "only reading it is tested")]
            credentials: Vec<NamedCredential>,
        }
        let error = crate::load_str::<File>("x.toml", text).expect_err("unknown key").to_string();
        assert!(error.contains("api_kye"), "{error}");
    }
}
