//! What the documents say can be checked is checked: guards of invariants, links, config keys,
//! examples.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use integration_tests::environment::workspace_root;
use launch::sections::{RawModel, RawRegion};
use warmpath::config::{Config, RawConfig};

const ARCHITECTURE: &str = "ARCHITECTURE.md";
const INVARIANTS: &str = "docs/invariants.md";
const RELIABILITY: &str = "docs/reliability.md";
const CASES: &str = "integration-tests/tests/cases";
const CONFIGURATION: &str = "docs/configuration.md";
const EXAMPLES: [&str; 2] = ["deploy/examples/two-gpus.toml", "deploy/examples/team.toml"];

fn read(path: &str) -> String {
    fs::read_to_string(workspace_root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// What stands between backticks, in order.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The number that ends an invariant.
fn number_of(invariant: &str) -> Option<usize> {
    invariant.rsplit_once('(')?.1.strip_suffix(')')?.parse().ok()
}

#[test]
fn every_invariant_names_a_test_that_exists() {
    // Each is an item of a list; what is indented below it goes on with it.
    let text = read(ARCHITECTURE).replace("\n  ", " ");
    let invariants: Vec<_> =
        text.lines().filter(|line| line.starts_with("- **Invariant:**")).collect();
    assert!(invariants.len() >= 50, "only {} were found", invariants.len());
    let guards = read(INVARIANTS);
    let rows: Vec<_> = guards.lines().filter(|line| line.starts_with("| ")).collect();
    let rows: Vec<_> = rows.into_iter().filter(|row| !row.contains("---")).collect();
    let rows: Vec<_> = rows.into_iter().filter(|row| !row.starts_with("| invariant")).collect();
    assert_eq!(rows.len(), invariants.len(), "a line of tests for each invariant");
    for (at, (invariant, row)) in invariants.into_iter().zip(rows).enumerate() {
        assert_eq!(number_of(invariant), Some(at + 1), "they are numbered: {invariant}");
        assert!(row.starts_with(&format!("| {} |", at + 1)), "tests of {}: {row}", at + 1);
        let tests = shown_by(row);
        assert!(!tests.is_empty(), "no test is named: {invariant}");
        for (file, test) in tests {
            assert!(
                read(file).contains(&format!("fn {test}(")),
                "no test {test} in {file}: {invariant}"
            );
        }
    }
}

#[test]
fn files_that_the_architecture_names_exist() {
    let text = read(ARCHITECTURE);
    let paths = quoted(&text).filter(|item| item.contains('/') && item.ends_with(".rs"));
    let missing: Vec<_> = paths.filter(|path| !exists(&workspace_root(), path)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Files and tests that a line of a table names.
fn shown_by(line: &str) -> Vec<(&str, &str)> {
    let tests = line.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
    let mut file = "";
    let mut found = Vec::new();
    for item in quoted(tests) {
        if item.ends_with(".rs") {
            file = item;
        } else {
            found.push((file, item));
        }
    }
    found
}

/// The lines of the table of faults that are about one.
fn faults(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().filter(|line| line.starts_with("| "));
    lines.skip(2).filter(|line| !line.ends_with("| | |"))
}

#[test]
fn every_fault_is_shown_by_tests_that_exist() {
    let text = read(RELIABILITY);
    assert!(faults(&text).count() >= 40, "{} faults were found", faults(&text).count());
    for line in faults(&text) {
        let tests = shown_by(line);
        assert!(!tests.is_empty(), "no test is named: {line}");
        for (file, test) in tests {
            assert!(
                read(file).contains(&format!("fn {test}(")),
                "no test {test} in {file}: {line}"
            );
        }
    }
}

#[test]
fn every_test_of_a_fault_is_in_the_table() {
    let text = read(RELIABILITY);
    let named: Vec<_> = faults(&text).flat_map(shown_by).collect();
    let mut found = 0;
    for entry in fs::read_dir(workspace_root().join(CASES)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let (path, mut is_test) = (format!("{CASES}/{name}"), false);
        for line in read(&path).lines() {
            if let Some(rest) = line.strip_prefix("async fn ").filter(|_| is_test) {
                let test = rest.split('(').next().unwrap();
                assert!(named.contains(&(&*path, test)), "{test} of {path} is not in the table");
                found += 1;
            }
            is_test = line.starts_with("#[tokio::test");
        }
    }
    assert!(found >= 40, "only {found} were found");
}

/// In the step list, files stand without their crate: they are the edge's.
fn exists(root: &Path, path: &str) -> bool {
    root.join(path).exists() || root.join("services/edge/src").join(path).exists()
}

/// The documents whose links are checked.
fn documents() -> Vec<PathBuf> {
    let root = workspace_root();
    let mut found: Vec<_> = ["README.md", ARCHITECTURE, "CONTRIBUTING.md", "SECURITY.md"]
        .iter()
        .map(|name| root.join(name))
        .collect();
    for folder in ["docs", "docs/adr", "deploy", "observability"] {
        let entries = fs::read_dir(root.join(folder)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        found.extend(paths.filter(|path| path.extension().is_some_and(|e| e == "md")));
    }
    found
}

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut checked = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|t| !t.contains("://")) {
            let (path, fragment) = target.split_once('#').unwrap_or((target, ""));
            let file = match path {
                "" => document.clone(),
                path => document.parent().unwrap().join(path),
            };
            assert!(file.exists(), "{}: {target}", document.display());
            if !fragment.is_empty() {
                let text = fs::read_to_string(&file).unwrap();
                let headings = text.lines().filter(|l| l.starts_with('#'));
                let known =
                    headings.map(|l| anchor(l.trim_start_matches('#'))).any(|a| a == fragment);
                assert!(known, "{}: {target}", document.display());
            }
            checked += 1;
        }
    }
    assert!(checked > 20, "only {checked} links were found");
}

/// A config in which every key is set, so that every key is printed. A new key does not compile
/// here until it is set.
fn complete() -> RawConfig {
    let secret = || Some(settings::SecretRef::Env("NAME".to_owned()));
    let edge = edge::RawConfig {
        fallback_model: Some("m".to_owned()),
        fields: fields(),
        aliases: vec![edge::RawAlias {
            id: "a".to_owned(),
            models: vec!["m".to_owned()],
            weights: vec![1],
        }],
        terms: vec![edge::RawTerms {
            route: Some("chat".to_owned()),
            model: Some("m".to_owned()),
            body_limit_bytes: Some(1),
            first_token: Some(settings::HumanDuration::from_secs(1)),
            idle: Some(settings::HumanDuration::from_secs(1)),
            total: Some(settings::HumanDuration::from_secs(1)),
        }],
        traces: edge::RawTraces {
            endpoint: Some("http://127.0.0.1:4317".to_owned()),
            sample_ratio: Some(1.0),
            ca: Some("a".into()),
            ..edge::RawTraces::default()
        },
        ..edge::RawConfig::default()
    };
    RawConfig {
        edge,
        router: router::RawConfig {
            policy: Some("prefix".parse().unwrap()),
            eviction_weight: Some(1.0),
            tie_margin_fraction: Some(0.02),
            tie_margin_seconds: Some(0.002),
            recovery_in_flight: Some(4),
        },
        region: RawRegion { secret: secret(), ..RawRegion::default() },
        backends: vec![telemetry::RawBackend {
            id: "a".to_owned(),
            url: "http://127.0.0.1:1".to_owned(),
            engine: Some(domain::EngineKind::Vllm),
            api_key: secret(),
            credential: Some("c".to_owned()),
        }],
        admin_api: telemetry::admin::RawConfig {
            tls: rpc::RawTls { cert: Some("c".into()), key: secret(), ca: Some("a".into()) },
            ..telemetry::admin::RawConfig::default()
        },
        telemetry: telemetry::RawConfig {
            store: Some("store".into()),
            ..telemetry::RawConfig::default()
        },
        credentials: vec![settings::NamedCredential {
            name: "c".to_owned(),
            api_key: settings::SecretRef::Env("NAME".to_owned()),
        }],
        models: vec![RawModel { id: "m".to_owned(), folder: "builtin".into() }],
        tenants: vec![edge::RawTenant {
            id: "t".to_owned(),
            requests_per_minute: Some(1),
            max_concurrency: Some(1),
            debug_headers: true,
            models: Some(vec![]),
            fields: fields(),
        }],
        keys: vec![edge::RawKey {
            id: "k".to_owned(),
            tenant: "t".to_owned(),
            sha256: "".to_owned(),
        }],
        ..RawConfig::default()
    }
}

fn fields() -> edge::RawFields {
    let policy = Some(edge::Policy::Strip);
    edge::RawFields {
        priority: policy,
        request_id: policy,
        data_parallel_rank: policy,
        kv_transfer_params: policy,
        ec_transfer_params: policy,
        vllm_xargs: policy,
        chat_template: policy,
    }
}

/// Tables with their keys: `edge.timeouts`, `[connect, …]`.
fn sections(prefix: &str, value: &toml::Value, found: &mut Vec<(String, Vec<String>)>) {
    let toml::Value::Table(table) = value else { return };
    let mut keys = Vec::new();
    for (key, value) in table {
        // A table in an entry of a list is written as one in a table.
        let outer = prefix.trim_start_matches('[').trim_end_matches(']');
        let path = if outer.is_empty() { key.clone() } else { format!("{outer}.{key}") };
        match value {
            // A secret's reference is a table, too.
            toml::Value::Table(inner) if !inner.contains_key("env") => {
                sections(&path, value, found);
            }
            toml::Value::Array(entries) if entries.first().is_some_and(toml::Value::is_table) => {
                sections(&format!("[{path}]"), &entries[0], found);
            }
            _ => keys.push(key.clone()),
        }
    }
    found.push((prefix.to_owned(), keys));
}

#[test]
fn every_config_key_is_described_in_its_section() {
    let printed: toml::Value =
        settings::to_toml(&complete()).unwrap().parse::<toml::Table>().unwrap().into();
    let mut found = Vec::new();
    sections("", &printed, &mut found);
    assert!(found.len() > 8, "{found:?}");
    let text = read(CONFIGURATION);
    for (section, keys) in found.into_iter().filter(|(section, _)| !section.is_empty()) {
        let heading = format!("`[{section}]`\n");
        let at = text.find(&heading).unwrap_or_else(|| panic!("no section {heading}"));
        let body = text[at..].split("\n##").next().unwrap();
        let described: Vec<_> = body
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
            .map(str::to_owned)
            .collect();
        for key in &keys {
            assert!(described.contains(key), "{section}.{key} is not described");
        }
        for key in &described {
            assert!(keys.contains(key), "{section}.{key} is described and does not exist");
        }
    }
}

/// The keys of `[…]` that a table of the page names, in its first column.
fn named_in_table(section: &str) -> BTreeSet<String> {
    let text = read(CONFIGURATION);
    let body =
        text.split(&format!("\n## {section}\n")).nth(1).unwrap_or_else(|| panic!("{section}"));
    let body = body.split("\n## ").next().unwrap();
    let rows = body.lines().filter(|line| line.starts_with("| `"));
    rows.flat_map(|row| quoted(row.split(" | ").next().unwrap())).map(str::to_owned).collect()
}

#[test]
fn the_keys_that_take_a_restart_are_those_that_the_configuration_page_names() {
    use launch::{Fixed, Program};
    let programs = [
        warmpath::serve::Serve::FIXED,
        edge::process::Edge::FIXED,
        router::process::RouterProcess::FIXED,
        telemetry::process::Telemetry::FIXED,
    ];
    let fixed: BTreeSet<String> =
        programs.concat().into_iter().map(|key| Fixed::key(key).to_owned()).collect();
    assert_eq!(named_in_table("Reload"), fixed);
    // Each is a key or a section that there is, in all processes that have it.
    let text = read(CONFIGURATION);
    for key in &fixed {
        let is_section =
            text.contains(&format!("[{key}]`\n")) || text.contains(&format!("[{key}]]`\n"));
        let is_key = key.rsplit_once('.').is_some_and(|(section, last)| {
            let body = text.split(&format!("`[{section}]`\n")).nth(1);
            let body = body.and_then(|body| body.split("\n##").next());
            body.is_some_and(|body| body.contains(&format!("\n| `{last}` |")))
        });
        assert!(is_section || is_key, "{key}");
    }
}

#[test]
fn no_process_takes_in_place_what_another_needs_a_restart_for() {
    use launch::Program;
    fn tree<P: Program>() -> (toml::Table, &'static [launch::Fixed])
    where
        P::Raw: Default,
    {
        (toml::Table::try_from(P::Raw::default()).unwrap(), P::FIXED)
    }
    let programs = [
        tree::<warmpath::serve::Serve>(),
        tree::<edge::process::Edge>(),
        tree::<router::process::RouterProcess>(),
        tree::<telemetry::process::Telemetry>(),
    ];
    for (_, fixed) in &programs {
        for key in *fixed {
            let mut parts = key.key().split('.');
            let (section, rest) = (parts.next().unwrap(), parts.next());
            for (other, keys) in &programs {
                let Some(section) = other.get(section) else { continue };
                // An optional key is not printed.
                let has = rest.is_none_or(|rest| section.get(rest).is_some());
                assert!(!has || keys.contains(key), "{key:?}");
            }
        }
    }
}

#[test]
fn examples_in_the_configuration_page_are_read() {
    let text = read(CONFIGURATION);
    let blocks: Vec<_> =
        text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() > 5);
    for block in blocks {
        settings::load_str::<RawConfig>("example", block)
            .unwrap_or_else(|e| panic!("{e}:\n{block}"));
    }
}

#[test]
fn the_examples_for_processes_apart_are_read() {
    let example = |name: &str| read(&format!("deploy/examples/apart/{name}.toml"));
    toml::from_str::<edge::process::RawConfig>(&example("edge")).unwrap();
    toml::from_str::<router::process::RawConfig>(&example("router")).unwrap();
    toml::from_str::<telemetry::process::RawConfig>(&example("telemetry")).unwrap();
}

#[test]
fn the_examples_for_one_machine_fit_together() {
    let example = |name: &str| read(&format!("deploy/examples/loopback/{name}.toml"));
    let edge: edge::process::RawConfig = toml::from_str(&example("edge")).unwrap();
    let router: router::process::RawConfig = toml::from_str(&example("router")).unwrap();
    let telemetry: telemetry::process::RawConfig = toml::from_str(&example("telemetry")).unwrap();
    let listeners = [
        ("edge", edge.edge.listen),
        ("edge's admin", edge.admin.listen),
        ("router", router.rpc.listen),
        ("router's admin", router.admin.listen),
        ("telemetry", telemetry.rpc.listen),
        ("telemetry's admin", telemetry.admin.listen),
        ("admin API", telemetry.admin_api.served_at().unwrap()),
    ];
    launch::sections::distinct_listeners(&listeners).unwrap();
    let address = format!("http://{}", telemetry.rpc.listen);
    assert_eq!((&edge.member.telemetry, &router.member.telemetry), (&address, &address));
    let page = read("deploy/README.md");
    for (what, listener) in listeners {
        assert!(listener.ip().is_loopback(), "{what}");
        let port = listener.port();
        let named = page.contains(&port.to_string()) || (9190..9193).contains(&port);
        assert!(named, "{what}'s port {port} is not on the page");
    }
}

#[test]
fn the_examples_for_deployment_are_valid() {
    for path in EXAMPLES {
        let mut raw: RawConfig = settings::load_str(path, &read(path)).unwrap();
        assert!(!raw.models.is_empty(), "{path}");
        // What is not there when a test runs: folders and secrets.
        raw.models.iter_mut().for_each(|model| model.folder = "builtin".into());
        raw.backends.iter_mut().for_each(|backend| backend.api_key = None);
        raw.region.secret = None;
        Config::from_raw(raw).map(drop).unwrap_or_else(|e| panic!("{path}: {e}"));
    }
}
