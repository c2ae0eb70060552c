//! Child processes of a bench, with their CPU time and memory as the kernel counts them.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;

/// A running copy of this binary with other arguments. Killed when dropped.
pub(crate) struct ChildProcess {
    name: &'static str,
    child: Child,
}

/// What a process has used so far.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Used {
    /// User and system CPU time.
    pub(crate) cpu_seconds: f64,
    /// Resident memory.
    pub(crate) rss_bytes: u64,
}

/// The kernel's clock ticks per second in `/proc/*/stat`: 100 on every Linux that Rust supports
/// (`USER_HZ`), whatever the kernel's own tick is.
const TICKS_PER_SECOND: f64 = 100.0;

/// Bytes in a page of `/proc/*/statm`; 4 KiB on x86-64, and what the bench reports elsewhere is
/// labelled by the machine it names.
const PAGE_BYTES: u64 = 4096;

impl ChildProcess {
    /// Starts this binary with `args`; what it prints goes to `log`.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub(crate) fn start(name: &'static str, args: &[String], log: &Path) -> anyhow::Result<Self> {
        let binary = std::env::current_exe().context("the path of this binary")?;
        let out = std::fs::File::create(log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let child = Command::new(binary)
            .args(args)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name, child })
    }

    /// Waits until `url` answers 200.
    ///
    /// # Errors
    /// When the process ends first, or does not answer within 15 s.
    pub(crate) async fn ready(&mut self, url: &str) -> anyhow::Result<()> {
        let client = crate::load::LoadClient::new(None);
        for _ in 0..150 {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended at start: {status}", self.name);
            }
            if client.get_ok(url).await {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("{} did not answer {url} within 15 s", self.name)
    }

    /// CPU time and memory so far.
    ///
    /// # Errors
    /// When the kernel's files cannot be read: not Linux, or the process is gone.
    pub(crate) fn used(&self) -> anyhow::Result<Used> {
        let folder = format!("/proc/{}", self.child.id());
        let stat = std::fs::read_to_string(format!("{folder}/stat"))?;
        // The name in parentheses may hold spaces: fields are counted from its end.
        let (_, fields) = stat.rsplit_once(')').context("no name in /proc/PID/stat")?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok());
        let (user, system) = (ticks(11), ticks(12));
        let pages = std::fs::read_to_string(format!("{folder}/statm"))?;
        let resident = pages.split_whitespace().nth(1).and_then(|f| f.parse::<u64>().ok());
        match (user, system, resident) {
            (Some(user), Some(system), Some(resident)) => Ok(Used {
                cpu_seconds: (user + system) / TICKS_PER_SECOND,
                rss_bytes: resident * PAGE_BYTES,
            }),
            _ => bail!("{folder} is not in the expected form"),
        }
    }

    /// Open descriptors.
    ///
    /// # Errors
    /// When the kernel's files cannot be read: not Linux, or the process is gone.
    pub(crate) fn descriptors(&self) -> anyhow::Result<usize> {
        let folder = format!("/proc/{}/fd", self.child.id());
        Ok(std::fs::read_dir(&folder).with_context(|| format!("cannot read {folder}"))?.count())
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Already gone is as good as killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
