//! `warmpath serve`.

use std::time::Duration;

use instrumentation::LogConfig;
use launch::sections::Folders;
use launch::{Fixed, Program, Started};
use settings::SettingsError;

use crate::config::{Config, RawConfig};
use crate::gateway::Gateway;

/// The gateway in one process.
pub struct Serve;

impl Program for Serve {
    const NAME: &'static str = "warmpath";
    type Raw = RawConfig;
    type Config = Config;

    const FIXED: &'static [Fixed] = &[
        Fixed::Key("edge.listen"),
        Fixed::Key("edge.body_memory_bytes"),
        Fixed::Key("edge.max_connections"),
        Fixed::Key("edge.traces"),
        Fixed::Key("telemetry.store"),
        Fixed::Key("admin_api.listen"),
        Fixed::Presence("admin_api.tokens"),
        Fixed::Presence("admin_api.tls.cert"),
        Fixed::Key("region"),
        Fixed::Key("admin.listen"),
        Fixed::Key("log.format"),
        Fixed::Key("models"),
    ];

    fn check(raw: RawConfig, folders: &Folders) -> Result<Config, SettingsError> {
        Config::with_folders(raw, folders)
    }

    fn log(config: &Config) -> &LogConfig {
        &config.log
    }

    fn drain_timeout(config: &Config) -> Duration {
        config.drain_timeout
    }

    async fn start(config: Config) -> anyhow::Result<Started<Config>> {
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
