//! The section `[routers]`.

use std::time::Duration;

use rpc::ClientConfig;
use serde::{Deserialize, Serialize};
use settings::{HumanDuration, SettingsError};

/// Two, so that one that is connecting again, or that writes a long prompt's keys, leaves another.
const STREAMS: u32 = 2;
/// A decision takes a tenth of a millisecond and its way about as long. Past this the router is
/// dead, or too busy to be waited for.
const ANSWER_DEADLINE: Duration = Duration::from_millis(50);

/// The section as it stands in a file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawConfig {
    /// Streams to each router.
    pub streams: u32,
    /// How long a router's answer is waited for before the edge decides by itself.
    pub answer_deadline: HumanDuration,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            streams: STREAMS,
            answer_deadline: HumanDuration::from_millis(ANSWER_DEADLINE.as_millis() as u64),
        }
    }
}

/// The section, checked.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) streams: usize,
    pub(crate) answer_deadline: Duration,
    pub(crate) client: ClientConfig,
}

impl Config {
    /// Checks the section. Routers are called by `client`.
    ///
    /// # Errors
    /// A number is out of its range. The key is relative to the section.
    pub fn new(raw: RawConfig, client: ClientConfig) -> Result<Self, SettingsError> {
        let RawConfig { streams, answer_deadline } = raw;
        if !(1..=16).contains(&streams) {
            return Err(SettingsError::new("streams", "1 to 16 are allowed"));
        }
        let answer_deadline = answer_deadline.get();
        if answer_deadline.is_zero() || answer_deadline > Duration::from_secs(10) {
            let message = "more than zero and at most 10s is allowed";
            return Err(SettingsError::new("answer_deadline", message));
        }
        Ok(Self { streams: streams as usize, answer_deadline, client })
    }
}

#[cfg(test)]
mod tests {
    use settings::load_str;

    use super::*;

    fn check(text: &str) -> Result<Config, String> {
        let raw: RawConfig = load_str("test.toml", text).map_err(|e| e.to_string())?;
        let client = ClientConfig::new(rpc::RawClientConfig::default());
        Config::new(raw, client.unwrap()).map_err(|e| e.to_string())
    }

    #[test]
    fn each_key_is_read_and_bounded() {
        let config = check("streams = 4\nanswer_deadline = '20ms'").unwrap();
        assert_eq!((config.streams, config.answer_deadline.as_millis()), (4, 20));
        assert!(check("streams = 0").unwrap_err().starts_with("streams: 1 to 16"));
        assert!(check("answer_deadline = '0s'").unwrap_err().starts_with("answer_deadline: more"));
        for text in ["stream = 1", "deadline = '1s'", "tls = 1"] {
            assert!(check(text).unwrap_err().contains("unknown key"), "{text}");
        }
    }
}
