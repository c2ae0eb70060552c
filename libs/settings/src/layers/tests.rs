use std::io::Write;

use serde::Deserialize;

use super::*;
use crate::{HumanDuration, SecretRef};

#[derive(Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
struct Sample {
    edge: Edge,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<SecretRef>,
    backends: Vec<Backend>,
}

#[derive(Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
struct Edge {
    listen: String,
    body_limit: u64,
    workers: u16,
    timeouts: Timeouts,
}

#[derive(Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
struct Timeouts {
    connect: HumanDuration,
    idle: HumanDuration,
}

#[derive(Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Backend {
    id: String,
    url: String,
}

impl Default for Edge {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".to_owned(),
            body_limit: 64 << 20,
            workers: 2,
            timeouts: Timeouts::default(),
        }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: HumanDuration::from_secs(2), idle: HumanDuration::from_secs(4) }
    }
}

fn with_environment(text: &str, variables: &[(&str, &str)]) -> Result<Layers, SettingsError> {
    let mut layers = Layers::from_str("gateway.toml", text)?;
    let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
    layers.add_environment("WARMPATH", variables)?;
    Ok(layers)
}

fn failure(text: &str) -> String {
    load_str::<Sample>("gateway.toml", text).unwrap_err().to_string()
}

#[test]
fn a_later_layer_wins_key_by_key() {
    let text = "[edge]\nlisten = 'file'\nworkers = 3\n[edge.timeouts]\nconnect = '3s'\n";
    let mut layers = with_environment(
        text,
        &[("WARMPATH__EDGE__WORKERS", "5"), ("WARMPATH__EDGE__TIMEOUTS__CONNECT", "250ms")],
    )
    .unwrap();
    layers.set("edge.workers", 7.into(), "flag".to_owned()).unwrap();
    let edge = layers.read::<Sample>().unwrap().edge;
    assert_eq!(edge.listen, "file");
    assert_eq!(edge.workers, 7, "flag over environment over file");
    assert_eq!(edge.timeouts.connect, HumanDuration::from_millis(250), "environment over file");
    assert_eq!(edge.timeouts.idle, HumanDuration::from_secs(4), "the default stands");
    assert_eq!(edge.body_limit, 64 << 20);
}

#[test]
fn no_layer_at_all_gives_the_defaults() {
    let loaded = load::<Sample>(None, "WARMPATH_SETTINGS_TEST_UNSET", &[]).unwrap();
    assert_eq!(loaded, Sample::default());
}

#[test]
fn a_file_is_read_from_its_path_and_flags_win_over_it() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"edge.workers = 9\nedge.listen = 'x'\n").unwrap();
    let flags = [parse_override("edge.workers=11").unwrap()];
    let unset = "WARMPATH_SETTINGS_TEST_UNSET";
    let loaded = load::<Sample>(Some(file.path()), unset, &flags).unwrap();
    assert_eq!((loaded.edge.workers, loaded.edge.listen.as_str()), (11, "x"));

    let absent = file.path().with_extension("absent");
    let error = load::<Sample>(Some(&absent), unset, &[]).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}: cannot be read", absent.display())), "{error}");
}

#[test]
fn environment_values_are_toml_literals_or_else_strings() {
    let layers = with_environment(
        "",
        &[
            ("WARMPATH__EDGE__LISTEN", "127.0.0.1:1"),
            ("WARMPATH__EDGE__WORKERS", " 4 "),
            ("WARMPATH__SECRET", r#"{ env = "A" }"#),
            ("WARMPATH__BACKENDS", r#"[{ id = "a", url = "b" }]"#),
            ("WARMPATH_OTHER", "one underscore is not ours"),
            ("PATH", "nor is this"),
        ],
    )
    .unwrap();
    let loaded = layers.read::<Sample>().unwrap();
    assert_eq!(loaded.edge.listen, "127.0.0.1:1");
    assert_eq!(loaded.edge.workers, 4);
    assert_eq!(loaded.secret, Some(SecretRef::Env("A".to_owned())));
    assert_eq!(loaded.backends[0].url, "b");
}

#[test]
fn a_variable_with_too_few_underscores_is_told_how_it_is_written() {
    let read = |variables: &[(&str, &str)]| {
        let layers = with_environment("secret = { env = 'WARMPATH_EDGE_WORKERS' }", variables)?;
        layers.read::<Sample>()
    };
    for (wrong, right) in [
        ("WARMPATH_EDGE_LISTEN", "WARMPATH__EDGE__LISTEN"),
        ("WARMPATH_EDGE__LISTEN", "WARMPATH__EDGE__LISTEN"),
        ("WARMPATH_EDGE_BODY_LIMIT", "WARMPATH__EDGE__BODY_LIMIT"),
        ("WARMPATH_EDGE_TIMEOUTS_IDLE", "WARMPATH__EDGE__TIMEOUTS__IDLE"),
        ("WARMPATH_BACKENDS", "WARMPATH__BACKENDS"),
    ] {
        let error = read(&[(wrong, "1")]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("environment {wrong}: ")), "{error}");
        assert!(error.ends_with(&format!("write {right}")), "{error}");
    }
    let fine = [
        // It holds a secret that a key refers to, though it has the name of another.
        ("WARMPATH_EDGE_WORKERS", "hush"),
        // The name of a key that is a reference, for the secret itself.
        ("WARMPATH_SECRET", "hush"),
        // What platforms make of a service called warmpath-edge.
        ("WARMPATH_EDGE_SERVICE_HOST", "10.0.0.1"),
        ("WARMPATH_EDGE_PORT_8080_TCP_ADDR", "10.0.0.1"),
        // Of another program.
        ("WARMPATH_CLI__ADMIN", "http://127.0.0.1:1"),
        ("WARMPATH_", ""),
    ];
    assert!(read(&fine).is_ok(), "{:?}", read(&fine));
}

#[test]
fn a_value_cannot_smuggle_in_a_second_key() {
    let variables = [("WARMPATH__EDGE__LISTEN", "\"a\"\nworkers = 9")];
    let loaded = with_environment("", &variables).unwrap().read::<Sample>().unwrap();
    assert_eq!(loaded.edge.workers, 2);
    assert_eq!(loaded.edge.listen, "\"a\"\nworkers = 9");
}

#[test]
fn an_unknown_key_is_named_in_full_with_its_line_and_the_allowed_ones() {
    assert_eq!(
        failure("[edge]\nworkers = 1\n[edge.timeouts]\nconect = '1s'\n"),
        "gateway.toml: edge.timeouts.conect: unknown key; did you mean `connect`? \
         allowed keys: connect, idle (line 4)"
    );
    let top = failure("egde = 1");
    assert!(top.starts_with("gateway.toml: egde: unknown key; did you mean `edge`?"), "{top}");
}

#[test]
fn a_wrong_type_or_form_is_named_in_full() {
    assert_eq!(
        failure("[edge]\nworkers = 'two'"),
        "gateway.toml: edge.workers: wrong type: got string \"two\", expected u16 (line 2)"
    );
    let duration = failure("edge.timeouts.connect = 2");
    assert!(duration.contains("edge.timeouts.connect: wrong type: got integer `2`"), "{duration}");
    assert!(duration.contains("expected a duration such as"), "{duration}");
    let form = failure("edge.timeouts.connect = '2 parsecs'");
    assert!(
        form.contains("edge.timeouts.connect: `2 parsecs` is not a duration such as"),
        "{form}"
    );
    let item = failure("[[backends]]\nid = 'a'\nurl = 'b'\n[[backends]]\nid = 'c'\nurl = 1");
    assert!(item.contains("backends[1].url: wrong type"), "{item}");
    assert!(item.contains("(line 6)"), "{item}");
    let missing = failure("[[backends]]\nid = 'a'");
    assert_eq!(missing, "gateway.toml: backends[0].url: is missing (line 1)");
}

#[test]
fn a_file_that_is_no_toml_is_one_line_with_its_position() {
    let error = failure("[edge]\nlisten = \n");
    assert!(error.starts_with("gateway.toml: line 2: "), "{error}");
    assert_eq!(error.lines().count(), 1);
}

#[test]
fn the_place_of_an_error_is_the_layer_that_set_the_key() {
    let variables =
        [("WARMPATH__EDGE__WORKERS", "many"), ("WARMPATH__EDGE__TIMEOUTS", "{ a = 1 }")];
    let layers = with_environment("[edge]\nworkers = 1", &variables[..1]).unwrap();
    let error = layers.read::<Sample>().unwrap_err().to_string();
    assert!(error.starts_with("environment WARMPATH__EDGE__WORKERS: edge.workers: "), "{error}");

    let layers = with_environment("", &variables[1..]).unwrap();
    let error = layers.read::<Sample>().unwrap_err().to_string();
    assert!(
        error.starts_with("environment WARMPATH__EDGE__TIMEOUTS: edge.timeouts.a: unknown key"),
        "{error}"
    );

    let mut layers = with_environment("", &[]).unwrap();
    layers.set("edge.workers", true.into(), "flag edge.workers".to_owned()).unwrap();
    let error = layers.read::<Sample>().unwrap_err().to_string();
    assert!(error.starts_with("flag edge.workers: edge.workers: wrong type"), "{error}");
}

#[test]
fn a_later_check_gets_its_place_and_line_too() {
    let layers = with_environment("[[backends]]\nid = 'a'\n[[backends]]\nid = 'a'\n", &[]).unwrap();
    let error = layers.explain(SettingsError::new("backends[1].id", "`a` is taken"));
    assert_eq!(error.to_string(), "gateway.toml: backends[1].id: `a` is taken (line 4)");
}

#[test]
fn names_that_are_no_keys_are_refused() {
    assert!(with_environment("", &[("WARMPATH__", "1")]).is_err());
    assert!(with_environment("", &[("WARMPATH__EDGE____LISTEN", "1")]).is_err());
    assert!(parse_override("edge.listen").is_err());
    assert!(parse_override("=1").is_err());
    assert!(parse_override("edge..listen=1").is_err());
    assert_eq!(parse_override("a.b=a=b").unwrap(), ("a.b".to_owned(), "a=b".into()));
}

#[test]
fn printed_settings_read_back_and_hide_credentials() {
    let text =
        "secret = { file = '/run/key' }\n[[backends]]\nid = 'a'\nurl = 'http://u:p@h:1/v1'\n";
    let printed = to_toml(&load_str::<Sample>("a", text).unwrap()).unwrap();
    assert!(!printed.contains("u:p"), "{printed}");
    let again = load_str::<Sample>("printed", &printed).unwrap();
    assert_eq!(again.backends[0].url, "http://[redacted]@h:1/v1");
    assert_eq!(again.secret, Some(SecretRef::File("/run/key".into())));
    assert_eq!(again.edge, Edge::default());
}
