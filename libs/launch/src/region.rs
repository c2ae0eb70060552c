//! The part of a config file that makes a process a member of a region.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use config_feed::{Client, ClientDeps, Feed, GrpcFeed, Metrics};
use domain::Incarnation;
use instrumentation::Registry;
use lifecycle::TaskSpawner;
use replication::{Member, MemberId, Process, Role};
use rpc::{ClientConfig, Fingerprint};
use serde::{Deserialize, Serialize};
use settings::{Redacted, SecretRef, SettingsError};

use crate::sections::read_secret;

/// Section `[member]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawMember {
    /// The process's name in its region: the same after a restart, and no other's.
    pub id: String,
    /// Where telemetry's gRPC port is, as `http://HOST:PORT` or `https://HOST:PORT`.
    pub telemetry: String,
}

/// Section `[member]`, checked.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    id: MemberId,
    telemetry: String,
}

impl MemberConfig {
    /// Checks the section.
    ///
    /// # Errors
    /// A part is absent or no name. The key is that of the whole file.
    pub fn new(raw: RawMember) -> Result<Self, SettingsError> {
        let RawMember { id, telemetry } = raw;
        let id = MemberId::new(id);
        if !id.is_plain() {
            let message = "a name of 1 to 64 letters, digits, `-` and `_` is needed, which no \
                           other process of the region has";
            return Err(SettingsError::new("member.id", message));
        }
        if telemetry.is_empty() {
            let message = "the address of telemetry's gRPC port is needed, as http://HOST:PORT";
            return Err(SettingsError::new("member.telemetry", message));
        }
        Ok(Self { id, telemetry })
    }

    /// This life of the process. Incarnations grow with the time of start.
    pub fn process(&self) -> Process {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        Process { id: self.id.clone(), incarnation: Incarnation(millis) }
    }

    /// Follows telemetry from now on, and holds a member's lease there. `region` shows telemetry
    /// that this process has the region's secret.
    ///
    /// # Errors
    /// The address cannot be called, or a metric's name is taken.
    pub fn follow(
        &self,
        me: &Process,
        (role, address): (Role, &str),
        (client, region): (&ClientConfig, Fingerprint),
        (registry, spawner): (&Registry, TaskSpawner),
    ) -> anyhow::Result<Feed> {
        let channel = client.channel(&self.telemetry)?;
        let metrics = Metrics::default();
        metrics.register(registry)?;
        let member = Member { process: me.clone(), role, address: address.into() };
        let feed = Arc::new(GrpcFeed::new(channel, Some(me.clone())).of_region(region));
        let deps = ClientDeps { feed, spawner, metrics, member: Some(member) };
        Ok(Client::new(deps).start())
    }
}

/// The secret that all processes of a region share.
///
/// # Errors
/// There is none, or its reference leads nowhere or to one that is short.
pub fn shared_secret(reference: Option<&SecretRef>) -> Result<Redacted<Vec<u8>>, SettingsError> {
    let Some(reference) = reference else {
        let message = "processes that run apart need the same secret: name a file or a variable \
                       that holds it; `openssl rand -hex 32` makes one";
        return Err(SettingsError::new("region.secret", message));
    };
    read_secret(reference)
}

/// What tells that two processes have the same secret.
pub fn fingerprint(secret: &Redacted<Vec<u8>>) -> Fingerprint {
    Fingerprint::of(secret)
}
