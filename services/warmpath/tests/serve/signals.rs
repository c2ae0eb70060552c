//! What becomes of open streams when the gateway is told to end.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use warmpath::double::Fault;

use crate::process::{ConfigFile, Serving, chat, double, get, read_until, rest};

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_lets_an_open_stream_end_and_then_the_process() {
    let double = double(|double| double.itl(Duration::from_millis(20))).await;
    let mut gateway = Serving::start(&ConfigFile::before(&double, ""));
    let mut stream = chat(gateway.edge, "", "Long", 40);
    let seen = read_until(&mut stream, "\"content\":");
    gateway.signal("TERM");
    gateway.await_line("draining");
    let ready = get(gateway.admin, "/readyz");
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    assert!(get(gateway.admin, "/healthz").starts_with("HTTP/1.1 200"));
    let all = rest(stream, seen);
    assert!(all.contains("data: [DONE]"), "{all}");
    assert!(!all.contains("\"error\""), "{all}");
    assert_eq!(gateway.await_exit().code(), Some(0));
    assert!(std::net::TcpStream::connect(gateway.edge).is_err());
    assert_eq!(double.stats().cancelled, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_gateway_ends_at_once_on_sigint_too() {
    let double = double(|double| double).await;
    let mut gateway = Serving::start(&ConfigFile::before(&double, ""));
    // A kept connection without a request does not hold it up.
    let kept = std::net::TcpStream::connect(gateway.edge).unwrap();
    gateway.signal("INT");
    assert_eq!(gateway.await_exit().code(), Some(0));
    drop(kept);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_hangs_is_ended_with_an_error_event_when_the_drain_is_over() {
    let double = double(|double| double).await;
    double.set_fault("stall-after=2".parse::<Fault>().unwrap());
    let config = ConfigFile::before(&double, "admin.drain_timeout = \"2s\"");
    let mut gateway = Serving::start(&config);
    let mut stream = chat(gateway.edge, "", "Hangs", 40);
    let seen = read_until(&mut stream, "\"content\":");
    gateway.signal("TERM");
    let all = rest(stream, seen);
    assert!(all.contains("\"error\""), "{all}");
    assert!(all.contains("data: [DONE]"), "{all}");
    assert_eq!(gateway.await_exit().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_process_at_once() {
    let double = double(|double| double).await;
    double.set_fault("stall-after=2".parse::<Fault>().unwrap());
    for (second, code) in [("TERM", 143), ("INT", 130)] {
        let mut gateway = Serving::start(&ConfigFile::before(&double, ""));
        let mut stream = chat(gateway.edge, "", "Hangs", 40);
        read_until(&mut stream, "\"content\":");
        gateway.signal("TERM");
        gateway.await_line("draining");
        gateway.signal(second);
        let status = gateway.await_exit();
        assert_eq!((status.code(), status.signal()), (Some(code), None));
    }
}
