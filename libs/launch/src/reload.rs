//! Reading the config again while the process runs: on SIGHUP, and when its file has changed.
//!
//! First everything is read, checked and compared; only then, and as one step that cannot fail,
//! is it put in force in all services of the process. Whatever is wrong leaves the config that is
//! in force as it is, and is told by a line of the log and by metrics.

mod metrics;

use std::time::Duration;

use instrumentation::Registry;
use lifecycle::{Drain, HangUps};
use settings::SettingsError;
use tokio::time::MissedTickBehavior;

use self::metrics::{Metrics, Outcome};
use crate::Program;
use crate::source::{ConfigMark, Look, Reading, Source};

/// How often the file is looked at. A change is taken when two looks in a row have seen the same:
/// a file that is still being written may be valid, and say less than it should.
const LOOK: Duration = Duration::from_secs(1);

/// Puts a checked config in force, in all services of a process together. It cannot fail, and
/// leaves what was begun to end as it began.
pub type Commit<C> = Box<dyn FnMut(C) + Send>;

/// Keeps the newest valid config of a process in force.
pub struct Reloader<P: Program> {
    source: Source,
    mark: ConfigMark,
    commit: Commit<P::Config>,
    metrics: Metrics,
    /// What the file held when it was read last, and when it was looked at last.
    read: Look,
    seen: Look,
}

impl<P: Program> Reloader<P> {
    /// For a process that was started with the config that stands.
    ///
    /// # Errors
    /// The registry has its metrics already.
    pub fn new(
        source: Source,
        mark: ConfigMark,
        commit: Commit<P::Config>,
        registry: &Registry,
    ) -> anyhow::Result<Self> {
        let metrics = Metrics::register(registry)?;
        metrics.in_force(&mark.hash());
        let look = mark.look;
        Ok(Self { source, mark, commit, metrics, read: look, seen: look })
    }

    /// Reads the config again, and puts it in force if it is valid and needs no restart.
    ///
    /// # Errors
    /// What is wrong with it, with its place and key. Nothing of it is in force.
    pub async fn reload(&mut self) -> Result<(), SettingsError> {
        let source = self.source.clone();
        let reading = tokio::task::spawn_blocking(move || (source.look(), source.read::<P>()));
        let (look, read) = reading.await.unwrap_or_else(|error| {
            (self.read, Err(SettingsError::new("", format!("the check failed: {error}"))))
        });
        self.read = look;
        let taken = match read {
            Err(error) => Err((Outcome::Invalid, error)),
            Ok(Reading { config, mark }) => match self.mark.allows::<P>(&mark) {
                Err(error) => Err((Outcome::NeedsRestart, error)),
                Ok(()) => {
                    (self.commit)(config);
                    self.mark = mark;
                    Ok(())
                }
            },
        };
        match taken {
            Ok(()) => {
                let hash = self.mark.hash();
                self.metrics.in_force(&hash);
                self.metrics.reloaded(Outcome::Applied);
                tracing::info!(config.hash = hash, "config was read again and is in force");
                Ok(())
            }
            Err((outcome, error)) => {
                self.metrics.reloaded(outcome);
                tracing::error!(
                    %error, config.hash = self.mark.hash(),
                    "config was read again and is refused: the one before stays in force",
                );
                Err(error)
            }
        }
    }

    /// Reads it again whenever it is told to or the file has changed, until the drain.
    pub async fn run(mut self, mut hang_ups: HangUps, drain: Drain) {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // What came of it has been told.
            tokio::select! {
                () = drain.signaled() => return,
                () = hang_ups.next() => drop(self.reload().await),
                _ = looks.tick(), if self.source.file().is_some() => {
                    if self.has_changed().await {
                        drop(self.reload().await);
                    }
                }
            }
        }
    }

    /// Looks at the file. `true` once it has held something new for two looks.
    async fn has_changed(&mut self) -> bool {
        let source = self.source.clone();
        let Ok(look) = tokio::task::spawn_blocking(move || source.look()).await else {
            return false;
        };
        let rests = std::mem::replace(&mut self.seen, look) == look;
        rests && look != self.read
    }
}

#[cfg(test)]
mod tests;
