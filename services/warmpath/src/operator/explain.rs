//! `warmpath explain`: why a request went where it went.

#[cfg(test)]
mod tests;

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

/// One attempt: who asked for what, what was decided and what came of it, and the candidates.
fn shown(attempt: &Value) -> String {
    let field = |path: &str| text(attempt, path);
    let client_id = match &attempt["client_request"] {
        Value::Null => String::new(),
        _ => format!(" (its client's id: {})", field("/client_request")),
    };
    let which = match attempt["attempt"].as_u64() {
        Some(0) => "first attempt".to_owned(),
        _ => format!("retry {}", field("/attempt")),
    };
    let prompt = match &attempt["prompt_tokens"] {
        Value::Null => String::new(),
        tokens => format!(", {tokens} prompt tokens"),
    };
    let said = match &attempt["rejected"] {
        Value::Null => vec![decision(attempt), outcome(attempt)],
        _ => {
            vec![format!("refused: {} ({})", field("/rejected/message"), field("/rejected/reason"))]
        }
    };
    let mut shown = format!("request {}{client_id}, {which}\n", field("/request"));
    shown += &format!("  tenant {}, model {}{prompt}\n", field("/tenant"), field("/model"));
    shown.extend(said.iter().map(|line| format!("  {line}\n")));
    match attempt["candidates"].as_array().map(Vec::as_slice) {
        None | Some([]) => shown += "  there was no candidate\n",
        Some(candidates) => shown += &table(candidates).to_string(),
    }
    match attempt["candidates_omitted"].as_u64() {
        None | Some(0) => {}
        Some(more) => shown += &format!("and {more} more that are not shown\n"),
    }
    shown
}

fn decision(attempt: &Value) -> String {
    let decision = &attempt["decision"];
    let field = |path: &str| text(decision, path);
    format!(
        "sent to {} rank {} ({}): expected {} tokens cached, the first token after {}",
        field("/backend"),
        field("/rank"),
        field("/reason"),
        field("/predicted_cached_tokens"),
        millis(&decision["predicted_ttft_seconds"]),
    )
}

fn outcome(attempt: &Value) -> String {
    let outcome = &attempt["outcome"];
    let mut said = text(outcome, "/state");
    if !outcome["failure"].is_null() {
        said += &format!(" ({})", text(outcome, "/failure"));
    }
    if !outcome["seconds"].is_null() {
        said += &format!(" after {}", millis(&outcome["seconds"]));
    }
    if !outcome["usage"]["cached_tokens"].is_null() {
        said += &format!(", found {} tokens cached", text(outcome, "/usage/cached_tokens"));
    }
    if !outcome["first_token_seconds"].is_null() {
        said += &format!(", the first token after {}", millis(&outcome["first_token_seconds"]));
    }
    said
}

/// The parts of a score, in the order of their sum. The table shows those that weigh anything.
const PARTS: [(&str, &str); 6] = [
    ("NETWORK", "network_seconds"),
    ("QUEUE", "queue_delay_seconds"),
    ("PREFILL", "prefill_seconds"),
    ("EVICTION", "eviction_cost_seconds"),
    ("OTHERS", "others_delay_seconds"),
    ("HOT PREFIX", "hot_prefix_seconds"),
];

struct Column {
    head: &'static str,
    cells: Vec<String>,
    /// Whether any of them says something.
    says: bool,
}

/// The candidates. Columns in which none of them has anything are left out: of a refused request
/// there are no scores, and of a choice by turn they are all zero.
fn table(candidates: &[Value]) -> Table {
    let plain = |head, path| {
        let cells: Vec<String> = candidates.iter().map(|candidate| text(candidate, path)).collect();
        Column { head, says: cells.iter().any(|cell| cell != "-"), cells }
    };
    let score = |head, name| {
        let parts = || candidates.iter().map(|candidate| &candidate["score"][name]);
        let says = parts().filter_map(Value::as_f64).any(|seconds| seconds != 0.0);
        Column { head, says, cells: parts().map(millis).collect() }
    };
    let mut columns = vec![
        plain("BACKEND", "/backend"),
        plain("RANK", "/rank"),
        plain("STATE", "/state"),
        plain("LEVEL", "/level"),
        plain("CACHED", "/cached_tokens"),
        plain("UNCACHED", "/uncached_tokens"),
        plain("IN FLIGHT", "/in_flight"),
    ];
    columns.extend(PARTS.map(|(head, name)| score(head, name)));
    columns.push(score("TOTAL", "total_seconds"));
    columns.push(plain("WHY", "/why"));
    columns.retain(|column| column.says);
    let heads: Vec<_> = columns.iter().map(|column| column.head).collect();
    let row = |at: usize| columns.iter().map(|column| column.cells[at].clone()).collect();
    Table::new(&heads, (0..candidates.len()).map(row))
}

/// As exact as the reasons why candidates lost, which tell the distance of two totals.
fn millis(seconds: &Value) -> String {
    seconds.as_f64().map_or_else(|| "-".to_owned(), |s| format!("{:.3} ms", s * 1000.0))
}
