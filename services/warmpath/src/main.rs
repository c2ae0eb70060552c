//! The `warmpath` binary: the gateway in one process, and the operator's command line.

use std::process::ExitCode;

use clap::Parser;

// Many small short-lived buffers cross threads here, which this allocator is made for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    warmpath::cli::Cli::parse().run()
}
