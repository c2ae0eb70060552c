use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use settings::load_str;

use super::*;

fn check(text: &str) -> Result<NatsConfig, String> {
    let raw: RawNatsConfig = load_str("test.toml", text).map_err(|e| e.to_string())?;
    NatsConfig::new(raw).map_err(|e| e.to_string())
}

fn secret(content: &str) -> (tempfile::NamedTempFile, String) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content.as_bytes()).unwrap();
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
    let reference = format!("{{ file = {:?} }}", file.path());
    (file, reference)
}

#[test]
fn the_defaults_are_a_server_on_this_machine() {
    let config = check("").unwrap();
    assert_eq!(config.servers().len(), 1);
    assert!(matches!(config.identity, Identity::None));
    assert_eq!(config.reconnect_limit(), Duration::from_secs(5));
}

#[test]
fn misspelt_keys_are_errors() {
    for text in ["server = []", "[tls]\nrequire = true", "user_name = 'a'"] {
        let error = check(text).unwrap_err();
        assert!(error.contains("unknown key"), "{error}");
    }
}

#[test]
fn odd_servers_are_refused_without_being_shown() {
    let odd =
        ["", "nats://", "http://a:1", "nats://u:hunter2@a:1", "nats://hunter2@a", "wss://a:1"];
    for server in odd {
        let error = check(&format!("servers = [{server:?}]")).unwrap_err();
        assert!(error.contains("servers[0]"), "{server}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    assert!(check("servers = []").unwrap_err().contains("at least one"));
    check("servers = ['nats://a:1', 'tls://b.example:4443', '[::1]:4222']").unwrap();
}

#[test]
fn one_kind_of_credentials_is_taken() {
    let (_file, secret) = secret("hunter2");
    let user = check(&format!("user = 'u'\npassword = {secret}")).unwrap();
    assert!(!format!("{user:?}").contains("hunter2"));
    check(&format!("nkey = {secret}")).unwrap();
    for (text, key) in [
        ("user = 'u'".to_owned(), "password"),
        (format!("password = {secret}"), "user"),
        (format!("nkey = {secret}\nuser = 'u'\npassword = {secret}"), "only one"),
        (format!("nkey = {secret}\ncredentials = {secret}"), "only one"),
        (format!("credentials = {secret}"), "credentials"),
        ("nkey = { env = 'WARMPATH_BUS_TEST_UNSET' }".to_owned(), "nkey"),
    ] {
        let error = check(&text).unwrap_err();
        assert!(error.contains(key), "{text}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_certificate_comes_with_its_key() {
    let (file, secret) = secret("a key");
    let path = file.path();
    let error = |text: String| check(&format!("[tls]\n{text}")).unwrap_err();
    assert!(error(format!("cert = {path:?}")).contains("tls.key"));
    assert!(error(format!("key = {secret}")).contains("tls.cert"));
    assert!(error(format!("cert = {path:?}\nkey = {{ env = 'PATH' }}")).contains("tls.key"));
    assert!(error("ca = '/nowhere/ca.pem'".to_owned()).contains("tls.ca"));
    check(&format!("[tls]\ncert = {path:?}\nkey = {secret}\nca = {path:?}")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(error(format!("cert = {path:?}\nkey = {secret}")).contains("chmod 600"));
}

#[test]
fn times_are_more_than_zero() {
    for key in ["connect_timeout", "reconnect_limit"] {
        assert!(check(&format!("{key} = '0s'")).unwrap_err().contains(key));
    }
}
