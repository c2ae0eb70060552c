//! `docs/admin.md` against the API: its settings, its routes, its problems.

use std::fs;

use integration_tests::environment::workspace_root;
use serde_json::Value;
use telemetry::admin;

fn page() -> String {
    fs::read_to_string(workspace_root().join("docs/admin.md")).unwrap()
}

#[test]
fn the_settings_of_the_page_are_those_that_are_read() {
    let page = page();
    let example = page.split("```toml\n[admin_api]").nth(1).unwrap().split("```").next().unwrap();
    #[derive(serde::Deserialize)]
    struct Section {
        admin_api: admin::RawConfig,
    }
    let example: Section = toml::from_str(&format!("[admin_api]{example}")).unwrap();
    assert_eq!(example.admin_api.tokens.len(), 1);
    let keys: toml::Table = settings::to_toml(&example.admin_api).unwrap().parse().unwrap();
    let table = page.split("| key of `[admin_api]`").nth(1).unwrap().split("\n\n").next().unwrap();
    let described: Vec<_> =
        table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let mut known: Vec<_> = keys.keys().map(String::as_str).collect();
    known.sort_by_key(|key| described.iter().position(|d| d == key));
    assert_eq!(described, known);
}

#[test]
fn every_problem_and_every_collection_is_on_the_page() {
    let page = page();
    let document = serde_json::to_value(admin::document()).unwrap();
    let codes = document["components"]["schemas"]["Code"]["enum"].as_array();
    let codes = codes.map(|codes| codes.iter().filter_map(Value::as_str).collect::<Vec<_>>());
    let codes = codes.unwrap_or_else(|| {
        let described = &document["components"]["schemas"]["Code"]["oneOf"];
        let each = described.as_array().expect("codes are listed").iter();
        each.filter_map(|code| code["enum"][0].as_str().or_else(|| code["const"].as_str()))
            .collect()
    });
    assert!(codes.len() > 10, "{codes:?}");
    for code in codes {
        assert!(page.contains(&format!("`{code}`")), "{code} is not explained");
    }
    for path in document["paths"].as_object().unwrap().keys() {
        let collection = path.strip_prefix("/admin/v1").unwrap();
        let of_one = collection.split("/{id}/").nth(1).map(|rest| format!("/{rest}`"));
        let written = page.contains(&format!("`{collection}`"));
        assert!(written || of_one.is_some_and(|rest| page.contains(&rest)), "{path}");
    }
}
