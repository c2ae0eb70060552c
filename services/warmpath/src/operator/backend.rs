//! `warmpath backend`: the engines.

use std::process::ExitCode;

use clap::Subcommand;
use http::Method;
use serde_json::{Map, Value, json};

use super::client::{Client, Expect, Failure, encode};
use super::table::Table;
use super::{Connection, Format, items, print, text};

/// What to do with engines.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the engines: what is wanted of each, and what was seen
    List {
        /// How to reach the region
        #[command(flatten)]
        connection: Connection,
    },
    /// Show one engine in full, as JSON
    Get {
        /// Its name
        id: String,
        /// How to reach the region
        #[command(flatten)]
        connection: Connection,
    },
    /// Add an engine
    Add(AddArgs),
    /// Let an engine finish what it has, and send it nothing new
    Drain(OneArgs),
    /// Take an engine out of service; its probes raise no alarm
    Maintenance(OneArgs),
    /// Let an engine take requests again, once its probes succeed
    Ready(OneArgs),
    /// Remove an engine; drain it first to let it finish
    Remove(OneArgs),
}

/// A new engine.
#[derive(Debug, clap::Args)]
pub struct AddArgs {
    /// Your name for it
    id: String,
    /// Scheme, host and port, such as http://10.0.0.7:8000
    url: String,
    /// The software behind it: vllm, sglang, llama-cpp or other [default: found out]
    #[arg(long)]
    engine: Option<String>,
    /// The name under which the services' own config has its credential
    #[arg(long)]
    credential: Option<String>,
    /// Begin with this wish: ready, draining or maintenance [default: ready]
    #[arg(long)]
    wish: Option<String>,
    /// Replace an engine of that name
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    connection: Connection,
}

/// One engine.
#[derive(Debug, clap::Args)]
pub struct OneArgs {
    /// Its name
    id: String,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
pub fn run(command: Command) -> ExitCode {
    match command {
        Command::List { connection } => super::run(&connection, list),
        Command::Get { id, connection } => {
            super::run(&connection, async |client, _| get(client, &id).await)
        }
        Command::Add(args) => {
            super::run(&args.connection, async |client, format| add(client, format, &args).await)
        }
        Command::Drain(args) => wish(args, "drain"),
        Command::Maintenance(args) => wish(args, "maintenance"),
        Command::Ready(args) => wish(args, "ready"),
        Command::Remove(args) => super::run(&args.connection, async |client, _| {
            let path = format!("/backends/{}", encode(&args.id));
            client.call(Method::DELETE, &path, Expect::Anything, None).await?;
            println!("removed {}", args.id);
            Ok(())
        }),
    }
}

async fn list(client: Client, format: Format) -> Result<(), Failure> {
    let said = client.list("/backends", "").await?;
    print(format, &said, |said| rows(items(said)));
    Ok(())
}

fn rows<'a>(backends: impl Iterator<Item = &'a Value>) -> Table {
    let row = |backend: &Value| {
        let sum = |what: &str| {
            let ranks = backend["observed"]["ranks"].as_array().into_iter().flatten();
            let known = ranks.filter_map(|rank| rank[what].as_u64());
            known.reduce(|a, b| a + b).map_or_else(|| "-".to_owned(), |sum| sum.to_string())
        };
        let field = |path: &str| text(backend, path);
        vec![
            field("/id"),
            field("/wish"),
            field("/observed/state"),
            field("/source"),
            field("/observed/engine"),
            sum("running"),
            sum("waiting"),
            field("/url"),
            field("/observed/models"),
        ]
    };
    let head = ["ID", "WISH", "STATE", "SOURCE", "ENGINE", "RUNNING", "WAITING", "URL", "MODELS"];
    Table::new(&head, backends.map(row))
}

async fn get(client: Client, id: &str) -> Result<(), Failure> {
    let said = client.get(&format!("/backends/{}", encode(id))).await?;
    println!("{}", super::json(&said.body));
    Ok(())
}

async fn add(client: Client, format: Format, args: &AddArgs) -> Result<(), Failure> {
    let mut spec = Map::from_iter([("url".to_owned(), json!(args.url))]);
    let optional =
        [("engine", &args.engine), ("credential", &args.credential), ("wish", &args.wish)];
    for (field, value) in optional {
        spec.extend(value.as_ref().map(|value| (field.to_owned(), json!(value))));
    }
    let expect = if args.replace { Expect::Present } else { Expect::Absent };
    let path = format!("/backends/{}", encode(&args.id));
    let said = client.call(Method::PUT, &path, expect, Some(&Value::Object(spec))).await;
    let said = said.map_err(|failure| super::taken(failure, "--replace replaces it"))?;
    print(format, &said.body, |said| rows(std::iter::once(said)));
    Ok(())
}

fn wish(args: OneArgs, verb: &'static str) -> ExitCode {
    super::run(&args.connection, async |client, format| {
        let path = format!("/backends/{}/{verb}", encode(&args.id));
        let said = client.call(Method::POST, &path, Expect::Anything, None).await?;
        print(format, &said.body, |said| rows(std::iter::once(said)));
        Ok(())
    })
}
