//! `warmpath serve`.

use std::time::Duration;

use instrumentation::LogConfig;
use launch::{Program, Started};
use settings::SettingsError;

use crate::config::{Config, RawConfig};
use crate::gateway::Gateway;

/// The gateway in one process.
pub struct Serve;

impl Program for Serve {
    const NAME: &'static str = "warmpath";
    type Raw = RawConfig;
    type Config = Config;

    fn check(raw: RawConfig) -> Result<Config, SettingsError> {
        Config::from_raw(raw)
    }

    fn log(config: &Config) -> &LogConfig {
        &config.log
    }

    fn drain_timeout(config: &Config) -> Duration {
        config.drain_timeout
    }

    async fn start(config: Config) -> anyhow::Result<Started> {
        let gateway = Gateway::start(config).await?;
        tracing::info!(
            edge.listen = %gateway.edge(),
            admin.listen = %gateway.admin(),
            version = env!("CARGO_PKG_VERSION"),
            "serving"
        );
        Ok(gateway.into_started())
    }
}
