//! Two ends over loopback: with and without TLS, and through a drain.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use lifecycle::{Drain, Lifecycle, ShutdownOutcome};
use proto::control::v1::control_client::ControlClient;
use proto::control::v1::control_server::{Control, ControlServer};
use proto::control::v1::{
    LeaveReply, LeaveRequest, RenewReply, RenewRequest, WatchFrame, WatchRequest,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rpc::{ClientConfig, Metrics, RawClientConfig, RawServerConfig, RawTls, Server, ServerConfig};
use settings::SecretRef;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

/// Answers calls, and keeps watches open until the drain.
struct Double {
    drain: Drain,
    lifecycle: Lifecycle,
}

#[tonic::async_trait]
impl Control for Double {
    async fn renew(&self, _: Request<RenewRequest>) -> Result<Response<RenewReply>, Status> {
        Ok(Response::new(RenewReply { list: None }))
    }

    async fn leave(&self, _: Request<LeaveRequest>) -> Result<Response<LeaveReply>, Status> {
        Ok(Response::new(LeaveReply {}))
    }

    type WatchStream =
        Pin<Box<dyn futures_util::Stream<Item = Result<WatchFrame, Status>> + Send + 'static>>;

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (events, receiver) = tokio::sync::mpsc::channel(1);
        let drain = self.drain.clone();
        self.lifecycle.spawn("watch", async move {
            drain.signaled().await;
            drop(events);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

async fn start(config: &ServerConfig, metrics: Metrics) -> (Lifecycle, String) {
    let lifecycle = Lifecycle::new();
    let listener = lifecycle::bind(config.listen()).await.unwrap();
    let server = Server::new(listener, config, metrics).unwrap();
    let address = server.address().to_owned();
    let double = Double { drain: lifecycle.drain(), lifecycle: lifecycle.clone() };
    let routes = Routes::new(ControlServer::new(double));
    let drain = lifecycle.drain();
    lifecycle.spawn("rpc", async move { server.run(routes, drain).await.unwrap() });
    (lifecycle, address)
}

async fn renew(client: &ClientConfig, address: &str) -> Result<(), String> {
    let mut control = ControlClient::new(client.channel(address).map_err(|e| e.to_string())?);
    let renewed = control.renew(RenewRequest::default()).await;
    renewed.map(drop).map_err(|status| rpc::explain(&status))
}

/// A folder of certificates: an authority, and names that it vouches for.
struct Authority {
    folder: tempfile::TempDir,
    ca: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let ca = write(&folder.path().join("ca.pem"), &params.self_signed(&key).unwrap().pem());
        Self { folder, ca, issuer: Issuer::new(params, key) }
    }

    fn tls(&self, name: &str) -> RawTls {
        let names = vec!["127.0.0.1".to_owned(), name.to_owned()];
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        let file = |end: &str| self.folder.path().join(format!("{name}.{end}"));
        RawTls {
            cert: Some(write(&file("pem"), &cert.pem())),
            key: Some(SecretRef::File(write(&file("key"), &key.serialize_pem()))),
            ca: Some(self.ca.clone()),
        }
    }
}

fn write(path: &Path, text: &str) -> PathBuf {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_owned()
}

fn server(tls: RawTls) -> ServerConfig {
    ServerConfig::new(RawServerConfig { tls, ..RawServerConfig::default() }).unwrap()
}

fn client(tls: RawTls) -> ClientConfig {
    ClientConfig::new(RawClientConfig { tls, allow_plaintext: false }).unwrap()
}

#[tokio::test]
async fn peers_of_one_authority_talk_and_others_do_not() {
    let (ours, strangers) = (Authority::new(), Authority::new());
    let (lifecycle, address) = start(&server(ours.tls("router")), Metrics::default()).await;
    assert!(address.starts_with("https://127.0.0.1:"), "{address}");
    renew(&client(ours.tls("edge")), &address).await.unwrap();

    // We do not know the server's authority.
    let error = renew(&client(strangers.tls("edge")), &address).await.unwrap_err();
    assert!(error.contains("invalid peer certificate"), "{error}");
    // The server does not know ours.
    let half = RawTls { ca: Some(ours.ca.clone()), ..strangers.tls("edge") };
    renew(&client(half), &address).await.unwrap_err();
    // Without certificates nothing is called but plain text, and that is not answered.
    let plain = client(RawTls::default());
    assert!(renew(&plain, &address).await.unwrap_err().contains("https needs tls.cert"));
    renew(&plain, &address.replace("https", "http")).await.unwrap_err();

    let outcome = lifecycle.shutdown(Duration::from_secs(10)).await;
    assert_eq!(outcome, ShutdownOutcome::Clean);
}

#[tokio::test]
async fn a_drain_ends_watches_and_refuses_newcomers() {
    let config = server(RawTls::default());
    let metrics = Metrics::default();
    let registry = prometheus::Registry::new();
    metrics.register(&registry).unwrap();
    let (lifecycle, address) = start(&config, metrics).await;
    let plain = config.client();
    let mut control = ControlClient::new(plain.channel(&address).unwrap());
    let mut watch = control.watch(WatchRequest::default()).await.unwrap().into_inner();
    let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    assert!(text.contains("warmpath_rpc_connections 1"), "{text}");

    let outcome = lifecycle.shutdown(Duration::from_secs(10)).await;
    assert_eq!(outcome, ShutdownOutcome::Clean);
    assert!(watch.message().await.unwrap().is_none(), "the watch has ended");
    let error = renew(plain, &address).await.unwrap_err();
    assert!(error.contains("onnection refused") || error.contains("connect"), "{error}");
    let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    assert!(text.contains("warmpath_rpc_connections 0"), "{text}");
    assert!(text.contains("warmpath_rpc_accepted_total 1"), "{text}");
}

#[tokio::test]
async fn a_channel_finds_a_server_that_comes_back() {
    let config = server(RawTls::default());
    let (first, address) = start(&config, Metrics::default()).await;
    let mut control = ControlClient::new(config.client().channel(&address).unwrap());
    control.renew(RenewRequest::default()).await.unwrap();
    first.shutdown(Duration::from_secs(10)).await;
    control.renew(RenewRequest::default()).await.unwrap_err();

    let listen = address.trim_start_matches("http://").parse().unwrap();
    let again = ServerConfig::new(RawServerConfig { listen, ..RawServerConfig::default() });
    let (second, _) = start(&again.unwrap(), Metrics::default()).await;
    // The first call may still meet the old connection's end.
    let mut answer = control.renew(RenewRequest::default()).await;
    if answer.is_err() {
        answer = control.renew(RenewRequest::default()).await;
    }
    answer.unwrap();
    second.shutdown(Duration::from_secs(10)).await;
}
