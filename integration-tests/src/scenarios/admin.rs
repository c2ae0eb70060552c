//! The admin API, asked by schemathesis for everything that its document says, and for what it
//! does not say.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::Context as _;
use config_store::{Limits, MemoryStore};
use domain::Fleet;
use lifecycle::Lifecycle;
use replication::MemberList;
use serde::Serialize;
use settings::SecretRef;
use telemetry::admin::{Config, Deps, RawConfig, RawToken};
use tokio::sync::watch;

use crate::metrics::Metrics;

/// What of an answer is checked.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_headers_conformance,response_schema_conformance,negative_data_rejection,\
    unsupported_method,allow_header_conformance,use_after_free,ignored_auth";

/// The same requests every time.
const SEED: &str = "20261130";

const TOKEN: &str = "a-token-that-nobody-guesses";

/// What a run came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Operations in the document.
    pub operations: usize,
    /// Requests that were let in.
    pub requests: u64,
    /// Requests that were refused for want of a token.
    pub refused: u64,
    /// Answers that were successes.
    pub successes: u64,
    /// Answers of 500 and above.
    pub server_errors: u64,
    /// Whether every answer was one that the document describes.
    pub conforms: bool,
}

/// Starts an API over a store in memory, and asks it everything with this `schemathesis`.
///
/// # Errors
/// The API or the program cannot be started.
pub async fn run(schemathesis: &Path, examples: u32) -> anyhow::Result<Report> {
    let folder = tempfile::tempdir()?;
    let token = folder.path().join("token");
    write_secret(&token)?;
    let raw = RawConfig {
        tokens: vec![RawToken { name: "schemathesis".to_owned(), token: SecretRef::File(token) }],
        ..RawConfig::default()
    };
    let config = Config::new(raw)?.ok_or_else(|| anyhow::anyhow!("it has a token"))?;
    let (fleet, members) =
        (watch::Sender::new(Arc::new(Fleet::default())), watch::Sender::new(MemberList::default()));
    let registry = instrumentation::Registry::new();
    let admin = config.build(Deps {
        registry: registry.clone(),
        store: Arc::new(MemoryStore::new(Limits::default())?),
        fleet: fleet.subscribe(),
        members: members.subscribe(),
        file: telemetry::FileBackends::default(),
    })?;
    let listener = lifecycle::bind("127.0.0.1:0".parse()?).await?;
    let url = format!("http://{}", listener.local_addr()?);
    let lifecycle = Lifecycle::new();
    lifecycle.spawn("admin-api", admin.run(listener, lifecycle.spawner()));

    let mut asking = Command::new(schemathesis);
    asking
        .arg("run")
        .arg(format!("{url}/admin/v1/openapi.json"))
        .args(["--url", &url, "--header", &format!("Authorization: Bearer {TOKEN}")])
        .args(["--checks", CHECKS, "--seed", SEED, "--max-examples", &examples.to_string()])
        .args(["--continue-on-failure", "--suppress-health-check", "all", "--warnings", "off"])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        // Its findings go where people look; standard output is for the figures.
        .stdout(Stdio::from(std::io::stderr()));
    let status = tokio::task::spawn_blocking(move || asking.status()).await?;
    let status = status.with_context(|| format!("cannot start {}", schemathesis.display()))?;
    lifecycle.begin_drain();

    let page = Metrics::new(instrumentation::encode(&registry));
    let answers = |class: &str| {
        let of_class = (0..100).map(|n| format!("{class}{n:02}"));
        let counted = |status: String| {
            page.sum("warmpath_telemetry_admin_requests_total", &[("status", &status)])
        };
        of_class.map(counted).sum::<f64>() as u64
    };
    let by_class = ["1", "2", "3", "4", "5"].map(answers);
    let document = serde_json::to_value(telemetry::admin::document())?;
    let paths = document["paths"].as_object().into_iter().flat_map(|paths| paths.values());
    Ok(Report {
        operations: paths.filter_map(|path| path.as_object()).map(serde_json::Map::len).sum(),
        requests: by_class.iter().sum(),
        refused: page.sum("warmpath_telemetry_admin_refused_total", &[]) as u64,
        successes: by_class[1],
        server_errors: by_class[4],
        conforms: status.success(),
    })
}

fn write_secret(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, TOKEN)?;
    Ok(std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?)
}
