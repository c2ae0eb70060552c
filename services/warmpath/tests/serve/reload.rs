//! The config is read again while the process runs.

use std::time::Duration;

use crate::process::{ConfigFile, Serving, chat, double, get, read_until, rest};

const ALIAS: &str = "[[edge.aliases]]\nid = \"other\"\nmodels = [\"warmpath-double\"]\n";

fn append(config: &ConfigFile, more: &str) {
    let text = std::fs::read_to_string(config.path()).unwrap();
    std::fs::write(config.path(), format!("{text}{more}")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hang_up_puts_a_valid_config_in_force_and_refuses_another_with_its_key_and_line() {
    let double = double(|double| double.itl(Duration::from_millis(20))).await;
    let config = ConfigFile::before(&double, "");
    let mut gateway = Serving::start(&config);
    let mut open = chat(gateway.edge, "", "Long", 40);
    let seen = read_until(&mut open, "\"content\":");
    append(&config, ALIAS);
    gateway.signal("HUP");
    gateway.await_line("is in force");
    assert!(get(gateway.edge, "/v1/models").contains("\"other\""));

    append(&config, "[edge.timeouts]\nconect = \"1s\"\n");
    gateway.signal("HUP");
    let refused = gateway.await_line("is refused");
    assert!(refused.contains("edge.timeouts.conect: unknown key"), "{refused}");
    assert!(refused.contains("warmpath.toml: ") && refused.contains("(line "), "{refused}");
    assert!(get(gateway.edge, "/v1/models").contains("\"other\""));
    let page = get(gateway.admin, "/metrics");
    assert!(page.contains("warmpath_config_reloads_total{result=\"invalid\"} "), "{page}");
    assert!(page.contains("warmpath_config_stale 1"), "{page}");
    assert!(rest(open, seen).contains("data: [DONE]"));
    // A SIGHUP is no second signal.
    let mut last = chat(gateway.edge, "", "Long", 40);
    let seen = read_until(&mut last, "\"content\":");
    gateway.signal("TERM");
    gateway.await_line("draining");
    gateway.signal("HUP");
    assert!(rest(last, seen).contains("data: [DONE]"));
    assert_eq!(gateway.await_exit().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changed_is_read_without_a_signal() {
    let double = double(|double| double).await;
    let config = ConfigFile::before(&double, "");
    let mut gateway = Serving::start(&config);
    append(&config, "[log]\nlevel = \"info\"\n");
    // The key is there twice now.
    gateway.await_line("is refused");
    let text = std::fs::read_to_string(config.path()).unwrap();
    let text = text.replace("log.level = \"debug\"\n", "") + ALIAS;
    std::fs::write(config.path(), text).unwrap();
    gateway.await_line("is in force");
    assert!(get(gateway.edge, "/v1/models").contains("\"other\""));
    let text = std::fs::read_to_string(config.path()).unwrap();
    let moved = text.replace("edge.listen = \"127.0.0.1:0\"", "edge.listen = \"127.0.0.1:1\"");
    std::fs::write(config.path(), moved).unwrap();
    let refused = gateway.await_line("is refused");
    assert!(refused.contains("edge.listen: ") && refused.contains("restart"), "{refused}");
    gateway.signal("TERM");
    assert_eq!(gateway.await_exit().code(), Some(0));
}
