//! The course of a process: run, drain on a signal, wait for what is in flight, end.

use std::future::Future;
use std::time::Duration;

use instrumentation::Registry;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::tasks::TaskMetrics;
use crate::{Drain, LifecycleError, TaskHandle, TaskSpawner};

/// How long background tasks get after everything else has ended.
const BACKGROUND_LIMIT: Duration = Duration::from_secs(1);

/// Owns the tasks of a process and its way out.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    foreground: TaskSpawner,
    background: TaskSpawner,
    metrics: TaskMetrics,
}

/// Why a process was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// SIGTERM.
    Terminate,
    /// SIGINT, as from Ctrl-C.
    Interrupt,
    /// SIGHUP, as from a terminal that is closed, where it [ends](OnHangUp::End) the process.
    HangUp,
    /// [`Lifecycle::begin_drain`] was called by the program itself.
    Requested,
}

/// What SIGHUP does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHangUp {
    /// It begins the drain: there is nothing to be read again, and its default would cut open
    /// requests off.
    End,
    /// Nothing here: whoever has [`HangUps`] reads the config again.
    Reload,
}

/// SIGHUPs as they come. From its making on, none of them ends the process by itself.
#[derive(Debug)]
pub struct HangUps(Signal);

impl HangUps {
    /// Listens from now on.
    ///
    /// # Errors
    /// The signal handler cannot be installed.
    pub fn listen() -> Result<Self, LifecycleError> {
        signal(SignalKind::hangup()).map(Self).map_err(LifecycleError::Signals)
    }

    /// The next one. Several that came since the last one are one. Safe to give up waiting for.
    pub async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending().await
        }
    }
}

/// How a drain went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShutdownOutcome {
    /// Every task finished.
    Clean,
    /// These were aborted when the time was up: one name per task.
    Aborted(Vec<&'static str>),
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self::new()
    }
}

impl Lifecycle {
    /// No tasks yet, no metrics registered.
    pub fn new() -> Self {
        let metrics = TaskMetrics::new();
        Self {
            foreground: TaskSpawner::new(metrics.clone()),
            background: TaskSpawner::new(metrics.clone()),
            metrics,
        }
    }

    /// Adds `warmpath_tasks_running` and `warmpath_tasks_panicked_total`.
    ///
    /// # Errors
    /// The registry has metrics of these names.
    pub fn register(&self, registry: &Registry) -> Result<(), LifecycleError> {
        self.metrics.register(registry)
    }

    /// Starts tasks that a drain tells to finish and waits for.
    pub fn spawner(&self) -> TaskSpawner {
        self.foreground.clone()
    }

    /// Starts tasks that go on while the others drain and end after them.
    pub fn background(&self) -> TaskSpawner {
        self.background.clone()
    }

    /// As [`TaskSpawner::spawn`] on [`Lifecycle::spawner`].
    pub fn spawn<F>(&self, name: &'static str, future: F) -> TaskHandle
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.foreground.spawn(name, future)
    }

    /// The signal to finish.
    pub fn drain(&self) -> Drain {
        self.foreground.drain()
    }

    /// Gives the signal to finish. Idempotent.
    pub fn begin_drain(&self) {
        self.foreground.begin_drain();
    }

    /// Waits for SIGTERM, SIGINT, [perhaps](OnHangUp) SIGHUP, or [`Lifecycle::begin_drain`], and
    /// begins the drain. From then on a (second) such signal ends the process at once, with the
    /// exit code that a shell gives for it: 143, 130 or 129.
    ///
    /// # Errors
    /// The signal handlers cannot be installed.
    pub async fn run_until_signal(&self, on_hang_up: OnHangUp) -> Result<Stop, LifecycleError> {
        let mut signals = Signals::install(on_hang_up).map_err(LifecycleError::Signals)?;
        let drain = self.drain();
        let stop = tokio::select! {
            stop = signals.next() => stop,
            () = drain.signaled() => Stop::Requested,
        };
        tracing::info!(stop = ?stop, "draining");
        self.begin_drain();
        // The last stage is short, and waits for this task like for any other.
        let over = self.background.drain();
        self.background.spawn("second-signal", async move {
            let stop = tokio::select! {
                () = over.signaled() => return,
                stop = signals.next() => stop,
            };
            let code = match stop {
                Stop::HangUp => 129,
                Stop::Interrupt => 130,
                Stop::Terminate | Stop::Requested => 143,
            };
            std::process::exit(code);
        });
        Ok(stop)
    }

    /// Begins the drain if it has not begun, waits for the tasks at most `limit` and aborts those
    /// that remain, then ends the background tasks.
    pub async fn shutdown(&self, limit: Duration) -> ShutdownOutcome {
        let aborted = self.foreground.finish(limit).await;
        self.background.finish(BACKGROUND_LIMIT).await;
        if aborted.is_empty() {
            return ShutdownOutcome::Clean;
        }
        tracing::warn!(tasks = ?aborted, "aborted tasks that did not finish in time");
        ShutdownOutcome::Aborted(aborted)
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    on_hang_up: OnHangUp,
}

impl Signals {
    fn install(on_hang_up: OnHangUp) -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            on_hang_up,
        })
    }

    async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.terminate.recv() => Stop::Terminate,
            _ = self.interrupt.recv() => Stop::Interrupt,
            _ = self.hang_up.recv(), if self.on_hang_up == OnHangUp::End => Stop::HangUp,
        }
    }
}

#[cfg(test)]
mod tests;
