//! The dashboard, the rules and the documents speak of metrics that exist, and of all of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use integration_tests::environment::workspace_root;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use warmpath::config::{Config, RawConfig};
use warmpath::double::Double;
use warmpath::gateway::Gateway;

const DASHBOARD: &str = "observability/dashboard.json";
const RULES: &str = "observability/rules.yaml";
const METRICS: &str = "docs/metrics.md";
const OPERATIONS: &str = "docs/operations.md";

/// Crates that have metrics.
const SOURCES: [&str; 11] = [
    "services/edge/src",
    "services/router/src",
    "services/telemetry/src",
    "libs/launch/src",
    "libs/lifecycle/src",
    "libs/instrumentation/src",
    "libs/config-store/src",
    "libs/bus/src",
    "libs/rpc/src",
    "libs/session/src",
    "libs/config-feed/src",
];

/// Where names stand without the prefix that these helpers add.
const EDGE: &str = "services/edge/src/metrics.rs";
const EDGE_HELPERS: [&str; 5] = ["counter(", "counters(", "histogram(", "histograms(", "opts("];

fn read(path: &str) -> String {
    fs::read_to_string(workspace_root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Every run of name characters in `text` that begins with `prefix`.
fn names(text: &str, prefix: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    text.split(|c| !is_part(c)).filter(|w| w.starts_with(prefix)).map(str::to_owned).collect()
}

/// The metrics that the sources name, but for those of tests.
fn metrics() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for folder in SOURCES {
        collect(&workspace_root().join(folder), &mut found);
    }
    let edge = read(EDGE);
    let edge = edge.split("#[cfg(test)]").next().unwrap();
    for helper in EDGE_HELPERS {
        for (_, rest) in edge.match_indices(helper).map(|(at, _)| edge[at..].split_at(helper.len()))
        {
            let literal = rest.trim_start().strip_prefix('"').and_then(|r| r.split('"').next());
            found.extend(literal.filter(|l| is_name(l)).map(|l| format!("warmpath_edge_{l}")));
        }
    }
    found
}

fn collect(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_test =
            ["tests", "testing"].iter().any(|n| path.file_stem().is_some_and(|s| s == *n));
        if is_test {
            continue;
        }
        if path.is_dir() {
            collect(&path, found);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let production = text.split("#[cfg(test)]").next().unwrap();
        let literals = production.split('"').skip(1).step_by(2);
        found.extend(
            literals.filter(|l| l.starts_with("warmpath_") && is_name(l)).map(str::to_owned),
        );
    }
}

/// A histogram's series, or the metric itself.
fn exists(name: &str, metrics: &BTreeSet<String>) -> bool {
    let base = ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s));
    metrics.contains(name) || base.is_some_and(|base| metrics.contains(base))
}

#[tokio::test]
async fn what_a_running_gateway_exports_is_found_in_the_sources() {
    let listener = lifecycle::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let double = Double::builder().model("m").spawn(listener).unwrap();
    let mut raw = RawConfig::default();
    raw.edge.listen = "127.0.0.1:0".parse().unwrap();
    raw.edge.drain_notice = settings::HumanDuration::from_secs(0);
    raw.admin.listen = "127.0.0.1:0".parse().unwrap();
    raw.backends = vec![telemetry::RawBackend {
        id: "double".to_owned(),
        url: double.url(),
        engine: None,
        api_key: None,
        credential: None,
    }];
    let gateway = Gateway::start(Config::from_raw(raw).unwrap()).await.unwrap();
    gateway.ready(Duration::from_secs(20)).await.unwrap();

    let body = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut client = TcpStream::connect(gateway.edge()).await.unwrap();
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    let page = instrumentation::encode(gateway.registry());
    let exported: BTreeSet<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .map(str::to_owned)
        .collect();
    assert!(exported.contains("warmpath_edge_requests_total"), "{page}");
    assert!(exported.contains("warmpath_router_decisions_total"), "{page}");
    let metrics = metrics();
    let unknown: Vec<_> = exported.difference(&metrics).collect();
    assert!(unknown.is_empty(), "the search in the sources misses {unknown:?}");
    gateway.stop(Duration::from_secs(10)).await;
}

#[test]
fn the_dashboard_and_the_rules_use_only_metrics_that_exist() {
    let metrics = metrics();
    for path in [DASHBOARD, RULES] {
        let used = names(&read(path), "warmpath_");
        assert!(used.len() > 10, "{path}: {used:?}");
        let unknown: Vec<_> = used.iter().filter(|name| !exists(name, &metrics)).collect();
        assert!(unknown.is_empty(), "{path} uses {unknown:?}");
    }
}

#[test]
fn recorded_series_that_rules_use_are_recorded() {
    let rules = read(RULES);
    let recorded: BTreeSet<_> = rules
        .lines()
        .filter_map(|l| l.trim().strip_prefix("- record: "))
        .map(str::to_owned)
        .collect();
    assert!(!recorded.is_empty());
    assert_eq!(names(&rules, "warmpath:"), recorded);
}

#[test]
fn every_metric_is_described_and_every_described_one_exists() {
    let metrics = metrics();
    assert_eq!(names(&read(METRICS), "warmpath_"), metrics);
    let named = names(&read(OPERATIONS), "warmpath_");
    let unknown: Vec<_> = named.iter().filter(|name| !exists(name, &metrics)).collect();
    assert!(unknown.is_empty(), "{OPERATIONS} speaks of {unknown:?}");
}

#[test]
fn every_alert_leads_to_its_section_and_every_section_has_an_alert() {
    let anchor = |heading: &str| heading.to_lowercase().replace(' ', "-");
    let operations = read(OPERATIONS);
    let runbook = operations.split("\n## ").find(|s| s.starts_with("Runbook\n")).unwrap();
    let sections: BTreeSet<_> =
        runbook.lines().filter_map(|l| l.strip_prefix("### ")).map(anchor).collect();
    let rules = read(RULES);
    let alerts = rules.lines().filter(|l| l.trim().starts_with("- alert: ")).count();
    let targets: Vec<_> = rules
        .lines()
        .filter_map(|l| l.trim().strip_prefix("runbook: docs/operations.md#"))
        .map(str::to_owned)
        .collect();
    assert_eq!(targets.len(), alerts, "an alert without a runbook");
    assert_eq!(targets.into_iter().collect::<BTreeSet<_>>(), sections);
}

#[test]
fn the_dashboard_is_valid_and_its_panels_ask_something() {
    let dashboard: serde_json::Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() >= 12);
    for panel in panels {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{}", panel["title"]);
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            let (open, close) = (expression.matches('(').count(), expression.matches(')').count());
            assert_eq!(open, close, "{expression}");
        }
    }
}
