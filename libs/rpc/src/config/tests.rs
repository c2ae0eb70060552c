use settings::load_str;

use super::*;

fn check(text: &str) -> Result<ServerConfig, String> {
    let raw: RawServerConfig = load_str("test.toml", text).map_err(|e| e.to_string())?;
    ServerConfig::new(raw).map_err(|e| e.to_string())
}

#[test]
fn plain_text_stays_on_this_machine_unless_it_is_allowed() {
    check("listen = '127.0.0.1:7000'").unwrap();
    check("listen = '[::1]:7000'").unwrap();
    let error = check("listen = '10.0.0.1:7000'").unwrap_err();
    assert!(error.starts_with("listen: without TLS only a loopback"), "{error}");
    check("listen = '10.0.0.1:7000'\nallow_plaintext = true").unwrap();
}

#[test]
fn peers_are_told_an_address_that_they_can_use() {
    let error = check("listen = '0.0.0.0:7000'\nallow_plaintext = true").unwrap_err();
    assert!(error.starts_with("address: it is needed"), "{error}");
    let config =
        check("listen = '0.0.0.0:7000'\nallow_plaintext = true\naddress = 'http://router-1:7000'")
            .unwrap();
    assert_eq!(config.address("0.0.0.0:7000".parse().unwrap()), "http://router-1:7000");
    let config = check("listen = '127.0.0.1:0'").unwrap();
    assert_eq!(config.address("127.0.0.1:4321".parse().unwrap()), "http://127.0.0.1:4321");
    let wrong = ["router-1:7000", "http://router-1", "ftp://a:1", "http://a:1/x", "http://u@a:1"];
    for address in wrong {
        let text = format!("allow_plaintext = true\naddress = '{address}'");
        let error = check(&text).unwrap_err();
        assert!(error.starts_with("address: http://HOST:PORT or"), "{address}: {error}");
    }
    assert!(check("address = 'https://a:1'").unwrap_err().contains("https needs tls.cert"));
}

#[test]
fn misspelt_keys_and_halves_of_tls_are_errors() {
    for text in ["listn = '127.0.0.1:1'", "[tls]\ncertificate = 'a'", "plaintext = true"] {
        assert!(check(text).unwrap_err().contains("unknown key"), "{text}");
    }
    for (text, key) in [
        ("cert = 'a'", "tls.key"),
        ("cert = 'a'\nkey = { env = 'K' }", "tls.ca"),
        ("ca = 'a'", "tls.cert"),
        ("key = { env = 'K' }", "tls.cert"),
    ] {
        let error = check(&format!("[tls]\n{text}")).unwrap_err();
        assert!(error.starts_with(&format!("{key}: TLS is mutual")), "{error}");
    }
}

#[test]
fn a_port_for_people_needs_no_authority_and_never_half_a_certificate() {
    use crate::https::ServerTls;

    assert!(ServerTls::new(&RawTls::default()).unwrap().is_none());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "-----BEGIN CERTIFICATE-----\n!\n").unwrap();
    let path = || Some(file.path().to_owned());
    let key = || Some(SecretRef::File(file.path().to_owned()));
    let whole = RawTls { cert: path(), key: key(), ca: None };
    for (raw, fault) in [
        (RawTls { ca: path(), ..RawTls::default() }, "cert: is missing"),
        (RawTls { key: None, ..whole.clone() }, "key: is missing"),
        (RawTls { cert: None, ..whole.clone() }, "cert: is missing"),
        (whole, "cert: "),
    ] {
        let error = ServerTls::new(&raw).unwrap_err().to_string();
        assert!(error.starts_with(fault), "{error}");
    }
}

#[test]
fn files_that_hold_no_certificate_are_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "nothing").unwrap();
    let path = file.path().display().to_string();
    let text = format!("[tls]\ncert = '{path}'\nca = '{path}'\nkey = {{ file = '{path}' }}");
    let error = check(&text).unwrap_err();
    assert!(error.starts_with("tls.cert: ") && error.contains("no certificate"), "{error}");
}

#[test]
fn peers_without_tls_are_called_on_this_machine_alone() {
    let plain = ClientConfig::new(RawClientConfig::default()).unwrap();
    let _runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = _runtime.enter();
    for address in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1"] {
        plain.channel(address).unwrap();
    }
    for address in ["http://10.0.0.1:1", "http://router-1:1", "https://127.0.0.1:1"] {
        let error = plain.channel(address).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot call {address}: ")), "{error}");
    }
    let open = RawClientConfig { allow_plaintext: true, ..RawClientConfig::default() };
    ClientConfig::new(open).unwrap().channel("http://router-1:1").unwrap();
}
