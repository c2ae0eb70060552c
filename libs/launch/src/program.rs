//! From the command line to the exit code.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use instrumentation::{LogConfig, Registry};
use lifecycle::{
    HangUps, Lifecycle, OnHangUp, Readiness, ServeLimits, ShutdownOutcome, TaskSpawner,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use settings::{EXIT_CONFIG, SettingsError};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::fixed::Fixed;
use crate::reload::{Commit, Reloader};
use crate::sections::Folders;
use crate::source::{Reading, Source};

/// Options of every process that serves.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The config file; see docs/configuration.md
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one key over file and environment, such as edge.listen=127.0.0.1:8081; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Check the config, load what it names, and exit
    #[arg(long)]
    check_config: bool,
    /// Print the config with all defaults, secrets left out, and exit
    #[arg(long)]
    print_config: bool,
}

/// A process that serves.
pub trait Program: 'static {
    /// Its name in messages: that of the binary.
    const NAME: &'static str;
    /// Settings that it takes only at its start. All others can change while it runs.
    const FIXED: &'static [Fixed];
    /// The config file as it stands.
    type Raw: DeserializeOwned + Serialize;
    /// The same, checked.
    type Config: Send + 'static;

    /// Checks a config, and loads what it names, unless the folders have it. What passes can be
    /// put in force.
    ///
    /// # Errors
    /// The first thing that is wrong, with its key.
    fn check(raw: Self::Raw, folders: &Folders) -> Result<Self::Config, SettingsError>;

    /// How it logs.
    fn log(config: &Self::Config) -> &LogConfig;

    /// How long open work may go on after a signal.
    fn drain_timeout(config: &Self::Config) -> Duration;

    /// Binds its ports, builds its services, starts its tasks.
    fn start(config: Self::Config) -> impl Future<Output = anyhow::Result<Started<Self::Config>>>;
}

/// What is left to do with a process that serves.
pub struct Started<C> {
    /// Its tasks.
    pub lifecycle: Lifecycle,
    /// Its metrics.
    pub registry: Registry,
    /// Where it listens, by the section of the config whose `listen` says so.
    pub ports: Vec<(&'static str, SocketAddr)>,
    /// Puts another config in force.
    pub commit: Commit<C>,
}

impl<C> Started<C> {
    /// Where it listens on behalf of a section.
    pub fn port(&self, section: &str) -> Option<SocketAddr> {
        self.ports.iter().find(|(name, _)| *name == section).map(|(_, address)| *address)
    }
}

/// What every process has before its services: its tasks, its metrics, its port for operators.
pub struct Base {
    /// Its tasks.
    pub lifecycle: Lifecycle,
    /// The same, for those that end last.
    pub background: TaskSpawner,
    /// Its metrics.
    pub registry: Registry,
    /// What has to hold before it should get traffic.
    pub readiness: Readiness,
    /// Where operators connect.
    pub admin_address: SocketAddr,
    admin: TcpListener,
}

impl Base {
    /// Begins a process of that name, and binds its port for operators.
    ///
    /// # Errors
    /// The port cannot be bound.
    pub async fn begin(name: &'static str, admin: SocketAddr) -> anyhow::Result<Self> {
        let lifecycle = Lifecycle::new();
        let registry = Registry::new();
        lifecycle.register(&registry)?;
        // All crates of the workspace have one version.
        instrumentation::register_build_info(&registry, name, env!("CARGO_PKG_VERSION"))?;
        let admin = lifecycle::bind(admin).await.context("admin.listen")?;
        Ok(Self {
            background: lifecycle.background(),
            readiness: Readiness::new(lifecycle.drain()),
            admin_address: admin.local_addr()?,
            lifecycle,
            registry,
            admin,
        })
    }

    /// Serves operators what every process tells and `more`, and leaves the process to run.
    /// `commit` puts another config in force.
    pub fn serve<C>(
        self,
        more: lifecycle::AdminRoutes,
        mut ports: Vec<(&'static str, SocketAddr)>,
        commit: impl FnMut(C) + Send + 'static,
    ) -> Started<C> {
        let routes = lifecycle::admin::router(self.registry.clone(), self.readiness).merge(more);
        let serving =
            lifecycle::serve(self.admin, routes, ServeLimits::ADMIN, self.background.clone());
        self.background.spawn("admin", serving);
        ports.push(("admin", self.admin_address));
        let commit = Box::new(commit);
        Started { lifecycle: self.lifecycle, registry: self.registry, ports, commit }
    }
}

/// Runs a process to its end. Exit code 0 after a clean drain, 1 when streams had to be cut or
/// something broke, 64 for a config that cannot be used.
pub fn run<P: Program>(args: &Args) -> ExitCode {
    match checked::<P>(args) {
        Ok(Some((source, reading))) => serve::<P>(source, reading),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", P::NAME);
            ExitCode::from(EXIT_CONFIG)
        }
    }
}

/// A config and where it is from.
type Sourced<P> = (Source, Reading<<P as Program>::Config>);

/// The config to serve with, or `None` when looking at it was all that was asked.
fn checked<P: Program>(args: &Args) -> Result<Option<Sourced<P>>, SettingsError> {
    let overrides = args.set.iter().map(|s| settings::parse_override(s));
    let source = Source::new(args.config.clone(), overrides.collect::<Result<_, _>>()?);
    if args.print_config {
        print!("{}", settings::to_toml(&source.layers()?.read::<P::Raw>()?)?);
        return Ok(None);
    }
    let reading = source.read::<P>()?;
    if args.check_config {
        println!("the config is valid");
        return Ok(None);
    }
    Ok(Some((source, reading)))
}

fn serve<P: Program>(source: Source, reading: Reading<P::Config>) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("{}: cannot start: {error}", P::NAME);
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(serve_until_signal::<P>(source, reading)) {
        Ok(ShutdownOutcome::Clean) => ExitCode::SUCCESS,
        Ok(ShutdownOutcome::Aborted(tasks)) => {
            eprintln!("{}: still busy at the drain's end: {}", P::NAME, tasks.join(", "));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{}: {error:#}", P::NAME);
            ExitCode::FAILURE
        }
    }
}

async fn serve_until_signal<P: Program>(
    source: Source,
    Reading { config, mark }: Reading<P::Config>,
) -> anyhow::Result<ShutdownOutcome> {
    // Before anything that takes time: by default a SIGHUP would end the process.
    let hang_ups = HangUps::listen()?;
    let logs = instrumentation::init_logs(P::log(&config))?;
    lifecycle::log_panics();
    crate::descriptors::raise_limit();
    let (to_drain_timeout, drain_timeout) = watch::channel(P::drain_timeout(&config));
    let Started { lifecycle, registry, mut commit, .. } = P::start(config).await?;
    logs.register(&registry)?;
    let level = logs.level();
    let commit = move |config: P::Config| {
        level.set(&P::log(&config).level);
        to_drain_timeout.send_replace(P::drain_timeout(&config));
        commit(config);
    };
    let reloader = Reloader::<P>::new(source, mark, Box::new(commit), &registry)?;
    lifecycle.spawn("config-reload", reloader.run(hang_ups, lifecycle.drain()));
    lifecycle.run_until_signal(OnHangUp::Reload).await?;
    lifecycle.begin_drain();
    let limit = *drain_timeout.borrow();
    let outcome = lifecycle.shutdown(limit).await;
    tracing::info!(outcome = ?outcome, "stopped");
    Ok(outcome)
}
