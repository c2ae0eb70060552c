//! The settings of the edge: raw as they stand in the file, then checked.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use domain::{ModelId, TenantId};
use serde::{Deserialize, Serialize};
use settings::{HumanDuration, Redacted, SettingsError};

pub use self::timeouts::RawTimeouts;
pub(crate) use self::timeouts::Timeouts;
use self::timeouts::read_timeouts;
use crate::access::FileAccess;
use crate::aliases::{Alias, Aliases};
use crate::auth::{KeySource, Keyring};
use crate::endpoint::Endpoint;
use crate::engine_keys::NamedKeys;
use crate::guard::{Policies, RawFields};
use crate::retries::RawRetryBudget;
use crate::rules::Rules;
use crate::tenant::TenantSpec;
use crate::terms::{Exception, Terms};

mod timeouts;

/// 64 MiB: a million tokens as text, or a few images as data URLs.
const BODY_LIMIT_BYTES: u64 = 64 * 1024 * 1024;
/// Sixteen of the largest bodies, or some ten thousand ordinary ones.
const BODY_MEMORY_BYTES: u64 = 1024 * 1024 * 1024;
/// A few file descriptors and at most 64 KiB of header buffer each.
const MAX_CONNECTIONS: u32 = 8192;
/// Ranks that one request is tried on. A fault that three engines share is the request's own.
const MAX_ATTEMPTS: u32 = 3;
/// Load balancers look at `/readyz` every second or two.
const DRAIN_NOTICE: HumanDuration = HumanDuration::from_secs(3);
/// Long enough for a restart of telemetry, short enough that a revoked key does not live on.
const MAX_STALE: HumanDuration = HumanDuration::from_secs(60);

/// Section `[edge]` of the config file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawConfig {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Serve without keys on an address that is not loopback.
    pub allow_unauthenticated: bool,
    /// Largest request body.
    pub body_limit_bytes: u64,
    /// Request bodies held at once, all together.
    pub body_memory_bytes: u64,
    /// Client connections open at once; further ones wait in the kernel's queue.
    pub max_connections: u32,
    /// Ranks that one request is tried on, the first included.
    pub max_attempts: u32,
    /// How often the requests of a pool are tried again, all together.
    pub retry_budget: RawRetryBudget,
    /// How long a request waits while no backend of its model is ready, as when the only one is
    /// being replaced. Zero: it is refused at once.
    pub backend_wait: HumanDuration,
    /// How long new connections are still taken once a drain has begun.
    pub drain_notice: HumanDuration,
    /// How long each phase may take.
    pub timeouts: RawTimeouts,
    /// Where spans of requests go.
    pub traces: traces::RawConfig,
    /// The model that stands in for one that no ready backend serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_model: Option<String>,
    /// What becomes of fields that are the operator's.
    pub fields: RawFields,
    /// Other names for models.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<RawAlias>,
    /// Limits of single routes and models.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub terms: Vec<RawTerms>,
}

/// One `[[edge.aliases]]`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawAlias {
    /// The name that clients use.
    pub id: String,
    /// The models that it stands for.
    pub models: Vec<String>,
    /// Their shares of the conversations, one each; alike when absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<u32>,
}

/// One `[[edge.terms]]`: limits of a route, a model, or a model on a route.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawTerms {
    /// The route, by the name that it has in metrics; all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// The model; all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// In place of `edge.body_limit_bytes`; only without a model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_limit_bytes: Option<u64>,
    /// In place of `edge.timeouts.first_token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_token: Option<HumanDuration>,
    /// In place of `edge.timeouts.idle`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<HumanDuration>,
    /// In place of `edge.timeouts.total`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<HumanDuration>,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            allow_unauthenticated: false,
            body_limit_bytes: BODY_LIMIT_BYTES,
            body_memory_bytes: BODY_MEMORY_BYTES,
            max_connections: MAX_CONNECTIONS,
            max_attempts: MAX_ATTEMPTS,
            retry_budget: RawRetryBudget::default(),
            backend_wait: HumanDuration::from_secs(0),
            drain_notice: DRAIN_NOTICE,
            timeouts: RawTimeouts::default(),
            traces: traces::RawConfig::default(),
            fallback_model: None,
            fields: RawFields::default(),
            aliases: Vec::new(),
            terms: Vec::new(),
        }
    }
}

/// Section `[auth]`: keys that are changed while it runs.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawAuth {
    /// How long keys count without a doubt while telemetry is not heard.
    pub max_stale: HumanDuration,
    /// What becomes of them after that. Keys of the config file always count.
    pub on_stale: OnStale,
}

impl Default for RawAuth {
    fn default() -> Self {
        Self { max_stale: MAX_STALE, on_stale: OnStale::Serve }
    }
}

/// What becomes of keys that could have been revoked meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnStale {
    /// They count on.
    Serve,
    /// Requests with them are refused until telemetry is heard again.
    Refuse,
}

/// Whether keys may come while the edge runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Those of the config file are all.
    OfFile,
    /// Others come from telemetry.
    OfFeed,
}

/// One `[[tenants]]`: who shares limits.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawTenant {
    /// Its name in logs.
    pub id: String,
    /// Requests per minute; unlimited when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Requests open at once; unlimited when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<u32>,
    /// Whether answers tell in headers which backend was chosen and why.
    #[serde(default)]
    pub debug_headers: bool,
    /// Models it may use; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// What becomes of its fields that are the operator's.
    #[serde(default)]
    pub fields: RawFields,
}

/// One `[[keys]]`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawKey {
    /// The public part, between `sk-wp-` and the last dash.
    pub id: String,
    /// Whose key it is.
    pub tenant: String,
    /// The sha256 of the secret part, as 64 hex digits.
    pub sha256: String,
}

/// The checked settings of an edge.
#[derive(Debug)]
pub struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) body_memory_bytes: usize,
    pub(crate) max_connections: usize,
    pub(crate) traces: Option<traces::Config>,
    pub(crate) rules: Rules,
    pub(crate) engine_keys: NamedKeys,
}

impl Config {
    /// Checks the sections `[edge]`, `[auth]`, `[[tenants]]` and `[[keys]]`. Requests without a
    /// key are served while there are no keys, if only this machine is, or the operator says so.
    ///
    /// # Errors
    /// The first thing that is wrong, with its full key.
    pub fn new(
        edge: RawConfig,
        auth: &RawAuth,
        tenants: Vec<RawTenant>,
        keys: Vec<RawKey>,
        more: Keys,
    ) -> Result<Self, SettingsError> {
        let fields = Policies::default().with(&edge.fields);
        let tenants = read_tenants(tenants, fields)?;
        let keyring = read_keys(keys, &tenants)?;
        let open = edge.listen.ip().is_loopback() || edge.allow_unauthenticated;
        if keyring.is_empty() && !open && more == Keys::OfFile {
            return Err(SettingsError::new(
                "edge.listen",
                "without [[keys]] everybody is served, so only a loopback address is allowed; \
                 add a key, or set edge.allow_unauthenticated = true",
            ));
        }
        let (max_stale, on_stale) = (auth.max_stale.get(), auth.on_stale);
        let rules = Rules {
            access: FileAccess { keyring, tenants, fields, open, max_stale, on_stale },
            aliases: read_aliases(&edge)?,
            terms: read_terms(&edge)?,
            timeouts: read_timeouts(&edge.timeouts)?,
            max_attempts: at_least_one(edge.max_attempts.into(), "edge.max_attempts")?,
            retry_budget: edge.retry_budget.check()?,
            backend_wait: edge.backend_wait.get(),
            drain_notice: edge.drain_notice.get(),
            drain_limit: None,
        };
        Ok(Self {
            listen: edge.listen,
            body_memory_bytes: body_memory(&edge)?,
            max_connections: at_least_one(edge.max_connections.into(), "edge.max_connections")?,
            traces: traces::Config::new(edge.traces).map_err(|e| e.under("edge.traces"))?,
            rules,
            engine_keys: NamedKeys::default(),
        })
    }

    /// Where clients connect.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Ends streams that are still open `limit` after a drain began with an error event. Without
    /// it they are waited for. What cuts the process itself off should come a little later.
    #[must_use]
    pub fn drain_within(mut self, limit: Duration) -> Self {
        self.rules.drain_limit = Some(limit);
        self
    }

    /// The keys that engines ask for, by the names that backends give.
    ///
    /// # Errors
    /// One that cannot stand in a header; the error names `credentials.NAME`.
    pub fn with_credentials(
        mut self,
        credentials: &HashMap<String, Redacted<String>>,
    ) -> Result<Self, SettingsError> {
        self.engine_keys = NamedKeys::new(credentials)?;
        Ok(self)
    }
}

fn body_memory(edge: &RawConfig) -> Result<usize, SettingsError> {
    let key = "edge.body_memory_bytes";
    if edge.body_memory_bytes < edge.body_limit_bytes {
        return Err(SettingsError::new(key, "must be at least edge.body_limit_bytes"));
    }
    at_least_one(edge.body_memory_bytes, key)
}

fn at_least_one(value: u64, key: &str) -> Result<usize, SettingsError> {
    match usize::try_from(value) {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(SettingsError::new(key, "must be at least 1")),
    }
}

fn read_aliases(edge: &RawConfig) -> Result<Aliases, SettingsError> {
    let mut aliases: Vec<(Box<str>, Alias)> = Vec::with_capacity(edge.aliases.len());
    for (index, raw) in edge.aliases.iter().enumerate() {
        let fault = |key: &str, message: &str| {
            Err(SettingsError::new(key, message).under(&format!("edge.aliases[{index}]")))
        };
        let is_taken = |name: &str| aliases.iter().any(|(known, _)| **known == *name);
        if raw.id.is_empty() || is_taken(&raw.id) {
            return fault("id", "must not be empty, and no other alias's");
        }
        if raw.models.is_empty() || raw.models.iter().any(String::is_empty) {
            return fault("models", "must name at least one model");
        }
        let weights = match raw.weights.len() {
            0 => vec![1; raw.models.len()],
            given if given == raw.models.len() && !raw.weights.contains(&0) => raw.weights.clone(),
            _ => return fault("weights", "must be one for each model, of at least 1"),
        };
        let models = raw.models.iter().map(|model| ModelId::new(model.as_str()));
        aliases.push((raw.id.as_str().into(), Alias { targets: models.zip(weights).collect() }));
    }
    let is_alias = |model: &String| edge.aliases.iter().any(|alias| alias.id == *model);
    if edge.aliases.iter().any(|alias| alias.models.iter().any(is_alias)) {
        return Err(SettingsError::new("edge.aliases", "an alias must not stand for another"));
    }
    let fallback = edge.fallback_model.as_deref().map(ModelId::new);
    Ok(Aliases::new(aliases, fallback))
}

fn read_terms(edge: &RawConfig) -> Result<Terms, SettingsError> {
    let body_limit_bytes = at_least_one(edge.body_limit_bytes, "edge.body_limit_bytes")?;
    let mut terms = Terms::new(body_limit_bytes, read_timeouts(&edge.timeouts)?);
    for (index, raw) in edge.terms.iter().enumerate() {
        let section = format!("edge.terms[{index}]");
        let fault = |key: &str, message: &str| SettingsError::new(key, message).under(&section);
        let endpoint = match &raw.route {
            None => None,
            Some(name) => Some(Endpoint::from_name(name).ok_or_else(|| {
                fault("route", "no route has this name; see `route` in the metrics")
            })?),
        };
        let longer = |value: Option<HumanDuration>, key: &str| match value.map(HumanDuration::get) {
            Some(Duration::ZERO) => Err(fault(key, "must be longer than zero")),
            other => Ok(other),
        };
        let body_limit_bytes = match raw.body_limit_bytes {
            None => None,
            Some(_) if raw.model.is_some() => {
                return Err(fault(
                    "body_limit_bytes",
                    "cannot depend on the model, which the body names",
                ));
            }
            Some(limit) if limit > edge.body_memory_bytes => {
                return Err(fault("body_limit_bytes", "must be at most edge.body_memory_bytes"));
            }
            Some(limit) => Some(at_least_one(limit, &format!("{section}.body_limit_bytes"))?),
        };
        terms.push(Exception {
            endpoint,
            model: raw.model.as_deref().map(ModelId::new),
            body_limit_bytes,
            first_token: longer(raw.first_token, "first_token")?,
            idle: longer(raw.idle, "idle")?,
            total: longer(raw.total, "total")?,
        });
    }
    Ok(terms)
}

fn read_tenants(
    raw: Vec<RawTenant>,
    fields: Policies,
) -> Result<HashMap<TenantId, TenantSpec>, SettingsError> {
    let mut tenants = HashMap::with_capacity(raw.len());
    for (index, tenant) in raw.into_iter().enumerate() {
        let fault = |key: &str, message: &str| {
            SettingsError::new(key, message).under(&format!("tenants[{index}]"))
        };
        if tenant.id.is_empty() {
            return Err(fault("id", "must not be empty"));
        }
        if tenant.requests_per_minute == Some(0) {
            return Err(fault(
                "requests_per_minute",
                "must be at least 1; leave it out for no limit",
            ));
        }
        if tenant.max_concurrency == Some(0) {
            return Err(fault("max_concurrency", "must be at least 1; leave it out for no limit"));
        }
        let id = TenantId::new(tenant.id);
        let models: Option<HashSet<ModelId>> =
            tenant.models.map(|models| models.into_iter().map(ModelId::new).collect());
        let checked = TenantSpec {
            id: id.clone(),
            requests_per_minute: tenant.requests_per_minute,
            max_concurrency: tenant.max_concurrency,
            models,
            debug_headers: tenant.debug_headers,
            fields: fields.with(&tenant.fields),
        };
        if tenants.insert(id, checked).is_some() {
            return Err(fault("id", "another tenant has this id"));
        }
    }
    Ok(tenants)
}

fn read_keys(
    raw: Vec<RawKey>,
    tenants: &HashMap<TenantId, TenantSpec>,
) -> Result<Keyring, SettingsError> {
    let mut keyring = Keyring::default();
    for (index, key) in raw.into_iter().enumerate() {
        let fault = |name: &str, message: &str| {
            SettingsError::new(name, message).under(&format!("keys[{index}]"))
        };
        if key.id.is_empty() || !key.id.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(fault("id", "must be printable ASCII without spaces, and not empty"));
        }
        let tenant = TenantId::new(key.tenant);
        if !tenants.contains_key(&tenant) {
            return Err(fault("tenant", "no [[tenants]] entry has this id"));
        }
        let digest = credentials::bytes_from_hex(&key.sha256)
            .ok_or_else(|| fault("sha256", "must be 64 hex digits"))?;
        if !keyring.insert(&key.id, tenant, digest, KeySource::File) {
            return Err(fault("id", "another key has this id"));
        }
    }
    Ok(keyring)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(id: &str) -> RawTenant {
        RawTenant {
            id: id.to_owned(),
            requests_per_minute: None,
            max_concurrency: None,
            debug_headers: false,
            models: None,
            fields: RawFields::default(),
        }
    }

    fn key(id: &str, tenant: &str) -> RawKey {
        RawKey { id: id.to_owned(), tenant: tenant.to_owned(), sha256: "ab".repeat(32) }
    }

    fn read(
        edge: RawConfig,
        tenants: Vec<RawTenant>,
        keys: Vec<RawKey>,
    ) -> Result<Config, SettingsError> {
        Config::new(edge, &RawAuth::default(), tenants, keys, Keys::OfFile)
    }

    fn fault(edge: RawConfig, tenants: Vec<RawTenant>, keys: Vec<RawKey>) -> String {
        read(edge, tenants, keys).unwrap_err().key().to_owned()
    }

    #[test]
    fn without_keys_only_loopback_is_served_unless_told_otherwise() {
        let open = |listen: &str, allow_unauthenticated| RawConfig {
            listen: listen.parse().unwrap(),
            allow_unauthenticated,
            ..RawConfig::default()
        };
        assert!(read(open("127.0.0.1:1", false), vec![], vec![]).is_ok());
        assert!(read(open("[::1]:1", false), vec![], vec![]).is_ok());
        assert_eq!(fault(open("0.0.0.0:1", false), vec![], vec![]), "edge.listen");
        assert!(read(open("0.0.0.0:1", true), vec![], vec![]).is_ok());
        let fed = open("0.0.0.0:1", false);
        let fed = Config::new(fed, &RawAuth::default(), vec![], vec![], Keys::OfFeed).unwrap();
        assert!(!fed.rules.access.open, "there are no keys yet, and nobody is served without one");
        let keys = (vec![tenant("a")], vec![key("k", "a")]);
        assert!(read(open("0.0.0.0:1", false), keys.0, keys.1).is_ok());
    }

    #[test]
    fn faults_of_aliases_and_terms_name_their_key() {
        let alias = |id: &str, models: &[&str], weights: &[u32]| RawAlias {
            id: id.to_owned(),
            models: models.iter().map(|model| (*model).to_owned()).collect(),
            weights: weights.to_vec(),
        };
        let of = |aliases| fault(RawConfig { aliases, ..RawConfig::default() }, vec![], vec![]);
        assert_eq!(of(vec![alias("", &["m"], &[])]), "edge.aliases[0].id");
        let twice = vec![alias("a", &["m"], &[]), alias("a", &["m"], &[])];
        assert_eq!(of(twice), "edge.aliases[1].id");
        assert_eq!(of(vec![alias("a", &[], &[])]), "edge.aliases[0].models");
        assert_eq!(of(vec![alias("a", &["m", "n"], &[1])]), "edge.aliases[0].weights");
        assert_eq!(of(vec![alias("a", &["m"], &[0])]), "edge.aliases[0].weights");
        let chain = vec![alias("a", &["b"], &[]), alias("b", &["m"], &[])];
        assert_eq!(of(chain), "edge.aliases");
        let of =
            |terms| fault(RawConfig { terms: vec![terms], ..RawConfig::default() }, vec![], vec![]);
        let route = |name: &str| RawTerms { route: Some(name.to_owned()), ..RawTerms::default() };
        assert_eq!(of(route("nowhere")), "edge.terms[0].route");
        assert_eq!(of(route("unknown")), "edge.terms[0].route");
        let never = RawTerms { total: Some(HumanDuration::from_secs(0)), ..route("chat") };
        assert_eq!(of(never), "edge.terms[0].total");
        let by_model = RawTerms {
            model: Some("m".to_owned()),
            body_limit_bytes: Some(1),
            ..RawTerms::default()
        };
        assert_eq!(of(by_model), "edge.terms[0].body_limit_bytes");
        let huge = RawTerms { body_limit_bytes: Some(u64::MAX), ..route("chat") };
        assert_eq!(of(huge), "edge.terms[0].body_limit_bytes");
    }

    #[test]
    fn faults_name_their_key() {
        let edge = RawConfig::default;
        let keys = |list: Vec<RawKey>| fault(edge(), vec![tenant("a")], list);
        assert_eq!(keys(vec![key("k", "b")]), "keys[0].tenant");
        assert_eq!(keys(vec![key("k", "a"), key("k", "a")]), "keys[1].id");
        assert_eq!(keys(vec![key("", "a")]), "keys[0].id");
        let short = RawKey { sha256: "ab".to_owned(), ..key("k", "a") };
        assert_eq!(keys(vec![short]), "keys[0].sha256");
        assert_eq!(fault(edge(), vec![tenant("a"), tenant("a")], vec![]), "tenants[1].id");
        let none = RawTenant { requests_per_minute: Some(0), ..tenant("a") };
        assert_eq!(fault(edge(), vec![none], vec![]), "tenants[0].requests_per_minute");
        let never = RawConfig {
            timeouts: RawTimeouts { idle: HumanDuration::from_secs(0), ..RawTimeouts::default() },
            ..edge()
        };
        assert_eq!(fault(never, vec![], vec![]), "edge.timeouts.idle");
        let little = RawConfig { body_memory_bytes: 5, ..edge() };
        assert_eq!(fault(little, vec![], vec![]), "edge.body_memory_bytes");
        let none = RawConfig { max_attempts: 0, ..edge() };
        assert_eq!(fault(none, vec![], vec![]), "edge.max_attempts");
        assert_eq!(
            fault(RawConfig { body_limit_bytes: 0, ..edge() }, vec![], vec![]),
            "edge.body_limit_bytes"
        );
    }

    #[test]
    fn a_misspelt_key_is_refused() {
        for json in [
            r#"{"listn": "127.0.0.1:1"}"#,
            r#"{"timeouts": {"conect": "2s"}}"#,
            r#"{"timeouts": {"connect": 2}}"#,
        ] {
            assert!(serde_json::from_str::<RawConfig>(json).is_err(), "{json}");
        }
        assert!(serde_json::from_str::<RawAuth>(r#"{"max_stail": "1s"}"#).is_err());
        assert!(serde_json::from_str::<RawAuth>(r#"{"on_stale": "panic"}"#).is_err());
        assert!(serde_json::from_str::<RawTenant>(r#"{"id": "a", "rpm": 1}"#).is_err());
        assert!(serde_json::from_str::<RawKey>(r#"{"id": "a", "secret": "s"}"#).is_err());
    }
}
