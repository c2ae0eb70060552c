//! The side of edges and routers: watches for ever, and holds the last state.
//!
//! One task watches, another renews the member lease, so that neither waits for the other. A
//! watch that ends, fails or falls silent is begun again from where it has come to; until then
//! everything stands as it is, and [`Staleness`] tells for how long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use domain::{Fleet, Moment};
use futures_util::{FutureExt, StreamExt};
use lifecycle::{Drain, TaskSpawner};
use prometheus::IntGauge;
use replication::{Member, MemberList};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::roll::Roll;
use crate::view::{Changed, View};
use crate::{ConfigFeed, Documents, Event, FeedError, HEARTBEAT_EVERY, Metrics};

/// A watch that says nothing for so long is broken: eight heartbeats.
const SILENCE: Duration = HEARTBEAT_EVERY.saturating_mul(8);

/// The pause after the first failed watch; doubled up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Events that are taken before what they changed is shown.
const GATHER: usize = 4096;

/// How often it is looked whether the member lease has to be renewed.
const RENEW_CHECK: Duration = Duration::from_millis(100);

/// What a client needs.
pub struct ClientDeps {
    /// The way to telemetry.
    pub feed: Arc<dyn ConfigFeed>,
    /// Starts its tasks.
    pub spawner: TaskSpawner,
    /// Its series.
    pub metrics: Metrics,
    /// This process, if it is to be on the member list.
    pub member: Option<Member>,
}

/// A client that has yet to be started.
pub struct Client {
    deps: ClientDeps,
    documents: watch::Sender<Documents>,
    fleet: watch::Sender<Arc<Fleet>>,
    roll: Arc<Roll>,
    staleness: Staleness,
}

/// What a client holds. Cheap to clone; everything in it is the newest that was heard.
#[derive(Clone)]
pub struct Feed {
    documents: watch::Receiver<Documents>,
    fleet: watch::Receiver<Arc<Fleet>>,
    roll: Arc<Roll>,
    staleness: Staleness,
}

/// For how long telemetry was not heard.
#[derive(Clone, Debug)]
pub struct Staleness {
    /// Nanoseconds of the last sign.
    heard: Arc<AtomicU64>,
    /// Whether there was any.
    ever: Arc<AtomicU64>,
}

impl Staleness {
    /// Nothing was heard yet; counts from `now`.
    fn new(now: Moment) -> Self {
        Self { heard: Arc::new(AtomicU64::new(now.as_nanos())), ever: Arc::default() }
    }

    /// Time since telemetry was heard last; since the start where it never was.
    pub fn age(&self, now: Moment) -> Duration {
        now.since(Moment::from_nanos(self.heard.load(Ordering::Relaxed)))
    }

    /// Whether the desired state was ever heard whole.
    pub fn heard_ever(&self) -> bool {
        self.ever.load(Ordering::Relaxed) != 0
    }

    fn heard(&self, now: Moment) {
        self.heard.store(now.as_nanos(), Ordering::Relaxed);
        self.ever.store(1, Ordering::Relaxed);
    }
}

impl Feed {
    /// The desired state, and every later one.
    pub fn documents(&self) -> watch::Receiver<Documents> {
        self.documents.clone()
    }

    /// The observed state, and every later one. Its revision is this process's own count, which
    /// grows over restarts of telemetry. Empty, at revision 0, until a whole one was heard.
    pub fn fleet(&self) -> watch::Receiver<Arc<Fleet>> {
        self.fleet.clone()
    }

    /// The services of the region, and every later list.
    pub fn members(&self) -> watch::Receiver<MemberList> {
        self.roll.subscribe()
    }

    /// A list that a peer sent; an older one than ours changes nothing.
    pub fn adopt(&self, list: MemberList) {
        self.roll.adopt(list);
    }

    /// For how long telemetry was not heard.
    pub fn staleness(&self) -> &Staleness {
        &self.staleness
    }
}

impl Client {
    /// A client that knows nothing yet.
    pub fn new(mut deps: ClientDeps) -> Self {
        let roll = Arc::new(Roll::new(deps.member.take()));
        Self {
            documents: watch::Sender::new(Documents::default()),
            fleet: watch::Sender::new(Arc::default()),
            roll,
            staleness: Staleness::new(lifecycle::monotonic()),
            deps,
        }
    }

    /// What it will hold.
    pub fn feed(&self) -> Feed {
        Feed {
            documents: self.documents.subscribe(),
            fleet: self.fleet.subscribe(),
            roll: self.roll.clone(),
            staleness: self.staleness.clone(),
        }
    }

    /// Starts watching, and renewing, until the spawner's drain.
    pub fn start(self) -> Feed {
        let feed = self.feed();
        let spawner = self.deps.spawner.clone();
        let drain = spawner.drain();
        if self.roll.me().is_some() {
            let (port, roll) = (self.deps.feed.clone(), self.roll.clone());
            let name_taken = self.deps.metrics.name_taken.clone();
            spawner.spawn("feed-member", renew(port, roll, name_taken, drain.clone()));
        }
        spawner.spawn("feed-watch", self.run(drain));
        feed
    }

    async fn run(self, drain: Drain) {
        let mut view = View::default();
        let watching = async {
            let mut failures = 0;
            loop {
                let end = self.follow(&mut view, &mut failures).await;
                self.deps.metrics.live.set(0);
                if failures == 0 {
                    tracing::info!(reason = end, "the watch of telemetry ended, beginning another");
                } else if failures == 1 {
                    tracing::warn!(reason = end, "telemetry is not heard; the last state stands");
                }
                tokio::time::sleep(pause(failures)).await;
                failures += 1;
            }
        };
        tokio::select! {
            () = drain.signaled() => {}
            () = self.show_staleness() => {}
            () = watching => {}
        }
    }

    /// One watch, until it ends; returns why.
    async fn follow(&self, view: &mut View, failures: &mut u32) -> String {
        self.deps.metrics.watches.inc();
        view.begin();
        let mut events = self.deps.feed.watch(view.position()).fuse();
        loop {
            let next = tokio::time::timeout(SILENCE, events.next()).await;
            let event = match next {
                Ok(Some(Ok(event))) => event,
                Ok(Some(Err(error))) => return error.to_string(),
                Ok(None) => return "it was closed".to_owned(),
                Err(_) => return format!("nothing was heard for {SILENCE:?}"),
            };
            let mut changed = self.take(view, event, failures);
            for _ in 0..GATHER {
                if changed.behind {
                    break;
                }
                let Some(Some(Ok(event))) = events.next().now_or_never() else { break };
                changed.and(self.take(view, event, failures));
            }
            let behind = changed.behind;
            self.show(view, changed);
            if behind {
                return "telemetry has more than it sent".to_owned();
            }
        }
    }

    fn take(&self, view: &mut View, event: Event, failures: &mut u32) -> Changed {
        let is_heartbeat = matches!(event, Event::Heartbeat(_));
        let changed = view.apply(event);
        if is_heartbeat && !changed.behind {
            if *failures > 1 {
                tracing::info!("telemetry is heard again");
            }
            *failures = 0;
            self.deps.metrics.live.set(1);
            // A telemetry that has not read its own store yet says nothing of keys.
            if !view.documents().position.store.is_empty() {
                self.staleness.heard(lifecycle::monotonic());
            }
        }
        changed
    }

    fn show(&self, view: &View, changed: Changed) {
        let metrics = &self.deps.metrics;
        metrics.undecoded.inc_by(changed.undecoded);
        if changed.documents {
            let revision = view.documents().position.revision;
            metrics.revision.set(i64::try_from(revision).unwrap_or(i64::MAX));
            self.documents.send_replace(view.documents().clone());
        }
        if changed.fleet {
            self.fleet.send_replace(Arc::new(view.fleet()));
        }
        if let Some(list) = changed.members {
            self.roll.adopt(list);
        }
        let members = self.roll.subscribe().borrow().members.len();
        metrics.members.set(i64::try_from(members).unwrap_or(i64::MAX));
    }

    async fn show_staleness(&self) {
        let mut ticks = tokio::time::interval(HEARTBEAT_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let age = self.staleness.age(lifecycle::monotonic());
            self.deps.metrics.staleness.set(age.as_secs_f64());
        }
    }
}

/// Renews the lease until the drain, then gives it back.
async fn renew(feed: Arc<dyn ConfigFeed>, roll: Arc<Roll>, name_taken: IntGauge, drain: Drain) {
    let mut ticks = tokio::time::interval(RENEW_CHECK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_refused = false;
    loop {
        tokio::select! {
            () = drain.signaled() => break,
            _ = ticks.tick() => {}
        }
        let Some(due) = roll.due(lifecycle::monotonic()) else { continue };
        let answer = tokio::select! {
            () = drain.signaled() => break,
            answer = feed.renew(due) => answer,
        };
        match answer {
            Ok(list) => {
                name_taken.set(0);
                is_refused = false;
                if let Some(list) = list {
                    roll.adopt(list);
                }
            }
            // Both are told once: only people can change it.
            Err(error @ FeedError::NameTaken) => {
                if name_taken.get() == 0 {
                    tracing::error!(%error, "this process is no member of its region");
                }
                name_taken.set(1);
            }
            Err(error @ FeedError::Refused(_)) if !is_refused => {
                is_refused = true;
                tracing::error!(%error, "this process is no member of its region");
            }
            Err(error) => tracing::debug!(%error, "the member lease was not renewed"),
        }
    }
    let Some(me) = roll.me() else { return };
    let gone: Result<(), FeedError> = feed.leave(me).await;
    if let Err(error) = gone {
        tracing::debug!(%error, "the member lease ends by itself");
    }
}

/// The pause before a watch: none at first, then doubled up to the longest, and drawn between half
/// and all of that, so that telemetry is not met by everybody at once when it comes back.
fn pause(failures: u32) -> Duration {
    if failures == 0 {
        return Duration::ZERO;
    }
    let longest = FIRST_PAUSE.saturating_mul(1 << (failures - 1).min(16)).min(LONGEST_PAUSE);
    longest.mul_f64(0.5 + 0.5 * drawn())
}

/// A number from 0 to 1.
fn drawn() -> f64 {
    let mut bytes = [0; 4];
    // Without a random source all pauses are longest.
    getrandom::fill(&mut bytes)
        .map_or(1.0, |()| f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX))
}
