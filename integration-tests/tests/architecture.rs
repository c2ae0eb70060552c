//! The arrows between the crates, and rules about the sources that no compiler checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use integration_tests::environment::workspace_root;

/// Libraries and the crates of ours that each may depend on. A new library gets a line here.
const LIBRARIES: &[(&str, &[&str])] = &[
    // Pure: no I/O, no clock, no runtime.
    ("domain", &[]),
    ("kv-index", &["domain"]),
    ("scheduling", &["domain"]),
    ("replication", &["domain"]),
    ("tokenization", &["domain"]),
    ("openai-api", &["domain"]),
    ("engine", &["domain"]),
    ("sim", &["domain", "kv-index", "scheduling"]),
    // What a process needs.
    ("settings", &[]),
    ("instrumentation", &[]),
    ("lifecycle", &["domain", "instrumentation"]),
    ("credentials", &[]),
    ("traces", &["domain", "lifecycle", "settings"]),
    // Adapters.
    ("config-store", &["domain", "instrumentation"]),
    ("bus", &["domain", "settings", "lifecycle"]),
    ("events", &["domain", "bus", "credentials"]),
    // The wire.
    ("proto", &["domain", "replication"]),
    ("rpc", &["settings", "lifecycle"]),
    ("session", &["domain", "settings", "lifecycle", "replication", "proto", "rpc"]),
    ("config-feed", &["domain", "replication", "proto", "instrumentation", "lifecycle", "rpc"]),
    // What every process does alike.
    (
        "launch",
        &[
            "domain",
            "settings",
            "instrumentation",
            "lifecycle",
            "tokenization",
            "replication",
            "rpc",
            "config-feed",
        ],
    ),
];

/// They depend on libraries, but the simulator, and never on each other.
const SERVICES: &[&str] = &["edge", "router", "telemetry"];

/// They see everything.
const TOP: &[&str] = &["warmpath", "integration-tests", "fuzzing"];

/// Crates that speak HTTP, and who beside the services and the top may know them.
const HTTP_CRATES: &[&str] = &[
    "axum",
    "http",
    "http-body",
    "http-body-util",
    "hyper",
    "hyper-rustls",
    "hyper-util",
    "reqwest",
    "tonic",
    "tower",
    "tower-http",
];
const HTTP_LIBRARIES: &[&str] =
    &["engine", "lifecycle", "proto", "rpc", "session", "config-feed", "traces"];

/// Crates that only pure code must not know: it is synchronous and takes `now`.
const RUNTIME_CRATES: &[&str] = &["tokio", "tokio-stream", "tokio-util"];
const PURE_LIBRARIES: &[&str] = &[
    "domain",
    "kv-index",
    "scheduling",
    "replication",
    "tokenization",
    "openai-api",
    "engine",
    "sim",
];

/// Buses and stores, with the crates that may know each.
const BACKING_CRATES: &[(&str, &[&str])] =
    &[("async-nats", &["bus"]), ("redis", &[]), ("chitchat", &[]), ("sled", &["config-store"])];

/// Names that say nothing and so attract everything.
const VAGUE_NAMES: &[&str] = &["common", "utils", "util", "helpers", "types", "core", "shared"];

/// Lines of production code that a file may have.
const LONGEST_FILE: usize = 500;

fn metadata() -> Metadata {
    let manifest = workspace_root().join("Cargo.toml");
    MetadataCommand::new().manifest_path(manifest).no_deps().exec().unwrap()
}

fn members() -> BTreeMap<String, Package> {
    let packages = metadata().packages.into_iter();
    let members: BTreeMap<_, _> = packages.map(|p| (p.name.to_string(), p)).collect();
    assert!(members.len() >= LIBRARIES.len() + SERVICES.len() + TOP.len(), "the whole workspace");
    members
}

/// Names of what a crate depends on; with `tests`, for its tests and benches too.
fn dependencies(package: &Package, tests: bool) -> BTreeSet<&str> {
    let dependencies = package.dependencies.iter();
    dependencies
        .filter(|dependency| tests || dependency.kind != DependencyKind::Development)
        .map(|dependency| dependency.name.as_str())
        .collect()
}

/// Every `.rs` file of the workspace with its text.
fn sources() -> Vec<(PathBuf, String)> {
    let root = workspace_root();
    let mut found = Vec::new();
    for top in ["libs", "services", "proto", "integration-tests"] {
        collect(&root.join(top), &mut found);
    }
    assert!(found.len() > 50, "only {} source files were found", found.len());
    found
}

fn collect(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
}

#[test]
fn every_crate_has_its_place() {
    let known: BTreeSet<&str> = LIBRARIES
        .iter()
        .map(|(name, _)| *name)
        .chain(SERVICES.iter().chain(TOP).copied())
        .collect();
    let members = members();
    let found: BTreeSet<&str> = members.keys().map(String::as_str).collect();
    assert_eq!(found, known, "a crate without a line in this file, or a line without a crate");
    for name in found {
        let vague = name.split('-').any(|part| VAGUE_NAMES.contains(&part));
        assert!(!vague, "`{name}` says nothing of what it holds");
    }
}

#[test]
fn libraries_depend_only_downwards() {
    let members = members();
    for (name, allowed) in LIBRARIES {
        let mut known = dependencies(&members[*name], false);
        known.retain(|dependency| members.contains_key(*dependency));
        let allowed = allowed.iter().copied().collect();
        let more: Vec<_> = known.difference(&allowed).collect();
        assert!(more.is_empty(), "{name} must not depend on {more:?}");
        let fewer: Vec<_> = allowed.difference(&known).collect();
        assert!(fewer.is_empty(), "{name} does not use its arrow to {fewer:?}");
    }
}

#[test]
fn services_never_depend_on_each_other_or_on_the_simulator() {
    let members = members();
    for service in SERVICES {
        for dependency in dependencies(&members[*service], true) {
            let above = SERVICES.contains(&dependency) || TOP.contains(&dependency);
            assert!(!above, "{service} must not depend on {dependency}");
        }
        // Its tests may: the router's run the reference workload in virtual time.
        assert!(!dependencies(&members[*service], false).contains("sim"), "{service}");
    }
}

#[test]
fn nothing_depends_on_a_service_but_the_top() {
    for (name, package) in members() {
        if TOP.contains(&name.as_str()) {
            continue;
        }
        for dependency in dependencies(&package, true) {
            let above = SERVICES.contains(&dependency) || TOP.contains(&dependency);
            assert!(!above, "{name} must not depend on {dependency}");
        }
    }
}

#[test]
fn only_services_and_libraries_that_speak_it_know_http() {
    let members = members();
    for (name, _) in LIBRARIES.iter().filter(|(name, _)| !HTTP_LIBRARIES.contains(name)) {
        for dependency in dependencies(&members[*name], true) {
            assert!(!HTTP_CRATES.contains(&dependency), "{name} must not know {dependency}");
        }
    }
}

#[test]
fn pure_libraries_know_no_runtime() {
    let members = members();
    for name in PURE_LIBRARIES {
        for dependency in dependencies(&members[*name], false) {
            assert!(!RUNTIME_CRATES.contains(&dependency), "{name} must not know {dependency}");
        }
    }
}

#[test]
fn buses_and_stores_are_known_only_to_their_adapters() {
    for (name, package) in members() {
        let known = dependencies(&package, true);
        for (backing, allowed) in BACKING_CRATES {
            let may = allowed.contains(&name.as_str());
            assert!(may || !known.contains(backing), "{name} must not know {backing}");
        }
    }
}

/// The manifest of every member, parsed.
fn manifests() -> Vec<(String, toml::Table)> {
    let members = members().into_iter();
    members
        .map(|(name, p)| (name, fs::read_to_string(p.manifest_path).unwrap().parse().unwrap()))
        .collect()
}

#[test]
fn versions_stand_in_one_place() {
    for (name, manifest) in manifests() {
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(table) = manifest.get(section).and_then(toml::Value::as_table) else {
                continue;
            };
            for (dependency, value) in table {
                let inherited = value.get("workspace").and_then(toml::Value::as_bool);
                assert_eq!(inherited, Some(true), "{name}: {section}.{dependency}");
            }
        }
    }
}

#[test]
fn every_crate_obeys_the_lints_of_the_workspace() {
    for (name, manifest) in manifests() {
        let inherited = manifest.get("lints").and_then(|lints| lints.get("workspace"));
        assert_eq!(inherited.and_then(toml::Value::as_bool), Some(true), "{name}");
    }
    let root = fs::read_to_string(workspace_root().join("Cargo.toml")).unwrap();
    let root: toml::Table = root.parse().unwrap();
    let unsafe_code = &root["workspace"]["lints"]["rust"]["unsafe_code"];
    assert_eq!(unsafe_code.as_str(), Some("forbid"));
}

/// Whether a file holds nothing but tests or benches.
fn is_test_file(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "tests.rs")
        || path
            .components()
            .any(|part| ["tests", "benches"].iter().any(|name| part.as_os_str() == *name))
}

fn lines_before_tests(text: &str) -> usize {
    text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count()
}

#[test]
fn no_file_is_too_long_to_read() {
    for (path, text) in sources().iter().filter(|(path, _)| !is_test_file(path)) {
        let lines = lines_before_tests(text);
        assert!(lines <= LONGEST_FILE, "{} has {lines} lines before its tests", path.display());
    }
}

#[test]
fn only_settings_reads_the_environment() {
    // Put together so that this file does not find itself.
    let reads = concat!("env", "::var");
    let may = |path: &Path| {
        let path = path.to_string_lossy();
        path.contains("libs/settings/") || path.ends_with("integration-tests/src/environment.rs")
    };
    let found: Vec<_> = sources().into_iter().filter(|(_, text)| text.contains(reads)).collect();
    assert!(found.iter().any(|(path, _)| may(path)), "the search finds what it looks for");
    for (path, _) in found {
        assert!(may(&path), "{} reads the environment", path.display());
    }
}

#[test]
fn whoever_reads_a_credential_compares_it_in_constant_time() {
    // Put together so that this file does not find itself.
    let reads = concat!("presented", "::");
    let found = sources().into_iter().filter(|(_, text)| text.contains(reads));
    // A fuzzer has nothing to compare with.
    let is_fuzzer = |path: &Path| path.iter().any(|part| part == "fuzz");
    let found: Vec<_> = found.filter(|(path, _)| !is_fuzzer(path)).collect();
    assert!(found.len() >= 2, "the search finds what it looks for");
    for (path, text) in found {
        let text: Vec<&str> = text.lines().take(lines_before_tests(&text)).collect();
        let compares = text.iter().any(|line| line.contains(".ct_eq("));
        assert!(compares, "{} reads a credential and compares it otherwise", path.display());
    }
}

#[test]
fn modules_are_files_of_their_own_name() {
    for (path, _) in sources() {
        assert!(!path.ends_with("mod.rs"), "{}", path.display());
    }
}

#[test]
fn the_line_count_stops_at_the_tests() {
    assert_eq!(lines_before_tests("a\nb\n#[cfg(test)]\nmod tests;\n"), 2);
    assert_eq!(lines_before_tests("a\n    #[cfg(test)]\nb\n"), 3, "a helper inside is no end");
    assert!(is_test_file(Path::new("libs/a/tests/b.rs")));
    assert!(is_test_file(Path::new("libs/a/src/b/tests.rs")));
    assert!(!is_test_file(Path::new("libs/a/src/b.rs")));
}
