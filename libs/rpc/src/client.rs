//! Channels to peers.

use std::net::IpAddr;
use std::time::Duration;

use settings::SettingsError;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint, Uri};

use crate::config::{RawClientConfig, Tls, read_tls};
use crate::{Error, explain};

/// Within a region a connection takes milliseconds. The next member is asked meanwhile.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A peer that is gone without a word is found after these two.
const PING_EVERY: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// What a peer may send before it was read: room for some hundred long prompts' keys, so that
/// one of them does not hold up the rest.
pub(crate) const STREAM_WINDOW: u32 = 1 << 20;
pub(crate) const CONNECTION_WINDOW: u32 = 4 << 20;

/// How a service calls its peers.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    allow_plaintext: bool,
    pub(crate) tls: Option<Tls>,
}

impl ClientConfig {
    /// Checks the section and reads the certificates.
    ///
    /// # Errors
    /// TLS with a part missing, a file that cannot be read, or certificates that are of no use.
    /// The key in the error is relative to the section.
    pub fn new(raw: RawClientConfig) -> Result<Self, SettingsError> {
        let tls = read_tls(&raw.tls).map_err(|e| e.under("tls"))?;
        let config = Self { allow_plaintext: raw.allow_plaintext, tls };
        if config.tls.is_some() {
            // Made once for its checks.
            let example = Endpoint::from_static("https://example.invalid");
            config.secured(example).map_err(|e| SettingsError::new("tls", e))?;
        }
        Ok(config)
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// A channel to `http://HOST:PORT` or `https://HOST:PORT`. It connects when it is first used,
    /// and again whenever it is used after the connection broke; a call fails if that takes more
    /// than a second. Every channel is a connection of its own; clones share it. To be called in
    /// a runtime.
    ///
    /// # Errors
    /// The address is none, or not one that may be called with these certificates.
    pub fn channel(&self, address: &str) -> Result<Channel, Error> {
        let fault = |reason| Error::Address { address: address.to_owned(), reason };
        let uri = check_address(address, self.is_encrypted(), self.allow_plaintext)
            .map_err(|reason| fault(reason.to_owned()))?;
        let endpoint = Endpoint::from(uri)
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        Ok(self.secured(endpoint)?.connect_lazy())
    }

    fn secured(&self, endpoint: Endpoint) -> Result<Endpoint, Error> {
        let Some(tls) = &self.tls else { return Ok(endpoint) };
        let config = ClientTlsConfig::new()
            .ca_certificate(tls.ca.clone())
            .identity(tls.identity.clone())
            .timeout(CONNECT_TIMEOUT);
        endpoint.tls_config(config).map_err(|e| Error::Certificates { reason: explain(&e) })
    }
}

/// What an address of a peer looks like.
const FORM: &str = "http://HOST:PORT or https://HOST:PORT is allowed";

/// Longest address, in bytes: a name of the DNS has at most 253.
const MAX_ADDRESS_BYTES: usize = 280;

/// Whether a peer's address is of the form `http://HOST:PORT` or `https://HOST:PORT`. Whether it
/// may be called is up to the caller's certificates.
pub fn is_address(address: &str) -> bool {
    parse(address).is_some_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")))
}

fn parse(address: &str) -> Option<Uri> {
    let uri: Uri = address.parse().ok().filter(|_| address.len() <= MAX_ADDRESS_BYTES)?;
    let has_port = uri.host().is_some_and(|host| !host.is_empty()) && uri.port_u16().is_some();
    let is_bare = uri.path_and_query().is_none_or(|path| path == "/") && !address.contains('@');
    (has_port && is_bare).then_some(uri)
}

/// Checks a peer's address.
pub(crate) fn check_address(
    address: &str,
    encrypted: bool,
    allow_plaintext: bool,
) -> Result<Uri, &'static str> {
    let uri = parse(address).ok_or(FORM)?;
    let host = uri.host().unwrap_or_default();
    match (uri.scheme_str(), encrypted) {
        (Some("https"), true) => Ok(uri),
        (Some("https"), false) => Err("https needs tls.cert, tls.key and tls.ca"),
        (Some("http"), true) => Err("with certificates only https is called"),
        (Some("http"), false) if allow_plaintext || is_loopback(host) => Ok(uri),
        (Some("http"), false) => Err("without TLS only loopback addresses are called; set \
                                      tls.cert, tls.key and tls.ca, or allow_plaintext = true"),
        _ => Err(FORM),
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
