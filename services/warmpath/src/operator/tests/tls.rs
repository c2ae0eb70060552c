//! The command line and an admin API with TLS of its own, over loopback.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use config_store::{Limits, MemoryStore};
use domain::Fleet;
use instrumentation::Registry;
use lifecycle::{Lifecycle, ShutdownOutcome};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use replication::MemberList;
use rpc::RawTls;
use settings::{Redacted, SecretRef};
use telemetry::admin;
use tokio::sync::watch;

use crate::operator::client::{Client, Failure, Tls};

const TOKEN: &str = "a-token-that-nobody-guesses";

/// A folder of certificates: an authority, and those that it vouches for.
struct Authority {
    folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        write(&folder.path().join("ca.pem"), &params.self_signed(&key).unwrap().pem());
        Self { folder, issuer: Issuer::new(params, key) }
    }

    fn ca(&self) -> Option<PathBuf> {
        Some(self.folder.path().join("ca.pem"))
    }

    /// A certificate for this machine, without the authority.
    fn issue(&self) -> RawTls {
        let key = KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned()];
        let cert = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        let key = write(&self.folder.path().join("tls.key"), &key.serialize_pem());
        RawTls {
            cert: Some(write(&self.folder.path().join("tls.pem"), &cert.pem())),
            key: Some(SecretRef::File(key)),
            ca: None,
        }
    }
}

fn write(path: &Path, text: &str) -> PathBuf {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_owned()
}

fn config(tls: RawTls) -> admin::Config {
    let folder = tempfile::tempdir().unwrap();
    let token = SecretRef::File(write(&folder.path().join("token"), TOKEN));
    let raw = admin::RawConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        tls,
        tokens: vec![admin::RawToken { name: "ops".to_owned(), token }],
        ..admin::RawConfig::default()
    };
    admin::Config::new(raw).unwrap().unwrap()
}

/// Serves an API; returns its address without the scheme.
async fn serve(tls: RawTls) -> (Lifecycle, String) {
    let (lifecycle, address, _) = serve_reloadable(tls).await;
    (lifecycle, address)
}

async fn serve_reloadable(tls: RawTls) -> (Lifecycle, String, admin::Reload) {
    let config = config(tls);
    assert!(!format!("{config:?}").contains("PRIVATE"), "{config:?}");
    let lifecycle = Lifecycle::new();
    let listener = lifecycle::bind(config.listen()).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let deps = admin::Deps {
        registry: Registry::new(),
        store: Arc::new(MemoryStore::new(Limits::default()).unwrap()),
        fleet: watch::Sender::new(Arc::new(Fleet::default())).subscribe(),
        members: watch::Sender::new(MemberList::default()).subscribe(),
        file: telemetry::FileBackends::default(),
    };
    let api = config.build(deps).unwrap();
    let reload = api.reload();
    lifecycle.spawn("admin-api", api.run(listener, lifecycle.spawner()));
    (lifecycle, address, reload)
}

/// What comes of asking for the tenants.
async fn ask(url: &str, tls: RawTls) -> Result<String, Failure> {
    let token = Some(Redacted::new(TOKEN.to_owned()));
    let client = Client::new(url, token, Vec::new(), Tls::new(&tls).unwrap(), false).unwrap();
    client.get("/tenants").await.map(|answer| answer.body["items"].to_string())
}

async fn fault(url: &str, tls: RawTls) -> String {
    ask(url, tls).await.unwrap_err().to_string()
}

#[tokio::test]
async fn an_api_with_a_certificate_is_asked_over_tls_by_who_knows_its_authority() {
    let (ours, strangers) = (Authority::new(), Authority::new());
    let (lifecycle, address) = serve(ours.issue()).await;
    let url = format!("https://{address}");
    let knows = || RawTls { ca: ours.ca(), ..RawTls::default() };
    assert_eq!(ask(&url, knows()).await.unwrap(), "[]");

    let stranger = RawTls { ca: strangers.ca(), ..RawTls::default() };
    let error = fault(&url, stranger).await;
    assert!(error.contains("invalid peer certificate") && error.contains("--ca"), "{error}");
    // Nothing is answered in plain text.
    let error = fault(&format!("http://{address}"), knows()).await;
    assert!(error.contains("write https://"), "{error}");
    assert_eq!(lifecycle.shutdown(Duration::from_secs(10)).await, ShutdownOutcome::Clean);

    let (_lifecycle, plain) = serve(RawTls::default()).await;
    let error = fault(&format!("https://{plain}"), knows()).await;
    assert!(error.contains("write http://"), "{error}");
}

#[tokio::test]
async fn a_certificate_that_was_renewed_is_shown_to_who_connects_from_then_on() {
    let (old, new) = (Authority::new(), Authority::new());
    let (_lifecycle, address, reload) = serve_reloadable(old.issue()).await;
    let url = format!("https://{address}");
    let knows = |authority: &Authority| RawTls { ca: authority.ca(), ..RawTls::default() };
    assert_eq!(ask(&url, knows(&old)).await.unwrap(), "[]");
    reload.apply(config(new.issue()));
    assert_eq!(ask(&url, knows(&new)).await.unwrap(), "[]");
    let error = fault(&url, knows(&old)).await;
    assert!(error.contains("invalid peer certificate"), "{error}");
}

#[tokio::test]
async fn an_api_with_an_authority_of_clients_answers_nobody_without_its_certificate() {
    let (ours, strangers) = (Authority::new(), Authority::new());
    let server = RawTls { ca: ours.ca(), ..ours.issue() };
    let (_lifecycle, address) = serve(server).await;
    let url = format!("https://{address}");
    assert_eq!(ask(&url, RawTls { ca: ours.ca(), ..ours.issue() }).await.unwrap(), "[]");
    let error = fault(&url, RawTls { ca: ours.ca(), ..RawTls::default() }).await;
    assert!(error.contains("--cert"), "{error}");
    ask(&url, RawTls { ca: ours.ca(), ..strangers.issue() }).await.unwrap_err();
}

#[tokio::test]
async fn another_server_at_the_address_is_told_from_an_admin_api() {
    let lifecycle = Lifecycle::new();
    let listener = lifecycle::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let limits = lifecycle::ServeLimits::ADMIN;
    let router = axum::Router::new();
    lifecycle.spawn("http", lifecycle::serve(listener, router, limits, lifecycle.spawner()));
    let error = fault(&url, RawTls::default()).await;
    assert!(error.contains("404") && error.contains("admin_api.listen"), "{error}");

    let gone = lifecycle::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = format!("http://{}", gone.local_addr().unwrap());
    drop(gone);
    let error = fault(&url, RawTls::default()).await;
    assert!(error.contains("does not answer") && error.contains("[[admin_api.tokens]]"), "{error}");
}
