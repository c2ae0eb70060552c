//! `warmpath status`: the control plane at a glance.

use std::process::ExitCode;

use serde_json::Value;

use super::client::{Client, Failure};
use super::table::Table;
use super::{Connection, Format, text};

/// What an empty list of members means.
const NO_MEMBERS: &str =
    "none: no edge and no router has joined; `warmpath serve` is all of them in one process";

/// Options of `warmpath status`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
pub fn run(args: Args) -> ExitCode {
    super::run(&args.connection, show)
}

async fn show(client: Client, format: Format) -> Result<(), Failure> {
    let said = client.get("/status").await?.body;
    if !said["store"].is_object() {
        return Err(Failure::Odd("it answers, but not as Warmpath does".to_owned()));
    }
    if format == Format::Json {
        println!("{}", super::json(&said));
        return Ok(());
    }
    println!("telemetry  version {}", text(&said, "/version"));
    println!(
        "store      {} at revision {}",
        text(&said, "/store/id"),
        text(&said, "/store/revision")
    );
    println!("backends   {}", backends(&said["fleet"]["backends"]));
    let list = said["members"]["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    if list.is_empty() {
        println!("members    {NO_MEMBERS}");
        return Ok(());
    }
    let (term, number) = (text(&said, "/members/term"), text(&said, "/members/number"));
    println!("members    list {number} of start {term}");
    let row = |member: &Value| {
        ["/id", "/role", "/address", "/incarnation"].map(|path| text(member, path)).to_vec()
    };
    print!("{}", Table::new(&["ID", "ROLE", "ADDRESS", "INCARNATION"], list.iter().map(row)));
    Ok(())
}

fn backends(states: &Value) -> String {
    let states = states.as_object().into_iter().flatten();
    let parts: Vec<String> = states
        .map(|(state, count)| format!("{} {}", text(count, ""), super::printable(state)))
        .collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}
