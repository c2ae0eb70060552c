//! What is printed, and where the API is looked for.

mod tls;

use clap::Parser;
use serde_json::json;

use super::client::{Client, encode};
use super::table::Table;
use super::{Connection, moment, text};

#[test]
fn moments_are_dates_in_utc() {
    for (milliseconds, date) in [
        (0_u64, "1970-01-01T00:00:00Z"),
        (951_782_400_000, "2000-02-29T00:00:00Z"),
        (951_868_799_999, "2000-02-29T23:59:59Z"),
        (951_868_800_000, "2000-03-01T00:00:00Z"),
        (1_795_977_334_686, "2026-11-29T18:35:34Z"),
        (4_107_542_400_000, "2100-03-01T00:00:00Z"),
    ] {
        assert_eq!(moment(&json!(milliseconds)), date);
    }
    assert_eq!(moment(&json!(null)), "-");
}

#[test]
fn a_table_is_as_wide_as_its_entries_and_steers_no_terminal() {
    let rows =
        [vec!["gpu-0".to_owned(), "x\u{1b}[31m".to_owned()], vec!["ü".to_owned(), "y".to_owned()]];
    let table = Table::new(&["ID", "B"], rows).to_string();
    assert_eq!(table, "ID     B\ngpu-0  x\u{fffd}[31m\nü      y\n");
    assert_eq!(Table::new(&["ID"], []).to_string(), "(none)\n");
}

#[test]
fn nothing_of_an_answer_steers_a_terminal_and_scripts_read_the_same() {
    let said = json!({"a": "x\u{1b}]0;y\u{7}\u{9b}31m\u{202e}\n\u{7f}z", "n": ["\u{9b}"], "o": {"\u{9b}": 1}});
    for shown in [text(&said, "/a"), text(&said, "/n"), text(&said, "/o"), super::json(&said)] {
        assert!(!shown.chars().any(|c| c != '\n' && super::steers(c)), "{shown:?}");
    }
    assert!(!text(&said, "/a").contains('\n'));
    let read: serde_json::Value = serde_json::from_str(&super::json(&said)).unwrap();
    assert_eq!(read, said);
}

#[test]
fn fields_are_shown_as_people_read_them() {
    let value = json!({"a": {"b": ["x", 1]}, "n": null, "e": [], "t": true});
    assert_eq!(text(&value, "/a/b"), "x,1");
    for absent in ["/n", "/e", "/zzz"] {
        assert_eq!(text(&value, absent), "-");
    }
    assert_eq!(text(&value, "/t"), "true");
    assert_eq!(encode("meta/llama 3"), "meta%2Fllama%203");
}

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    connection: Connection,
}

fn fault(flags: &[&str]) -> String {
    let flags = Flags::parse_from(["x"].iter().chain(flags));
    flags.connection.client().map(|_: Client| ()).unwrap_err().to_string()
}

#[test]
fn settings_that_cannot_be_used_are_named() {
    for odd in ["gpu", "ftp://a:1", "http://u:p@a:1", "http://a:1/admin/v1", "http://a:1?x=1"] {
        let error = fault(&["--admin", odd]);
        assert!(error.starts_with("flag admin: admin: http://HOST:PORT"), "{error}");
    }
    let key = ["--token-env", "PATH", "--admin"];
    let far = fault(&[&key[..], &["http://10.0.0.1:9091"]].concat());
    assert!(far.contains("--allow-plaintext") && far.contains("admin: "), "{far}");
    for fine in ["http://localhost:1", "http://[::1]:1", "http://127.0.0.1:1"] {
        let flags = Flags::parse_from(["x"].iter().chain(&key).chain(&[fine]));
        flags.connection.client().map(|_: Client| ()).unwrap();
    }
    let open = [&key[..], &["http://10.0.0.1:9091", "--allow-plaintext"]].concat();
    let flags = Flags::parse_from(["x"].iter().chain(&open));
    flags.connection.client().map(|_: Client| ()).unwrap();
    let error = fault(&["--ca", "/nowhere/ca.pem"]);
    assert!(error.contains("tls.ca: /nowhere/ca.pem"), "{error}");
    let error = fault(&["--token-env", "WARMPATH_TEST_NOT_SET"]);
    assert!(error.contains("token: environment variable WARMPATH_TEST_NOT_SET"), "{error}");
}
