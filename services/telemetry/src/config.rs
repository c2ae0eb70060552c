//! The `[telemetry]` section and the `[[backends]]` list.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use config_store::{ConfigStore, EmbeddedConfig, EmbeddedStore, Limits, MemoryStore};
use domain::desired::{self, Document};
use domain::{BackendId, EngineKind};
use http::HeaderValue;
use http::uri::{Authority, Uri};
use prometheus::Registry;
use serde::{Deserialize, Serialize};
use settings::{HumanDuration, Redacted, SecretRef, SettingsError};

use crate::Error;

/// Shortest interval and time limit that are taken: below it a fleet is only kept busy answering.
const SHORTEST: Duration = Duration::from_millis(5);

/// Longest one; what is seldom looked at is not observed.
const LONGEST: Duration = Duration::from_secs(3600);

/// A backend's name is a label, a header value and part of log lines.
const MAX_ID_BYTES: usize = 128;

/// The section as it stands in a file. Every key may be absent.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawConfig {
    /// How often a backend is probed. 2 s: three failed probes take a dead one out within six
    /// seconds even without traffic.
    pub probe_interval: HumanDuration,
    /// How often its metrics are read; such a reading counts as a probe. 1 s: own bookings fill
    /// the gap between two readings.
    pub metrics_interval: HumanDuration,
    /// How often its model list is read. 30 s: adapters come and go at the pace of people.
    pub listing_interval: HumanDuration,
    /// How long an answer to any of these may take. 1 s: a busy API server still answers by then.
    pub timeout: HumanDuration,
    /// The folder that keeps the desired state: what operators change while it runs. Without it
    /// such changes end with the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<PathBuf>,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            probe_interval: HumanDuration::from_secs(2),
            metrics_interval: HumanDuration::from_secs(1),
            listing_interval: HumanDuration::from_secs(30),
            timeout: HumanDuration::from_secs(1),
            store: None,
        }
    }
}

/// One entry of `[[backends]]`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawBackend {
    /// The operator's name for it.
    pub id: String,
    /// Scheme, host and port: `http://10.0.0.7:8000`.
    pub url: String,
    /// The software behind it: `vllm`, `llama-cpp` or `other`. Found out by itself if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineKind>,
    /// The key that the engine asks for, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// The name of the `[[credentials]]` entry that has the key, in place of `api_key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
}

/// Both, checked.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) timing: Timing,
    pub(crate) backends: Vec<Arc<BackendConfig>>,
    pub(crate) credentials: Credentials,
    pub(crate) store: Option<PathBuf>,
}

/// What backends of the store ask for, by the name that their documents give. Ready to be sent,
/// and marked as sensitive.
pub(crate) type Credentials = HashMap<String, HeaderValue>;

/// Intervals and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    pub(crate) probe_interval: Duration,
    pub(crate) metrics_interval: Duration,
    pub(crate) listing_interval: Duration,
    pub(crate) timeout: Duration,
}

/// One backend, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackendConfig {
    pub(crate) id: BackendId,
    /// Scheme and authority, nothing behind.
    pub(crate) url: Arc<str>,
    pub(crate) https: bool,
    pub(crate) authority: Authority,
    pub(crate) engine: Option<EngineKind>,
    /// `Bearer …`, marked as sensitive.
    pub(crate) authorization: Option<HeaderValue>,
    /// The name of the key for those that send it requests.
    pub(crate) credential: Option<Arc<str>>,
}

impl Config {
    /// Checks the section and the list, and fetches the engines' keys.
    ///
    /// # Errors
    /// An interval out of range, a bad or repeated id or URL, a key that cannot be fetched. The
    /// error names the key in full (`backends[1].url`).
    pub fn new(raw: RawConfig, backends: Vec<RawBackend>) -> Result<Self, SettingsError> {
        let timing = Timing {
            probe_interval: duration("telemetry.probe_interval", raw.probe_interval)?,
            metrics_interval: duration("telemetry.metrics_interval", raw.metrics_interval)?,
            listing_interval: duration("telemetry.listing_interval", raw.listing_interval)?,
            timeout: duration("telemetry.timeout", raw.timeout)?,
        };
        let backends = backends
            .into_iter()
            .enumerate()
            .map(|(i, raw)| check(raw).map_err(|e| e.under(&format!("backends[{i}]"))))
            .collect::<Result<Vec<_>, _>>()?;
        refuse_repeats(&backends)?;
        let backends = backends.into_iter().map(Arc::new).collect();
        Ok(Self { timing, backends, credentials: Credentials::new(), store: raw.store })
    }

    /// Opens the desired state: the folder that is configured, or one in memory. It blocks for
    /// some tens of milliseconds.
    ///
    /// # Errors
    /// The folder cannot be opened, or its metrics are registered already.
    pub fn open_store(&self, registry: &Registry) -> Result<Arc<dyn ConfigStore>, Error> {
        let Some(folder) = &self.store else {
            tracing::info!(
                "telemetry.store is not set: what operators change is forgotten at a restart"
            );
            return Ok(Arc::new(MemoryStore::new(Limits::default())?));
        };
        let metrics = config_store::Metrics::default();
        metrics.register(registry)?;
        Ok(Arc::new(EmbeddedStore::open(EmbeddedConfig::new(folder), metrics)?))
    }

    /// The credentials that backends of the file and of the store may name.
    ///
    /// # Errors
    /// One that cannot stand in a header; the error names `credentials.NAME`. A backend of the
    /// file that names one which is not there, or whose own key would go by the name of one.
    pub fn with_credentials(
        mut self,
        credentials: &HashMap<String, Redacted<String>>,
    ) -> Result<Self, SettingsError> {
        for (name, key) in credentials {
            let value = bearer(key).map_err(|e| e.under(&format!("credentials.{name}")))?;
            self.credentials.insert(name.clone(), value);
        }
        for (i, backend) in self.backends.iter_mut().enumerate() {
            let key = named_key(backend, &self.credentials)
                .map_err(|e| e.under(&format!("backends[{i}]")))?;
            if let Some(key) = key {
                Arc::make_mut(backend).authorization = Some(key.clone());
            }
        }
        Ok(self)
    }
}

/// The key that a backend of the file names, if it names one.
fn named_key<'a>(
    backend: &BackendConfig,
    credentials: &'a Credentials,
) -> Result<Option<&'a HeaderValue>, SettingsError> {
    let Some(name) = &backend.credential else { return Ok(None) };
    match (credentials.get(&**name), &backend.authorization) {
        (Some(key), None) => Ok(Some(key)),
        (None, Some(_)) => Ok(None),
        (None, None) => {
            let message = format!("no [[credentials]] entry has the name `{name}`; add one");
            Err(SettingsError::new("credential", message))
        }
        (Some(_), Some(_)) => {
            let message = format!(
                "the key of a backend goes by the backend's id, and [[credentials]] has a \
                 `{name}` already: write credential = \"{name}\" if that is the key, or give one \
                 of them another name"
            );
            Err(SettingsError::new("api_key", message))
        }
    }
}

fn bearer(key: &Redacted<String>) -> Result<HeaderValue, SettingsError> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", key.expose()))
        .map_err(|_| SettingsError::new("api_key", "the key cannot stand in a header"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn duration(key: &str, value: HumanDuration) -> Result<Duration, SettingsError> {
    let value = value.get();
    if (SHORTEST..=LONGEST).contains(&value) {
        return Ok(value);
    }
    let message = format!("{value:?} is out of range, allowed is {SHORTEST:?} to {LONGEST:?}");
    Err(SettingsError::new(key, message))
}

fn check(raw: RawBackend) -> Result<BackendConfig, SettingsError> {
    let id_is_plain = raw.id.bytes().all(|b| b.is_ascii_graphic());
    if raw.id.is_empty() || raw.id.len() > MAX_ID_BYTES || !id_is_plain {
        let message = format!("a name of 1 to {MAX_ID_BYTES} visible ASCII characters is needed");
        return Err(SettingsError::new("id", message));
    }
    let (https, authority) = parse_url(&raw.url).map_err(|m| SettingsError::new("url", m))?;
    let authorization = match &raw.api_key {
        None => None,
        Some(secret) => Some(bearer(&secret.resolve().map_err(|e| e.under("api_key"))?)?),
    };
    let credential = match (raw.credential, &authorization) {
        (Some(_), Some(_)) => {
            let message = "it takes the place of `api_key`: only one of them is allowed";
            return Err(SettingsError::new("credential", message));
        }
        (Some(name), None) => Some(name.into()),
        // Who sends requests from another process has the key under this name.
        (None, Some(_)) => Some(raw.id.as_str().into()),
        (None, None) => None,
    };
    let scheme = if https { "https" } else { "http" };
    Ok(BackendConfig {
        id: raw.id.as_str().into(),
        url: format!("{scheme}://{authority}").into(),
        https,
        authority,
        engine: raw.engine,
        authorization,
        credential,
    })
}

impl BackendConfig {
    /// A backend of the store.
    ///
    /// # Errors
    /// What is wrong with its document.
    pub(crate) fn of_document(
        backend: &desired::Backend,
        credentials: &Credentials,
    ) -> Result<Self, String> {
        backend.validate().map_err(|e| e.to_string())?;
        let (https, authority) = parse_url(&backend.url)?;
        let scheme = if https { "https" } else { "http" };
        Ok(Self {
            id: backend.id.clone(),
            url: format!("{scheme}://{authority}").into(),
            https,
            authority,
            engine: backend.engine,
            authorization: backend.credential.as_ref().and_then(|n| credentials.get(n)).cloned(),
            credential: backend.credential.as_deref().map(Into::into),
        })
    }

    /// Whether it is the same engine, under the same name; the key for it may be another.
    pub(crate) fn is_same_engine(&self, other: &Self) -> bool {
        let keyless = |spec: &Self| Self { authorization: None, ..spec.clone() };
        keyless(self) == keyless(other)
    }

    /// What tells one engine from another: host and port.
    pub(crate) fn endpoint(&self) -> (String, u16) {
        (self.authority.host().to_ascii_lowercase(), self.port())
    }

    /// The port, given or the scheme's own.
    pub(crate) fn port(&self) -> u16 {
        port(self.https, &self.authority)
    }
}

/// Host and port of a URL, as [`BackendConfig::endpoint`] has them; `None` if it is no backend's.
pub(crate) fn endpoint(url: &str) -> Option<(String, u16)> {
    let (https, authority) = parse_url(url).ok()?;
    Some((authority.host().to_ascii_lowercase(), port(https, &authority)))
}

fn port(https: bool, authority: &Authority) -> u16 {
    authority.port_u16().unwrap_or(if https { 443 } else { 80 })
}

/// Whether it is HTTPS, and who is behind it.
pub(crate) fn parse_url(url: &str) -> Result<(bool, Authority), String> {
    const FORM: &str = "allowed is http://HOST:PORT or https://HOST:PORT";
    let uri: Uri = url.parse().map_err(|e| format!("`{url}` is no URL ({e}), {FORM}"))?;
    let https = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        Some(other) => return Err(format!("scheme `{other}` is not known, {FORM}")),
        None => return Err(format!("`{url}` has no scheme, {FORM}")),
    };
    let authority = uri.authority().ok_or_else(|| format!("`{url}` has no host, {FORM}"))?;
    if authority.as_str().contains('@') {
        return Err(format!("a user or password in a URL would show in logs, {FORM}"));
    }
    if authority.host().is_empty() {
        return Err(format!("`{url}` has no host, {FORM}"));
    }
    // A port out of range is none to the parser, and none means the scheme's own.
    let has_port = authority.as_str().len() > authority.host().len();
    if has_port && authority.port_u16().is_none_or(|port| port == 0) {
        return Err(format!("`{url}` has a port that is not 1 to 65535, {FORM}"));
    }
    if uri.query().is_some() {
        return Err(format!("`{url}` has a query, {FORM}"));
    }
    if uri.path_and_query().is_some_and(|p| p.as_str() != "/") {
        return Err(format!("`{url}` has a path, {FORM}"));
    }
    Ok((https, authority.clone()))
}

/// Two names for one engine would each believe in a cache of its own.
fn refuse_repeats(backends: &[BackendConfig]) -> Result<(), SettingsError> {
    let (mut ids, mut urls) = (HashMap::new(), HashMap::new());
    for (i, backend) in backends.iter().enumerate() {
        if let Some(first) = ids.insert(&backend.id, i) {
            let message = format!("`{}` is the id of backends[{first}] already", backend.id);
            return Err(SettingsError::new(format!("backends[{i}].id"), message));
        }
        if let Some(first) = urls.insert(backend.endpoint(), i) {
            let message = format!("`{}` is the url of backends[{first}] already", backend.url);
            return Err(SettingsError::new(format!("backends[{i}].url"), message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backends_key_goes_by_a_name() {
        let keys = |names: &[&str]| -> HashMap<String, Redacted<String>> {
            names.iter().map(|n| ((*n).to_owned(), Redacted::new(format!("key-{n}")))).collect()
        };
        // PATH is set in every environment that can run this test.
        let own = || RawBackend {
            api_key: Some(SecretRef::Env("PATH".into())),
            ..backend("gpu-0", "http://x")
        };
        let named =
            || RawBackend { credential: Some("gpus".to_owned()), ..backend("gpu-1", "http://y") };
        let read = |raw: Vec<RawBackend>, names: &[&str]| {
            Config::new(RawConfig::default(), raw)?.with_credentials(&keys(names))
        };
        let config = read(vec![own(), named(), backend("gpu-2", "http://z")], &["gpus"]).unwrap();
        let names: Vec<_> = config.backends.iter().map(|b| b.credential.as_deref()).collect();
        assert_eq!(names, [Some("gpu-0"), Some("gpus"), None]);
        assert_eq!(config.backends[1].authorization.as_ref().unwrap(), "Bearer key-gpus");
        assert!(!format!("{config:?}").contains("key-gpus"));

        let fault = |raw: Vec<RawBackend>, names: &[&str]| {
            read(raw, names).expect_err("not valid").key().to_owned()
        };
        assert_eq!(fault(vec![named()], &["gpu"]), "backends[0].credential");
        assert_eq!(fault(vec![named(), own()], &["gpus", "gpu-0"]), "backends[1].api_key");
        let both = RawBackend { credential: Some("gpus".to_owned()), ..own() };
        assert_eq!(fault(vec![both], &["gpus"]), "backends[0].credential");
    }

    fn backend(id: &str, url: &str) -> RawBackend {
        RawBackend { id: id.into(), url: url.into(), engine: None, api_key: None, credential: None }
    }

    fn refused(backends: Vec<RawBackend>) -> String {
        Config::new(RawConfig::default(), backends).expect_err("not valid").to_string()
    }

    #[test]
    fn a_url_is_kept_as_scheme_and_authority() {
        let raw = vec![backend("a", "http://10.0.0.7:8000/"), backend("b", "https://[::1]")];
        let config = Config::new(RawConfig::default(), raw).expect("valid");
        assert_eq!(&*config.backends[0].url, "http://10.0.0.7:8000");
        assert_eq!(&*config.backends[1].url, "https://[::1]");
        assert!(config.backends[1].https);
    }

    #[test]
    fn bad_urls_are_refused_by_the_path_of_their_key() {
        for url in [
            "",
            "localhost:8000",
            "ftp://host",
            "http://",
            "http://host/v1",
            "http://host?x=1",
            "http://user:pw@host",
            "http://ho st",
            "http://host:",
            "http://host:0",
            "http://host:65536",
            "http://[::1]:99999",
        ] {
            let error = refused(vec![backend("a", "http://ok"), backend("b", url)]);
            assert!(error.starts_with("backends[1].url: "), "{url}: {error}");
        }
    }

    #[test]
    fn repeated_ids_and_urls_are_refused() {
        let error = refused(vec![backend("a", "http://x"), backend("a", "http://y")]);
        assert!(error.starts_with("backends[1].id: "), "{error}");
        let error = refused(vec![backend("a", "http://x"), backend("b", "http://x/")]);
        assert!(error.starts_with("backends[1].url: "), "{error}");
        for same in ["http://X:80", "http://x:080"] {
            let error = refused(vec![backend("a", "http://x"), backend("b", same)]);
            assert!(error.starts_with("backends[1].url: "), "{error}");
        }
        let error = refused(vec![backend("", "http://x")]);
        assert!(error.starts_with("backends[0].id: "), "{error}");
    }

    #[test]
    fn a_misspelt_key_and_a_value_out_of_range_are_refused() {
        for key in ["probe_intervall", "metrics", "listing", "time_out"] {
            let error = serde_json::from_str::<RawConfig>(&format!(r#"{{"{key}":"1s"}}"#))
                .expect_err("unknown key")
                .to_string();
            assert!(error.contains(key), "{error}");
        }
        let error = serde_json::from_str::<RawBackend>(r#"{"id":"a","url":"http://x","engin":1}"#)
            .expect_err("unknown key");
        assert!(error.to_string().contains("engin"), "{error}");
        for key in ["probe_interval", "metrics_interval", "listing_interval", "timeout"] {
            let raw: RawConfig =
                serde_json::from_str(&format!(r#"{{"{key}":"0s"}}"#)).expect("parses");
            let error = Config::new(raw, Vec::new()).expect_err("out of range").to_string();
            assert!(error.starts_with(&format!("telemetry.{key}: ")), "{error}");
        }
    }
}
