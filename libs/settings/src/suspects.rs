//! Environment variables that were meant to set a key and do not: one underscore where two belong.

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::SettingsError;
use crate::secret::WRITTEN_IN_PLAIN;

/// More parts than any key with its underscores has.
const MOST_PARTS: usize = 8;

/// Why the variable `name` is a mistake, if it is: with two underscores in the right places it
/// would set a key of `T`. A name that only looks like it, such as those that container platforms
/// make of services, sets none.
pub(crate) fn complaint<T: DeserializeOwned>(prefix: &str, name: &str) -> Option<SettingsError> {
    let rest = name.strip_prefix(prefix)?.strip_prefix('_')?.to_lowercase();
    let parts: Vec<&str> = rest.split('_').filter(|part| !part.is_empty()).collect();
    if parts.is_empty() || parts.len() > MOST_PARTS {
        return None;
    }
    // Each bit says whether a dot or an underscore stands between two parts.
    let key = (0..1_u32 << (parts.len() - 1)).map(|dots| joined(&parts, dots));
    let key = key.into_iter().find(|key| is_key::<T>(key))?;
    let meant = format!("{prefix}__{}", key.replace('.', "__").to_uppercase());
    let message = format!(
        "this variable sets nothing: two underscores stand before the key and for each of its \
         dots; write {meant}"
    );
    Some(SettingsError::new(key, message).at(format!("environment {name}")))
}

fn joined(parts: &[&str], dots: u32) -> String {
    let mut key = String::new();
    for (n, part) in parts.iter().enumerate() {
        if n > 0 {
            key.push(if dots & (1 << (n - 1)) == 0 { '.' } else { '_' });
        }
        key.push_str(part);
    }
    key
}

/// Whether `T` has the key: whether reading it complains of anything but that. Keys of secrets do
/// not count: their names are a natural choice for the variable that holds the secret itself.
fn is_key<T: DeserializeOwned>(key: &str) -> bool {
    let nested = key.rsplit('.').fold(Value::String(String::new()), |inner, part| {
        Value::Table(Table::from_iter([(part.to_owned(), inner)]))
    });
    match serde_path_to_error::deserialize::<_, T>(nested) {
        Ok(_) => true,
        Err(error) => {
            let (path, message) = (error.path().to_string(), error.inner().message());
            let of_parent = path.len() < key.len() && !message.starts_with("missing field ");
            !of_parent
                && !message.starts_with("unknown field ")
                && !message.contains(WRITTEN_IN_PLAIN)
        }
    }
}
