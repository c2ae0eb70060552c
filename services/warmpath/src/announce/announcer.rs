//! What is said for an engine, and when.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use bus::{Bus, Delivery, Pattern, Room, Subscription};
use bytes::Bytes;
use credentials::JoinKey;
use events::{Announcement, Answer, Envelope, Phase, Region, Verdict, decode, encode};
use futures_util::StreamExt;
use http::{Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use lifecycle::Drain;
use telemetry::announce::ANNOUNCE_EVERY;

use crate::operator::client::{Http, Tls, http_client};

/// How long the first word waits for the bus. A server that comes up beside the engine is there by
/// then; after that it is said on and on, as in any later cut.
const BUS_LIMIT: Duration = Duration::from_secs(60);

/// How often the farewell is said until it is known that the engine is out.
const FAREWELL_EVERY: Duration = Duration::from_secs(1);

/// How long the engine may take to say that it is well.
const HEALTH_LIMIT: Duration = Duration::from_secs(2);

/// Bytes of its answer that are read; they are empty or a word.
const MAX_HEALTH_BYTES: usize = 1 << 20;

/// What an engine is in the fleet.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) backend: String,
    pub(super) url: String,
    pub(super) engine: Option<String>,
    pub(super) credential: Option<String>,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Farewell {
    /// The engine is not in the fleet, or never was.
    Out,
    /// Nobody said so in time.
    Unheard,
}

/// Speaks for one engine.
pub(super) struct Announcer {
    bus: Arc<dyn Bus>,
    region: Region,
    key: JoinKey,
    spec: Spec,
    health: Uri,
    http: Http,
    /// When the last announcement was signed, in milliseconds since 1970.
    signed_ms: u64,
    /// What was answered last.
    last: Option<Verdict>,
    /// Whether it was ever let in.
    joined: bool,
}

impl Announcer {
    pub(super) fn new(
        bus: Arc<dyn Bus>,
        region: Region,
        key: JoinKey,
        spec: Spec,
        engine: String,
    ) -> anyhow::Result<Self> {
        let health: Uri = format!("{engine}/health").parse().context("--engine is no URL")?;
        anyhow::ensure!(health.authority().is_some(), "--engine has no host");
        let http = http_client(engine.starts_with("https:").then(Tls::default))?;
        Ok(Self { bus, region, key, spec, health, http, signed_ms: 0, last: None, joined: false })
    }

    /// Speaks until the drain, then says farewell for `limit` at most.
    pub(super) async fn run(mut self, drain: Drain, limit: Duration) -> Farewell {
        // Before the answers are subscribed to: what is subscribed to without a connection is with
        // the next one some time after it is made, and the first answer would be missed.
        tokio::select! {
            () = self.bus_is_there() => {}
            () = drain.signaled() => {}
        }
        let subject = self.region.answers(self.key.id(), &self.spec.backend);
        let mut answers = self.bus.subscribe(Pattern::from(&subject), Room::default()).await;
        let mut ticks = tokio::time::interval(ANNOUNCE_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = drain.signaled() => break,
                answer = next(&mut answers) => self.answered(answer),
                _ = ticks.tick() => {
                    if self.is_engine_well().await {
                        self.say(Phase::Here);
                    }
                }
            }
        }
        let farewell = tokio::time::timeout(limit, self.say_farewell(&mut answers)).await;
        farewell.unwrap_or(Farewell::Unheard)
    }

    /// Waits until what is said can be heard, but not for ever.
    async fn bus_is_there(&self) {
        let mut status = self.bus.status();
        if status.borrow().connected {
            return;
        }
        let backend = &self.spec.backend;
        tracing::info!(backend.id = %backend, "the bus is not there yet: the first word waits for it");
        let connected = status.wait_for(|status| status.connected);
        match tokio::time::timeout(BUS_LIMIT, connected).await {
            Ok(Ok(_)) => tracing::info!(backend.id = %backend, "the bus is there"),
            Ok(Err(_)) | Err(_) => {
                let seconds = BUS_LIMIT.as_secs();
                tracing::warn!(backend.id = %backend, seconds, "the bus is still not there");
            }
        }
    }

    async fn say_farewell(&mut self, answers: &mut Subscription) -> Farewell {
        let mut ticks = tokio::time::interval(FAREWELL_EVERY);
        loop {
            tokio::select! {
                answer = next(answers) => {
                    let verdict = answer.verdict;
                    self.answered(answer);
                    // What refuses the farewell does not have the engine by this name from us.
                    if verdict == Verdict::Gone || (!self.joined && !verdict.is_success()) {
                        return Farewell::Out;
                    }
                }
                _ = ticks.tick() => self.say(Phase::Leaving),
            }
        }
    }

    fn say(&mut self, phase: Phase) {
        let Spec { backend, url, engine, credential } = self.spec.clone();
        let mut nonce = [0; 16];
        if getrandom::fill(&mut nonce).is_err() {
            tracing::error!("the system gives no randomness: nothing is announced");
            return;
        }
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let now = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        // Each is later than the one before, also where the clock is set back a little.
        self.signed_ms = now.max(self.signed_ms.saturating_add(1));
        let said = Announcement {
            region: self.region.name().to_owned(),
            backend,
            url,
            engine,
            credential,
            phase,
            at_ms: self.signed_ms,
            nonce: credentials::hex(&nonce),
        };
        let envelope = Envelope::seal(&said, &self.key);
        let subject = self.region.announce(self.key.id());
        if let Err(error) = self.bus.publish(&subject, encode(&envelope)) {
            tracing::warn!(%error, "an announcement was not sent; it is said again");
        }
    }

    /// Takes an answer down; only what is news is logged.
    fn answered(&mut self, answer: Answer) {
        let Answer { verdict, detail, .. } = answer;
        self.joined |= matches!(verdict, Verdict::Joined | Verdict::Heard | Verdict::Leaving);
        if self.last.replace(verdict) == Some(verdict) {
            return;
        }
        let (backend, verdict_name) = (&self.spec.backend, verdict.as_str());
        if verdict.is_success() {
            tracing::info!(backend.id = %backend, verdict = verdict_name, "announced");
        } else {
            tracing::error!(backend.id = %backend, verdict = verdict_name, detail, "refused");
        }
    }

    /// Whether the engine answers. Nothing is said for one that does not: it then counts as
    /// silent and is drained.
    async fn is_engine_well(&self) -> bool {
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = self.health.clone();
        let exchange = async {
            let answer = self.http.request(request).await.ok()?;
            let status = answer.status();
            Limited::new(answer.into_body(), MAX_HEALTH_BYTES).collect().await.ok()?;
            // One without that route answers all the same.
            (status.is_success() || status == http::StatusCode::NOT_FOUND).then_some(())
        };
        let well = tokio::time::timeout(HEALTH_LIMIT, exchange).await.ok().flatten().is_some();
        if !well {
            tracing::warn!(backend.id = %self.spec.backend, "the engine does not answer");
        }
        well
    }
}

/// The next answer. What is lost is made up for by the next announcement's answer.
async fn next(answers: &mut Subscription) -> Answer {
    loop {
        match answers.next().await {
            Some(Delivery::Message(message)) => {
                if let Ok(answer) = decode(&message.payload) {
                    return answer;
                }
            }
            Some(Delivery::Gap(_)) => {}
            None => std::future::pending().await,
        }
    }
}
