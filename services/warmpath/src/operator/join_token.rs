//! `warmpath join-token`: tokens with which engines announce themselves.

use std::process::ExitCode;

use clap::Subcommand;
use http::Method;
use serde_json::{Map, Value, json};
use settings::HumanDuration;

use super::client::{Client, Expect, Failure, encode};
use super::table::Table;
use super::{Connection, Format, items, moment, print, text};

/// What to do with join tokens.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a token and print it, this once: the token alone to standard output
    Create(CreateArgs),
    /// List the tokens, without their secrets
    List {
        /// How to reach the region
        #[command(flatten)]
        connection: Connection,
    },
    /// Revoke a token: engines that were announced with it go when they are not heard any more
    Revoke {
        /// Its name
        id: String,
        /// How to reach the region
        #[command(flatten)]
        connection: Connection,
    },
}

/// The scope of a new token.
#[derive(Debug, clap::Args)]
pub struct CreateArgs {
    /// Its name [default: drawn]
    #[arg(long)]
    id: Option<String>,
    /// The model that announced engines may serve [default: any]
    #[arg(long)]
    model: Option<String>,
    /// Addresses that announced engines may have, such as 10.0.0.0/8; repeatable [default: any]
    #[arg(long = "address", value_name = "RANGE")]
    addresses: Vec<String>,
    /// For how long it is good, such as 24h
    #[arg(long, value_name = "DURATION")]
    ttl: HumanDuration,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
pub fn run(command: Command) -> ExitCode {
    match command {
        Command::Create(args) => {
            super::run(&args.connection, async |client, format| create(client, format, &args).await)
        }
        Command::List { connection } => super::run(&connection, list),
        Command::Revoke { id, connection } => super::run(&connection, async |client, _| {
            let path = format!("/join-tokens/{}", encode(&id));
            client.call(Method::DELETE, &path, Expect::Anything, None).await?;
            println!("revoked {id}");
            Ok(())
        }),
    }
}

async fn create(client: Client, format: Format, args: &CreateArgs) -> Result<(), Failure> {
    let mut scope = Map::new();
    let ttl = args.ttl.get().as_secs();
    scope.insert("ttl_seconds".to_owned(), json!(ttl));
    scope.insert("addresses".to_owned(), json!(args.addresses));
    for (field, value) in [("id", &args.id), ("model", &args.model)] {
        scope.extend(value.as_ref().map(|value| (field.to_owned(), json!(value))));
    }
    let scope = Value::Object(scope);
    let said = client.call(Method::POST, "/join-tokens", Expect::Anything, Some(&scope)).await?;
    match format {
        Format::Json => println!("{}", super::json(&said.body)),
        Format::Table => {
            println!("{}", super::secret(&said.body, "token")?);
            eprintln!("The token is for `warmpath announce`; it is not shown again.");
        }
    }
    Ok(())
}

async fn list(client: Client, format: Format) -> Result<(), Failure> {
    let said = client.list("/join-tokens", "").await?;
    print(format, &said, |said| {
        let any = |shown: String| if shown == "-" { "any".to_owned() } else { shown };
        let row = |token: &Value| {
            vec![
                text(token, "/id"),
                any(text(token, "/model")),
                any(text(token, "/addresses")),
                moment(&token["expires_at_ms"]),
                if token["expired"] == true { "expired" } else { "good" }.to_owned(),
            ]
        };
        Table::new(&["ID", "MODEL", "ADDRESSES", "EXPIRES", "STATE"], items(said).map(row))
    });
    Ok(())
}
