//! The `[router]` section.

use std::sync::Arc;

use arc_swap::ArcSwap;
use scheduling::Policy;
use serde::{Deserialize, Serialize};
use settings::SettingsError;

/// The section as it stands in a file. Every key may be absent.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawConfig {
    /// How ranks are chosen: `prefix` (default), `least-load` or `round-robin`.
    pub policy: Option<Policy>,
    /// Weight of the prefill time of what a prompt would evict, from 0 to 10.
    pub eviction_weight: Option<f64>,
    /// Scores within this share of the best one are ties, from 0 to 1.
    pub tie_margin_fraction: Option<f64>,
    /// Scores within this time of the best one are ties, from 0 to 10 s.
    pub tie_margin_seconds: Option<f64>,
    /// Requests in flight that a rank gets at first when it is back after it was gone; one more
    /// for each that it answers. 0: no limit.
    pub recovery_in_flight: Option<u32>,
}

/// Some, so that one slow request does not hold up the others, and few enough for an engine that
/// still compiles and captures graphs.
const RECOVERY_IN_FLIGHT: u32 = 4;

/// The section, checked.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub(crate) choosing: Choosing,
}

/// What choices go by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choosing {
    pub(crate) scheduling: scheduling::Config,
    /// See [`RawConfig::recovery_in_flight`].
    pub(crate) recovery_in_flight: u32,
}

impl Default for Choosing {
    fn default() -> Self {
        let scheduling = scheduling::Config::default();
        Self { scheduling, recovery_in_flight: RECOVERY_IN_FLIGHT }
    }
}

/// How ranks are chosen now: one value for all pools and their copies, which can be replaced. A
/// decision takes it once.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Arc<ArcSwap<Choosing>>);

impl Shared {
    pub(crate) fn new(config: Choosing) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(config)))
    }

    pub(crate) fn get(&self) -> Choosing {
        **self.0.load()
    }

    pub(crate) fn set(&self, config: Choosing) {
        self.0.store(Arc::new(config));
    }
}

impl Config {
    /// Checks the section.
    ///
    /// # Errors
    /// A number is out of its range; the error names the key.
    pub fn new(raw: RawConfig) -> Result<Self, SettingsError> {
        let base = scheduling::Config::default();
        let number = |key, value: Option<f64>, default: f64, max: f64| match value {
            None => Ok(default),
            Some(v) if v.is_finite() && (0.0..=max).contains(&v) => Ok(v),
            Some(v) => {
                Err(SettingsError::new(key, format!("{v} is out of range, allowed is 0 to {max}")))
            }
        };
        let scheduling = scheduling::Config {
            policy: raw.policy.unwrap_or(base.policy),
            eviction_weight: number(
                "router.eviction_weight",
                raw.eviction_weight,
                base.eviction_weight,
                10.0,
            )?,
            tie_margin_fraction: number(
                "router.tie_margin_fraction",
                raw.tie_margin_fraction,
                base.tie_margin_fraction,
                1.0,
            )?,
            tie_margin_seconds: number(
                "router.tie_margin_seconds",
                raw.tie_margin_seconds,
                base.tie_margin_seconds,
                10.0,
            )?,
        };
        let recovery_in_flight = raw.recovery_in_flight.unwrap_or(RECOVERY_IN_FLIGHT);
        Ok(Self { choosing: Choosing { scheduling, recovery_in_flight } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Config, String> {
        let raw: RawConfig = serde_json::from_str(json).map_err(|e| e.to_string())?;
        Config::new(raw).map_err(|e| e.to_string())
    }

    #[test]
    fn an_empty_section_takes_the_defaults() {
        let config = parse("{}").expect("valid");
        assert_eq!(config.choosing.scheduling.policy, Policy::Prefix);
        assert_eq!(config.choosing.scheduling.eviction_weight, 1.0);
    }

    #[test]
    fn each_key_is_read() {
        let config = parse(
            r#"{"policy":"round-robin","eviction_weight":0.5,
                "tie_margin_fraction":0.1,"tie_margin_seconds":0.01,
                "recovery_in_flight":9}"#,
        )
        .expect("valid");
        assert_eq!(config.choosing.scheduling.policy, Policy::RoundRobin);
        assert_eq!(config.choosing.scheduling.eviction_weight, 0.5);
        assert_eq!(config.choosing.scheduling.tie_margin_fraction, 0.1);
        assert_eq!(config.choosing.scheduling.tie_margin_seconds, 0.01);
        assert_eq!(config.choosing.recovery_in_flight, 9);
    }

    #[test]
    fn a_misspelt_key_and_a_value_out_of_range_are_refused_by_name() {
        for key in ["polcy", "eviction_weigth", "tie_margin", "recovery"] {
            let error = parse(&format!(r#"{{"{key}":1}}"#)).expect_err("unknown key");
            assert!(error.contains(key), "{error}");
        }
        for key in ["eviction_weight", "tie_margin_fraction", "tie_margin_seconds"] {
            let error = parse(&format!(r#"{{"{key}":-1}}"#)).expect_err("out of range");
            assert!(error.contains(&format!("router.{key}")), "{error}");
        }
    }
}
