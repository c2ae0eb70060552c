//! A NATS server of the tests' own, and keys and certificates for it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use integration_tests::environment::nats_server;
use nkeys::KeyPair;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair as TlsKey};
use serde_json::{Value, json};
use settings::SecretRef;
use tempfile::TempDir;

/// A server process on a free port of the loopback; killed when it is dropped.
pub(crate) struct NatsServer {
    folder: TempDir,
    port: u16,
    process: Option<Child>,
}

impl NatsServer {
    /// Starts a server with these lines of config and waits until it is ready.
    pub(crate) fn start(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Self { folder, port: 0, process: None };
        server.reconfigure(config);
        server.launch("-1".to_owned());
        server
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Ends the process at once.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// The config for the next start.
    pub(crate) fn reconfigure(&self, config: &str) {
        fs::write(self.folder.path().join("nats.conf"), config).unwrap();
    }

    /// Starts it on the port that it had.
    pub(crate) fn start_again(&mut self) {
        self.launch(self.port.to_string());
    }

    fn launch(&mut self, port: String) {
        let mut process = Command::new(nats_server())
            .args(["-a", "127.0.0.1", "-p", &port, "-c"])
            .arg(self.folder.path().join("nats.conf"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut seen = Vec::new();
        loop {
            let Some(Ok(line)) = log.next() else { panic!("the server ended: {seen:#?}") };
            if let Some((_, address)) = line.split_once("Listening for client connections on ") {
                let port = address.trim().rsplit(':').next().unwrap();
                self.port = port.parse().unwrap();
            }
            if line.contains("Server is ready") {
                break;
            }
            seen.push(line);
        }
        // Read on, or the server would wait for a reader.
        std::thread::spawn(move || log.for_each(drop));
        self.process = Some(process);
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.kill();
        }
    }
}

fn secret(folder: &TempDir, name: &str, content: &str) -> PathBuf {
    let path = folder.path().join(name);
    let mut file = fs::File::create(&path).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    file.write_all(content.as_bytes()).unwrap();
    path
}

/// A user of an account of an operator, with keys of their own.
pub(crate) struct Identity {
    folder: TempDir,
    operator: KeyPair,
    account: KeyPair,
    user: KeyPair,
}

impl Identity {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            operator: KeyPair::new_operator(),
            account: KeyPair::new_account(),
            user: KeyPair::new_user(),
        }
    }

    /// A secret in a file that only we can read.
    pub(crate) fn secret(&self, name: &str, content: &str) -> SecretRef {
        SecretRef::File(secret(&self.folder, name, content))
    }

    pub(crate) fn user_public_key(&self) -> String {
        self.user.public_key()
    }

    pub(crate) fn user_seed(&self) -> String {
        self.user.seed().unwrap()
    }

    /// The config of a server that knows the operator and the account.
    pub(crate) fn operator_config(&self) -> String {
        let operator = token(&self.operator, &self.operator, "operator", json!({}));
        let limits = json!({"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1,
            "wildcards": true, "conn": -1, "leaf": -1});
        let account = token(&self.operator, &self.account, "account", json!({"limits": limits}));
        let name = self.account.public_key();
        format!(
            "operator: {operator}\nresolver: MEMORY\nresolver_preload: {{ {name}: {account} }}\n"
        )
    }

    /// The user's credentials file.
    pub(crate) fn credentials(&self) -> String {
        let limits = json!({"subs": -1, "data": -1, "payload": -1});
        let jwt = token(&self.account, &self.user, "user", limits);
        let seed = self.user_seed();
        format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )
    }
}

/// A signed statement that `subject` is a user, an account or an operator.
fn token(issuer: &KeyPair, subject: &KeyPair, kind: &str, mut claims: Value) -> String {
    claims["type"] = kind.into();
    claims["version"] = 2.into();
    let body = json!({"jti": subject.public_key(), "iat": 1_700_000_000, "name": kind,
        "iss": issuer.public_key(), "sub": subject.public_key(), "nats": claims});
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let head = encode(json!({"typ": "JWT", "alg": "ed25519-nkey"}).to_string().as_bytes());
    let signed = format!("{head}.{}", encode(body.to_string().as_bytes()));
    let signature = issuer.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", encode(&signature))
}

/// An authority, a server of it and a client of it.
pub(crate) struct Tls {
    folder: TempDir,
}

impl Tls {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ca_key = TlsKey::generate().unwrap();
        let mut ca = CertificateParams::new(Vec::<String>::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_cert = ca.self_signed(&ca_key).unwrap();
        secret(&folder, "ca.pem", &ca_cert.pem());
        let issuer = Issuer::new(ca, ca_key);
        for (name, hosts) in [("server", vec!["localhost", "127.0.0.1"]), ("client", vec!["wp"])] {
            let hosts: Vec<_> = hosts.into_iter().map(str::to_owned).collect();
            let key = TlsKey::generate().unwrap();
            let cert = CertificateParams::new(hosts).unwrap().signed_by(&key, &issuer).unwrap();
            secret(&folder, &format!("{name}.pem"), &cert.pem());
            secret(&folder, &format!("{name}.key"), &key.serialize_pem());
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The config of a server that asks clients for certificates.
    pub(crate) fn server_config(&self) -> String {
        let path = |name: &str| self.path(name).display().to_string();
        format!(
            "tls {{ cert_file: \"{}\", key_file: \"{}\", ca_file: \"{}\", verify: true }}",
            path("server.pem"),
            path("server.key"),
            path("ca.pem")
        )
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    pub(crate) fn client_cert(&self) -> PathBuf {
        self.path("client.pem")
    }

    pub(crate) fn client_key(&self) -> SecretRef {
        SecretRef::File(self.path("client.key"))
    }
}
