//! `warmpath key`: API keys of tenants.

use std::process::ExitCode;

use clap::Subcommand;
use http::Method;
use serde_json::json;
use settings::SettingsError;

use super::client::{Client, Expect, Failure, encode};
use super::table::Table;
use super::{Connection, Format, items, print, text};

/// Options of `warmpath key create`.
#[derive(Debug, clap::Args)]
pub struct CreateArgs {
    /// The tenant that the key belongs to; `warmpath tenant set ID` makes one
    #[arg(long)]
    tenant: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

/// Options of `warmpath key list`.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Only keys of this tenant
    #[arg(long)]
    tenant: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

/// Options of `warmpath key revoke`.
#[derive(Debug, clap::Args)]
pub struct RevokeArgs {
    /// The public part of the key: what stands between `sk-wp-` and the last dash
    id: String,
    #[command(flatten)]
    connection: Connection,
}

/// What to do with keys.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a key and print it, this once: the key alone to standard output, as in
    /// `KEY=$(warmpath key create --tenant ID)`
    Create(CreateArgs),
    /// List the keys, without their secrets
    List(ListArgs),
    /// Revoke a key: every edge refuses it within a second
    Revoke(RevokeArgs),
    /// Make a key for a config file, without a server: the key alone to standard output, the lines
    /// that let it in to standard error
    Offline(crate::key::OfflineArgs),
}

/// Runs the command.
pub fn run(command: Command) -> ExitCode {
    match command {
        Command::Create(args) => super::run(&args.connection, async |client, format| {
            let tenant = args.tenant.as_deref().ok_or_else(no_tenant)?;
            create(client, format, tenant).await
        }),
        Command::List(args) => super::run(&args.connection, async |client, format| {
            list(client, format, args.tenant.as_deref()).await
        }),
        Command::Revoke(args) => super::run(&args.connection, async |client, _| {
            let path = format!("/keys/{}", encode(&args.id));
            client.call(Method::DELETE, &path, Expect::Anything, None).await?;
            println!("revoked {}", args.id);
            Ok(())
        }),
        Command::Offline(args) => match crate::key::offline(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("warmpath: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}

fn no_tenant() -> Failure {
    let message = "a key belongs to a tenant: name it with --tenant ID; `warmpath tenant list` shows \
                   those that there are, `warmpath tenant set ID` makes one";
    Failure::Settings(SettingsError::new("tenant", message))
}

async fn create(client: Client, format: Format, tenant: &str) -> Result<(), Failure> {
    let body = json!({ "tenant": tenant });
    let said = client.call(Method::POST, "/keys", Expect::Anything, Some(&body)).await?.body;
    match format {
        Format::Json => println!("{}", super::json(&said)),
        Format::Table => {
            println!("{}", super::secret(&said, "key")?);
            eprintln!("The key is for its user; it is not shown again.");
        }
    }
    Ok(())
}

async fn list(client: Client, format: Format, tenant: Option<&str>) -> Result<(), Failure> {
    let query = tenant.map(|tenant| format!("tenant={}", encode(tenant))).unwrap_or_default();
    let said = client.list("/keys", &query).await?;
    print(format, &said, |said| {
        let row = |key| vec![text(key, "/id"), text(key, "/tenant"), text(key, "/revision")];
        Table::new(&["ID", "TENANT", "REVISION"], items(said).map(row))
    });
    Ok(())
}
