//! The `warmpath-router` binary.

use std::process::ExitCode;

use clap::Parser;

// Many small short-lived buffers cross threads here, which this allocator is made for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Warmpath's router: knows what each engine holds and has to do, and tells edges where to send.
#[derive(Debug, Parser)]
#[command(name = "warmpath-router", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    args: launch::Args,
}

fn main() -> ExitCode {
    launch::run::<router::process::RouterProcess>(&Cli::parse().args)
}
