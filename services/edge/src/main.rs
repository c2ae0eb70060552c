//! The `warmpath-edge` binary.

use std::process::ExitCode;

use clap::Parser;

// Many small short-lived buffers cross threads here, which this allocator is made for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Warmpath's edge: serves clients, and asks the routers of its region where requests go.
#[derive(Debug, Parser)]
#[command(name = "warmpath-edge", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    args: launch::Args,
}

fn main() -> ExitCode {
    launch::run::<edge::process::Edge>(&Cli::parse().args)
}
