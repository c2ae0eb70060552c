//! Section `traces`.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use settings::SettingsError;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Uri};

/// Where spans go, as the file says it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawConfig {
    /// The collector's OTLP port over gRPC, as `http://HOST:4317`. Without it nothing is traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Share of requests that are traced, of those that come without a trace of their own: 0 to 1.
    /// Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_ratio: Option<f64>,
    /// Certificates that a collector's over `https` must go back to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Whether spans may go to another machine without TLS.
    pub allow_plaintext: bool,
}

/// Where spans go.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) endpoint: Endpoint,
    pub(crate) sample_ratio: f64,
}

impl Config {
    /// Checks the section; `None` where nothing is to be traced.
    ///
    /// # Errors
    /// The first key that is wrong.
    pub fn new(raw: RawConfig) -> Result<Option<Self>, SettingsError> {
        let sample_ratio = raw.sample_ratio.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&sample_ratio) {
            return Err(SettingsError::new("sample_ratio", "a number from 0 to 1 is needed"));
        }
        let Some(address) = raw.endpoint else {
            let lonely = [
                ("sample_ratio", raw.sample_ratio.is_some()),
                ("ca", raw.ca.is_some()),
                ("allow_plaintext", raw.allow_plaintext),
            ];
            if let Some((key, _)) = lonely.into_iter().find(|(_, given)| *given) {
                let message = "it counts for nothing without endpoint, as http://HOST:4317";
                return Err(SettingsError::new(key, message));
            }
            return Ok(None);
        };
        let endpoint = endpoint(&address, raw.allow_plaintext, raw.ca)?;
        Ok(Some(Self { endpoint, sample_ratio }))
    }
}

fn endpoint(
    address: &str,
    allow_plaintext: bool,
    ca: Option<PathBuf>,
) -> Result<Endpoint, SettingsError> {
    let wrong = |message: &str| SettingsError::new("endpoint", message);
    let uri: Uri = address
        .parse()
        .map_err(|_| wrong("an address is needed, such as http://127.0.0.1:4317"))?;
    let host = uri.host().unwrap_or_default().to_owned();
    let has_path = uri.path_and_query().is_some_and(|path| path.as_str() != "/");
    match uri.scheme_str() {
        Some("http" | "https") if has_path => {
            Err(wrong("the address has a path; over gRPC there is none: http://HOST:4317"))
        }
        Some("http") if ca.is_some() => Err(SettingsError::new("ca", "it counts for https alone")),
        Some("http") if !(allow_plaintext || is_loopback(&host)) => Err(wrong(
            "spans would cross the network unencrypted: use https, a collector on this machine, \
             or allow_plaintext = true where something else protects the network",
        )),
        Some("http") => Ok(Endpoint::from(uri)),
        Some("https") => secured(uri, ca),
        _ => Err(wrong("an address with its scheme is needed, such as http://127.0.0.1:4317")),
    }
}

fn secured(uri: Uri, ca: Option<PathBuf>) -> Result<Endpoint, SettingsError> {
    let wrong = |message: String| SettingsError::new("ca", message);
    let path = ca.ok_or_else(|| {
        wrong("for https the file of the certificates is needed that it goes back to".to_owned())
    })?;
    let pem = fs::read(&path).map_err(|e| wrong(format!("{}: {e}", path.display())))?;
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
    Endpoint::from(uri).tls_config(tls).map_err(|e| wrong(e.to_string()))
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(endpoint: &str) -> RawConfig {
        RawConfig { endpoint: Some(endpoint.to_owned()), ..RawConfig::default() }
    }

    fn refusal(raw: RawConfig) -> (String, String) {
        let error = Config::new(raw).expect_err("it is refused");
        (error.key().to_owned(), error.message().to_owned())
    }

    #[test]
    fn without_an_endpoint_nothing_is_traced() {
        assert!(Config::new(RawConfig::default()).unwrap().is_none());
        let raw = RawConfig { sample_ratio: Some(0.5), ..RawConfig::default() };
        assert_eq!(refusal(raw).0, "sample_ratio");
    }

    #[test]
    fn plain_text_stays_on_the_machine_unless_it_is_allowed() {
        for near in ["http://127.0.0.1:4317", "http://localhost:4317", "http://[::1]:4317"] {
            assert!(Config::new(with(near)).unwrap().is_some(), "{near}");
        }
        assert!(refusal(with("http://10.0.0.7:4317")).1.contains("unencrypted"));
        let allowed = RawConfig { allow_plaintext: true, ..with("http://10.0.0.7:4317") };
        assert!(Config::new(allowed).unwrap().is_some());
    }

    #[test]
    fn what_is_no_address_is_refused_with_an_example() {
        for odd in ["", "collector:4317", "ftp://h", "http://h:4317/v1/traces", "http://"] {
            let (key, message) = refusal(with(odd));
            assert_eq!(key, "endpoint", "{odd}");
            assert!(message.contains("http://") || message.contains("https"), "{message}");
        }
        let raw = RawConfig { sample_ratio: Some(1.5), ..with("http://127.0.0.1:4317") };
        assert_eq!(refusal(raw).0, "sample_ratio");
        assert_eq!(refusal(with("https://collector:4317")).0, "ca");
    }
}
