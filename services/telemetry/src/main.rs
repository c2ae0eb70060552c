//! The `warmpath-telemetry` binary.

use std::process::ExitCode;

use clap::Parser;

// Many small short-lived buffers cross threads here, which this allocator is made for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Warmpath's control plane: watches engines, keeps what operators want, tells edges and routers.
#[derive(Debug, Parser)]
#[command(name = "warmpath-telemetry", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    args: launch::Args,
}

fn main() -> ExitCode {
    launch::run::<telemetry::process::Telemetry>(&Cli::parse().args)
}
