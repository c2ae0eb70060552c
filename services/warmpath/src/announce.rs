//! `warmpath announce`: beside an engine, it says over the bus that the engine is there.
//!
//! It needs nothing but the bus and a join token. It speaks for an engine only while that engine
//! answers, and says farewell on SIGTERM: telemetry drains the engine, and when the engine is out
//! of the fleet the process ends, so that whoever stops both can stop the engine after it.

mod announcer;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bus::{NatsBus, NatsConfig, RawNatsConfig};
use credentials::JoinKey;
use events::Region;
use instrumentation::LogConfig;
use lifecycle::{Lifecycle, OnHangUp};
use serde::Deserialize;
use settings::{EXIT_CONFIG, HumanDuration, Layers, SecretRef, SettingsError};
use toml::Value;

use self::announcer::{Announcer, Farewell, Spec};

/// How long the farewell may take beyond the drain: an answer on the bus.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Options of `warmpath announce`. Flags win over the environment (`WARMPATH_ANNOUNCE__REGION`,
/// …), that over the file.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The engine as it is reached from here, such as http://127.0.0.1:8000
    #[arg(long, value_name = "URL")]
    engine: String,
    /// The engine as the services reach it [default: as from here]
    #[arg(long, value_name = "URL")]
    advertise: Option<String>,
    /// The name that it should have in the fleet
    #[arg(long, value_name = "NAME")]
    id: String,
    /// The software: vllm, sglang, llama-cpp or other [default: found out]
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// The name under which the services' own config has the engine's credential
    #[arg(long, value_name = "NAME")]
    credential: Option<String>,
    /// The region to join [default: default]
    #[arg(long)]
    region: Option<String>,
    /// A server of the bus, such as nats://127.0.0.1:4222; repeatable
    #[arg(long, value_name = "URL")]
    nats: Vec<String>,
    /// File with the join token, readable by its owner alone
    #[arg(long, value_name = "FILE", conflicts_with = "token_env")]
    token_file: Option<PathBuf>,
    /// Environment variable with the join token
    #[arg(long, value_name = "NAME")]
    token_env: Option<String>,
    /// How long to wait on SIGTERM until the engine is out of the fleet
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    drain_timeout: HumanDuration,
    /// TOML file with `region`, `token`, `[nats]` and `[log]`
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The settings as they stand.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Raw {
    region: String,
    token: Option<SecretRef>,
    nats: RawNatsConfig,
    log: LogConfig,
}

impl Default for Raw {
    fn default() -> Self {
        Self {
            region: "default".to_owned(),
            token: None,
            nats: RawNatsConfig::default(),
            log: LogConfig::default(),
        }
    }
}

/// The same, checked.
struct Config {
    region: Region,
    key: JoinKey,
    nats: NatsConfig,
    log: LogConfig,
}

impl Config {
    fn read(args: &Args) -> Result<Self, SettingsError> {
        let layers = Layers::gather(args.config.as_deref(), "WARMPATH_ANNOUNCE", &overrides(args))?;
        Self::checked(layers.read()?).map_err(|error| layers.explain(error))
    }

    fn checked(raw: Raw) -> Result<Self, SettingsError> {
        let region =
            Region::new(&raw.region).map_err(|error| SettingsError::new("region", error))?;
        let Some(token) = raw.token else {
            let message = "a join token is needed: give one with --token-file or --token-env";
            return Err(SettingsError::new("token", message));
        };
        let token = token.resolve().map_err(|error| error.under("token"))?;
        let key =
            JoinKey::parse(token.expose()).map_err(|error| SettingsError::new("token", error))?;
        let nats = NatsConfig::new(raw.nats).map_err(|error| error.under("nats"))?;
        Ok(Self { region, key, nats, log: raw.log })
    }
}

fn overrides(args: &Args) -> Vec<(String, Value)> {
    let text = |value: &str| Value::String(value.to_owned());
    let reference = |kind: &str, value: &str| {
        Value::Table(toml::Table::from_iter([(kind.to_owned(), text(value))]))
    };
    let servers: Vec<Value> = args.nats.iter().map(|url| text(url)).collect();
    let file = args.token_file.as_ref().map(|path| path.display().to_string());
    let set = [
        args.region.as_deref().map(|region| ("region", text(region))),
        (!servers.is_empty()).then_some(("nats.servers", Value::Array(servers))),
        file.map(|path| ("token", reference("file", &path))),
        args.token_env.as_deref().map(|name| ("token", reference("env", name))),
    ];
    set.into_iter().flatten().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Runs until SIGTERM and the end of the drain. Exit code 0 when the engine is out of the fleet,
/// or never was in it; 1 when it still was when the time was over; 64 for settings that cannot be
/// used.
pub fn run(args: Args) -> ExitCode {
    let config = match Config::read(&args) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("warmpath: {error}");
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let outcome = runtime
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(announce_until_signal(config, args)));
    match outcome {
        Ok(Farewell::Out) => ExitCode::SUCCESS,
        Ok(Farewell::Unheard) => {
            eprintln!("warmpath: the engine may still be in the fleet: nobody said it is not");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("warmpath: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn announce_until_signal(config: Config, args: Args) -> anyhow::Result<Farewell> {
    let _logs = instrumentation::init_logs(&config.log)?;
    lifecycle::log_panics();
    let lifecycle = Lifecycle::new();
    let bus = NatsBus::start(config.nats, lifecycle.background(), bus::Metrics::default());
    let advertised = args.advertise.as_deref().unwrap_or(&args.engine);
    let spec = Spec {
        backend: args.id,
        url: advertised.trim_end_matches('/').to_owned(),
        engine: args.kind,
        credential: args.credential,
    };
    let engine = args.engine.trim_end_matches('/').to_owned();
    let announcer = Announcer::new(Arc::new(bus), config.region, config.key, spec, engine)?;
    let (told, farewell) = tokio::sync::oneshot::channel();
    let (drain, limit) = (lifecycle.drain(), args.drain_timeout.get());
    lifecycle.spawn("announcer", async move {
        // Nobody hears it when the process was told twice to end.
        let _ = told.send(announcer.run(drain, limit).await);
    });
    lifecycle.run_until_signal(OnHangUp::End).await?;
    lifecycle.shutdown(limit.saturating_add(END_LIMIT)).await;
    Ok(farewell.await.unwrap_or(Farewell::Unheard))
}
