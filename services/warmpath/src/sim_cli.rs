//! `warmpath sim`: ways to route, compared in virtual time.
//!
//! - `args`: the flags
//! - `settings`: one point of the sweep, with the workload's own defaults
//! - `runs`: points, seeds and policies are run, a few at a time
//! - `row`, `table`, `plot`: what comes out

mod args;
#[cfg(test)]
mod parameter_tests;
mod plot;
mod row;
mod runs;
mod settings;
mod table;
#[cfg(test)]
mod tests;
mod trace_file;

pub(crate) use trace_file::open_lines;

use anyhow::Context as _;

use crate::cli::Output;
pub use args::Args;

/// Runs the comparison and writes what was asked for.
///
/// # Errors
/// When flags do not fit together, the trace cannot be read, or a result cannot be written.
pub fn run(args: Args) -> anyhow::Result<()> {
    let trace = trace_file::of(&args)?;
    let points = settings::points(&args, trace.as_ref())?;
    if args.output.svg.is_some() {
        let params: Vec<_> = points.iter().map(|point| point.params(&args, None)).collect();
        plot::load(&params.iter().collect::<Vec<_>>())?;
    }
    let rows = runs::run_all(&args, &points, trace.as_ref())?;
    if let Some(output) = &args.output.json {
        output.parse::<Output>()?.write_json(&rows)?;
    }
    if args.output.json.as_deref() != Some("-") {
        print!("{}", table::render(&rows));
    }
    if let Some(path) = &args.output.svg {
        std::fs::write(path, plot::render(&rows)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
