//! Supervised tasks: named, counted, waited for, and their panics seen.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use instrumentation::Registry;
use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGaugeVec, Opts};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::LifecycleError;

/// How long aborted tasks get to drop what they hold.
const ABORT_LIMIT: Duration = Duration::from_secs(1);

tokio::task_local! {
    static NAME: &'static str;
}

/// The name of the supervised task that runs here, if one does.
pub(crate) fn current_name() -> Option<&'static str> {
    NAME.try_with(|name| *name).ok()
}

/// Tells that it is time to finish. A cheap handle.
#[derive(Clone, Debug)]
pub struct Drain(CancellationToken);

impl Drain {
    /// Whether the signal was given.
    pub fn is_draining(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits for the signal; returns at once when it was given before.
    pub async fn signaled(&self) {
        self.0.cancelled().await;
    }
}

/// Series over all supervised tasks.
#[derive(Clone, Debug)]
pub(crate) struct TaskMetrics {
    running: IntGaugeVec,
    panicked: IntCounterVec,
}

impl TaskMetrics {
    pub(crate) fn new() -> Self {
        let running = Opts::new("warmpath_tasks_running", "Supervised tasks that run.");
        let panicked =
            Opts::new("warmpath_tasks_panicked_total", "Supervised tasks that ended in a panic.");
        Self {
            running: IntGaugeVec::new(running, &["task"]).expect("name and label are valid"),
            panicked: IntCounterVec::new(panicked, &["task"]).expect("name and label are valid"),
        }
    }

    pub(crate) fn register(&self, registry: &Registry) -> Result<(), LifecycleError> {
        registry.register(Box::new(self.running.clone()))?;
        Ok(registry.register(Box::new(self.panicked.clone()))?)
    }
}

/// Starts tasks that are waited for at the end of the process. A cheap handle.
#[derive(Clone, Debug)]
pub struct TaskSpawner {
    stage: Arc<Stage>,
    metrics: TaskMetrics,
}

/// Tasks that are told to finish, waited for and, past the limit, aborted together.
#[derive(Debug)]
struct Stage {
    drain: CancellationToken,
    tracker: TaskTracker,
    live: Mutex<HashMap<u64, (&'static str, AbortHandle)>>,
    next_id: AtomicU64,
}

impl TaskSpawner {
    pub(crate) fn new(metrics: TaskMetrics) -> Self {
        let stage = Stage {
            drain: CancellationToken::new(),
            tracker: TaskTracker::new(),
            live: Mutex::default(),
            next_id: AtomicU64::new(0),
        };
        Self { stage: Arc::new(stage), metrics }
    }

    /// Starts a task. `name` becomes a label: use one per kind of task. A panic ends only the
    /// task; it is counted, and logged where [`crate::log_panics`] was called. Dropping the
    /// handle leaves the task running.
    pub fn spawn<F>(&self, name: &'static str, future: F) -> TaskHandle
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let id = self.stage.next_id.fetch_add(1, Ordering::Relaxed);
        let entry = Entry::new(self, name, id);
        let supervised = async move {
            // Held by the task, so that it goes however the task ends.
            let entry = entry;
            let outcome = AssertUnwindSafe(NAME.scope(name, future)).catch_unwind().await;
            if outcome.is_err() {
                entry.spawner.metrics.panicked.with_label_values(&[name]).inc();
            }
        };
        // The lock is held over both, so that a task that ends at once is entered before it is
        // struck off.
        let mut live = self.stage.live.lock();
        let abort = self.stage.tracker.spawn(supervised).abort_handle();
        live.insert(id, (name, abort.clone()));
        TaskHandle(abort)
    }

    /// The signal for this spawner's tasks to finish.
    pub fn drain(&self) -> Drain {
        Drain(self.stage.drain.clone())
    }

    pub(crate) fn begin_drain(&self) {
        self.stage.drain.cancel();
    }

    /// Signals the drain and waits for all tasks, at most `limit`. Those that remain are aborted;
    /// their names are returned.
    pub(crate) async fn finish(&self, limit: Duration) -> Vec<&'static str> {
        self.begin_drain();
        self.stage.tracker.close();
        if tokio::time::timeout(limit, self.stage.tracker.wait()).await.is_ok() {
            return Vec::new();
        }
        let remaining: Vec<_> = self.stage.live.lock().values().cloned().collect();
        for (_, abort) in &remaining {
            abort.abort();
        }
        // What the tasks held is dropped before the process goes on, unless one of them blocks.
        let _ = tokio::time::timeout(ABORT_LIMIT, self.stage.tracker.wait()).await;
        remaining.into_iter().map(|(name, _)| name).collect()
    }
}

/// A started task.
#[derive(Clone, Debug)]
pub struct TaskHandle(AbortHandle);

impl TaskHandle {
    /// Ends the task at its next wait.
    pub fn abort(&self) {
        self.0.abort();
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

/// A live task's place in the list and in the gauge.
struct Entry {
    spawner: TaskSpawner,
    name: &'static str,
    id: u64,
}

impl Entry {
    fn new(spawner: &TaskSpawner, name: &'static str, id: u64) -> Self {
        spawner.metrics.running.with_label_values(&[name]).inc();
        Self { spawner: spawner.clone(), name, id }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.spawner.metrics.running.with_label_values(&[self.name]).dec();
        self.spawner.stage.live.lock().remove(&self.id);
    }
}
