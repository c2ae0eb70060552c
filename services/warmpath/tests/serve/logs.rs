//! Logs are JSON, name each request, and hold nothing of what it says or whose key it has.

use credentials::GeneratedKey;
use serde_json::Value;

use crate::process::{ConfigFile, Serving, chat, double, find, read_until};

#[tokio::test(flavor = "multi_thread")]
async fn logs_hold_request_ids_and_neither_content_nor_keys() {
    let double = double(|double| double).await;
    let key = GeneratedKey::generate("team").unwrap();
    let file = ConfigFile::before(&double, "");
    let text = std::fs::read_to_string(file.path()).unwrap();
    let tenant = format!("[[tenants]]\nid = \"team\"\n{}", key.config_lines());
    // As much as can be said.
    let text = text.replace("\"debug\"", "\"trace\"") + &tenant;
    std::fs::write(file.path(), text).unwrap();
    let mut gateway = Serving::start(&file);

    let secret = key.secret_text();
    let headers = format!("authorization: Bearer {secret}\r\nx-request-id: seen-by-client\r\n");
    let answer =
        read_until(&mut chat(gateway.edge, &headers, "Tell nobody about zanzibar", 4), "[DONE]");
    read_until(&mut chat(gateway.edge, &headers, "zanzibar again", 3), "[DONE]");
    let wrong = format!("authorization: Bearer {secret}tail\r\n");
    read_until(&mut chat(gateway.edge, &wrong, "zanzibar", 3), "invalid_api_key");
    double.set_fault("reset".parse().unwrap());
    read_until(&mut chat(gateway.edge, &headers, "zanzibar fails", 3), "upstream_unavailable");
    double.clear_faults();
    gateway.signal("TERM");
    assert_eq!(gateway.await_exit().code(), Some(0));

    let entries: Vec<Value> = gateway
        .logged
        .iter()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let requests: Vec<&Value> =
        entries.iter().filter(|entry| entry.to_string().contains("request.id")).collect();
    let ended: Vec<_> = requests.iter().filter(|e| e.to_string().contains("\"outcome\"")).collect();
    assert_eq!(ended.len(), 4, "one line for each request: {ended:?}");
    assert_eq!(find(ended[0], "request.client_id"), "seen-by-client");
    assert_eq!(find(ended[0], "tenant.id"), "team");
    assert_eq!(find(ended[0], "outcome"), "ok");
    assert_eq!(find(ended[0], "status"), "200");

    // Words of the answer, too.
    let said = answer.split("\"content\":\"").filter_map(|part| part.split('"').next());
    let longest = said.filter(|word| !word.contains("HTTP")).max_by_key(|word| word.len()).unwrap();
    let secret_part = secret.rsplit_once('-').unwrap().1;
    for line in &gateway.logged {
        for never in ["zanzibar", "Tell nobody", secret_part, "Bearer sk-"] {
            assert!(!line.contains(never), "{never} was logged: {line}");
        }
        let content = format!("content\\\":\\\"{longest}");
        assert!(longest.len() < 2 || !line.contains(&content), "{longest} was logged: {line}");
    }
}
