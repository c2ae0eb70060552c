use std::path::Path;
use std::sync::Arc;

use instrumentation::LogConfig;
use lifecycle::Lifecycle;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use settings::SecretRef;

use super::*;
use crate::sections::Folders;
use crate::{Fixed, Started};

/// A program with a setting of each kind.
struct Sample;

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct Raw {
    listen: u16,
    limit: u32,
    region: Region,
}

impl Default for Raw {
    fn default() -> Self {
        Self { listen: 1, limit: 1, region: Region::default() }
    }
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct Region {
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<SecretRef>,
}

impl Program for Sample {
    const NAME: &'static str = "sample";
    const FIXED: &'static [Fixed] = &[Fixed::Key("listen"), Fixed::Key("region")];
    type Raw = Raw;
    type Config = u32;

    fn check(raw: Raw, _: &Folders) -> Result<u32, SettingsError> {
        match raw.limit {
            0 => Err(SettingsError::new("limit", "must be at least 1")),
            limit => Ok(limit),
        }
    }

    fn log(_: &u32) -> &LogConfig {
        unreachable!("it is not started")
    }

    fn drain_timeout(_: &u32) -> Duration {
        unreachable!("it is not started")
    }

    async fn start(_: u32) -> anyhow::Result<Started<u32>> {
        unreachable!("it is not started")
    }
}

/// A config file with what is in force of it.
struct Bed {
    folder: tempfile::TempDir,
    source: Source,
    registry: Registry,
    in_force: Arc<Mutex<Vec<u32>>>,
}

impl Bed {
    fn start(text: &str) -> (Self, Reloader<Sample>) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sample.toml");
        std::fs::write(&file, text).unwrap();
        let source = Source::new(Some(file), Vec::new());
        let Reading { config, mark } = source.read::<Sample>().unwrap();
        let (registry, in_force) = (Registry::new(), Arc::new(Mutex::new(vec![config])));
        let log = in_force.clone();
        let commit = Box::new(move |config| log.lock().push(config));
        let reloader = Reloader::new(source.clone(), mark, commit, &registry).unwrap();
        (Self { folder, source, registry, in_force }, reloader)
    }

    fn path(&self) -> &Path {
        self.source.file().unwrap()
    }

    fn write(&self, text: &str) {
        std::fs::write(self.path(), text).unwrap();
    }

    #[track_caller]
    fn assert_metric(&self, line: &str) {
        let page = instrumentation::encode(&self.registry);
        assert!(page.lines().any(|l| l == line), "{line} is not in:\n{page}");
    }
}

#[tokio::test]
async fn a_valid_config_is_put_in_force_and_a_wrong_one_changes_nothing() {
    let (bed, mut reloader) = Bed::start("limit = 1");
    bed.write("limit = 2");
    reloader.reload().await.unwrap();
    let hash = format!("warmpath_config_info{{hash=\"{}\"}} 1", reloader.mark.hash());
    bed.assert_metric(&hash);
    for (text, error) in [
        ("limit = 3\nlimt = 4", "unknown key; did you mean `limit`?"),
        ("limit = 'many'", "limit: wrong type"),
        ("\nlimit = 0", "limit: must be at least 1 (line 2)"),
        ("limit =", "line 1"),
    ] {
        bed.write(text);
        let told = reloader.reload().await.unwrap_err().to_string();
        assert!(told.contains("sample.toml: ") && told.contains(error), "{told}");
    }
    bed.assert_metric("warmpath_config_reloads_total{result=\"invalid\"} 4");
    bed.assert_metric("warmpath_config_stale 1");
    bed.assert_metric(&hash);
    std::fs::remove_file(bed.path()).unwrap();
    let told = reloader.reload().await.unwrap_err().to_string();
    assert!(told.contains("cannot be read"), "{told}");
    assert_eq!(*bed.in_force.lock(), [1, 2]);
    bed.write("limit = 5");
    reloader.reload().await.unwrap();
    assert_eq!(*bed.in_force.lock(), [1, 2, 5]);
    bed.assert_metric("warmpath_config_reloads_total{result=\"applied\"} 2");
    bed.assert_metric("warmpath_config_stale 0");
    let page = instrumentation::encode(&bed.registry);
    assert_eq!(page.matches("warmpath_config_info{").count(), 1, "of the one in force alone");
}

#[tokio::test]
async fn what_needs_a_restart_refuses_all_and_is_named() {
    let (bed, mut reloader) = Bed::start("listen = 1\nlimit = 1");
    bed.write("limit = 7\nlisten = 2");
    let told = reloader.reload().await.unwrap_err().to_string();
    assert!(told.contains("sample.toml: listen: ") && told.contains("(line 2)"), "{told}");
    assert!(told.contains("restart"), "{told}");
    bed.write("limit = 7\nlisten = 2\n[region]\nsecret = { env = 'PATH' }");
    let told = reloader.reload().await.unwrap_err().to_string();
    assert!(told.contains("listen: ") && told.contains("so are region.secret"), "{told}");
    assert_eq!(*bed.in_force.lock(), [1]);
    bed.assert_metric("warmpath_config_reloads_total{result=\"needs_restart\"} 2");
    bed.write("limit = 7");
    reloader.reload().await.unwrap();
    assert_eq!(*bed.in_force.lock(), [1, 7], "it is set back");
}

#[tokio::test]
async fn another_secret_of_the_region_in_the_same_file_needs_a_restart() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    let write = |text: &str| {
        std::fs::write(&secret, text).unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    write("one");
    let text = format!("region.secret = {{ file = '{}' }}", secret.display());
    let (_bed, mut reloader) = Bed::start(&text);
    reloader.reload().await.unwrap();
    write("two");
    let told = reloader.reload().await.unwrap_err().to_string();
    assert!(told.contains("region.secret: ") && !told.contains("two"), "{told}");
    write("one");
    reloader.reload().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_changed_file_is_read_when_it_rests_and_once() {
    let (bed, mut reloader) = Bed::start("limit = 1");
    assert!(!reloader.has_changed().await);
    bed.write("limit = 2");
    assert!(!reloader.has_changed().await, "it may still be written");
    bed.write("limit = 3");
    assert!(!reloader.has_changed().await);
    assert!(reloader.has_changed().await);
    reloader.reload().await.unwrap();
    assert!(!reloader.has_changed().await);
    // A wrong one is told of once.
    bed.write("limit = 0");
    assert!(!reloader.has_changed().await && reloader.has_changed().await);
    reloader.reload().await.unwrap_err();
    assert!(!reloader.has_changed().await && !reloader.has_changed().await);
    assert_eq!(*bed.in_force.lock(), [1, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_file_behind_links_that_are_swapped_is_seen_to_change() {
    let (bed, mut reloader) = Bed::start("limit = 1");
    // As a mounted ConfigMap: the file is a link into a folder that is a link to another.
    let folder = |name: &str| bed.folder.path().join(name);
    for (version, text) in [("v1", "limit = 1"), ("v2", "limit = 2")] {
        std::fs::create_dir(folder(version)).unwrap();
        std::fs::write(folder(version).join("sample.toml"), text).unwrap();
    }
    std::os::unix::fs::symlink(folder("v1"), folder("data")).unwrap();
    std::fs::remove_file(bed.path()).unwrap();
    std::os::unix::fs::symlink(folder("data").join("sample.toml"), bed.path()).unwrap();
    assert!(!reloader.has_changed().await && !reloader.has_changed().await, "it says the same");
    std::os::unix::fs::symlink(folder("v2"), folder("next")).unwrap();
    std::fs::rename(folder("next"), folder("data")).unwrap();
    assert!(!reloader.has_changed().await && reloader.has_changed().await);
}

#[tokio::test(start_paused = true)]
async fn the_file_is_followed_until_the_drain() {
    let (bed, reloader) = Bed::start("limit = 1");
    let lifecycle = Lifecycle::new();
    let running = reloader.run(HangUps::listen().unwrap(), lifecycle.drain());
    lifecycle.background().spawn("config-reload", running);
    bed.write("limit = 4");
    while *bed.in_force.lock() != [1, 4] {
        tokio::time::sleep(LOOK).await;
    }
    assert_eq!(lifecycle.shutdown(Duration::from_secs(9)).await, lifecycle::ShutdownOutcome::Clean);
    bed.write("limit = 5");
    tokio::time::sleep(LOOK * 5).await;
    assert_eq!(*bed.in_force.lock(), [1, 4]);
}
