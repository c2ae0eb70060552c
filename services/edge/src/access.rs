//! Who may ask, and how much: the config file's tenants and keys, and those of the desired state,
//! as one value that is replaced whole.
//!
//! What stands in the file comes first: a document with an id of the file counts for nothing. A
//! tenant that changes keeps its counters; what is open stays counted over every change.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use config_feed::{Documents, Feed};
use domain::desired::{self, ApiKey};
use domain::{ModelId, Moment, TenantId};
use http::HeaderMap;
use parking_lot::Mutex;

use crate::auth::{KeySource, Keyring, Refused};
use crate::config::OnStale;
use crate::guard::Policies;
use crate::metrics::Families;
use crate::rules::Rules;
use crate::tenant::{Tenant, TenantSpec};

/// The tenant of every request when no keys are asked for.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// What the config file says of who may ask, checked.
#[derive(Debug)]
pub(crate) struct FileAccess {
    pub(crate) keyring: Keyring,
    pub(crate) tenants: HashMap<TenantId, TenantSpec>,
    /// What becomes of fields that are the operator's, for tenants that the file says nothing of.
    pub(crate) fields: Policies,
    /// Whether requests without keys are served as long as there are neither keys nor tenants in
    /// the desired state.
    pub(crate) open: bool,
    /// How old the desired state may be for its keys to count without a doubt.
    pub(crate) max_stale: Duration,
    /// What becomes of its keys after that.
    pub(crate) on_stale: OnStale,
}

/// Everything at one moment, with the rules that hold with it.
pub(crate) struct Access {
    rules: Arc<Rules>,
    keyring: Keyring,
    /// There were keys, or tenants in the desired state: without keys nobody is let in. Else revoking
    /// the last key would let in everybody.
    is_managed: bool,
    tenants: HashMap<TenantId, Arc<Tenant>>,
    anonymous: Arc<Tenant>,
}

/// Why a request is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No key, or not a known one.
    NoKey,
    /// The key may be valid; the desired state is not known, or too old to tell.
    CannotTell,
}

impl Access {
    /// What the config file says of requests.
    pub(crate) fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }
}

/// Keeps the newest [`Access`].
pub(crate) struct AccessWatch {
    feed: Option<Feed>,
    families: Families,
    current: ArcSwap<Access>,
    /// Held while another one is made.
    changing: Mutex<()>,
}

impl AccessWatch {
    pub(crate) fn new(rules: Rules, feed: Option<Feed>, families: Families) -> Self {
        let rules = Arc::new(rules);
        let anonymous = Arc::new(Tenant::new(anonymous(&rules.access)));
        let nothing = Access {
            rules: Arc::clone(&rules),
            keyring: Keyring::default(),
            is_managed: false,
            tenants: HashMap::new(),
            anonymous,
        };
        let (current, changing) = (ArcSwap::from_pointee(nothing), Mutex::default());
        let watch = Self { feed, families, current, changing };
        watch.renew_with(rules, lifecycle::monotonic());
        watch
    }

    /// What holds for a request that comes now.
    pub(crate) fn current(&self) -> Arc<Access> {
        self.current.load_full()
    }

    /// Whose request it is.
    pub(crate) fn identify(
        &self,
        access: &Access,
        headers: &HeaderMap,
        now: Moment,
    ) -> Result<Arc<Tenant>, Denied> {
        let file = &access.rules.access;
        let unheard = self.feed.as_ref().is_some_and(|feed| !feed.staleness().heard_ever());
        let asks_for_keys = access.is_managed || !access.keyring.is_empty();
        if file.open && !asks_for_keys && !unheard {
            return Ok(Arc::clone(&access.anonymous));
        }
        let (tenant, source) = match access.keyring.identify(headers) {
            Ok(known) => known,
            Err(Refused) if unheard => return Err(Denied::CannotTell),
            Err(Refused) => return Err(Denied::NoKey),
        };
        if source == KeySource::Feed && self.is_too_old(file, now) {
            return Err(Denied::CannotTell);
        }
        access.tenants.get(tenant).cloned().ok_or(Denied::NoKey)
    }

    fn is_too_old(&self, file: &FileAccess, now: Moment) -> bool {
        file.on_stale == OnStale::Refuse
            && (self.feed.as_ref()).is_some_and(|f| f.staleness().age(now) > file.max_stale)
    }

    /// Takes over the desired state. Requests that are open go on as they began.
    fn update(&self, now: Moment) {
        let _one_at_a_time = self.changing.lock();
        let rules = Arc::clone(&self.current.load().rules);
        self.change(rules, now);
    }

    /// Takes over other rules. Requests that are open go on as they began.
    pub(crate) fn renew(&self, rules: Rules, now: Moment) {
        self.renew_with(Arc::new(rules), now);
    }

    fn renew_with(&self, rules: Arc<Rules>, now: Moment) {
        let _one_at_a_time = self.changing.lock();
        self.change(rules, now);
    }

    fn change(&self, rules: Arc<Rules>, now: Moment) {
        let documents = self.feed.as_ref().map(|feed| feed.documents().borrow().clone());
        let documents = &documents.unwrap_or_default();
        let (before, file) = (self.current.load(), &rules.access);
        let specs = specs(file, documents);
        let tenants = specs.into_values().map(|spec| {
            let id = spec.id.clone();
            let known = before.tenants.get(&id).or_else(|| {
                // Without an entry it is there all the same, and may have requests open.
                Some(&before.anonymous).filter(|anonymous| *anonymous.id() == id)
            });
            let tenant = match known {
                Some(known) => becoming(known, spec, now),
                None => Arc::new(Tenant::new(spec)),
            };
            (id, tenant)
        });
        let tenants: HashMap<TenantId, Arc<Tenant>> = tenants.collect();
        let named = tenants.get(ANONYMOUS).map(Arc::clone);
        let anonymous = named.unwrap_or_else(|| becoming(&before.anonymous, anonymous(file), now));
        let mut keyring = file.keyring.clone();
        for key in documents.keys.values() {
            add(&mut keyring, key);
        }
        self.families.keys.set(i64::try_from(keyring.len()).unwrap_or(i64::MAX));
        self.families.tenants.set(i64::try_from(tenants.len()).unwrap_or(i64::MAX));
        // Once there was somebody to let in alone, removing the last of them lets nobody in.
        let is_managed = before.is_managed
            || !file.keyring.is_empty()
            || !documents.keys.is_empty()
            || documents.tenants.values().any(|tenant| tenant.id.as_str() != ANONYMOUS);
        let access = Access { rules, keyring, is_managed, tenants, anonymous };
        self.current.store(Arc::new(access));
    }

    /// Follows the desired state, if there is any to follow. Never ends by itself.
    pub(crate) async fn follow(&self) {
        let Some(feed) = &self.feed else { return std::future::pending().await };
        let mut documents = feed.documents();
        loop {
            documents.mark_unchanged();
            self.update(lifecycle::monotonic());
            if documents.changed().await.is_err() {
                // The feed has ended; what was said last stands.
                return std::future::pending().await;
            }
        }
    }

    /// Open requests of all tenants.
    #[cfg(test)]
    pub(crate) fn open_requests(&self) -> u32 {
        let access = self.current.load();
        let named = access.tenants.values().map(|tenant| tenant.open_requests());
        named.sum::<u32>() + access.anonymous.open_requests()
    }
}

/// Who asks without a key, where the file says nothing of them.
fn anonymous(file: &FileAccess) -> TenantSpec {
    TenantSpec::unlimited(TenantId::from(ANONYMOUS), file.fields)
}

/// A tenant in another form, with its counters.
fn becoming(known: &Arc<Tenant>, spec: TenantSpec, now: Moment) -> Arc<Tenant> {
    if *known.spec() == spec { Arc::clone(known) } else { Arc::new(known.becoming(spec, now)) }
}

/// All tenants: those of the file, and those of the documents with their limits.
fn specs(file: &FileAccess, documents: &Documents) -> HashMap<TenantId, TenantSpec> {
    let mut specs = file.tenants.clone();
    for tenant in documents.tenants.values() {
        let limits = documents.limits.get(tenant.id.as_str());
        // A limit of nothing would be no limit but a ban; that is what revoking a key is for.
        let at_least_one = |limit: u32| limit.max(1);
        specs.entry(tenant.id.clone()).or_insert_with(|| TenantSpec {
            id: tenant.id.clone(),
            requests_per_minute: limits.and_then(|l| l.requests_per_minute).map(at_least_one),
            max_concurrency: limits.and_then(|l| l.max_concurrency).map(at_least_one),
            models: models(tenant),
            debug_headers: tenant.debug_headers,
            fields: file.fields,
        });
    }
    specs
}

fn models(tenant: &desired::Tenant) -> Option<std::collections::HashSet<ModelId>> {
    Some(tenant.models.as_ref()?.iter().cloned().collect())
}

/// A key without a digest that can be read opens nothing.
fn add(keyring: &mut Keyring, key: &ApiKey) {
    let added = credentials::bytes_from_hex(&key.sha256)
        .is_some_and(|digest| keyring.insert(&key.id, key.tenant.clone(), digest, KeySource::Feed));
    if !added {
        tracing::warn!(
            key.id = key.id,
            "a key counts for nothing: its id is taken or it is malformed"
        );
    }
}
