//! `warmpath tenant`: who shares limits, and the limits.

use std::process::ExitCode;
use std::str::FromStr;

use clap::Subcommand;
use http::Method;
use serde_json::{Map, Value, json};

use super::client::{Answer, Client, Expect, Failure, encode};
use super::table::Table;
use super::{Connection, Format, items, print, text};

/// What to do with tenants.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the tenants with their limits
    List {
        /// How to reach the region
        #[command(flatten)]
        connection: Connection,
    },
    /// Add a tenant, or change what is given of one and leave the rest
    Set(SetArgs),
    /// Remove a tenant that has no keys left
    Remove {
        /// Its name
        id: String,
        /// How to reach the region
        #[command(flatten)]
        connection: Connection,
    },
}

/// A tenant as it should be.
#[derive(Debug, clap::Args)]
pub struct SetArgs {
    /// Its name
    id: String,
    /// Models that it may use, separated by commas; `all` for all
    #[arg(long, value_name = "MODELS")]
    models: Option<String>,
    /// Whether answers tell in headers which backend was chosen and why
    #[arg(long, value_name = "true|false")]
    debug_headers: Option<bool>,
    /// Requests per minute; `none` for no limit
    #[arg(long, value_name = "N|none")]
    requests_per_minute: Option<Bound>,
    /// Requests open at once; `none` for no limit
    #[arg(long, value_name = "N|none")]
    max_concurrency: Option<Bound>,
    #[command(flatten)]
    connection: Connection,
}

/// A limit, or none.
#[derive(Clone, Copy, Debug)]
struct Bound(Option<u32>);

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            number => number.parse().map(|n| Self(Some(n))).map_err(|_| {
                format!("`{number}` is neither a number of at most {} nor `none`", u32::MAX)
            }),
        }
    }
}

/// Runs the command.
pub fn run(command: Command) -> ExitCode {
    match command {
        Command::List { connection } => super::run(&connection, list),
        Command::Set(args) => {
            super::run(&args.connection, async |client, format| set(client, format, &args).await)
        }
        Command::Remove { id, connection } => super::run(&connection, async |client, _| {
            let path = format!("/tenants/{}", encode(&id));
            client.call(Method::DELETE, &path, Expect::Anything, None).await?;
            println!("removed {id}");
            Ok(())
        }),
    }
}

async fn list(client: Client, format: Format) -> Result<(), Failure> {
    let said = client.list("/tenants", "").await?;
    print(format, &said, |said| rows(items(said)));
    Ok(())
}

fn rows<'a>(tenants: impl Iterator<Item = &'a Value>) -> Table {
    let row = |tenant: &Value| {
        let models = text(tenant, "/models");
        vec![
            text(tenant, "/id"),
            if tenant.get("models").is_some() { models } else { "all".to_owned() },
            text(tenant, "/limits/requests_per_minute"),
            text(tenant, "/limits/max_concurrency"),
            text(tenant, "/debug_headers"),
        ]
    };
    Table::new(&["ID", "MODELS", "REQUESTS/MIN", "CONCURRENT", "DEBUG"], tenants.map(row))
}

/// Reads, changes, and writes at the state that was read: what another operator changes between
/// is refused, not lost.
async fn set(client: Client, format: Format, args: &SetArgs) -> Result<(), Failure> {
    let path = format!("/tenants/{}", encode(&args.id));
    let (before, expect) = present(client.get(&path).await)?;
    let mut tenant = kept(&before, &["models", "debug_headers"]);
    if let Some(models) = &args.models {
        let list = || models.split(',').map(str::trim).filter(|m| !m.is_empty());
        let models = if models == "all" { Value::Null } else { list().collect() };
        tenant.insert("models".to_owned(), models);
    }
    if let Some(debug_headers) = args.debug_headers {
        tenant.insert("debug_headers".to_owned(), json!(debug_headers));
    }
    client.call(Method::PUT, &path, expect, Some(&Value::Object(tenant))).await?;
    set_limits(&client, &path, args).await?;
    let said = client.get(&path).await?.body;
    print(format, &said, |said| rows(std::iter::once(said)));
    Ok(())
}

async fn set_limits(client: &Client, tenant: &str, args: &SetArgs) -> Result<(), Failure> {
    let given = [
        ("requests_per_minute", args.requests_per_minute),
        ("max_concurrency", args.max_concurrency),
    ];
    if given.iter().all(|(_, bound)| bound.is_none()) {
        return Ok(());
    }
    let path = format!("{tenant}/limits");
    let (before, expect) = present(client.get(&path).await)?;
    let mut limits = kept(&before, &["requests_per_minute", "max_concurrency"]);
    for (field, bound) in given {
        limits.extend(bound.map(|Bound(bound)| (field.to_owned(), json!(bound))));
    }
    client.call(Method::PUT, &path, expect, Some(&Value::Object(limits))).await?;
    Ok(())
}

/// What is there, if anything, and what a write should expect then.
fn present(said: Result<Answer, Failure>) -> Result<(Value, Expect), Failure> {
    match said {
        Ok(Answer { body, etag }) => Ok((body, etag.map_or(Expect::Present, Expect::At))),
        Err(failure) if failure.is_missing() => Ok((Value::Null, Expect::Absent)),
        Err(failure) => Err(failure),
    }
}

fn kept(before: &Value, fields: &[&str]) -> Map<String, Value> {
    let field = |name: &&str| Some(((*name).to_owned(), before.get(*name)?.clone()));
    fields.iter().filter_map(field).collect()
}
