//! Where a service listens, how it is reached, and who may come.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use settings::{SecretRef, SettingsError};
use tonic::transport::{Certificate, Identity};

use crate::client::{ClientConfig, check_address};

/// The section of a service that listens, as it stands in a file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawServerConfig {
    /// Where peers connect.
    pub listen: SocketAddr,
    /// What peers are told to connect to, as `https://HOST:PORT`. Made of `listen` if absent,
    /// which then must be an address that peers can reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Serve, and call, without TLS on addresses that are not loopback.
    pub allow_plaintext: bool,
    /// Certificates; without them nothing is encrypted.
    pub tls: RawTls,
}

/// The section of a service that only calls others.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawClientConfig {
    /// Call without TLS addresses that are not loopback.
    pub allow_plaintext: bool,
    /// Certificates; without them nothing is encrypted.
    pub tls: RawTls,
}

/// Certificates. Between services all three or none: TLS is mutual there. They are read once, at
/// the start.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawTls {
    /// Our own certificate with those between it and the authority's, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// Its key, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<SecretRef>,
    /// The authority's certificates, in PEM: peers' ones must go back to one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

impl Default for RawServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            address: None,
            allow_plaintext: false,
            tls: RawTls::default(),
        }
    }
}

/// The section of a service that listens, checked.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    listen: SocketAddr,
    address: Option<String>,
    client: ClientConfig,
}

/// What TLS needs, read.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) identity: Identity,
    pub(crate) ca: Certificate,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl ServerConfig {
    /// Checks the section and reads the certificates.
    ///
    /// # Errors
    /// Plain text on an address that is not loopback; an address that peers cannot use; TLS with
    /// a part missing, or a file that cannot be read. The key in the error is relative to the
    /// section.
    pub fn new(raw: RawServerConfig) -> Result<Self, SettingsError> {
        let RawServerConfig { listen, address, allow_plaintext, tls } = raw;
        let client = ClientConfig::new(RawClientConfig { allow_plaintext, tls })?;
        if !client.is_encrypted() && !listen.ip().is_loopback() && !allow_plaintext {
            return Err(SettingsError::new(
                "listen",
                "without TLS only a loopback address is allowed; set tls.cert, tls.key and \
                 tls.ca, or allow_plaintext = true where the network is protected otherwise",
            ));
        }
        match &address {
            Some(address) => check_address(address, client.is_encrypted(), allow_plaintext)
                .map_err(|reason| SettingsError::new("address", reason))
                .map(drop)?,
            None if listen.ip().is_unspecified() => {
                let message = "it is needed where `listen` is no address that peers can reach";
                return Err(SettingsError::new("address", message));
            }
            None => {}
        }
        Ok(Self { listen, address, client })
    }

    /// Where peers connect.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// How this service calls its peers: with the same certificates.
    pub fn client(&self) -> &ClientConfig {
        &self.client
    }

    /// What peers are told to connect to, given where the port was really bound.
    pub(crate) fn address(&self, bound: SocketAddr) -> String {
        let scheme = if self.client.is_encrypted() { "https" } else { "http" };
        self.address.clone().unwrap_or_else(|| format!("{scheme}://{bound}"))
    }
}

pub(crate) fn read_tls(raw: &RawTls) -> Result<Option<Tls>, SettingsError> {
    let missing = |key| SettingsError::new(key, "TLS is mutual: cert, key and ca go together");
    match (&raw.cert, &raw.key, &raw.ca) {
        (None, None, None) => Ok(None),
        (Some(cert), Some(key), Some(ca)) => {
            let key = key.resolve().map_err(|e| e.under("key"))?;
            let cert = read("cert", cert)?;
            Ok(Some(Tls {
                identity: Identity::from_pem(cert, key.expose()),
                ca: Certificate::from_pem(read("ca", ca)?),
            }))
        }
        (None, ..) => Err(missing("cert")),
        (_, None, _) => Err(missing("key")),
        (.., None) => Err(missing("ca")),
    }
}

pub(crate) fn read(key: &str, path: &Path) -> Result<String, SettingsError> {
    let fault = |what: String| SettingsError::new(key, format!("{}: {what}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
    if text.contains("-----BEGIN CERTIFICATE-----") {
        Ok(text)
    } else {
        Err(fault("there is no certificate in it".to_owned()))
    }
}

#[cfg(test)]
mod tests;
