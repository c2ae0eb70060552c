//! The admin API as operators use it: what they want of a fleet, asked over HTTP.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::client::{Client, Reply};

const TOKEN: &str = "a-token-that-nobody-guesses";

/// The admin API of one telemetry.
#[derive(Clone, Debug)]
pub struct Desired {
    client: Client,
}

impl Desired {
    /// The API that is served here.
    pub fn new(address: SocketAddr) -> Self {
        Self { client: Client::new(address).with_key(TOKEN) }
    }

    /// The section of the config that lets this client in, and a store to change. Its files are in
    /// this folder.
    ///
    /// # Panics
    /// The folder cannot be written.
    pub fn section(folder: &Path) -> toml::Table {
        let token = secret_file(folder, "token", TOKEN);
        let token = toml::Table::from_iter([("file".to_owned(), path(&token))]);
        let token = toml::Table::from_iter([
            ("name".to_owned(), "test".into()),
            ("token".to_owned(), token.into()),
        ]);
        let api = toml::Table::from_iter([
            ("listen".to_owned(), "127.0.0.1:0".into()),
            ("tokens".to_owned(), vec![toml::Value::from(token)].into()),
        ]);
        let store = toml::Table::from_iter([("store".to_owned(), path(&folder.join("store")))]);
        toml::Table::from_iter([
            ("admin_api".to_owned(), api.into()),
            ("telemetry".to_owned(), store.into()),
        ])
    }

    /// Adds a backend, or puts another in its place.
    pub async fn put_backend(&self, id: &str, url: &str) {
        self.put(&format!("/backends/{id}"), json!({"url": url})).await;
    }

    /// Takes a backend away.
    pub async fn remove_backend(&self, id: &str) {
        self.delete(&format!("/backends/{id}")).await;
    }

    /// `drain`, `maintenance` or `ready`.
    pub async fn wish(&self, backend: &str, verb: &str) {
        let reply = self.ask(Method::POST, &format!("/backends/{backend}/{verb}"), &[], None).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }

    /// Adds or changes a tenant and its limits.
    pub async fn put_tenant(&self, id: &str, limits: Value) {
        self.put(&format!("/tenants/{id}"), json!({"debug_headers": true})).await;
        self.put(&format!("/tenants/{id}/limits"), limits).await;
    }

    /// Makes a key; its id and itself.
    ///
    /// # Panics
    /// None is made.
    pub async fn make_key(&self, tenant: &str) -> (String, String) {
        let body = json!({"tenant": tenant});
        let reply = self.ask(Method::POST, "/keys", &[], Some(body)).await;
        assert_eq!(reply.status, 201, "{}", reply.text());
        let made = reply.json();
        let text = |name: &str| made[name].as_str().expect("a new key").to_owned();
        (text("id"), text("key"))
    }

    /// Takes something away.
    pub async fn delete(&self, path: &str) {
        let reply = self.ask(Method::DELETE, path, &[], None).await;
        assert_eq!(reply.status, 204, "{path}: {}", reply.text());
    }

    async fn put(&self, path: &str, body: Value) {
        let added =
            self.ask(Method::PUT, path, &[("if-none-match", "*")], Some(body.clone())).await;
        if added.status == 412 {
            let changed = self.ask(Method::PUT, path, &[("if-match", "*")], Some(body)).await;
            assert_eq!(changed.status, 200, "{path}: {}", changed.text());
        } else {
            assert_eq!(added.status, 201, "{path}: {}", added.text());
        }
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Value>,
    ) -> Reply {
        let body = body.map_or(Bytes::new(), |body| body.to_string().into());
        self.client.send(method, &format!("/admin/v1{path}"), headers, body).await
    }
}

/// Writes a secret where only its owner reads it.
///
/// # Panics
/// The folder cannot be written.
pub fn secret_file(folder: &Path, name: &str, secret: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, secret).expect("the folder can be written");
    let owner_only = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, owner_only).expect("the file is ours");
    path
}

/// A path as a value of the config.
pub fn path(path: &Path) -> toml::Value {
    path.to_string_lossy().into_owned().into()
}
