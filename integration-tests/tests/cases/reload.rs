//! A config file that changes while the gateway serves.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use domain::BackendState;
use integration_tests::client::Client;
use integration_tests::cluster::MODEL;
use integration_tests::metrics::Metrics;
use integration_tests::region::Region;
use integration_tests::scenarios::chat;
use integration_tests::scripted::{
    DONE, Gate, ScriptedEngine, Step, part, short, stream_end, stream_head, token,
};
use integration_tests::wait::{PATIENCE, eventually};
use launch::{Reading, Reloader, Source};
use lifecycle::ShutdownOutcome;
use settings::SettingsError;
use warmpath::gateway::Gateway;
use warmpath::serve::Serve;

const BASE: &str = r#"
edge.listen = "127.0.0.1:0"
edge.drain_notice = "0s"
admin.listen = "127.0.0.1:0"
telemetry.probe_interval = "50ms"
telemetry.metrics_interval = "50ms"
tenants = [{ id = "anonymous", debug_headers = true }]
"#;

/// A gateway that was started from a file, as the binary starts.
struct Served {
    gateway: Gateway,
    reloader: Reloader<Serve>,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

/// A file with these backends, and whatever else.
fn text(backends: &[(&str, &ScriptedEngine)], more: &str) -> String {
    let mut text = BASE.to_owned();
    for (id, engine) in backends {
        writeln!(text, "[[backends]]\nid = \"{id}\"\nurl = \"{}\"", engine.url()).unwrap();
    }
    text + more
}

impl Served {
    async fn start(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("warmpath.toml");
        std::fs::write(&file, text).unwrap();
        let source = Source::new(Some(file.clone()), Vec::new());
        let Reading { config, mark } = source.read::<Serve>().unwrap_or_else(|e| panic!("{e}"));
        let gateway = Gateway::start(config).await.unwrap();
        let reload = gateway.reload();
        let commit = Box::new(move |config| reload.apply(config));
        let reloader = Reloader::new(source, mark, commit, gateway.registry()).unwrap();
        gateway.ready(PATIENCE).await.unwrap();
        Self { gateway, reloader, file, _folder: folder }
    }

    /// Writes the file and has it read.
    async fn reload(&mut self, text: &str) -> Result<(), SettingsError> {
        std::fs::write(&self.file, text).unwrap();
        self.reloader.reload().await
    }

    fn client(&self) -> Client {
        Client::new(self.gateway.edge())
    }

    fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        Metrics::new(instrumentation::encode(self.gateway.registry())).sum(name, labels)
    }

    /// Waits until these backends are there and ready, and no others.
    async fn await_backends(&self, names: &[&str]) {
        let as_named = || async {
            let fleet = self.gateway.routing().fleet();
            let mut ready: Vec<_> =
                fleet.backends.iter().map(|b| (b.id.as_str(), b.state)).collect();
            ready.sort_unstable_by_key(|(id, _)| *id);
            ready.iter().map(|(id, _)| *id).eq(names.iter().copied())
                && ready.iter().all(|(_, state)| *state == BackendState::Ready)
        };
        eventually(PATIENCE, "the router's backends", as_named).await;
    }

    async fn stop(self) {
        assert_eq!(self.gateway.stop(PATIENCE).await, ShutdownOutcome::Clean);
    }
}

async fn engine() -> ScriptedEngine {
    let engine = ScriptedEngine::with(Vec::new()).await;
    engine.answer_by(short);
    engine
}

#[tokio::test]
async fn a_reload_ends_the_probes_of_engines_that_left_and_a_hundred_leave_one_prober_each() {
    let (a, b, c, moved) = (engine().await, engine().await, engine().await, engine().await);
    let mut served = Served::start(&text(&[("a", &a), ("b", &b)], "")).await;
    let tasks = served.metric("warmpath_tasks_running", &[]);
    served.reload(&text(&[("c", &c)], "")).await.unwrap();
    served.await_backends(&["c"]).await;
    let quiet = (a.probes(), b.probes(), a.asked_count(), b.asked_count());
    // Many intervals of the one that is there.
    c.await_probes(c.probes() + 10).await;
    for n in 0..10 {
        let reply = served.client().chat(chat(&format!("x {n}"), 1, false)).await;
        assert_eq!((reply.status.as_u16(), reply.backend()), (200, "c"));
    }
    assert_eq!((a.probes(), b.probes(), a.asked_count(), b.asked_count()), quiet);

    // The name of before at another address, a hundred times to and fro.
    let (there, here) = (text(&[("a", &moved)], ""), text(&[("a", &a), ("c", &c)], ""));
    for _ in 0..50 {
        served.reload(&there).await.unwrap();
        served.reload(&here).await.unwrap();
    }
    served.reload(&there).await.unwrap();
    served.await_backends(&["a"]).await;
    let probers = || served.metric("warmpath_tasks_running", &[("task", "telemetry-prober")]);
    eventually(PATIENCE, "one prober for the one engine", || async { probers() == 1.0 }).await;
    let flat = || async { served.metric("warmpath_tasks_running", &[]) <= tasks };
    eventually(PATIENCE, "tasks are as many as at the start", flat).await;
    let quiet = (a.probes(), b.probes(), c.probes());
    moved.await_probes(moved.probes() + 10).await;
    assert_eq!((a.probes(), b.probes(), c.probes()), quiet);
    let applied = served.metric("warmpath_config_reloads_total", &[("result", "applied")]);
    assert_eq!(applied, 102.0);
    served.stop().await;
}

#[tokio::test]
async fn a_bad_file_changes_nothing_and_a_good_one_everything_but_requests_under_way() {
    let (old, new, gate) = (engine().await, engine().await, Gate::default());
    let of_test = gate.clone();
    old.answer_by(move |asked| match asked.json()["stream"] == true {
        true => vec![
            stream_head(),
            part(&token("a")),
            Step::Await(of_test.clone()),
            part(&token("b")),
            part(DONE),
            stream_end(),
        ],
        false => short(asked),
    });
    let before = text(&[("old", &old)], "");
    let mut served = Served::start(&before).await;
    let mut open = served.client().open("/v1/chat/completions", &chat("x", 2, true)).await;
    assert!(open.read_until(b"\"a\"", 1).await);

    let more = format!("[[edge.aliases]]\nid = \"other\"\nmodels = [\"{MODEL}\"]\n");
    let after = text(&[("new", &new)], &more);
    for (bad, told) in [
        (format!("{after}[router]\npolcy = \"prefix\"\n"), "router.polcy: unknown key"),
        (format!("{after}[router]\npolicy = \"luck\"\n"), "router.policy: unknown value"),
        (after.replace("[[backends]]", "[[backends"), "warmpath.toml: line "),
        (after.replace("admin.listen = \"127.0.0.1:0\"", ""), "admin.listen: it is taken only"),
    ] {
        let error = served.reload(&bad).await.unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
    let other = chat("x", 1, false).replace(MODEL, "other");
    assert_eq!(served.client().chat(other.clone()).await.status, 404);
    let reply = served.client().chat(chat("x", 1, false)).await;
    assert_eq!(reply.backend(), "old");
    assert_eq!(served.metric("warmpath_config_stale", &[]), 1.0);

    served.reload(&after).await.unwrap();
    served.await_backends(&["new"]).await;
    let reply = served.client().chat(other).await;
    assert_eq!((reply.status.as_u16(), reply.backend()), (200, "new"));
    assert_eq!(served.metric("warmpath_config_stale", &[]), 0.0);
    // It began with an engine that has left meanwhile, and ends there.
    assert_eq!(old.in_course(), 1);
    gate.open();
    assert!(open.read_until(DONE.trim_end().as_bytes(), 1).await);
    assert!(open.seen().contains("\"b\""), "{}", open.seen());
    drop(open);
    let none = || async { served.metric("warmpath_edge_requests_in_flight", &[]) == 0.0 };
    eventually(Duration::from_secs(20), "no request is open", none).await;
    served.stop().await;
}

#[tokio::test]
async fn processes_apart_take_another_file_each_and_serve_on() {
    let (stored, filed) = (engine().await, engine().await);
    let mut region = Region::start(1, 1, &[("stored", stored.url())], "").await;
    let of_file = format!("[[backends]]\nid = \"filed\"\nurl = \"{}\"", filed.url());
    region.telemetry.reload_with(&of_file);
    let both = || async { region.chosen_from(0).await == ["filed", "stored"] };
    eventually(PATIENCE, "the router's choice", both).await;
    region.routers[0].reload_with("router.policy = \"round-robin\"");
    let client = region.client(0);
    let mut chosen = Vec::new();
    for _ in 0..4 {
        chosen.push(client.chat(chat("the same", 1, false)).await.backend().to_owned());
    }
    assert!(chosen[0] != chosen[1] && chosen[..2] == chosen[2..], "{chosen:?}");
    let alias = format!("[[edge.aliases]]\nid = \"other\"\nmodels = [\"{MODEL}\"]");
    region.edges[0].reload_with(&alias);
    let other = chat("x", 1, false).replace(MODEL, "other");
    assert_eq!(client.chat(other).await.status, 200);
    region.telemetry.reload_with("backends = []");
    let one = || async { region.chosen_from(0).await == ["stored"] };
    eventually(PATIENCE, "the router's choice", one).await;
}
