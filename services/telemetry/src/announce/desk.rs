//! Announcements in, documents and answers out.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, Delivery, Message, Room};
use config_store::typed::{self, Signature, Stored};
use config_store::{ConfigStore, Scope, StoreError, Timestamp};
use domain::desired::{Backend, Document, JoinToken, LifecycleWish};
use domain::{BackendId, BoxFuture, Fleet, Moment};
use events::{Announcement, Answer, Envelope, Phase, Region, Verdict, decode, encode};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lifecycle::{Drain, Throttle};
use tokio::sync::watch;

use super::check::{Refusal, Seen, check, document};
use super::lifetimes::{Due, Lifetimes};
use super::probe::Probe;
use super::{Deps, Metrics};
use crate::{Error, FileBackends};

/// How often it is looked who is silent and who can go.
const SWEEP: Duration = Duration::from_secs(1);

/// Engines that are probed at a time. One that comes when there is no room comes again.
const MOST_PROBES: usize = 64;

/// Bytes of an announcement that are read.
const MAX_ANNOUNCEMENT: usize = 8 << 10;

/// Hears announcements and acts on them.
pub struct Announcements {
    bus: Arc<dyn Bus>,
    region: Region,
    store: Arc<dyn ConfigStore>,
    fleet: watch::Receiver<Arc<Fleet>>,
    file: FileBackends,
    metrics: Metrics,
    probe: Probe,
    probing: HashSet<BackendId>,
    seen: Seen,
    lifetimes: Lifetimes,
    /// Lines about what is refused, or fails.
    lines: Throttle,
}

/// A probe that is made.
type Probing = BoxFuture<'static, Probed>;

/// What an announcement that is in order leads to.
enum Judgement {
    Verdict(Verdict),
    Probe(Probing),
}

/// An engine that was probed.
struct Probed {
    said: Announcement,
    token: JoinToken,
    outcome: Result<(), Refusal>,
}

impl Deps {
    /// Builds the service.
    ///
    /// # Errors
    /// The registry already holds its metric, or TLS cannot be set up at all.
    pub fn build(self) -> Result<Announcements, Error> {
        let Self { registry, bus, region, store, fleet, file } = self;
        Ok(Announcements {
            bus,
            region,
            store,
            fleet,
            file,
            metrics: Metrics::register(&registry)?,
            probe: Probe::new()?,
            probing: HashSet::new(),
            seen: Seen::default(),
            lifetimes: Lifetimes::default(),
            lines: Throttle::default(),
        })
    }
}

impl Announcements {
    /// Hears and acts until the drain.
    pub async fn run(mut self, drain: Drain) {
        let mut heard = self.bus.subscribe(self.region.announcements(), Room::default()).await;
        let mut probes = FuturesUnordered::new();
        let mut sweeps = tokio::time::interval(SWEEP);
        sweeps.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = drain.signaled() => return,
                delivery = heard.next() => match delivery {
                    Some(Delivery::Message(message)) => probes.extend(self.hear(&message).await),
                    // Who was missed says it again.
                    Some(Delivery::Gap(_)) => {}
                    None => return,
                },
                Some(probed) = probes.next() => self.probed(probed).await,
                _ = sweeps.tick() => self.sweep(lifecycle::monotonic()).await,
            }
        }
    }

    /// Acts on a message; returns the probe that has to be made first.
    async fn hear(&mut self, message: &Message) -> Option<Probing> {
        let envelope = if message.payload.len() <= MAX_ANNOUNCEMENT {
            decode::<Envelope>(&message.payload).ok()
        } else {
            None
        };
        let Some(envelope) = envelope else {
            self.metrics.judged(Verdict::Invalid);
            return None;
        };
        let (verdict, detail) = match self.judge(&envelope).await {
            Ok(Judgement::Verdict(verdict)) => (verdict, None),
            // It will tell.
            Ok(Judgement::Probe(probe)) => return Some(probe),
            Err(refusal) => (refusal.verdict, Some(refusal.detail)),
        };
        // A body that cannot be read has nobody to answer to.
        match envelope.open() {
            Ok(said) => self.answer(&envelope.token, &said, verdict, detail),
            Err(_) => self.metrics.judged(verdict),
        }
        None
    }

    async fn judge(&mut self, envelope: &Envelope) -> Result<Judgement, Refusal> {
        let Some(token) = self.find::<JoinToken>(&envelope.token).await? else {
            return Err(Refusal::new(Verdict::Unsigned, "the token is not known, or was revoked"));
        };
        let token = token.document;
        let now = Timestamp::now().0;
        let said = check(envelope, &token, &self.region, &mut self.seen, now)?;
        // Whoever leaves takes nothing.
        if said.phase == Phase::Here {
            self.refuse_taken(&said, &[])?;
        }
        let stored = self.find::<Backend>(&said.backend).await?;
        if let Some(stored) = &stored {
            let by = stored.document.announced.as_ref().map(|announced| &announced.token);
            if by != Some(&token.id) {
                let detail =
                    "backend: another one has this name, and this token did not announce it";
                return Err(Refusal::new(Verdict::Taken, detail));
            }
        }
        let id = BackendId::new(said.backend.as_str());
        if !self.lifetimes.heard(&id, said.at_ms, lifecycle::monotonic()) {
            return Err(Refusal::new(Verdict::Replayed, "a later one was heard before"));
        }
        match (said.phase, stored) {
            (Phase::Leaving, None) => Ok(Judgement::Verdict(Verdict::Gone)),
            (Phase::Leaving, Some(stored)) => {
                self.withdraw(&stored).await?;
                Ok(Judgement::Verdict(Verdict::Leaving))
            }
            (Phase::Here, Some(stored)) if is_as_said(&stored.document, &said) => {
                self.return_of(&stored).await?;
                Ok(Judgement::Verdict(Verdict::Heard))
            }
            (Phase::Here, _) => self.begin_probe(id, said, token),
        }
    }

    fn begin_probe(
        &mut self,
        id: BackendId,
        said: Announcement,
        token: JoinToken,
    ) -> Result<Judgement, Refusal> {
        if self.probing.len() >= MOST_PROBES || !self.probing.insert(id) {
            return Err(Refusal::new(Verdict::Unavailable, "it is being probed, or waits for it"));
        }
        let probe = self.probe.clone();
        Ok(Judgement::Probe(Box::pin(async move {
            let outcome = probe.ask(&said.url, &token).await;
            Probed { said, token, outcome }
        })))
    }

    async fn probed(&mut self, Probed { said, token, outcome }: Probed) {
        self.probing.remove(&BackendId::new(said.backend.as_str()));
        let outcome = match outcome {
            Ok(()) => self.join(&said, &token).await,
            Err(refusal) => Err(refusal),
        };
        let (verdict, detail) = match outcome {
            Ok(()) => (Verdict::Joined, None),
            Err(Refusal { verdict, detail }) => (verdict, Some(detail)),
        };
        self.answer(&token.id, &said, verdict, detail);
    }

    /// Whether the name or the address is that of a backend of the file, or of another of these.
    fn refuse_taken(&self, said: &Announcement, stored: &[Stored<Backend>]) -> Result<(), Refusal> {
        let stored = stored.iter().map(|stored| &stored.document);
        match self.file.taken(&said.backend, &said.url, stored) {
            None => Ok(()),
            Some(taken) => Err(Refusal::new(Verdict::Taken, format!("{}: {taken}", taken.field()))),
        }
    }

    /// Stores an engine that was probed: as a new backend, or in place of what its announcer said
    /// before.
    async fn join(&mut self, said: &Announcement, token: &JoinToken) -> Result<(), Refusal> {
        self.refuse_taken(said, &self.backends().await?)?;
        let wanted = document(said, &token.id)?;
        let by = signature(&token.id);
        let change = match self.find::<Backend>(&said.backend).await? {
            None => typed::create(&wanted, by),
            Some(stored) => {
                let by_token = stored.document.announced.as_ref().map(|a| &a.token);
                if by_token != Some(&token.id) {
                    return Err(Refusal::new(Verdict::Taken, "backend: another one has this name"));
                }
                let unknown = stored.document.unknown.clone();
                let before = stored.document.announced.as_ref();
                // What an operator wished of it stays so; what its silence did does not.
                let is_back = before.is_some_and(|announced| announced.withdrawn)
                    && stored.document.wish != LifecycleWish::Maintenance;
                let wish = if is_back { wanted.wish } else { stored.document.wish };
                typed::replace(&stored, &Backend { unknown, wish, ..wanted }, by)
            }
        };
        self.store.commit(change.map_err(unavailable)?).await.map_err(unavailable)?;
        tracing::info!(
            backend.id = %said.backend, url = %said.url, token = %token.id, "an engine has joined",
        );
        Ok(())
    }

    /// It says farewell, or is silent: it is drained on its own account.
    async fn withdraw(&self, stored: &Stored<Backend>) -> Result<(), Refusal> {
        let announced = stored.document.announced.as_ref();
        if announced.is_none_or(|announced| announced.withdrawn) {
            return Ok(());
        }
        let wish = LifecycleWish::Draining;
        self.rewish(stored, wish, true).await
    }

    /// It is heard again after it was silent: what its silence did is taken back.
    async fn return_of(&self, stored: &Stored<Backend>) -> Result<(), Refusal> {
        let announced = stored.document.announced.as_ref();
        if announced.is_some_and(|announced| announced.withdrawn) {
            return self.rewish(stored, LifecycleWish::Ready, false).await;
        }
        Ok(())
    }

    async fn rewish(
        &self,
        stored: &Stored<Backend>,
        wish: LifecycleWish,
        withdrawn: bool,
    ) -> Result<(), Refusal> {
        let mut wanted = stored.document.clone();
        let Some(announced) = &mut wanted.announced else { return Ok(()) };
        announced.withdrawn = withdrawn;
        let by = signature(&announced.token);
        // What an operator took out for maintenance stays so.
        if wanted.wish != LifecycleWish::Maintenance {
            wanted.wish = wish;
        }
        let change = typed::replace(stored, &wanted, by).map_err(unavailable)?;
        self.store.commit(change).await.map_err(unavailable)?;
        tracing::info!(
            backend.id = %wanted.id, wish = wanted.wish.as_str(), withdrawn,
            "an announced engine leaves or returns",
        );
        Ok(())
    }

    /// Drains who is silent and removes who has drained.
    async fn sweep(&mut self, now: Moment) {
        let Ok(backends) = self.backends().await else { return };
        let fleet = self.fleet.borrow().clone();
        for stored in &backends {
            let wanted = &stored.document;
            let seen = fleet.backend(&wanted.id).map(|seen| &**seen);
            let outcome = match self.lifetimes.due(wanted, seen, now) {
                Due::Nothing => Ok(()),
                Due::Drain => self.withdraw(stored).await,
                Due::Remove => self.remove(stored).await,
            };
            // It stays due, and is tried again at the next sweep.
            if let Err(refusal) = outcome
                && let Some(held_back) = self.lines.pass()
            {
                let error = refusal.detail;
                tracing::warn!(backend.id = %wanted.id, error, held_back, "to be tried again");
            }
        }
        let ids: HashSet<&BackendId> = backends.iter().map(|s| &s.document.id).collect();
        self.lifetimes.keep(|id| ids.contains(id), now);
    }

    async fn remove(&self, stored: &Stored<Backend>) -> Result<(), Refusal> {
        let token = stored.document.announced.as_ref().map_or("", |announced| &announced.token);
        let change = typed::delete(stored, signature(token)).map_err(unavailable)?;
        self.store.commit(change).await.map_err(unavailable)?;
        tracing::info!(backend.id = %stored.document.id, "an announced engine has left");
        Ok(())
    }

    async fn find<D: Document>(&self, id: &str) -> Result<Option<Stored<D>>, Refusal> {
        let Ok(key) = typed::key::<D>(id) else { return Ok(None) };
        let entry = self.store.get(&key).await.map_err(unavailable)?;
        entry.map_or(Ok(None), |entry| typed::read(&entry)).map_err(unavailable)
    }

    /// All backends that can be read.
    async fn backends(&self) -> Result<Vec<Stored<Backend>>, Refusal> {
        let listing = self.store.list(Scope::kind(Backend::KIND)).await.map_err(unavailable)?;
        Ok(listing.entries.iter().filter_map(|entry| typed::read(entry).ok().flatten()).collect())
    }

    fn answer(&self, token: &str, said: &Announcement, verdict: Verdict, detail: Option<String>) {
        self.metrics.judged(verdict);
        if !verdict.is_success()
            && let Some(held_back) = self.lines.pass()
        {
            tracing::warn!(
                token, backend.id = %said.backend, verdict = verdict.as_str(), detail, held_back,
                "an announcement is refused",
            );
        }
        let (backend, nonce) = (said.backend.clone(), said.nonce.clone());
        let answer = Answer { backend, nonce, verdict, detail };
        // One that is lost is not missed: the next announcement is answered too.
        let _ = self.bus.publish(&self.region.answers(token, &said.backend), encode(&answer));
    }
}

/// Whether a stored backend is what its announcer says, so that nothing is to be probed.
fn is_as_said(stored: &Backend, said: &Announcement) -> bool {
    let engine = stored.engine.map(domain::EngineKind::as_str);
    stored.url == said.url
        && stored.credential == said.credential
        && engine == said.engine.as_deref()
}

fn signature(token: &str) -> Signature {
    Signature { author: format!("join-token {token}").into(), at: Timestamp::now() }
}

/// The store did not do it. The same announcement comes again.
fn unavailable(error: StoreError) -> Refusal {
    Refusal::new(Verdict::Unavailable, error.to_string())
}
