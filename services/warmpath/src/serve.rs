//! `warmpath serve`.

use std::path::PathBuf;
use std::process::ExitCode;

use lifecycle::ShutdownOutcome;
use settings::{EXIT_CONFIG, Layers, SettingsError};

use crate::config::{Config, RawConfig};
use crate::gateway::Gateway;

/// Options of `warmpath serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The config file; see docs/configuration.md
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one key over file and environment, such as edge.listen=127.0.0.1:8081; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Check the config, load the model folders, and exit
    #[arg(long)]
    check_config: bool,
    /// Print the config with all defaults, secrets left out, and exit
    #[arg(long)]
    print_config: bool,
}

/// Runs the gateway. Exit code 0 after a clean drain, 1 when streams had to be cut or something
/// broke, 64 for a config that cannot be used.
pub fn run(args: Args) -> ExitCode {
    match checked(&args) {
        Ok(Some(config)) => serve(config),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("warmpath: {error}");
            ExitCode::from(EXIT_CONFIG)
        }
    }
}

/// The config to serve with, or `None` when looking at it was all that was asked.
fn checked(args: &Args) -> Result<Option<Config>, SettingsError> {
    let overrides =
        args.set.iter().map(|s| settings::parse_override(s)).collect::<Result<Vec<_>, _>>()?;
    let layers = Layers::gather(args.config.as_deref(), "WARMPATH", &overrides)?;
    if args.print_config {
        print!("{}", settings::to_toml(&layers.read::<RawConfig>()?)?);
        return Ok(None);
    }
    let config = Config::read(&layers)?;
    if args.check_config {
        println!("the config is valid");
        return Ok(None);
    }
    Ok(Some(config))
}

fn serve(config: Config) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("warmpath: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(serve_until_signal(config)) {
        Ok(ShutdownOutcome::Clean) => ExitCode::SUCCESS,
        Ok(ShutdownOutcome::Aborted(tasks)) => {
            eprintln!("warmpath: still busy at the drain's end: {}", tasks.join(", "));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("warmpath: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve_until_signal(config: Config) -> anyhow::Result<ShutdownOutcome> {
    let logs = instrumentation::init_logs(&config.log)?;
    lifecycle::log_panics();
    let drain_timeout = config.drain_timeout;
    let gateway = Gateway::start(config).await?;
    logs.register(gateway.registry())?;
    tracing::info!(
        edge.listen = %gateway.edge(),
        admin.listen = %gateway.admin(),
        version = env!("CARGO_PKG_VERSION"),
        "serving"
    );
    gateway.run_until_signal().await?;
    let outcome = gateway.stop(drain_timeout).await;
    tracing::info!(outcome = ?outcome, "stopped");
    Ok(outcome)
}
