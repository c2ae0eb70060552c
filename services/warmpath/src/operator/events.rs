//! `warmpath events`: who changed what, and when.

use std::process::ExitCode;

use serde_json::Value;

use super::client::{Client, Failure};
use super::table::Table;
use super::{Connection, Format, items, moment, text};

/// How long one request of a follower waits for a change, in seconds: what the API allows.
const WAIT_SECONDS: u16 = 20;

/// Options of `warmpath events`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only changes after this revision [default: the newest]
    #[arg(long, value_name = "REVISION")]
    after: Option<u64>,
    /// Changes at most
    #[arg(long, default_value = "50", value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Go on with every further change until interrupted
    #[arg(long, short)]
    follow: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
pub fn run(args: Args) -> ExitCode {
    super::run(&args.connection, async |client, format| show(client, format, &args).await)
}

async fn show(client: Client, format: Format, args: &Args) -> Result<(), Failure> {
    let after = args.after.map(|after| format!("&after={after}")).unwrap_or_default();
    let mut said = client.page(&format!("/events?limit={}{after}", args.limit)).await?;
    if !args.follow {
        match format {
            Format::Json => println!("{}", super::json(&said)),
            Format::Table => print!("{}", Table::new(&HEAD, items(&said).map(row))),
        }
        return Ok(());
    }
    loop {
        for event in items(&said) {
            match format {
                // One object a line: whoever reads a stream wants lines.
                Format::Json => println!("{}", super::escaped(&event.to_string())),
                Format::Table => println!("{}", row(event).join("  ")),
            }
        }
        let after = said["next_after"].as_u64().unwrap_or_default();
        let path = format!("/events?limit=1000&after={after}&wait_seconds={WAIT_SECONDS}");
        said = client.page(&path).await?;
    }
}

const HEAD: [&str; 6] = ["REVISION", "TIME", "AUTHOR", "ACTION", "DOCUMENT", "CONTENT"];

fn row(event: &Value) -> Vec<String> {
    vec![
        text(event, "/revision"),
        moment(&event["at_ms"]),
        text(event, "/author"),
        text(event, "/action"),
        format!("{}/{}", text(event, "/kind"), text(event, "/id")),
        text(event, "/document"),
    ]
}
