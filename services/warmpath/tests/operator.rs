//! The operator's commands against an admin API on loopback.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use config_store::{Limits, MemoryStore};
use domain::Fleet;
use lifecycle::Lifecycle;
use replication::MemberList;
use serde_json::Value;
use settings::SecretRef;
use telemetry::admin::{Config, Deps, RawConfig, RawToken};
use tokio::sync::watch;

/// An admin API, and the command line pointed at it.
struct Region {
    url: String,
    token: PathBuf,
    folder: tempfile::TempDir,
    lifecycle: Lifecycle,
    _fleet: watch::Sender<Arc<Fleet>>,
    members: watch::Sender<MemberList>,
}

struct Outcome {
    code: i32,
    out: String,
    err: String,
}

impl Region {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, "a-token-that-nobody-guesses\n").unwrap();
        std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
        let raw = RawConfig {
            tokens: vec![RawToken {
                name: "ops".to_owned(),
                token: SecretRef::File(token.clone()),
            }],
            ..RawConfig::default()
        };
        let fleet = watch::Sender::new(Arc::new(Fleet::default()));
        let members = watch::Sender::new(MemberList::default());
        let deps = Deps {
            registry: instrumentation::Registry::new(),
            store: Arc::new(MemoryStore::new(Limits::default()).unwrap()),
            fleet: fleet.subscribe(),
            members: members.subscribe(),
            file: telemetry::FileBackends::default(),
        };
        let admin = Config::new(raw).unwrap().unwrap().build(deps).unwrap();
        let listener = lifecycle::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let lifecycle = Lifecycle::new();
        lifecycle.spawn("admin-api", admin.run(listener, lifecycle.spawner()));
        Self { url, token, folder, lifecycle, _fleet: fleet, members }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
        command.args(line.split(' ')).args(["--admin", &self.url, "--token-file"]).arg(&self.token);
        command
    }

    /// Runs a command to its end.
    async fn run(&self, line: &str) -> Outcome {
        ended(self.command(line)).await
    }

    /// Runs a command that must succeed, and reads the JSON that it prints.
    async fn json(&self, line: &str) -> Value {
        let Outcome { code, out, err } = self.run(&format!("{line} -o json")).await;
        assert_eq!(code, 0, "{line}: {err}");
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{line}: {error}: {out}"))
    }

    /// Runs a command that must succeed, and returns what it prints.
    async fn table(&self, line: &str) -> String {
        let Outcome { code, out, err } = self.run(line).await;
        assert_eq!(code, 0, "{line}: {err}");
        out
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.lifecycle.begin_drain();
    }
}

async fn ended(mut command: Command) -> Outcome {
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().expect("it was not killed");
    Outcome { code, out: text(&output.stdout), err: text(&output.stderr) }
}

#[tokio::test]
async fn a_backend_lives_through_the_command_line() {
    let region = Region::start().await;
    assert_eq!(region.table("backend list").await, "(none)\n");
    let added = region.json("backend add gpu-0 http://10.0.0.7:8000 --engine vllm").await;
    assert_eq!(added["url"], "http://10.0.0.7:8000");
    let again = region.run("backend add gpu-0 http://10.0.0.8:8000").await;
    assert_eq!(again.code, 1);
    assert!(again.err.contains("--replace replaces it (precondition_failed)"), "{}", again.err);
    region.table("backend add gpu-0 http://10.0.0.8:8000 --replace").await;
    for (verb, wish) in [("drain", "draining"), ("maintenance", "maintenance"), ("ready", "ready")]
    {
        assert_eq!(region.json(&format!("backend {verb} gpu-0")).await["wish"], wish);
    }
    let list = region.table("backend list").await;
    assert!(list.contains("gpu-0") && list.contains("http://10.0.0.8:8000"), "{list}");
    region.table("backend remove gpu-0").await;
    let gone = region.run("backend get gpu-0").await;
    assert_eq!(gone.code, 1);
    assert_eq!(gone.err, "warmpath: there is no backends/gpu-0 (not_found)\n");
}

#[tokio::test]
async fn a_tenant_is_set_bit_by_bit() {
    let region = Region::start().await;
    region.table("tenant set acme --models a,b --requests-per-minute 60").await;
    region.table("tenant set acme --max-concurrency 4 --debug-headers true").await;
    let tenant = &region.json("tenant list").await["items"][0];
    assert_eq!(tenant["models"], serde_json::json!(["a", "b"]));
    assert_eq!(tenant["debug_headers"], true);
    let limits = &tenant["limits"];
    assert_eq!(
        (&limits["requests_per_minute"], &limits["max_concurrency"]),
        (&60.into(), &4.into())
    );
    let changed = region.json("tenant set acme --models all --requests-per-minute none").await;
    assert!(changed.get("models").is_none(), "{changed}");
    assert!(changed["limits"].get("requests_per_minute").is_none(), "{changed}");
    assert_eq!(changed["limits"]["max_concurrency"], 4);
    let key = region.json("key create --tenant acme").await;
    assert_eq!(region.run("tenant remove acme").await.code, 1);
    region.table(&format!("key revoke {}", key["id"].as_str().unwrap())).await;
    region.table("tenant remove acme").await;
}

#[tokio::test]
async fn keys_and_join_tokens_are_printed_once_and_alone() {
    let region = Region::start().await;
    region.table("tenant set acme").await;
    let key = region.table("key create --tenant acme").await;
    assert!(key.starts_with("sk-wp-") && key.lines().count() == 1, "{key}");
    let list = region.table("key list --tenant acme").await;
    assert!(list.contains("acme") && !list.contains(key.trim()), "{list}");
    let line = "join-token create --id rack-1 --ttl 24h --address 10.0.0.0/8 --model m";
    let token = region.table(line).await;
    assert!(token.starts_with("wp-join-rack-1-") && token.lines().count() == 1, "{token}");
    let list = region.table("join-token list").await;
    assert!(list.contains("10.0.0.0/8") && list.contains("good"), "{list}");
    region.table("join-token revoke rack-1").await;
    assert_eq!(region.table("join-token list").await, "(none)\n");
}

#[tokio::test]
async fn failures_are_one_line_with_an_exit_code_of_their_own() {
    let region = Region::start().await;
    let wrong = region.folder.path().join("wrong");
    std::fs::write(&wrong, "another-token").unwrap();
    std::fs::set_permissions(&wrong, PermissionsExt::from_mode(0o600)).unwrap();
    let run = async |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
        command.args(args);
        ended(command).await
    };
    let wrong = wrong.to_str().unwrap();
    let refused = run(&["status", "--admin", &region.url, "--token-file", wrong]).await;
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("(unauthorized)"), "{}", refused.err);
    // A port that was free a moment ago: nobody answers there.
    let unused = lifecycle::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = format!("http://{}", unused.local_addr().unwrap());
    drop(unused);
    let away = run(&["status", "--admin", &url]).await;
    assert_eq!(away.code, 69);
    assert!(away.err.starts_with(&format!("warmpath: {url} does not answer: ")), "{}", away.err);
    let odd = run(&["status", "--admin", "gpu"]).await;
    assert_eq!((odd.code, odd.err.lines().count()), (64, 1), "{}", odd.err);
}

/// A server that is none of ours: whatever it is asked, this is the answer.
async fn foreign(status: u16, body: &'static str) -> (String, Lifecycle) {
    let listener = lifecycle::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let status = axum::http::StatusCode::from_u16(status).unwrap();
    let routes = axum::Router::new().fallback(async move || (status, body));
    let lifecycle = Lifecycle::new();
    let limits = lifecycle::ServeLimits::ADMIN;
    let serving = lifecycle::serve(listener, routes, limits, lifecycle.spawner());
    lifecycle.spawn("foreign", serving);
    (url, lifecycle)
}

#[tokio::test]
async fn an_answer_that_is_not_the_apis_is_a_failure_and_steers_no_terminal() {
    let lines = ["backend list", "backend get a", "status", "events", "key create --tenant a"];
    for body in ["<html>welcome</html>", "[[[[", "[]", "7", ""] {
        let (url, lifecycle) = foreign(200, body).await;
        for line in lines {
            let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
            command.args(line.split(' ')).args(["--admin", &url]);
            let outcome = ended(command).await;
            assert_eq!((outcome.code, &*outcome.out), (1, ""), "{line}: {body}");
            assert!(outcome.err.contains("not as Warmpath does"), "{}", outcome.err);
        }
        lifecycle.begin_drain();
    }
    let (url, lifecycle) =
        foreign(418, r#"{"code":"\u001b[2J","detail":"\u001b]0;title\u0007\u009b31m\nmore"}"#)
            .await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    command.args(["status", "--admin", &url]);
    let outcome = ended(command).await;
    assert_eq!((outcome.code, outcome.err.lines().count()), (1, 1), "{:?}", outcome.err);
    assert!(!outcome.err.trim_end().chars().any(char::is_control), "{:?}", outcome.err);
    lifecycle.begin_drain();
}

#[tokio::test]
async fn an_explanation_shows_the_request_and_how_well_each_candidate_was_known() {
    let told = r#"{"request":"mine","attempts":[{"request":"req-7","attempt":0,"tenant":"t","model":"m",
        "decision":{"backend":"gpu-0","rank":0,"reason":"cold"},"rejected":null,
        "candidates":[
            {"backend":"gpu-0","rank":0,"state":"ready","level":"feedback","why":"chosen: cold"},
            {"backend":"gpu-1","rank":0,"state":"ready","level":"text","why":"score higher"}],
        "outcome":{"state":"finished","seconds":1.0}}]}"#;
    let (url, lifecycle) = foreign(200, told).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    command.args(["explain", "mine", "--router", &url]);
    let outcome = ended(command).await;
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    let line = |start: &str| outcome.out.lines().find(|line| line.starts_with(start)).unwrap();
    assert!(outcome.out.starts_with("request req-7, first attempt\n"), "{}", outcome.out);
    for (start, level) in [("BACKEND", "LEVEL"), ("gpu-0", "feedback"), ("gpu-1", "text")] {
        let columns: Vec<&str> = line(start).split_whitespace().collect();
        assert_eq!(columns[3], level, "{}", outcome.out);
    }
    lifecycle.begin_drain();
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_listed_and_followed() {
    let region = Region::start().await;
    region.table("tenant set a").await;
    let mut follow = region.command("events --follow -o json");
    let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    let next = async |lines: &mut std::io::Lines<BufReader<std::process::ChildStdout>>| {
        let line = tokio::task::block_in_place(|| lines.next()).unwrap().unwrap();
        serde_json::from_str::<Value>(&line).unwrap()
    };
    assert_eq!(next(&mut lines).await["id"], "a");
    region.table("tenant set b").await;
    let event = next(&mut lines).await;
    assert_eq!((&event["id"], &event["author"]), (&"b".into(), &"ops".into()));
    follow.kill().unwrap();
    follow.wait().unwrap();
    let table = region.table("events --after 1").await;
    assert!(table.contains("tenants/b") && !table.contains("tenants/a"), "{table}");
    let status = region.table("status").await;
    assert!(status.contains("at revision 2"), "{status}");
}

#[tokio::test]
async fn the_status_lists_members_and_says_what_it_means_that_there_are_none() {
    let region = Region::start().await;
    let alone = region.table("status").await;
    let last = alone.lines().last().unwrap();
    assert!(last.starts_with("members    none: ") && last.contains("one process"), "{alone}");
    let process =
        replication::Process { id: "router-1".into(), incarnation: domain::Incarnation(7) };
    let address = "http://10.0.0.1:7100".into();
    let member = replication::Member { process, role: replication::Role::Router, address };
    let epoch = replication::Epoch { term: 5, number: 2 };
    region.members.send_replace(MemberList { epoch, members: [member].into() });
    let joined = region.table("status").await;
    assert!(joined.contains("list 2 of start 5") && joined.contains("router-1"), "{joined}");
    assert!(!joined.contains("none: "), "{joined}");
}
