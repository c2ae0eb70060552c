//! What is wrong with a config is said with its key, and nothing is started.

use credentials::GeneratedKey;

use crate::process::{ConfigFile, Serving, chat, double, get, read_until, warmpath};

const BACKEND: &str = "[[backends]]\nid = \"a\"\nurl = \"http://127.0.0.1:1\"\n";

#[test]
fn a_config_that_cannot_be_used_is_refused_with_its_key_and_exit_code_64() {
    let more = |text: &str| format!("{text}\n{BACKEND}");
    let after = |text: &str| format!("{BACKEND}{text}");
    let twice = GeneratedKey::generate("t").unwrap().config_lines().repeat(2);
    for (text, key) in [
        (String::new(), "backends"),
        (more("[edge]\nlistn = \"127.0.0.1:1\""), "edge.listn"),
        (more("[edgy]\nlisten = \"127.0.0.1:1\""), "edgy"),
        (more("[edge.timeouts]\nconect = \"1s\""), "edge.timeouts.conect"),
        (more("[edge.timeouts]\nconnect = \"soon\""), "edge.timeouts.connect"),
        (more("[edge]\nlisten = \"nowhere\""), "edge.listen"),
        (more("[edge]\nlisten = \"0.0.0.0:1\""), "edge.listen"),
        (
            more("[admin]\nlisten = \"127.0.0.1:8080\""),
            "admin.listen: 127.0.0.1:8080 is taken by edge",
        ),
        (more("[admin_api]\nlisten = \"127.0.0.1:1\""), "admin_api.tokens"),
        (BACKEND.replace("[[backends]]", "[backends]"), "write [[backends]] in two brackets"),
        (BACKEND.replace("url", "ulr"), "did you mean `url`?"),
        (more("[router]\npolicy = \"luck\""), "router.policy"),
        (more("[router]\neviction_weight = -1.0"), "router.eviction_weight"),
        (more("[admin]\ndrain = \"1s\""), "admin.drain"),
        (more("[log]\nformat = \"xml\""), "log.format"),
        (after("wieght = 1"), "backends[0].wieght"),
        (after(BACKEND), "backends[1].id"),
        (after("[[backends]]\nid = \"b\"\nurl = \"127.0.0.1:1\""), "backends[1].url"),
        (after("[[backends]]\nid = \"b\"\nurl = \"ftp://x\""), "backends[1].url"),
        (after("[[backends]]\nid = \"b\"\nurl = \"http://x/v1\""), "backends[1].url"),
        (after("[[backends]]\nid = \"b\""), "backends[1].url"),
        (after("[[backends]]\nid = \"\"\nurl = \"http://x\""), "backends[1].id"),
        (after("[[models]]\nid = \"m\"\nfolder = \"/no/such/folder\""), "models[0].folder"),
        (after("[[tenants]]\nid = \"t\"\n[[tenants]]\nid = \"t\""), "tenants[1].id"),
        (after("[[tenants]]\nid = \"t\"\nrpm = 1"), "tenants[0].rpm"),
        (after(&format!("[[tenants]]\nid = \"t\"\n{twice}")), "keys[1].id"),
        (after("[[keys]]\nid = \"k\"\ntenant = \"t\"\nsha256 = \"00\""), "keys[0]"),
        (after("[region.secret]\nenv = \"NO_SUCH_VARIABLE\""), "region.secret"),
        (after("[[backends]]\nid = \"b\"\nurl = \"http://x?y=1\""), "has a query"),
    ] {
        let file = ConfigFile::new(&text);
        for mode in [&["--check-config"][..], &[]] {
            let args = [&["serve", "--config", file.arg()], mode].concat();
            let (code, _, stderr) = warmpath(&args);
            assert_eq!(code, Some(64), "{text}\n{stderr}");
            assert!(stderr.contains(key), "{key} is not named in: {stderr}");
        }
    }
}

#[test]
fn text_that_is_no_toml_and_a_file_that_is_not_there_are_refused_too() {
    let file = ConfigFile::new("[edge\n");
    let (code, _, stderr) = warmpath(&["serve", "--config", file.arg()]);
    assert_eq!(code, Some(64));
    assert!(stderr.contains("warmpath.toml"), "{stderr}");
    let (code, _, stderr) = warmpath(&["serve", "--config", "/no/such/file.toml"]);
    assert_eq!(code, Some(64));
    assert!(stderr.contains("/no/such/file.toml"), "{stderr}");
    let file = ConfigFile::new(BACKEND);
    let set = ["serve", "--config", file.arg(), "--set", "edge.listn=1", "--check-config"];
    let (code, _, stderr) = warmpath(&set);
    assert_eq!(code, Some(64));
    assert!(stderr.contains("edge.listn"), "{stderr}");
}

#[test]
fn a_valid_config_can_be_checked_and_printed_with_its_defaults() {
    let file = ConfigFile::new(BACKEND);
    let (code, stdout, stderr) = warmpath(&["serve", "--config", file.arg(), "--check-config"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    let (code, printed, _) = warmpath(&["serve", "--config", file.arg(), "--print-config"]);
    assert_eq!(code, Some(0));
    for part in ["[edge.timeouts]", "first_token = \"2m\"", "[[backends]]", "drain_timeout"] {
        assert!(printed.contains(part), "{part} is not in\n{printed}");
    }
    // What is printed is a config.
    let again = ConfigFile::new(&printed);
    assert_eq!(warmpath(&["serve", "--config", again.arg(), "--check-config"]).0, Some(0));
}

#[test]
fn a_port_that_is_taken_is_told_and_is_no_fault_of_the_config() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("[edge]\nlisten = \"{}\"\n", taken.local_addr().unwrap());
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let file = ConfigFile::new(&format!("{listen}{admin}{BACKEND}"));
    let (code, _, stderr) = warmpath(&["serve", "--config", file.arg()]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("edge.listen"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_works_with_the_lines_that_are_printed_beside_it() {
    let (code, stdout, lines) = warmpath(&["key", "offline", "--tenant", "team"]);
    assert_eq!(code, Some(0));
    let key = stdout.trim_end();
    assert!(key.starts_with("sk-wp-") && key.lines().count() == 1, "{stdout}");
    assert!(lines.contains("[[keys]]"), "{lines}");
    let secret = key.rsplit_once('-').unwrap().1;
    assert!(!lines.contains(secret), "only its hash goes into the config");

    let double = double(|double| double).await;
    let file = ConfigFile::before(&double, "");
    let text = std::fs::read_to_string(file.path()).unwrap();
    std::fs::write(file.path(), format!("{text}{lines}")).unwrap();
    let gateway = Serving::start(&file);
    assert!(get(gateway.edge, "/v1/models").starts_with("HTTP/1.1 401"));
    let bearer = format!("authorization: Bearer {key}\r\n");
    read_until(&mut chat(gateway.edge, &bearer, "Hello", 3), "[DONE]");
    let api_key = format!("x-api-key: {key}\r\n");
    read_until(&mut chat(gateway.edge, &api_key, "Hello", 3), "[DONE]");
    let wrong = format!("authorization: Bearer {key}0\r\n");
    read_until(&mut chat(gateway.edge, &wrong, "Hello", 3), "invalid_api_key");
}
