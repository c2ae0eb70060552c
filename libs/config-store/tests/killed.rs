//! A process that is killed while it writes.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use config_store::{ConfigStore, EmbeddedConfig, EmbeddedStore, Metrics, Scope};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const KILLS: u32 = 50;

fn start(folder: &Path, round: u32) -> Child {
    Command::new(env!("CARGO_BIN_EXE_config-store-writer"))
        .arg(folder)
        .arg(round.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// The last count and revision of each document that was acknowledged.
type Acknowledged = HashMap<String, (u64, u64)>;

/// Lets a writer work for some changes, kills it, and notes everything it had acknowledged.
fn work_and_die(folder: &Path, round: u32, changes: u32, acknowledged: &mut Acknowledged) {
    let mut child = start(folder, round);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut note = |line: String| {
        let parts: Vec<u64> = line.split(' ').filter_map(|part| part.parse().ok()).collect();
        // The last line may have been cut off.
        if let [writer, count, revision] = parts[..] {
            let name = format!("{round}.{writer}.{}", count % 5);
            acknowledged.insert(name, (count, revision));
        }
    };
    for _ in 0..changes {
        note(lines.next().expect("the writer works until it is killed").unwrap());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // What it said before it died counts too; a line without its end does not.
    lines.map_while(Result::ok).for_each(note);
}

#[tokio::test]
async fn everything_acknowledged_survives_fifty_kills() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = SmallRng::seed_from_u64(50);
    let mut acknowledged = Acknowledged::new();
    let mut newest = 0;
    for round in 0..KILLS {
        // Some are killed in the midst of opening, most in the midst of writing.
        let changes = if round % 8 == 0 { 0 } else { rng.random_range(1..400) };
        work_and_die(folder.path(), round, changes, &mut acknowledged);
        let store =
            EmbeddedStore::open(EmbeddedConfig::new(folder.path()), Metrics::default()).unwrap();
        let found: HashMap<_, _> = store
            .list(Scope::All)
            .await
            .unwrap()
            .entries
            .into_iter()
            .map(|entry| (entry.key.name().to_owned(), entry))
            .collect();
        for (name, (count, revision)) in &acknowledged {
            let entry = found.get(name).unwrap_or_else(|| panic!("round {round}: {name} is lost"));
            let text = std::str::from_utf8(&entry.document.as_ref().unwrap().bytes).unwrap();
            assert!(text.parse::<u64>().unwrap() >= *count, "round {round}: {name}");
            assert!(entry.revision.0 >= *revision, "round {round}: {name}");
        }
        assert!(store.revision().0 >= newest, "round {round}");
        newest = store.revision().0;
    }
    assert!(newest > 1_000, "only {newest} changes were made");
}
