//! Idle connections, by engine address.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::Moment;
use http::{HeaderValue, Uri};
use parking_lot::{Mutex, RwLock};

use super::connect::Live;

/// Idle connections kept to one engine: as many requests as one engine runs at once, generously.
const MAX_IDLE: usize = 256;

/// One engine address.
pub(crate) struct Host {
    uri: Uri,
    header: HeaderValue,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    live: Box<Live>,
    since: Moment,
}

/// The address of a backend is not one that can be connected to.
#[derive(Debug, thiserror::Error)]
#[error("the address is not scheme, host and port")]
pub(super) struct BadAddress;

impl Host {
    fn new(url: &str) -> Result<Self, BadAddress> {
        let uri: Uri = url.parse().map_err(|_| BadAddress)?;
        let authority = uri.authority().ok_or(BadAddress)?;
        // User information would be a credential in an address; it is not sent on.
        let host = authority.as_str().rsplit_once('@').map_or(authority.as_str(), |(_, h)| h);
        let header = HeaderValue::from_str(host).map_err(|_| BadAddress)?;
        Ok(Self { uri, header, idle: Mutex::default() })
    }

    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The value of the `host` header.
    pub(super) fn header(&self) -> &HeaderValue {
        &self.header
    }

    /// The connection that went idle last, as it is the likeliest to be open still.
    pub(super) fn take_idle(&self, now: Moment, limit: Duration) -> Option<Box<Live>> {
        let mut idle = self.idle.lock();
        let newest = idle.pop()?;
        if now - newest.since < limit {
            return Some(newest.live);
        }
        // The others are older still.
        let expired = std::mem::take(&mut *idle);
        drop(idle);
        drop(expired);
        None
    }

    /// Keeps a connection for the next request.
    pub(super) fn put_idle(&self, live: Box<Live>) {
        let idle = Idle { live, since: lifecycle::monotonic() };
        let mut kept = self.idle.lock();
        if kept.len() < MAX_IDLE {
            kept.push(idle);
        }
    }

    fn close_idle(&self, now: Moment, limit: Duration) {
        let mut idle = self.idle.lock();
        let fresh_from = idle.partition_point(|i| now - i.since >= limit);
        let expired: Vec<Idle> = idle.drain(..fresh_from).collect();
        drop(idle);
        drop(expired);
    }

    fn is_empty(&self) -> bool {
        self.idle.lock().is_empty()
    }
}

/// All engine addresses in use.
#[derive(Default)]
pub(super) struct Hosts(RwLock<HashMap<Arc<str>, Arc<Host>>>);

impl Hosts {
    pub(super) fn get(&self, url: &Arc<str>) -> Result<Arc<Host>, BadAddress> {
        if let Some(host) = self.0.read().get(url) {
            return Ok(Arc::clone(host));
        }
        let host = Arc::new(Host::new(url)?);
        Ok(Arc::clone(self.0.write().entry(Arc::clone(url)).or_insert(host)))
    }

    /// Closes expired connections and forgets addresses that nothing uses any more.
    pub(super) fn close_idle(&self, now: Moment, limit: Duration) {
        let hosts: Vec<Arc<Host>> = self.0.read().values().cloned().collect();
        for host in &hosts {
            host.close_idle(now, limit);
        }
        drop(hosts);
        if self.0.read().values().any(unused) {
            self.0.write().retain(|_, h| !unused(h));
        }
    }
}

fn unused(host: &Arc<Host>) -> bool {
    Arc::strong_count(host) == 1 && host.is_empty()
}
