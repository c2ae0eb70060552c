//! `warmpath explain`: why a request went where it went.

use std::process::ExitCode;

use serde_json::Value;

use super::client::{Client, Failure, encode};
use super::table::Table;
use super::{Connection, Format, text};

/// Options of `warmpath explain`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The id of the request: the answer's `x-request-id`, so the client's own where it sent one, or
    /// the log's `request.id`
    request: String,
    /// A router's port for operators; repeatable, all are asked in turn
    /// [default: http://127.0.0.1:9090]
    #[arg(long = "router", value_name = "URL")]
    routers: Vec<String>,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
pub fn run(mut args: Args) -> ExitCode {
    args.connection.routers = std::mem::take(&mut args.routers);
    super::run(&args.connection, async |client, format| show(client, format, &args.request).await)
}

async fn show(client: Client, format: Format, request: &str) -> Result<(), Failure> {
    let said = ask(&client, request).await?;
    if format == Format::Json {
        println!("{}", super::json(&said));
        return Ok(());
    }
    let Some(attempts) = said["attempts"].as_array() else {
        return Err(Failure::Odd("a router answers, but not as Warmpath does".to_owned()));
    };
    for attempt in attempts {
        print!("{}", shown(attempt));
    }
    Ok(())
}

/// Asks one router after the other: only the one that decided knows.
async fn ask(client: &Client, request: &str) -> Result<Value, Failure> {
    let path = format!("/admin/v1/explain/{}", encode(request));
    let mut failure = Failure::Odd("no router is known: give one with --router".to_owned());
    for router in client.routers() {
        match client.ask_router(router, &path).await {
            Ok(answer) => return Ok(answer.body),
            // That one does not know it weighs less than that another was not there to be asked.
            Err(other) if other.is_missing() && !failure.is_first() => {}
            Err(other) => failure = other,
        }
    }
    Err(failure)
}

impl Failure {
    /// Whether nobody was asked yet.
    fn is_first(&self) -> bool {
        matches!(self, Failure::Odd(_))
    }
}

fn shown(attempt: &Value) -> String {
    let field = |path: &str| text(attempt, path);
    let decision = match attempt["rejected"].as_str() {
        Some(reason) => format!("rejected: {}", super::printable(reason)),
        None => format!(
            "{} rank {}: {}, {} tokens predicted cached, first token predicted after {} s",
            field("/decision/backend"),
            field("/decision/rank"),
            field("/decision/reason"),
            field("/decision/predicted_cached_tokens"),
            field("/decision/predicted_ttft_seconds"),
        ),
    };
    let row = |candidate: &Value| {
        let cell = |path: &str| text(candidate, path);
        vec![
            cell("/backend"),
            cell("/rank"),
            cell("/state"),
            cell("/level"),
            cell("/cached_tokens"),
            cell("/uncached_tokens"),
            cell("/in_flight"),
            seconds(&candidate["score"]["queue_delay_seconds"]),
            seconds(&candidate["score"]["prefill_seconds"]),
            seconds(&candidate["score"]["total_seconds"]),
            cell("/why"),
        ]
    };
    let head = [
        "BACKEND",
        "RANK",
        "STATE",
        "LEVEL",
        "CACHED",
        "UNCACHED",
        "IN FLIGHT",
        "QUEUE",
        "PREFILL",
        "TOTAL",
        "WHY",
    ];
    let candidates = attempt["candidates"].as_array().into_iter().flatten();
    format!(
        "{}: attempt {} of {} for {} ({} prompt tokens)\n  {decision}\n  {}, {} s\n{}",
        field("/request"),
        field("/attempt"),
        field("/tenant"),
        field("/model"),
        field("/prompt_tokens"),
        field("/outcome/state"),
        field("/outcome/seconds"),
        Table::new(&head, candidates.map(row)),
    )
}

fn seconds(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |seconds| format!("{:.1} ms", seconds * 1000.0))
}
