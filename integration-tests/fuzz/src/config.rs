//! Config files.

use warmpath::config::{Config, RawConfig};

/// A config is taken, or refused with words that say where and why.
///
/// # Panics
/// Where that does not hold.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // Folders and secrets are read from disk: not what is to be tried here.
    if ["path", "file:", "env:", "store"].iter().any(|word| text.contains(word)) {
        return;
    }
    let refusal = match settings::load_str::<RawConfig>("fuzz.toml", text) {
        Err(error) => error,
        Ok(raw) => match Config::from_raw(raw) {
            Err(error) => error,
            Ok(_) => return,
        },
    };
    assert!(!refusal.message().is_empty(), "a refusal says why");
    assert!(refusal.to_string().len() < 4096 + text.len() * 8, "in bounded words");
}
