//! TLS of HTTP ports: certificates read from files, for rustls.
//!
//! Unlike between services, a client need not show a certificate: only where an authority of
//! clients is given must it have one.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use settings::{SecretRef, SettingsError};

use crate::RawTls;
use crate::config::read;

/// What clients of an HTTP port may speak, best first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// A certificate with those between it and its authority's, and its key.
pub type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// TLS of a port. It shows nothing of its key.
#[derive(Clone)]
pub struct ServerTls(Arc<rustls::ServerConfig>);

impl ServerTls {
    /// Reads the certificates of a server; `None` where there are none. With `ca`, clients must
    /// show a certificate that goes back to it.
    ///
    /// # Errors
    /// A part is missing, a file cannot be read, or the certificates are of no use. The key in the
    /// error is relative to the section.
    pub fn new(raw: &RawTls) -> Result<Option<Self>, SettingsError> {
        let Some((chain, key)) = identity(raw)? else {
            return match raw.ca {
                Some(_) => Err(missing("cert", "clients cannot be asked for one without our own")),
                None => Ok(None),
            };
        };
        let provider = Arc::new(ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| SettingsError::new("", e))?;
        let builder = match &raw.ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(roots("ca", path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = verifier.build().map_err(|e| SettingsError::new("ca", e))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder.with_single_cert(chain, key);
        let mut config = config.map_err(|e| SettingsError::new("cert", e))?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        Ok(Some(Self(Arc::new(config))))
    }

    /// For the listener.
    pub fn config(&self) -> Arc<rustls::ServerConfig> {
        self.0.clone()
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerTls")
    }
}

/// The certificate that is shown to the other end, and its key; `None` where neither is given.
///
/// # Errors
/// One without the other; a file that cannot be read or holds something else. The key in the
/// error is relative to the section.
pub fn identity(raw: &RawTls) -> Result<Option<Identity>, SettingsError> {
    let (cert, key) = match (&raw.cert, &raw.key) {
        (None, None) => return Ok(None),
        (Some(cert), Some(key)) => (cert, key),
        (None, Some(_)) => return Err(missing("cert", "a certificate and its key go together")),
        (Some(_), None) => return Err(missing("key", "a certificate and its key go together")),
    };
    Ok(Some((certificates("cert", cert)?, private_key(key)?)))
}

/// The authorities of a file, in PEM; `key` names it in errors.
///
/// # Errors
/// The file cannot be read, or has no certificate of an authority.
pub fn roots(key: &str, path: &Path) -> Result<RootCertStore, SettingsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(key, path)? {
        roots.add(certificate).map_err(|e| SettingsError::new(key, e))?;
    }
    Ok(roots)
}

fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, SettingsError> {
    let text = read(key, path)?;
    CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|e| SettingsError::new(key, format!("{}: {e}", path.display())))
}

fn private_key(reference: &SecretRef) -> Result<PrivateKeyDer<'static>, SettingsError> {
    let text = reference.resolve().map_err(|e| e.under("key"))?;
    PrivateKeyDer::from_pem_slice(text.expose().as_bytes()).map_err(|_| {
        // The parser's words could quote the key.
        SettingsError::new("key", format!("{reference} holds no private key in PEM"))
    })
}

fn missing(key: &str, why: &str) -> SettingsError {
    SettingsError::new(key, format!("is missing: {why}"))
}
